# METADATA
# title: Policy of the support desk
# description: |
#   Agents of the desk read customer records, answer tickets and pay refunds.
#   data.json says who may do so, how much and when; the conditions come from
#   toolgate's library (lib). One rule is the desk's own: a refund names its ticket.
#
#   Deny takes precedence over hold, hold over allow. Of several rules with the same
#   effect toolgate reports the one that comes first in this file.
package toolgate

import rego.v2

import data.toolgate.lib.arguments
import data.toolgate.lib.hours
import data.toolgate.lib.roles
import data.toolgate.lib.usage

# METADATA
# title: Callers see the tools that their roles have
visible if roles.has(input.tool.exposed)

# METADATA
# title: No role of the caller has the tool
# labels: {rule: DESK-001}
deny contains {
	"rule": "DESK-001",
	"reason": sprintf("no role of the caller may call %s", [input.tool.exposed]),
	"remedy": "ask the desk's lead for a role that may",
} if {
	input.tool
	not roles.has(input.tool.exposed)
}

# METADATA
# title: The arguments are not what the role may send
# labels: {rule: DESK-002}
deny contains {
	"rule": "DESK-002",
	"reason": sprintf("the caller may not call %s with these arguments", [input.tool.exposed]),
	"remedy": "send what data.json lists for the role",
} if {
	input.tool
	not fitting
}

# METADATA
# title: A refund names no ticket
# labels: {rule: DESK-003}
deny contains {
	"rule": "DESK-003",
	"reason": "a refund names the ticket that it is for",
	"remedy": "put the number of the ticket into ticket, such as DESK-1234",
} if {
	refund
	not ticket_named
}

# METADATA
# title: Refunds beyond what a day allows, or at night
# labels: {rule: DESK-004}
hold contains {
	"rule": "DESK-004",
	"reason": "refunds of this size, or at this hour, are for the desk's lead to decide",
	"remedy": "wait for the lead",
	"approval": data.approval,
} if {
	refund
	not modest
}

# METADATA
# title: A refund within the day's bounds
# labels: {rule: DESK-005}
allow contains {
	"rule": "DESK-005",
	"reason": "a refund within the day's bounds",
	"redact": ["/structuredContent/iban"],
} if {
	refund
	fitting
}

# METADATA
# title: A role of the caller has the tool
# labels: {rule: DESK-006}
allow contains {
	"rule": "DESK-006",
	"reason": sprintf("a role of the caller may call %s", [input.tool.exposed]),
} if {
	not refund
	fitting
}

refund if input.tool.exposed in data.refunds

fitting if true in roles.grants

fitting if {
	some grant in roles.grants
	arguments.fit(grant.arguments)
}

ticket_named if {
	is_string(input.arguments.ticket)
	regex.match(`^DESK-[0-9]{1,6}$`, input.arguments.ticket)
}

modest if {
	hours.open(data.schedules.desk)
	not usage.beyond(data.usage[input.tool.exposed], "hold")
}
