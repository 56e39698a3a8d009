package toolgate_test

import rego.v2

import data.toolgate
import data.toolgate.lib.facts

call(role, tool, arguments) := {
	"principal": {"subject": "agent-7", "roles": [role]},
	"tool": {"server": "standard", "name": tool, "exposed": tool, "risk": "high"},
	"arguments": arguments,
	"facts": stating(tool, arguments),
	"request": {"id": "1", "transport": "http"},
	"usage": {"day": {"calls": 0, "sum": 0}},
}

# stating are the facts that toolgate reads of the arguments: of a call of generate_media
# one of the renderer's sizes.
stating("generate_media", _) := {"pixels": 262144}

stating(tool, arguments) := object.union(named, counted) if {
	tool != "generate_media"
	named := {name: value |
		some name in ["asset", "destination"]
		value := arguments[name]
		is_string(value)
	}
	counted := {"amount": units |
		is_number(arguments.amount)
		arguments.amount > 0
		units := facts.units(tool, "amount", arguments.asset, arguments.amount) with data.facts as shipped.facts
	}
}

transfer(amount) := {"action": "transfer", "asset": "USD", "amount": amount, "destination": "acct-1"}

# under is the decision where more replaces members of shipped, the data that toolgate ships.
# The tests bring it along, so that they hold too where data.json was edited.
under(document, more) := verdict if {
	said := object.union(object.filter(shipped, object.keys(shipped) - object.keys(more)), more)
	verdict := decided with input as document
		with data.roles as object.get(said, "roles", {})
		with data.directory as object.get(said, "directory", {})
		with data.models as object.get(said, "models", {})
		with data.facts as object.get(said, "facts", {})
		with data.pixels as object.get(said, "pixels", {})
		with data.thresholds as object.get(said, "thresholds", {})
		with data.known as object.get(said, "known", {})
		with data.usage as object.get(said, "usage", {})
		with data.unmetered as object.get(said, "unmetered", {})
		with data.annotations as object.get(said, "annotations", {})
		with data.approval as object.get(said, "approval", {})
		with data.tools as object.get(said, "tools", {})
		with data.schedules as object.get(said, "schedules", {})
		with data.lists as object.get(said, "lists", {})
}

shipped := {
	"roles": {
		"approver": {
			"tools": {}
		},
		"observer": {
			"tools": {
				"search_internet": true,
				"manage_wallet": {"arguments": {"action": ["balance"]}}
			}
		},
		"researcher": {
			"tools": {
				"search_internet": true,
				"manage_wallet": {"arguments": {"action": ["balance"]}}
			}
		},
		"creator": {
			"tools": {
				"search_internet": true,
				"generate_media": true
			}
		},
		"treasurer": {
			"tools": {
				"search_internet": true,
				"manage_wallet": {"arguments": {"action": ["balance", "transfer", "reconcile"]}}
			}
		}
	},
	"models": {
		"generate_media": {"card-1": true, "poster-1": true, "chart-1": true, "diagram-1": true}
	},
	"facts": {
		"manage_wallet": {"contract": "manage_wallet", "amount": {"decimals": {"USD": 2, "EUR": 2, "BTC": 8, "ETH": 18}}},
		"generate_media": {"contract": "generate_media"},
		"fetch_page": {"contract": "fetch_page"}
	},
	"pixels": {
		"generate_media": 2097152
	},
	"thresholds": {
		"manage_wallet": {"amount": {"per": "asset", "most": {"USD": 100, "EUR": 100, "BTC": 0.001, "ETH": 0.05}}}
	},
	"known": {
		"manage_wallet": {"destination": ["acme", "acct-1"]}
	},
	"usage": {
		"manage_wallet": {
			"day": {
				"window": "24h", "sum": "amount", "per": ["asset"], "where": {"/action": ["transfer"]},
				"hold": {"sum": {"per": "asset", "most": {"USD": 1000, "EUR": 1000, "BTC": 0.01, "ETH": 0.5}}}
			}
		}
	},
	"unmetered": {
		"manage_wallet": {"action": ["balance", "reconcile"]}
	},
	"approval": {"roles": ["approver"], "quorum": 1},
	"trail": {"auditor": "all", "approver": "decides"},
	"operators": {"operator": true}
}

rule(document) := under(document, {}).rule

# order is how the rules follow each other in the policy: of several verdicts of one
# effect the first is reported.
order := [
	"role-lacks-tool", "role-denies-tool", "annotation-denied", "role-lacks-argument", "model-not-listed", "image-too-large",
	"amount-not-a-positive-number", "transfer-not-permitted", "fact-not-permitted", "argument-not-permitted", "usage-above-limit",
	"outside-hours", "tool-needs-approval", "amount-above-threshold", "usage-above-threshold", "argument-not-known", "role-has-tool",
	"role-has-server", "role-lacks-server",
]

first(verdicts) := [verdict | some id in order; some verdict in verdicts; verdict.rule == id][0]

# decided is the decision that toolgate makes of the three sets.
decided := object.union({"effect": "deny"}, first(toolgate.deny)) if {
	count(toolgate.deny) > 0
} else := object.union_n([{"effect": "hold"}, bound, first(toolgate.hold)]) if {
	count(toolgate.hold) > 0
} else := object.union_n([{"effect": "allow"}, bound, first(toolgate.allow)])

# bound are the obligations of a call that is allowed but for a hold.
bound := object.remove(object.union_n([verdict | some verdict in toolgate.allow]), ["rule", "reason"])

effect(document) := under(document, {}).effect

roles := {"approver", "observer", "researcher", "creator", "treasurer"}

test_five_roles if object.keys(shipped.roles) == roles

