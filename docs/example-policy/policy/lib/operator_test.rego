package toolgate.lib.operator_test

import rego.v2

import data.toolgate

operates(roles) if toolgate.operates with input as {"principal": {"subject": "a", "roles": roles}} with data.operators as {"operator": true, "guest": false}

test_an_operator_operates if operates(["guest", "operator"])

test_others_operate_nothing if {
	not operates(["guest"])
	not operates(["approver"])
}
