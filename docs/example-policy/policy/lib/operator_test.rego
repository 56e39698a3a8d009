package toolgate.lib.operator_test

import rego.v2

import data.toolgate

operates(roles) if toolgate.operates with input as {"principal": {"subject": "a", "roles": roles}} with data.operators as {"operator": true, "guest": false}

test_an_operator_operates if operates(["guest", "operator"])

test_others_operate_nothing if {
	not operates(["guest"])
	not operates(["approver"])
}

caller(roles) := {"principal": {"subject": "a", "roles": roles}}

trail := {"auditor": "all", "approver": "decides"}

stops(roles, named) if toolgate.stops with input as caller(roles) with data.operators as {"operator": true} with data.trail as trail with data.stops as named

test_stops_of_roles_that_are_named if {
	stops(["guest", "guard"], {"guard": true, "guest": false})
	not stops(["guest"], {"guard": true, "guest": false})
	not stops(["operator"], {"guard": true})
	not stops(["operator"], {})
}

test_stops_where_nobody_is_named if {
	toolgate.stops with input as caller(["operator"]) with data.operators as {"operator": true} with data.trail as trail
	not toolgate.stops with input as caller(["approver"]) with data.operators as {"operator": true} with data.trail as trail
}

accepts_definitions(roles, named) if toolgate.accepts_definitions with input as caller(roles) with data.operators as {"operator": true} with data.trail as trail with data.definitions as named

test_definitions_of_roles_that_are_named if {
	accepts_definitions(["guest", "guard"], {"guard": true, "guest": false})
	not accepts_definitions(["guest"], {"guard": true, "guest": false})
	not accepts_definitions(["operator"], {"guard": true})
	not accepts_definitions(["operator"], {})
}

test_definitions_where_nobody_is_named if {
	toolgate.accepts_definitions with input as caller(["operator"]) with data.operators as {"operator": true} with data.trail as trail
	not toolgate.accepts_definitions with input as caller(["approver"]) with data.operators as {"operator": true} with data.trail as trail
}

sees_connections(roles, named) if toolgate.sees_connections with input as caller(roles) with data.operators as {"operator": true} with data.trail as trail with data.connections as named

test_connections_of_roles_that_are_named if {
	sees_connections(["guest", "guard"], {"guard": true, "guest": false})
	not sees_connections(["guest"], {"guard": true, "guest": false})
	not sees_connections(["operator"], {"guard": true})
	not sees_connections(["operator"], {})
}

test_connections_where_nobody_is_named if {
	toolgate.sees_connections with input as caller(["operator"]) with data.operators as {"operator": true} with data.trail as trail
	not toolgate.sees_connections with input as caller(["approver"]) with data.operators as {"operator": true} with data.trail as trail
}

reads_arguments(roles, named) if toolgate.reads_arguments with input as caller(roles) with data.operators as {"operator": true} with data.trail as trail with data.arguments as named

test_arguments_of_roles_that_are_named if {
	reads_arguments(["guest", "guard"], {"guard": true, "guest": false})
	not reads_arguments(["guest"], {"guard": true, "guest": false})
	not reads_arguments(["auditor"], {"guard": true})
	not reads_arguments(["auditor"], {})
}

test_arguments_where_nobody_is_named if {
	toolgate.reads_arguments with input as caller(["auditor"]) with data.operators as {"operator": true} with data.trail as trail
	not toolgate.reads_arguments with input as caller(["approver"]) with data.operators as {"operator": true} with data.trail as trail
}

exports_trail(roles, named) if toolgate.exports_trail with input as caller(roles) with data.operators as {"operator": true} with data.trail as trail with data.exports as named

test_exports_of_roles_that_are_named if {
	exports_trail(["guest", "guard"], {"guard": true, "guest": false})
	not exports_trail(["guest"], {"guard": true, "guest": false})
	not exports_trail(["auditor"], {"guard": true})
	not exports_trail(["auditor"], {})
}

test_exports_where_nobody_is_named if {
	toolgate.exports_trail with input as caller(["auditor"]) with data.operators as {"operator": true} with data.trail as trail
	not toolgate.exports_trail with input as caller(["approver"]) with data.operators as {"operator": true} with data.trail as trail
}