test_every_role_but_approver_searches if {
	every role in roles - {"approver"} {
		rule(call(role, "search_internet", {"query": "x"})) == "role-has-tool"
	}
}

test_no_role_reads_pages_unless_it_is_given if {
	every role in roles {
		rule(call(role, "fetch_page", {"url": "https://example.org/"})) == "role-lacks-tool"
	}
	given := {"researcher": {"tools": {"fetch_page": true}}}
	document := call("researcher", "fetch_page", {"url": "https://example.org/"})
	under(document, {"roles": given}).rule == "role-has-tool"
}

test_approver_calls_nothing if {
	every tool in ["search_internet", "generate_media", "manage_wallet"] {
		rule(call("approver", tool, {})) == "role-lacks-tool"
	}
}

test_unknown_role_and_tool_are_denied if {
	rule(call("stranger", "search_internet", {})) == "role-lacks-tool"
	rule(call("treasurer", "other__manage_wallet", transfer(1))) == "role-lacks-tool"
}

test_no_roles_is_denied if {
	document := object.union(call("x", "search_internet", {}), {"principal": {"subject": "a", "roles": []}})
	rule(document) == "role-lacks-tool"
}

test_rights_follow_the_exposed_name if {
	document := object.union(
		call("treasurer", "search_internet", {}),
		{"tool": {"exposed": "evil__search_internet", "name": "search_internet"}},
	)
	rule(document) == "role-lacks-tool"
}

test_balance_only if {
	every role in ["observer", "researcher"] {
		rule(call(role, "manage_wallet", {"action": "balance"})) == "role-has-tool"
		rule(call(role, "manage_wallet", transfer(1))) == "role-lacks-argument"
		rule(call(role, "manage_wallet", {})) == "role-lacks-argument"
		rule(call(role, "manage_wallet", {"action": ["balance"]})) == "role-lacks-argument"
		rule(call(role, "manage_wallet", {"action": null})) == "role-lacks-argument"
	}
}

test_models if {
	every model, _ in shipped.models.generate_media {
		rule(call("creator", "generate_media", {"model": model})) == "role-has-tool"
	}
	every model in ["gpt-image", "", null, 1, ["card-1"], {"card-1": true}] {
		rule(call("creator", "generate_media", {"model": model})) == "model-not-listed"
	}
	rule(call("creator", "generate_media", {"prompt": "x"})) == "model-not-listed"
}

drawing(stated) := object.union(call("creator", "generate_media", {"model": "card-1"}), {"facts": stated})

bounded(pixels, most) := id if id := under(drawing({"pixels": pixels}), {"pixels": {"generate_media": most}}).rule

test_images_have_a_bound if {
	bound := shipped.pixels.generate_media
	rule(drawing({"pixels": bound})) == "role-has-tool"
	rule(drawing({"pixels": bound + 1})) == "image-too-large"
	bounded(1000, 1000) == "role-has-tool"
	bounded(1001, 1000) == "image-too-large"
	rule(object.union(drawing({"pixels": bound + 1}), {"tool": {"exposed": "other"}})) == "role-lacks-tool"
}

test_an_image_of_unknown_size_is_denied if {
	every pixels in [null, "9", [9], {}, true] {
		bounded(pixels, 1000) == "image-too-large"
	}
	document := object.remove(drawing({}), ["facts"])
	rule(document) == "image-too-large"
	rule(object.union(document, {"facts": {}})) == "image-too-large"
}

test_a_bound_of_images_that_is_no_number_denies if {
	every most in ["1000", null, [1000], {}, true] {
		bounded(1, most) == "image-too-large"
	}
}

test_media_is_for_creators if {
	every role in roles - {"creator"} {
		rule(call(role, "generate_media", {"model": "card-1"})) == "role-lacks-tool"
	}
}

test_treasurer_balance_needs_no_amount if {
	rule(call("treasurer", "manage_wallet", {"action": "balance"})) == "role-has-tool"
}

test_treasurer_transfers_up_to_the_threshold if {
	every amount in [0.01, 50, 99.99, 100, 100.0, 1e2] {
		rule(call("treasurer", "manage_wallet", transfer(amount))) == "role-has-tool"
	}
}

test_treasurer_is_held_above_the_threshold if {
	every amount in [100.01, 500, 1e3, 123456789012345678901234567890] {
		verdict := under(call("treasurer", "manage_wallet", transfer(amount)), {})
		verdict.effect == "hold"
		verdict.rule == "amount-above-threshold"
		verdict.approval == {"roles": ["approver"], "quorum": 1}
	}
}

test_amount_is_a_positive_number if {
	every amount in [null, true, false, [5000], [], {"v": 5000}, {}, -1, 0] {
		rule(call("treasurer", "manage_wallet", transfer(amount))) == "amount-not-a-positive-number"
	}
	rule(call("treasurer", "manage_wallet", {"action": "transfer"})) == "amount-not-a-positive-number"
}

moving(asset, amount, destination) := call("treasurer", "manage_wallet", {"action": "transfer", "asset": asset, "amount": amount, "destination": destination})

test_each_asset_has_a_threshold_of_its_own if {
	rule(moving("USD", 100, "acme")) == "role-has-tool"
	rule(moving("BTC", 0.001, "acme")) == "role-has-tool"
	rule(moving("ETH", 0.05, "acme")) == "role-has-tool"
	every held in [["USD", 100.01], ["BTC", 0.00100001], ["BTC", 1.5], ["BTC", 100], ["ETH", 0.050000000000000001]] {
		rule(moving(held[0], held[1], "acme")) == "amount-above-threshold"
	}
}

