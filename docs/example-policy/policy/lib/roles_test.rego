package toolgate.lib.roles_test

import rego.v2

import data.toolgate.lib.roles

called(names, tool) := {"principal": {"subject": "agent-7", "roles": names}, "tool": {"exposed": tool}}

table := {
	"reader": {"tools": {"files__read": true}},
	"writer": {"tools": {"files__write": {"arguments": {"path": ["/a"]}}}},
	"keeper": {"patterns": {"files__*": true, "wiki__*": {"arguments": {}}}, "deny": {"tools": {"files__delete": true}}},
	"trainee": {"deny": {"patterns": ["*__write", "*__delete*"]}},
	"closed": {"tools": {"files__read": false}, "patterns": {"x__*": false}},
}

told(names, tool) := granted if granted := roles.grants with input as called(names, tool) with data.roles as table

refused(names, tool) if roles.denied with input as called(names, tool) with data.roles as table

test_grants_by_name if {
	told(["reader"], "files__read") == {true}
	told(["reader"], "files__write") == set()
	told(["writer", "reader"], "files__write") == {{"arguments": {"path": ["/a"]}}}
	told(["reader", "closed"], "files__read") == {true, false}
	told(["nobody"], "files__read") == set()
	told([], "files__read") == set()
}

test_grants_by_pattern if {
	told(["keeper"], "files__anything") == {true}
	told(["keeper"], "wiki__read") == {{"arguments": {}}}
	told(["keeper"], "other__files__x") == set()
	told(["reader", "keeper"], "files__read") == {true}
}

test_denied_to_whoever_has_the_role if {
	refused(["keeper"], "files__delete")
	refused(["reader", "keeper"], "files__delete")
	refused(["keeper", "trainee"], "files__write")
	not refused(["keeper"], "files__write")
	not refused(["reader"], "files__delete")
}

can(names, tool) if roles.has(tool) with input as called(names, "another") with data.roles as table

test_has_is_about_any_tool if {
	can(["reader"], "files__read")
	can(["writer"], "files__write")
	can(["keeper"], "wiki__read")
	not can(["reader"], "files__write")
	not can(["closed"], "files__read")
	not can(["closed"], "x__y")
	not can(["keeper"], "other__read")
	can(["reader", "trainee"], "files__read")
	not can(["keeper"], "files__delete")
	not can(["writer", "trainee"], "files__write")
}

directory := {
	"subjects": {"agent-7": {"roles": ["a"], "groups": ["finance", "unknown"]}, "agent-8": {"roles": ["z"]}},
	"groups": {"finance": ["b"], "other": ["y"]},
	"inherits": {"b": ["c"], "c": ["d", "b"], "x": ["y"]},
}

held(names) := all if all := roles.held with input as called(names, "t") with data.directory as directory

test_held if {
	held([]) == {"a", "b", "c", "d"}
	held(["x"]) == {"a", "b", "c", "d", "x", "y"}
	roles.held == {"x"} with input as called(["x"], "t")
	roles.held == {"x"} with input as called(["x"], "t") with data.directory as {}
	roles.held == {"x", "y"} with input as called(["x"], "t") with data.directory as {"inherits": {"x": ["y"]}}
}

test_entries if {
	roles.entries == {table.reader, table.closed} with input as called(["reader", "closed", "nobody"], "t") with data.roles as table
}

test_held_roles_grant if {
	roles.grants == {true} with input as called([], "files__read")
		with data.roles as table
		with data.directory as {"subjects": {"agent-7": {"roles": ["reader"]}}}
	roles.grants == set() with input as called([], "files__read")
		with data.roles as table
		with data.directory as {"subjects": {"agent-8": {"roles": ["reader"]}}}
	roles.denied with input as called(["writer"], "files__write")
		with data.roles as table
		with data.directory as {"inherits": {"writer": ["trainee"]}}
}
