package toolgate_test

import rego.v2

import data.toolgate

call(tool, arguments) := {
	"principal": {"subject": "agent-7", "roles": ["desk"]},
	"tool": {"exposed": tool},
	"arguments": arguments,
	"request": {"time": "2024-01-01T12:00:00Z"},
}

allowed(document) := {verdict.rule | some verdict in verdicts} if {
	verdicts := toolgate.allow with input as document
	count(denied(document)) == 0
}

denied(document) := {verdict.rule | some verdict in verdicts} if verdicts := toolgate.deny with input as document

test_desk_reads_and_answers if {
	allowed(call("crm__read_customer", {"id": 7})) == {"DESK-006"}
	allowed(call("tickets__read_history", {})) == {"DESK-006"}
	allowed(call("tickets__answer", {"status": "solved", "text": "Done."})) == {"DESK-006"}
	denied(call("tickets__answer", {"status": "deleted", "text": "Done."})) == {"DESK-002"}
	denied(call("tickets__answer", {"status": "open", "text": ""})) == {"DESK-002"}
}

test_desk_deletes_and_pays_nothing if {
	every tool in ["tickets__delete_all", "crm__delete_customer", "wallet__refund", "unknown"] {
		"DESK-001" in denied(call(tool, {}))
		not toolgate.visible with input as call(tool, {})
	}
}

test_cashiers_are_of_the_desk if {
	cashier := object.union(call("crm__read_customer", {}), {"principal": {"roles": ["cashier"]}})
	allowed(cashier) == {"DESK-006"}
	toolgate.visible with input as cashier
}

# The policy allows tool calls only: other requests are denied because no rule allows them.
test_nothing_besides_tools if {
	count(toolgate.allow) == 0 with input as {"principal": {"roles": ["desk"]}, "resource": {"server": "crm", "uri": "x"}}
}