test_an_amount_of_an_unknown_asset_is_denied if {
	every asset in ["DOGE", "usd", "per", "", null, ["USD"]] {
		rule(moving(asset, 1, "acme")) == "amount-not-a-positive-number"
	}
	rule(call("treasurer", "manage_wallet", {"action": "transfer", "amount": 1, "destination": "acme"})) == "amount-not-a-positive-number"
	rule(object.remove(call("treasurer", "manage_wallet", transfer(1)), ["facts"])) == "amount-not-a-positive-number"
}

# Facts decide for a tool that has them, whatever the arguments are called.
synonyms(stated) := object.union(call("treasurer", "manage_wallet", {"action": "transfer", "value": "1", "to": "x"}), {"facts": stated})

test_facts_decide if {
	rule(synonyms({"asset": "USD", "amount": 10000, "destination": "acme"})) == "role-has-tool"
	rule(synonyms({"asset": "USD", "amount": 10001, "destination": "acme"})) == "amount-above-threshold"
	rule(synonyms({"asset": "USD", "amount": 10000, "destination": "acct-2"})) == "argument-not-known"
	rule(synonyms({"asset": "USD", "amount": 10000})) == "argument-not-known"
	rule(synonyms({"amount": 1, "destination": "acme"})) == "amount-above-threshold"
	rule(synonyms({"asset": "USD", "destination": "acme"})) == "amount-not-a-positive-number"
}

test_known_facts_may_be_a_constraint if {
	document := synonyms({"asset": "USD", "amount": 1, "destination": "acct-22"})
	under(document, {"known": {"manage_wallet": {"destination": {"pattern": "acct-[0-9]"}}}}).rule == "argument-not-known"
	under(document, {"known": {"manage_wallet": {"destination": {"pattern": "acct-[0-9]+"}}}}).rule == "role-has-tool"
}

test_transfers_of_facts if {
	wanted := {"manage_wallet": {"transfers": {"asset": ["USD"], "amount": {"max": 500}}}}
	under(synonyms({"asset": "USD", "amount": 500, "destination": "acme"}), {"tools": wanted}).rule == "role-has-tool"
	every stated in [{"asset": "USD", "amount": 501}, {"asset": "EUR", "amount": 1}, {"amount": 1}] {
		under(synonyms(stated), {"tools": wanted, "thresholds": {}}).rule == "transfer-not-permitted"
	}
}

page(stated) := object.union(call("researcher", "fetch_page", {"url": "x"}), {"facts": stated})

test_facts_of_every_call if {
	open := {"researcher": {"tools": {"fetch_page": true}}}
	hosts := {"fetch_page": {"facts": {"host": ["docs.example.com"]}}}
	under(page({"host": "docs.example.com"}), {"roles": open, "tools": hosts}).rule == "role-has-tool"
	every stated in [{"host": "evil.example.com"}, {"host": ["docs.example.com"]}, {"host": null}, {}] {
		under(page(stated), {"roles": open, "tools": hosts}).rule == "fact-not-permitted"
	}
	under(object.remove(page({}), ["facts"]), {"roles": open, "tools": hosts}).rule == "fact-not-permitted"
}

test_models_may_be_a_list if {
	every model in ["a", "b"] {
		under(call("creator", "generate_media", {"model": model}), {"models": {"generate_media": ["a", "b"]}}).rule == "role-has-tool"
	}
	every model in ["c", 0] {
		under(call("creator", "generate_media", {"model": model}), {"models": {"generate_media": ["a", "b"]}}).rule == "model-not-listed"
	}
	under(call("creator", "generate_media", {"model": "a"}), {"models": {"generate_media": {"a": false, "b": true}}}).rule == "model-not-listed"
}

test_the_treasurer_reconciles if {
	rule(call("treasurer", "manage_wallet", {"action": "reconcile"})) == "role-has-tool"
	rule(call("observer", "manage_wallet", {"action": "reconcile"})) == "role-lacks-argument"
}

test_a_threshold_that_is_no_number_and_no_table_holds if {
	every most in ["100", null, true, [100], {}, {"per": "asset"}, {"most": {"USD": 100}}, {"per": "asset", "most": {"USD": "100"}}] {
		verdict := under(call("treasurer", "manage_wallet", transfer(1)), {"thresholds": {"manage_wallet": {"amount": most}}})
		verdict.rule == "amount-above-threshold"
	}
}

test_an_unknown_destination_is_held if {
	every destination in ["acme", "acct-1"] {
		rule(moving("USD", 50, destination)) == "role-has-tool"
	}
	every destination in ["acct-2", "ACME", "acme ", "", null, ["acme"]] {
		verdict := under(moving("USD", 50, destination), {})
		verdict.effect == "hold"
		verdict.rule == "argument-not-known"
		verdict.approval.roles == ["approver"]
	}
	rule(call("treasurer", "manage_wallet", {"action": "transfer", "asset": "USD", "amount": 50})) == "argument-not-known"
	rule(moving("USD", 500, "acct-2")) == "amount-above-threshold"
	rule(call("observer", "manage_wallet", transfer(1))) == "role-lacks-argument"
}

after(sum) := object.union(moving("USD", 100, "acme"), {"usage": {"day": {"calls": 9, "sum": sum}}})

test_a_day_of_small_transfers_is_held if {
	rule(after(90000)) == "role-has-tool"
	rule(after(90001)) == "usage-above-threshold"
	coins := object.union(moving("BTC", 0.001, "acme"), {"usage": {"day": {"calls": 9, "sum": 910000}}})
	rule(coins) == "usage-above-threshold"
}

test_threshold_is_data if {
	document := call("treasurer", "manage_wallet", transfer(50))
	effect(document) == "allow"
	under(document, {"thresholds": {"manage_wallet": {"amount": 10}}}).effect == "hold"
}

