# METADATA
# title: Usage
# description: |
#   Bounds on how much a caller uses of a tool within a window of time. toolgate
#   counts what data.usage[tool][meter] describes. Its members hold and deny are
#   the bounds: a call beyond hold waits for a person, a call beyond deny is denied.
#
#     data.usage[tool][meter]
#       {"window": "24h", "sum": "/amount", "per": ["/asset"],
#        "where": {"/action": ["transfer"]},
#        "hold": {"sum": 1000, "calls": 20}, "deny": {"sum": 5000}}
#
#   A bound on a sum is a number, or one for each value of an argument:
#   {"per": "/asset", "most": {"USD": 1000, "BTC": 0.02}}; a value without one is
#   beyond it. The meter should then count the values apart ("per").
#
#   A meter that counts a fact of its tool (data.facts) names it without a slash: "sum":
#   "amount", "per": ["asset"], and so in the bound: {"per": "asset", "most": {"USD": 1000}}.
#   Bounds are in whole units where the fact has decimals for the assets.
#
#   The judged call counts too: ten transfers of 100 are within a sum of 1000, the
#   eleventh is not. A call with a value other than those of where is outside the
#   meter. A missing count, and an amount that is not a number, are beyond every
#   bound.
# custom: {policy-data: [usage]}
package toolgate.lib.usage

import rego.v2

import data.toolgate.lib.arguments
import data.toolgate.lib.facts

# METADATA
# title: The call is beyond a bound of one of the meters
# description: |
#   meters is an entry of data.usage, bound is "hold" or "deny". Every call is beyond a
#   bound on a sum of facts: those are for reached.
beyond(meters, bound) if {
	some name
	most := meters[name][bound].calls
	not {
		is_number(most)
		calls := input.usage[name].calls
		is_number(calls)
		calls < most
	}
	not left_out(meters[name])
}

beyond(meters, bound) if {
	some name
	most := meters[name][bound].sum
	not {
		limit := most.most[arguments.lookup(most.per)]
		is_number(limit)
		amount := arguments.lookup(meters[name].sum)
		is_number(amount)
		used := input.usage[name].sum
		is_number(used)
		used + amount <= limit
	}
	not {
		is_number(most)
		amount := arguments.lookup(meters[name].sum)
		is_number(amount)
		used := input.usage[name].sum
		is_number(used)
		used + amount <= most
	}
	not left_out(meters[name])
}

left_out(meter) if {
	some pointer, values in meter.where
	argument := arguments.lookup(pointer)
	is_array(values)
	not argument in values
}

# METADATA
# title: The call is beyond a bound of the meters of a tool in data.usage
# description: The same as beyond(data.usage[tool], bound), for less, and for facts too.
reached(tool, bound) if {
	some check in checks[bound][tool]
	not {
		limit := check.limits[input.arguments[check.per]]
		amount := input.arguments[check.sum]
		is_number(amount)
		used := input.usage[check.meter].sum
		is_number(used)
		used + amount <= limit
	}
	not {
		limit := check.most
		amount := input.arguments[check.sum]
		is_number(amount)
		used := input.usage[check.meter].sum
		is_number(used)
		used + amount <= limit
	}
	not {
		limit := check.limits[input.facts[check.per]]
		amount := input.facts[check.fact]
		is_number(amount)
		used := input.usage[check.meter].sum
		is_number(used)
		used + amount <= limit
	}
	not {
		limit := check.most
		amount := input.facts[check.fact]
		is_number(amount)
		used := input.usage[check.meter].sum
		is_number(used)
		used + amount <= limit
	}
	not {
		limit := check.calls
		calls := input.usage[check.meter].calls
		is_number(calls)
		calls < limit
	}
	not {
		check.other
		not beyond(check.other, bound)
	}
	not {
		some condition in check.where
		argument := input.arguments[condition.name]
		not argument in condition.values
	}
}

# What follows reads no call, and toolgate evaluates it once for each revision. Every
# bound of a meter becomes one check. A meter that points to nested arguments, or has a
# bound that is not a number, stands in its check as it is in data.
checks := {bound: {tool: found |
	some tool, meters in data.usage
	found := [check | some name, meter in meters; meter[bound]; some check in prepared(tool, name, meter, meter[bound])]
	count(found) > 0
} | some bound in ["deny", "hold"]}

prepared(tool, name, meter, bounds) := array.concat(sums, calls) if {
	is_object(bounds)
	pointers := object.get(meter, "where", {})
	where := [{"name": named(pointer), "values": values} | some pointer, values in pointers; is_array(values)]
	count(where) == count(pointers)
	sums := [check | check := summed(tool, name, meter, bounds.sum, where)]
	calls := [{"meter": name, "calls": bounds.calls, "where": where} | is_number(bounds.calls)]
	count(sums) + count(calls) == count({"sum", "calls"} & object.keys(bounds))
} else := [{"other": {name: meter}}]

summed(_, name, meter, most, where) := {"meter": name, "sum": named(meter.sum), "most": most, "where": where} if is_number(most)

summed(_, name, meter, most, where) := {"meter": name, "sum": named(meter.sum), "per": named(most.per), "limits": limits, "where": where} if {
	limits := {value: limit | some value, limit in most.most; is_number(limit)}
}

summed(tool, name, meter, most, where) := {"meter": name, "fact": meter.sum, "most": most, "where": where} if {
	is_number(most)
	fact_of(tool, meter.sum)
}

summed(tool, name, meter, most, where) := {"meter": name, "fact": meter.sum, "per": most.per, "limits": limits, "where": where} if {
	fact_of(tool, meter.sum)
	limits := {value: limit |
		some value, whole in most.most
		limit := facts.units(tool, meter.sum, value, whole)
		is_number(limit)
	}
}

# fact_of holds for a name that can only be a fact: toolgate refuses a meter that names
# anything else.
fact_of(tool, name) if {
	data.facts[tool]
	is_string(name)
	startswith(name, "/") == false
}

named(pointer) := name if {
	is_string(pointer)
	["", name] = split(pointer, "/")
	contains(name, "~") == false
}
