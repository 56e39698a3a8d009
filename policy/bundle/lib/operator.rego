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

# METADATA
# title: Whether the caller may accept and refuse changed definitions of tools
# description: data.definitions[role] says it for the holders of a role. Without data.definitions, those who operate servers may.
accepts_definitions if {
	some role in roles.held
	data.definitions[role] == true
}

accepts_definitions if {
	not data.definitions
	operates
}

# METADATA
# title: Whether the caller may see and revoke connections of other people
# description: data.connections[role] says it for the holders of a role. Without data.connections, those who operate servers may.
sees_connections if {
	some role in roles.held
	data.connections[role] == true
}

sees_connections if {
	not data.connections
	operates
}

# METADATA
# title: Whether the caller may read arguments of recorded calls
# description: data.arguments[role] says it for the holders of a role. Without data.arguments, those who read the whole trail may.
reads_arguments if {
	some role in roles.held
	data.arguments[role] == true
}

reads_arguments if {
	not data.arguments
	trail == "all"
}

# METADATA
# title: Whether the caller may export the audit trail
# description: data.exports[role] says it for the holders of a role. Without data.exports, those who read the whole trail may.
exports_trail if {
	some role in roles.held
	data.exports[role] == true
}

exports_trail if {
	not data.exports
	trail == "all"
}
