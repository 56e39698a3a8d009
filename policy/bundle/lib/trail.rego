package toolgate

import rego.v2

import data.toolgate.lib.roles

# METADATA
# title: Which records of the audit trail the caller may read
# description: |
#   "all", or "decides": the records of held calls that the caller may decide on.
#   data.trail[role] says it for the holders of a role. Undefined is none.
trail := "all" if {
	some role in roles.held
	data.trail[role] == "all"
} else := "decides" if {
	some role in roles.held
	data.trail[role] == "decides"
}
