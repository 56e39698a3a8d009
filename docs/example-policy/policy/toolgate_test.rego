package toolgate_test

import rego.v2

import data.toolgate

call(tool, arguments) := {
	"principal": {"subject": "agent-7", "roles": ["desk"]},
	"tool": {"exposed": tool},
	"arguments": arguments,
	"request": {"time": "2024-01-01T12:00:00Z"},
}

rule(document) := id if id := toolgate.decision.rule with input as document

test_desk_reads_and_answers if {
	rule(call("crm__read_customer", {"id": 7})) == "DESK-006"
	rule(call("tickets__read_history", {})) == "DESK-006"
	rule(call("tickets__answer", {"status": "solved", "text": "Done."})) == "DESK-006"
	rule(call("tickets__answer", {"status": "deleted", "text": "Done."})) == "DESK-002"
	rule(call("tickets__answer", {"status": "open", "text": ""})) == "DESK-002"
}

test_desk_deletes_and_pays_nothing if {
	every tool in ["tickets__delete_all", "crm__delete_customer", "wallet__refund", "unknown"] {
		rule(call(tool, {})) == "DESK-001"
	}
}

test_cashiers_are_of_the_desk if {
	cashier := object.union(call("crm__read_customer", {}), {"principal": {"roles": ["cashier"]}})
	rule(cashier) == "DESK-006"
}

# Only tools are decided on here: whatever else a client or server asks is denied.
test_nothing_besides_tools if {
	not toolgate.decision with input as {"principal": {"roles": ["desk"]}, "resource": {"server": "crm", "uri": "x"}}
}