test_grant_of_another_server_is_data if {
	document := call("observer", "files__read", {"path": "/srv/x"})
	effect(document) == "deny"
	under(document, {"roles": {"observer": {"tools": {"files__read": true}}}}).effect == "allow"
}

test_false_is_no_grant if {
	document := call("observer", "files__read", {})
	under(document, {"roles": {"observer": {"tools": {"files__read": false}}}}).rule == "role-lacks-tool"
}

test_the_widest_role_counts if {
	document := object.union(
		call("x", "manage_wallet", transfer(1)),
		{"principal": {"subject": "a", "roles": ["observer", "treasurer"]}},
	)
	rule(document) == "role-has-tool"
}

test_every_denial_says_why_and_what_to_do if {
	every document in [
		call("approver", "search_internet", {}),
		call("observer", "manage_wallet", transfer(1)),
		call("creator", "generate_media", {}),
		call("treasurer", "manage_wallet", transfer("1")),
	] {
		verdict := under(document, {})
		verdict.effect == "deny"
		verdict.reason != ""
		verdict.remedy != ""
	}
}

read(role) := {
	"action": "resources/read",
	"principal": {"subject": "agent-7", "roles": [role]},
	"resource": {"server": "files", "uri": "file:///a"},
	"arguments": {},
	"request": {"id": "1", "transport": "http"},
}

get(role) := {
	"action": "prompts/get",
	"principal": {"subject": "agent-7", "roles": [role]},
	"prompt": {"server": "files", "name": "summarise"},
	"arguments": {},
	"request": {"id": "1", "transport": "http"},
}

test_nobody_reads_or_gets_unless_data_says_so if {
	every role in roles {
		rule(read(role)) == "role-lacks-server"
		rule(get(role)) == "role-lacks-server"
	}
}

test_a_role_reads_where_data_says_so if {
	open := object.union(shipped.roles, {"researcher": {"resources": {"files": true}}})
	under(read("researcher"), {"roles": open}).rule == "role-has-server"
	under(get("researcher"), {"roles": open}).rule == "role-lacks-server"
	under(read("observer"), {"roles": open}).rule == "role-lacks-server"
}

test_a_role_gets_where_data_says_so if {
	open := object.union(shipped.roles, {"researcher": {"prompts": {"files": true}}})
	under(get("researcher"), {"roles": open}).rule == "role-has-server"
	under(read("researcher"), {"roles": open}).rule == "role-lacks-server"
}

test_a_star_is_every_server if {
	open := object.union(shipped.roles, {"researcher": {"resources": {"*": true}, "servers": {"*": {"roots": true}}}})
	under(read("researcher"), {"roles": open}).rule == "role-has-server"
	under(get("researcher"), {"roles": open}).rule == "role-lacks-server"
	under(asked("researcher", "roots/list"), {"roles": open}).rule == "role-has-server"
}

about(role, action, server) := {
	"action": action,
	"principal": {"subject": "agent-7", "roles": [role]},
	"server": server,
	"arguments": {},
	"request": {"id": "1", "transport": "http"},
}

asked(role, method) := about(role, method, {"name": "files", "asks": method})

questions := {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}

test_no_server_asks_unless_data_says_so if {
	every role in roles {
		every method, _ in questions {
			rule(asked(role, method)) == "role-lacks-server"
		}
		rule(asked(role, "tasks/list")) == "role-lacks-server"
	}
}

test_a_server_asks_what_a_role_lets_it if {
	every method, right in questions {
		open := object.union(shipped.roles, {"researcher": {"servers": {"files": {right: true}}}})
		every other, _ in questions {
			document := asked("researcher", other)
			allowed := under(document, {"roles": open}).effect == "allow"
			allowed == (other == method)
		}
		document := asked("observer", method)
		under(document, {"roles": open}).effect == "deny"
	}
}

test_false_and_other_servers_let_nobody_ask if {
	every servers in [{"files": {"roots": false}}, {"files": true}, {"other": {"roots": true}}, {"files": {"sampling": true}}] {
		under(asked("observer", "roots/list"), {"roles": {"observer": {"servers": servers}}}).rule == "role-lacks-server"
	}
}

test_tasks_of_the_caller if {
	document := about("observer", "tasks/get", {"name": "files", "asks": "sampling/createMessage"})
	under(document, {"roles": {"observer": {"servers": {"files": {"sampling": true}}}}}).effect == "allow"
	under(document, {"roles": {"observer": {"servers": {"files": {"elicitation": true}}}}}).effect == "deny"
	under(asked("observer", "tasks/list"), {"roles": {"observer": {"servers": {"files": {"elicitation": true}}}}}).effect == "allow"
}

test_level_and_tasks_are_for_those_with_a_tool if {
	every action in ["logging/setLevel", "tasks/get", "tasks/list"] {
		every role in ["observer", "researcher", "treasurer"] {
			rule(about(role, action, {"name": "standard", "tools": ["generate_thing", "manage_wallet"]})) == "role-has-server"
		}
		rule(about("observer", action, {"name": "standard", "tools": ["search_internet"]})) == "role-has-server"
		rule(about("creator", action, {"name": "standard", "tools": ["manage_wallet"]})) == "role-lacks-server"
		rule(about("observer", action, {"name": "standard", "tools": []})) == "role-lacks-server"
		rule(about("stranger", action, {"name": "standard", "tools": ["search_internet"]})) == "role-lacks-server"
		rule(about("observer", action, {"name": "standard", "tools": ["search_internet"], "asks": action})) == "role-lacks-server"
	}
}

test_false_is_no_tool if {
	under(about("observer", "tasks/get", {"name": "files", "tools": ["files__read"]}), {"roles": {"observer": {"tools": {"files__read": false}}}}).rule == "role-lacks-server"
}

