package toolgate.lib.usage_test

import rego.v2

import data.toolgate.lib.usage

meters := {"day": {
	"window": "24h", "sum": "/amount", "where": {"/action": ["transfer"]},
	"hold": {"sum": 1000, "calls": 20}, "deny": {"sum": 5000},
}}

after(calls, sum, amount) := {
	"arguments": {"action": "transfer", "amount": amount},
	"usage": {"day": {"calls": calls, "sum": sum}},
}

held(document) if usage.beyond(meters, "hold") with input as document

refused(document) if usage.beyond(meters, "deny") with input as document

test_the_eleventh_of_ten if {
	not held(after(0, 0, 1000))
	not held(after(9, 900, 100))
	held(after(10, 1000, 100))
	held(after(1, 1000, 0.01))
	not refused(after(10, 1000, 100))
	refused(after(10, 5000, 0.01))
}

test_calls if {
	not held(after(19, 0, 1))
	held(after(20, 0, 1))
}

test_numbers_are_exact if {
	not usage.beyond({"day": {"sum": "/amount", "deny": {"sum": 1000000000000000000000000000000}}}, "deny") with input as after(0, 999999999999999999999999999999, 1)
	usage.beyond({"day": {"sum": "/amount", "deny": {"sum": 1000000000000000000000000000000}}}, "deny") with input as after(0, 999999999999999999999999999999, 2)
	not usage.beyond({"day": {"sum": "/amount", "deny": {"sum": 0.3}}}, "deny") with input as after(0, 0.1, 0.2)
}

test_what_cannot_be_counted_is_beyond if {
	every amount in [null, true, "1", [1], {}] {
		held(after(0, 0, amount))
	}
	held({"arguments": {"action": "transfer"}, "usage": {"day": {"calls": 0, "sum": 0}}})
	held({"arguments": {"action": "transfer", "amount": 1}})
	held(after(null, 0, 1))
	held(after(0, "0", 1))
	usage.beyond({"day": {"sum": "/amount", "deny": {"sum": "5000"}}}, "deny") with input as after(0, 0, 1)
	usage.beyond({"day": {"deny": {"calls": "5"}}}, "deny") with input as after(0, 0, 1)
	usage.beyond({"day": {"deny": {"sum": 5}}}, "deny") with input as after(0, 0, 1)
}

test_where if {
	not held({"arguments": {"action": "balance"}, "usage": {"day": {"calls": 99, "sum": 9999}}})
	held({"arguments": {}, "usage": {"day": {"calls": 99, "sum": 9999}}})
}

test_no_bound_bounds_nothing if {
	not usage.beyond({"day": {"sum": "/amount"}}, "deny") with input as after(99, 9999, 1)
	not usage.beyond({}, "deny") with input as after(99, 9999, 1)
}

apart := {"day": {"sum": "/amount", "per": ["/asset"], "hold": {"sum": {"per": "/asset", "most": {"USD": 1000, "BTC": 0.01}}}}}

of(asset, sum, amount) := {"arguments": {"asset": asset, "amount": amount}, "usage": {"day": {"calls": 1, "sum": sum}}}

test_a_bound_for_each_value if {
	not usage.beyond(apart, "hold") with input as of("USD", 900, 100)
	usage.beyond(apart, "hold") with input as of("USD", 900, 100.01)
	not usage.beyond(apart, "hold") with input as of("BTC", 0, 0.01)
	usage.beyond(apart, "hold") with input as of("BTC", 0, 1)
	every asset in ["DOGE", null, ["USD"], ""] {
		usage.beyond(apart, "hold") with input as of(asset, 0, 1)
	}
	usage.beyond(apart, "hold") with input as of("USD", "0", 1)
	usage.beyond(apart, "hold") with input as of("USD", 0, "1")
}

counting := {"t": {"day": {
	"sum": "amount", "per": ["asset"], "where": {"/action": ["transfer"]},
	"hold": {"sum": {"per": "asset", "most": {"USD": 1000, "BTC": 0.01, "DOGE": 1}}}, "deny": {"sum": 600000},
}}}

stated(sum, facts) := {"arguments": {"action": "transfer"}, "facts": facts, "usage": {"day": {"calls": 1, "sum": sum}}}

over(bound, document) if usage.reached("t", bound) with input as document
	with data.usage as counting
	with data.facts as {"t": {"amount": {"decimals": {"USD": 2, "BTC": 8}}}}

test_sums_of_facts if {
	not over("hold", stated(90000, {"asset": "USD", "amount": 10000}))
	over("hold", stated(90001, {"asset": "USD", "amount": 10000}))
	not over("hold", stated(0, {"asset": "BTC", "amount": 1000000}))
	over("hold", stated(1, {"asset": "BTC", "amount": 1000000}))
	not over("deny", stated(500000, {"asset": "USD", "amount": 100000}))
	over("deny", stated(500001, {"asset": "USD", "amount": 100000}))
	every facts in [{}, {"asset": "DOGE", "amount": 1}, {"asset": "USD"}, {"amount": 1}, {"asset": "USD", "amount": "1"}] {
		over("hold", stated(0, facts))
	}
	over("deny", object.remove(stated(0, {}), ["facts"]))
	usage.beyond(counting.t, "hold") with input as stated(0, {"asset": "USD", "amount": 1})
}

# agree holds where what is prepared of the meters of a tool gives the same answer as
# the meters themselves.
agree(meters, document) if {
	every bound in ["hold", "deny"] {
		prepared := {true | usage.reached("t", bound) with data.usage as {"t": meters} with input as document}
		prepared == {true | usage.beyond(meters, bound) with input as document}
	}
}

test_reached_is_beyond if {
	sums := [500, "500", null, {"most": {"USD": 500}}, {"per": "/asset", "most": {"USD": 500, "BTC": "1"}}, {"per": "/to/asset", "most": {"USD": 500}}]
	bounds := array.concat([{}, {"calls": 3}, {"calls": "3"}, {"sum": 500, "calls": 3}, {"sum": "500", "calls": 9}, true, false], [{"sum": sum} | some sum in sums])
	every bound in bounds {
		every document in documents {
			agree({"day": {"sum": "/amount", "where": {"/action": ["transfer"]}, "hold": bound}, "week": {"sum": "/to/amount", "deny": bound}}, document)
		}
	}
	every where in [{"/action": "transfer"}, {"/to/asset": ["USD"]}, {"/a~1b": ["x"]}, {}] {
		every document in documents {
			agree({"day": {"sum": "/amount", "where": where, "hold": {"sum": 500}, "deny": {"calls": 3}}}, document)
		}
	}
}

documents := [{"arguments": arguments, "usage": usage} |
	some arguments in [
		{"action": "transfer", "amount": 400, "asset": "USD"}, {"action": "transfer", "amount": 401, "asset": "BTC"},
		{"action": "balance", "amount": "1", "to": {"amount": 401, "asset": "USD"}}, null,
	]
	some usage in [{}, {"day": {"calls": 2, "sum": 100}, "week": {"calls": 3, "sum": 99}}]
]

test_a_tool_without_meters_reaches_nothing if {
	not usage.reached("other", "hold") with data.usage as {"t": meters} with input as after(99, 9999, 1)
}
