package toolgate_test

import rego.v2

import data.toolgate

call(role, tool, arguments) := {
	"principal": {"subject": "agent-7", "roles": [role]},
	"tool": {"server": "standard", "name": tool, "exposed": tool, "risk": "high"},
	"arguments": arguments,
	"request": {"id": "1", "transport": "http"},
}

transfer(amount) := {"action": "transfer", "asset": "USD", "amount": amount, "destination": "acct-1"}

rule(document) := id if id := toolgate.decision.rule with input as document

effect(document) := verdict if verdict := toolgate.decision.effect with input as document

roles := {"approver", "observer", "researcher", "creator", "treasurer"}

test_five_roles if object.keys(data.roles) == roles

test_every_role_but_approver_searches if {
	every role in roles - {"approver"} {
		rule(call(role, "search_internet", {"query": "x"})) == "role-has-tool"
	}
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
	every model in data.models.generate_media {
		rule(call("creator", "generate_media", {"model": model})) == "role-has-tool"
	}
	every model in ["gpt-image", "", null, 1, ["card-1"], {"card-1": true}] {
		rule(call("creator", "generate_media", {"model": model})) == "model-not-listed"
	}
	rule(call("creator", "generate_media", {"prompt": "x"})) == "model-not-listed"
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
	every amount in [0.01, 50, 99.999999999999999999, 100, 100.0, 1e2] {
		rule(call("treasurer", "manage_wallet", transfer(amount))) == "role-has-tool"
	}
}

test_treasurer_is_held_above_the_threshold if {
	every amount in [100.000000000000000000000000001, 500, 1e3, 123456789012345678901234567890] {
		decision := toolgate.decision with input as call("treasurer", "manage_wallet", transfer(amount))
		decision.effect == "hold"
		decision.rule == "amount-above-threshold"
		decision.approval == {"roles": ["approver"], "quorum": 1}
	}
}

test_amount_is_a_positive_number if {
	every amount in [null, true, false, "5000", "50", [5000], [], {"v": 5000}, {}, -1, 0] {
		rule(call("treasurer", "manage_wallet", transfer(amount))) == "amount-not-a-positive-number"
	}
	rule(call("treasurer", "manage_wallet", {"action": "transfer"})) == "amount-not-a-positive-number"
}

test_threshold_is_data if {
	document := call("treasurer", "manage_wallet", transfer(50))
	effect(document) == "allow"
	toolgate.decision.effect == "hold" with input as document with data.thresholds as {"manage_wallet": {"amount": 10}}
}

test_grant_of_another_server_is_data if {
	document := call("observer", "files__read", {"path": "/srv/x"})
	effect(document) == "deny"
	toolgate.decision.effect == "allow" with input as document
		with data.roles as {"observer": {"tools": {"files__read": true}}}
}

test_false_is_no_grant if {
	document := call("observer", "files__read", {})
	toolgate.decision.rule == "role-lacks-tool" with input as document
		with data.roles as {"observer": {"tools": {"files__read": false}}}
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
		decision := toolgate.decision with input as document
		decision.effect == "deny"
		decision.reason != ""
		decision.remedy != ""
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
	open := object.union(data.roles, {"researcher": {"resources": {"files": true}}})
	toolgate.decision.rule == "role-has-server" with input as read("researcher") with data.roles as open
	toolgate.decision.rule == "role-lacks-server" with input as get("researcher") with data.roles as open
	toolgate.decision.rule == "role-lacks-server" with input as read("observer") with data.roles as open
}

test_a_role_gets_where_data_says_so if {
	open := object.union(data.roles, {"researcher": {"prompts": {"files": true}}})
	toolgate.decision.rule == "role-has-server" with input as get("researcher") with data.roles as open
	toolgate.decision.rule == "role-lacks-server" with input as read("researcher") with data.roles as open
}

test_a_star_is_every_server if {
	open := object.union(data.roles, {"researcher": {"resources": {"*": true}, "servers": {"*": {"roots": true}}}})
	toolgate.decision.rule == "role-has-server" with input as read("researcher") with data.roles as open
	toolgate.decision.rule == "role-lacks-server" with input as get("researcher") with data.roles as open
	toolgate.decision.rule == "role-has-server" with input as asked("researcher", "roots/list") with data.roles as open
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
		open := object.union(data.roles, {"researcher": {"servers": {"files": {right: true}}}})
		every other, _ in questions {
			document := asked("researcher", other)
			allowed := toolgate.decision.effect == "allow" with input as document with data.roles as open
			allowed == (other == method)
		}
		document := asked("observer", method)
		toolgate.decision.effect == "deny" with input as document with data.roles as open
	}
}

test_false_and_other_servers_let_nobody_ask if {
	every servers in [{"files": {"roots": false}}, {"files": true}, {"other": {"roots": true}}, {"files": {"sampling": true}}] {
		toolgate.decision.rule == "role-lacks-server" with input as asked("observer", "roots/list")
			with data.roles as {"observer": {"servers": servers}}
	}
}

test_tasks_of_the_caller if {
	document := about("observer", "tasks/get", {"name": "files", "asks": "sampling/createMessage"})
	toolgate.decision.effect == "allow" with input as document
		with data.roles as {"observer": {"servers": {"files": {"sampling": true}}}}
	toolgate.decision.effect == "deny" with input as document
		with data.roles as {"observer": {"servers": {"files": {"elicitation": true}}}}
	toolgate.decision.effect == "allow" with input as asked("observer", "tasks/list")
		with data.roles as {"observer": {"servers": {"files": {"elicitation": true}}}}
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
	toolgate.decision.rule == "role-lacks-server" with input as about("observer", "tasks/get", {"name": "files", "tools": ["files__read"]})
		with data.roles as {"observer": {"tools": {"files__read": false}}}
}

test_methods_of_extensions if {
	document := about("observer", "vendor/thing", {"name": "files"})
	rule(document) == "role-lacks-server"
	every methods in [{"files": {"vendor/other": true}}, {"other": {"vendor/thing": true}}, {"files": {"vendor/thing": false}}, {"*": {"vendor/thing": true}}] {
		toolgate.decision.effect == "deny" with input as document with data.roles as {"observer": {"methods": methods}}
	}
	toolgate.decision.effect == "allow" with input as document
		with data.roles as {"observer": {"methods": {"files": {"vendor/thing": true}}}}
	toolgate.decision.effect == "deny" with input as about("observer", "vendor/thing", {"name": "files", "asks": "vendor/thing"})
		with data.roles as {"observer": {"methods": {"files": {"vendor/thing": true}}}}
}