test_methods_of_extensions if {
	document := about("observer", "vendor/thing", {"name": "files"})
	rule(document) == "role-lacks-server"
	every methods in [{"files": {"vendor/other": true}}, {"other": {"vendor/thing": true}}, {"files": {"vendor/thing": false}}, {"*": {"vendor/thing": true}}] {
		under(document, {"roles": {"observer": {"methods": methods}}}).effect == "deny"
	}
	under(document, {"roles": {"observer": {"methods": {"files": {"vendor/thing": true}}}}}).effect == "allow"
	under(about("observer", "vendor/thing", {"name": "files", "asks": "vendor/thing"}), {"roles": {"observer": {"methods": {"files": {"vendor/thing": true}}}}}).effect == "deny"
}

# What data may say besides, on a wallet and a treasurer of their own.

wallet := {
	"roles": {
		"treasurer": {"tools": {"pay": true}},
		"trainee": {"deny": {"tools": {"pay": true}}},
	},
	"thresholds": {"pay": {"amount": 100}},
	"unmetered": {"pay": {"action": ["balance"]}},
	"approval": {"roles": ["approver"]},
}

paying(amount) := object.union(
	call("treasurer", "pay", transfer(amount)),
	{"request": {"time": "2026-11-23T10:00:00Z"}, "usage": {"day": {"calls": 0, "sum": 0}}},
)

balance := object.union(call("treasurer", "pay", {"action": "balance"}), {"request": {"time": "2026-11-23T10:00:00Z"}})

# judged is the decision on document where data is the wallet's with more on top.
judged(document, more) := under(document, object.union({member: {} | some member, _ in shipped}, object.union(wallet, more)))

test_the_wallet_as_it_is if {
	judged(paying(50), {}).rule == "role-has-tool"
	judged(paying(500), {}).rule == "amount-above-threshold"
	judged(balance, {}).rule == "role-has-tool"
}

test_deny_lists if {
	judged(paying(50), {"directory": {"inherits": {"treasurer": ["trainee"]}}}).rule == "role-denies-tool"
	judged(paying(50), {"roles": {"treasurer": {"deny": {"patterns": ["p*"]}}}}).rule == "role-denies-tool"
	judged(paying(50), {"roles": {"treasurer": {"deny": {"tools": {"pay": false, "other": true}}}}}).rule == "role-has-tool"
}

test_patterns if {
	granted := {"roles": {"treasurer": {"tools": {"pay": false}, "patterns": {"p*": true}}}}
	judged(paying(50), granted).rule == "role-has-tool"
	judged(paying(500), granted).rule == "amount-above-threshold"
}

test_typed_arguments_of_a_pattern if {
	granted := {"roles": {"treasurer": {"tools": {"pay": false}, "patterns": {"p*": {"arguments": {"amount": {"max": 60}}}}}}}
	judged(paying(50), granted).rule == "role-has-tool"
	judged(paying(70), granted).rule == "role-lacks-argument"
}

test_roles_of_the_directory if {
	stranger := object.union(paying(50), {"principal": {"subject": "agent-7", "roles": []}})
	judged(stranger, {}).rule == "role-lacks-tool"
	judged(stranger, {"directory": {"subjects": {"agent-7": {"groups": ["finance"]}}, "groups": {"finance": ["treasurer"]}}}).rule == "role-has-tool"
}

test_typed_arguments_of_a_grant if {
	granted := {"roles": {"treasurer": {"tools": {"pay": {"arguments": {"amount": {"max": 60}, "/asset": ["USD"]}}}}}}
	judged(paying(50), granted).rule == "role-has-tool"
	judged(paying(70), granted).rule == "role-lacks-argument"
	judged(balance, granted).rule == "role-lacks-argument"
}

test_arguments_of_a_tool if {
	said := {"tools": {"pay": {"arguments": {"asset": {"enum": ["USD"], "optional": true}}}}}
	judged(paying(50), said).rule == "role-has-tool"
	judged(paying(500), said).rule == "amount-above-threshold"
	judged(balance, said).rule == "role-has-tool"
	other := {"tools": {"pay": {"arguments": {"asset": ["EUR"]}}}}
	judged(paying(50), other).rule == "argument-not-permitted"
	judged(paying(500), other).rule == "argument-not-permitted"
	judged(balance, other).rule == "argument-not-permitted"
}

transfers := {"tools": {"pay": {"transfers": {"asset": ["USD"], "destination": {"in": "payees", "not_in": "blocked"}, "amount": {"max": 1000}}}}}

test_transfers if {
	lists := object.union(transfers, {"lists": {"payees": ["acct-1", "acct-2"], "blocked": {"acct-2": true}}})
	judged(paying(50), lists).rule == "role-has-tool"
	judged(paying(500), lists).rule == "amount-above-threshold"
	judged(paying(1001), lists).rule == "transfer-not-permitted"
	judged(balance, lists).rule == "role-has-tool"
	every destination in ["acct-2", "acct-3", null, ["acct-1"], ""] {
		document := object.union(paying(50), {"arguments": {"destination": destination}})
		judged(document, lists).rule == "transfer-not-permitted"
	}
	euro := object.union(paying(50), {"arguments": {"asset": "EUR"}})
	judged(euro, lists).rule == "transfer-not-permitted"
	judged(paying("50"), lists).rule == "amount-not-a-positive-number"
}

test_lists_that_are_not_there_refuse if judged(paying(50), transfers).rule == "transfer-not-permitted"

metered := {"usage": {"pay": {"day": {
	"window": "24h", "sum": "/amount", "where": {"/action": ["transfer"]},
	"hold": {"sum": 1000}, "deny": {"sum": 5000, "calls": 50},
}}}}

