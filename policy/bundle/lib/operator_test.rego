package toolgate.lib.operator_test

import rego.v2

import data.toolgate

operates(roles) if toolgate.operates with input as {"principal": {"subject": "a", "roles": roles}} with data.operators as {"operator": true, "guest": false}

test_an_operator_operates if operates(["guest", "operator"])

test_others_operate_nothing if {
	not operates(["guest"])
	not operates(["approver"])
}

stops(roles, data_stops) if {
	toolgate.stops with input as {"principal": {"subject": "a", "roles": roles}} with data.operators as {"operator": true} with data.stops as data_stops
}

test_who_stops_calls if stops(["guest", "guard"], {"guard": true, "guest": false})

test_others_stop_nothing if {
	not stops(["guest"], {"guard": true, "guest": false})
	not stops(["operator"], {"guard": true})
	not stops(["operator"], {})
}

test_operators_stop_calls_where_nobody_is_named if {
	toolgate.stops with input as {"principal": {"subject": "a", "roles": ["operator"]}} with data.operators as {"operator": true}
	not toolgate.stops with input as {"principal": {"subject": "a", "roles": ["approver"]}} with data.operators as {"operator": true}
}
