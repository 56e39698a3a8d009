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

# METADATA
# title: Whether the caller may stop calls and resume them
# description: data.stops[role] says it for the holders of a role. Without data.stops, those who operate servers may.
stops if {
	some role in roles.held
	data.stops[role] == true
}

stops if {
	not data.stops
	operates
}