spent(sum, calls) := object.union(paying(100), {"usage": {"day": {"calls": calls, "sum": sum}}})

test_the_eleventh_is_held if {
	judged(spent(0, 0), metered).rule == "role-has-tool"
	judged(spent(900, 9), metered).rule == "role-has-tool"
	judged(spent(1000, 10), metered).rule == "usage-above-threshold"
	judged(spent(1000, 10), metered).approval == {"roles": ["approver"]}
	judged(spent(4950, 10), metered).rule == "usage-above-limit"
	judged(spent(0, 50), metered).rule == "usage-above-limit"
	judged(balance, metered).rule == "role-has-tool"
}

test_nobody_lifts_a_limit if {
	document := object.union(spent(5000, 10), {"arguments": {"amount": 500}})
	judged(document, metered).rule == "usage-above-limit"
}

scheduled := {
	"tools": {"pay": {"hours": "office"}},
	"schedules": {"office": {"zone": "UTC", "open": [{"days": ["Monday"], "from": "08:00", "to": "17:00"}]}},
}

test_hours if {
	judged(paying(50), scheduled).rule == "role-has-tool"
	late := object.union(paying(50), {"request": {"time": "2026-11-23T17:00:00Z"}})
	judged(late, scheduled).rule == "outside-hours"
	judged(paying(50), {"tools": {"pay": {"hours": "office"}}}).rule == "outside-hours"
}

# Hours that bind one action alone.
test_hours_of_an_action if {
	said := object.union(scheduled, {"tools": {"pay": {"hours": {"transfer": "office"}}}})
	late := {"request": {"time": "2026-11-23T17:00:00Z"}}
	judged(paying(50), said).rule == "role-has-tool"
	judged(object.union(paying(50), late), said).rule == "outside-hours"
	judged(object.union(balance, late), said).rule == "role-has-tool"
	every action in [null, 1, ["transfer"]] {
		judged(object.union_n([paying(50), late, {"arguments": {"action": action}}]), said).rule == "outside-hours"
	}
	judged(object.union(object.remove(paying(50), ["arguments"]), object.union(late, {"arguments": {"amount": 1}})), said).rule == "outside-hours"
	judged(balance, {"tools": {"pay": {"hours": {"balance": "never"}}}}).rule == "outside-hours"
	judged(paying(50), {"tools": {"pay": {"hours": ["office"]}}}).rule == "outside-hours"
}

# Lists of thresholds.

listed(list) := {"thresholds": {"pay": list}}

above_each(amount, list) := judged(paying(amount), listed(list))

two := [{"amount": 200}, {"amount": 10000, "roles": ["finance"], "quorum": 2}]

test_the_highest_entry_that_is_passed_counts if {
	every list in [two, array.reverse(two)] {
		above_each(200, list).rule == "role-has-tool"
		above_each(201, list).approval == {"roles": ["approver"]}
		above_each(10000, list).approval == {"roles": ["approver"]}
		above_each(10001, list).approval == {"roles": ["finance"], "quorum": 2}
		above_each(10001, list).reason == "pay is above the threshold: amount 10001 is above 10000"
		above_each("10001", list).rule == "amount-not-a-positive-number"
		judged(object.union(balance, {"arguments": {"amount": 10001}}), listed(list)).rule == "role-has-tool"
	}
}

by_asset := [
	{"amount": {"per": "asset", "most": {"USD": 200, "EUR": 150}}, "roles": ["approver"]},
	{"amount": {"per": "asset", "most": {"USD": 10000}}, "roles": ["finance"], "quorum": 2},
]

in_asset(asset, amount) := judged(object.union(paying(amount), {"arguments": {"asset": asset}}), listed(by_asset))

test_entries_by_asset if {
	in_asset("USD", 200).rule == "role-has-tool"
	in_asset("USD", 201).approval.roles == ["approver"]
	in_asset("USD", 10001).approval.roles == ["finance"]
	in_asset("USD", 201).reason == "pay is above the threshold: 201 USD is above 200 USD"
}

# An asset that an entry does not list passes that entry.
test_an_asset_that_an_entry_does_not_list_passes_it if {
	every asset in ["EUR", "DOGE", "", null, ["USD"]] {
		in_asset(asset, 1).approval == {"roles": ["finance"], "quorum": 2}
	}
	in_asset("EUR", 1).reason == `pay is above the threshold: there is none for "EUR"`
	judged(object.remove(paying(1), ["arguments"]), listed(by_asset)).effect == "deny"
}

test_a_list_counts_in_facts if {
	list := {"manage_wallet": [
		{"amount": {"per": "asset", "most": {"USD": 200, "ETH": 0.05}}},
		{"amount": {"per": "asset", "most": {"USD": 10000, "ETH": 1}}, "roles": ["finance"], "quorum": 2},
	]}
	first := under(moving("USD", 450, "acme"), {"thresholds": list})
	first.reason == "manage_wallet is above the threshold: 450 USD is above 200 USD"
	first.approval == {"roles": ["approver"], "quorum": 1}
	second := under(moving("ETH", 1.5, "acme"), {"thresholds": list})
	second.reason == "manage_wallet is above the threshold: 1.5 ETH is above 1 ETH"
	second.approval == {"roles": ["finance"], "quorum": 2}
	under(moving("ETH", 0.05, "acme"), {"thresholds": list}).rule == "role-has-tool"
	under(moving("DOGE", 1, "acme"), {"thresholds": list}).rule == "amount-not-a-positive-number"
}

