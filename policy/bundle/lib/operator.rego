package toolgate

import rego.v2

import data.toolgate.lib.roles

# METADATA
# title: Whether the caller may operate servers
# description: data.operators[role] says it for the holders of a role. Undefined is no right.
operates if {
	some role in roles.held
	data.operators[role] == true
}