test_entries_about_several_arguments if {
	list := [{"amount": 200, "fee": 5}, {"fee": 50, "roles": ["finance"]}]
	judged(object.union(paying(50), {"arguments": {"fee": 5}}), listed(list)).rule == "role-has-tool"
	judged(object.union(paying(50), {"arguments": {"fee": 6}}), listed(list)).approval.roles == ["approver"]
	judged(object.union(paying(50), {"arguments": {"fee": 51}}), listed(list)).approval.roles == ["finance"]
	judged(paying(50), listed(list)).rule == "amount-not-a-positive-number"
}

test_who_decides_above_an_entry if {
	base := {"approval": {"roles": ["lead"], "quorum": 3, "ttl": "15m"}}
	every pair in [
		[{}, {"roles": ["lead"], "quorum": 3, "ttl": "15m"}],
		[{"quorum": 2}, {"roles": ["lead"], "quorum": 2, "ttl": "15m"}],
		[{"roles": ["board"]}, {"roles": ["board"], "ttl": "15m"}],
		[{"quorum": {"a": 1, "b": 1}}, {"quorum": {"a": 1, "b": 1}, "ttl": "15m"}],
	] {
		[deciders, want] := pair
		said := object.union({"tools": {"pay": base}}, listed([object.union({"amount": 1}, deciders)]))
		judged(paying(50), said).approval == want
	}
}

test_an_entry_that_is_no_number_is_passed if {
	every most in ["1", null, true, {"per": "asset"}, {"per": "asset", "most": {"USD": "1"}}] {
		above_each(1, [{"amount": most}]).rule == "amount-above-threshold"
	}
}

# Reasons are in the words of the asset.
reason(document) := under(document, {}).reason

test_reasons_above_a_threshold if {
	reason(moving("USD", 450, "acme")) == "manage_wallet is above the threshold: 450 USD is above 100 USD"
	reason(moving("USD", 100.5, "acme")) == "manage_wallet is above the threshold: 100.5 USD is above 100 USD"
	reason(synonyms({"asset": "BTC", "amount": 100001, "destination": "acme"})) == "manage_wallet is above the threshold: 0.00100001 BTC is above 0.001 BTC"
	reason(synonyms({"asset": "ETH", "amount": 50000000000000001, "destination": "acme"})) == "manage_wallet is above the threshold: 0.050000000000000001 ETH is above 0.05 ETH"
	judged(paying(500.50), {}).reason == "pay is above the threshold: amount 500.5 is above 100"
	reason(synonyms({"asset": "DOGE", "amount": 1})) == `manage_wallet is above the threshold: there is none for "DOGE"`
	reason(after(90001)) == "the call would use more of manage_wallet than passes without a person: at most 0.01 BTC, 0.5 ETH, 1000 EUR, 1000 USD in 24h"
	judged(spent(4950, 10), metered).remedy == "wait, or use less: at most 5000, 50 calls in 24h"
	reason(synonyms({"amount": 1})) == "manage_wallet is above the threshold"
}

test_a_person_decides_on_every_call if {
	every call in [paying(50), paying(500), balance] {
		judged(call, {"tools": {"pay": {"hold": true}}}).rule == "tool-needs-approval"
		judged(call, {"tools": {"pay": {"hold": false}}}).rule != "tool-needs-approval"
	}
	judged(paying("x"), {"tools": {"pay": {"hold": true}}}).rule == "amount-not-a-positive-number"
}

test_who_decides_may_differ_by_tool if {
	verdict := judged(paying(500), {"tools": {"pay": {"approval": {"roles": ["board"], "quorum": 2}}}})
	verdict.approval == {"roles": ["board"], "quorum": 2}
}

claiming(claims) := object.union(paying(50), {"tool": {"annotations": claims}})

test_annotations_tighten if {
	careful := {"annotations": {"destructiveHint": "hold", "openWorldHint": "deny"}}
	judged(claiming({"destructiveHint": true}), careful).rule == "tool-needs-approval"
	judged(claiming({"openWorldHint": true}), careful).rule == "annotation-denied"
	judged(claiming({"openWorldHint": true, "destructiveHint": true}), careful).rule == "annotation-denied"
	judged(claiming({"destructiveHint": false}), careful).rule == "role-has-tool"
	judged(claiming({"destructiveHint": true}), {}).rule == "role-has-tool"
}

# Whatever a server claims, the verdict is never weaker than without the claim.
test_annotations_never_widen if {
	rank := {"allow": 0, "hold": 1, "deny": 2}
	every effect in ["hold", "deny", "allow", true] {
		every claim in [true, false, "x", null] {
			every amount in [50, 500, "50"] {
				said := {"annotations": {"readOnlyHint": effect}}
				silent := object.union(claiming({}), {"arguments": {"amount": amount}})
				loud := object.union(claiming({"readOnlyHint": claim}), {"arguments": {"amount": amount}})
				rank[judged(loud, said).effect] >= rank[judged(silent, said).effect]
			}
		}
	}
}

test_obligations if {
	bound := {"tools": {"pay": {
		"limit": {"rate": "5/1m"},
		"redact": {"*": ["/iban"], "treasurer": ["/name"], "other": ["/x"]},
	}}}
	every amount in [50, 500] {
		verdict := judged(paying(amount), bound)
		verdict.limit == {"rate": "5/1m", "key": "pay"}
		verdict.redact == {"/iban", "/name"}
	}
	own := judged(paying(50), {"tools": {"pay": {"limit": {"rate": "5/1m", "key": "money"}}}})
	own.limit.key == "money"
	not own.redact
	not judged(paying(50), {"tools": {"pay": {"redact": {"*": ["/iban"]}}}}).limit
}

test_every_threshold_is_measured if {
	both := {"thresholds": {"pay": {"fee": 10}}}
	judged(paying(500), both).rule == "amount-not-a-positive-number"
	judged(object.union(paying(50), {"arguments": {"fee": 11}}), both).rule == "amount-above-threshold"
}

test_a_threshold_that_is_no_number_holds if {
	judged(paying(50), {"thresholds": {"pay": {"amount": "1000"}}}).rule == "amount-above-threshold"
	judged(balance, {"thresholds": {"pay": {"amount": "1000"}}}).rule == "role-has-tool"
}

test_what_moves_nothing_is_not_measured if {
	judged(object.union(balance, {"arguments": {"amount": 500}}), {}).rule == "role-has-tool"
	judged(object.union(balance, {"arguments": {"amount": "x"}}), {}).rule == "role-has-tool"
	judged(object.union(balance, {"arguments": {"amount": 50}}), transfers).rule == "role-has-tool"
}

visible(document, more) if {
	said := object.union(wallet, more)
	toolgate.visible with input as object.filter(document, ["principal", "tool"])
		with data.roles as said.roles
		with data.annotations as object.get(said, "annotations", {})
		with data.directory as object.get(said, "directory", {})
}

test_visible if {
	visible(paying(50), {})
	visible(paying(50), {"roles": {"treasurer": {"tools": {"pay": {"arguments": {"asset": ["EUR"]}}}}}})
	not visible(paying(50), {"roles": {"treasurer": {"tools": {"pay": false}}}})
	not visible(paying(50), {"directory": {"inherits": {"treasurer": ["trainee"]}}})
	visible(claiming({"openWorldHint": true}), {"annotations": {"openWorldHint": "hold"}})
	not visible(claiming({"openWorldHint": true}), {"annotations": {"openWorldHint": "deny"}})
	not toolgate.visible with input as {"principal": {"roles": ["treasurer"]}}
}

# A hold without an approver names no role, and toolgate denies it.
test_nobody_decides if {
	verdict := under(call("treasurer", "manage_wallet", transfer(500)), {"approval": false})
	verdict.approval == {"roles": []}
}

# A tool about which data says only who has it.
test_a_plain_tool if {
	plain := object.union(paying(50), {"tool": {"exposed": "look"}})
	judged(plain, {"roles": {"treasurer": {"tools": {"look": true}}}}).rule == "role-has-tool"
	judged(plain, {"roles": {"treasurer": {"tools": {"look": {"arguments": {"asset": ["EUR"]}}}}}}).rule == "role-lacks-argument"
	judged(plain, {"roles": {"treasurer": {"tools": {"look": true}, "deny": {"tools": {"look": true}}}}}).rule == "role-denies-tool"
	claimed := object.union(plain, {"tool": {"annotations": {"openWorldHint": true}}})
	said := {"roles": {"treasurer": {"tools": {"look": true}}}, "annotations": {"openWorldHint": "deny"}}
	judged(claimed, said).rule == "annotation-denied"
	judged(object.union(plain, {"tool": {"annotations": {"openWorldHint": "x"}}}), said).rule == "role-has-tool"
	judged(plain, object.union(said, {"tools": {"look": {"hold": true}}})).rule == "tool-needs-approval"
	judged(plain, object.union(said, {"usage": {"look": {"day": {"deny": {"calls": 0}}}}})).rule == "usage-above-limit"
	judged(claimed, object.union(said, {"annotations": {"openWorldHint": "hold"}})).rule == "tool-needs-approval"
}

# The ways in which a call of pay is not simply allowed, in the order in which
# they decide: what makes each, in the data and in the call.
faults := [
	{"rule": "role-lacks-tool", "data": {"roles": {"treasurer": {"tools": {"pay": false}}}}},
	{"rule": "role-denies-tool", "data": {"directory": {"inherits": {"treasurer": ["trainee"]}}}},
	{"rule": "annotation-denied", "data": {"annotations": {"openWorldHint": "deny"}}},
	{"rule": "role-lacks-argument", "data": {"roles": {"treasurer": {"tools": {"pay": {"arguments": {"asset": ["EUR"]}}}}}}},
	{"rule": "model-not-listed", "data": {"models": {"pay": ["m"]}}},
	{"rule": "image-too-large", "data": {"pixels": {"pay": 1}}},
	{"rule": "amount-not-a-positive-number", "call": {"arguments": {"amount": "500"}}},
	{"rule": "transfer-not-permitted", "data": {"tools": {"pay": {"transfers": {"asset": ["EUR"]}}}}},
	{"rule": "argument-not-permitted", "data": {"tools": {"pay": {"arguments": {"asset": ["EUR"]}}}}},
	{"rule": "usage-above-limit", "data": {"usage": {"pay": {"day": {"deny": {"calls": 0}}}}}},
	{"rule": "outside-hours", "data": {"tools": {"pay": {"hours": "never"}}}},
	{"rule": "tool-needs-approval", "data": {"tools": {"pay": {"hold": true}}}},
	{"rule": "amount-above-threshold", "call": {"arguments": {"amount": 500}}},
	{"rule": "usage-above-threshold", "data": {"usage": {"pay": {"day": {"hold": {"calls": 0}}}}}},
	{"rule": "argument-not-known", "data": {"known": {"pay": {"destination": ["nobody"]}}}},
]

fault(i, member) := object.get(faults[i], member, {})

test_the_first_fault_decides if {
	pairs := [[i, j] | some i, _ in faults; some j, _ in faults; i <= j]
	every pair in pairs {
		[first, second] := pair
		document := object.union_n([claiming({"openWorldHint": true}), fault(second, "call"), fault(first, "call")])
		judged(document, object.union(fault(second, "data"), fault(first, "data"))).rule == faults[first].rule
	}
}
