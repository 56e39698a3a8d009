# METADATA
# title: Usage
# description: |
#   Bounds on what a caller uses of a tool over a window of time. What is counted
#   is data.usage[tool][meter]; its members hold and deny are the bounds: above
#   the first a person decides, above the second nobody does.
#
#     data.usage[tool][meter]
#       {"window": "24h", "sum": "/amount", "per": ["/asset"],
#        "where": {"/action": ["transfer"]},
#        "hold": {"sum": 1000, "calls": 20}, "deny": {"sum": 5000}}
#
#   The call that is judged is counted in: ten transfers of 100 are within a sum
#   of 1000, the eleventh is not. A call that has something else than the values
#   of where is bound by nothing of that meter. A count that is not there, and an
#   amount that is no number, are beyond every bound.
package toolgate.lib.usage

import rego.v2

import data.toolgate.lib.arguments

# METADATA
# title: This call would pass a bound of one of the meters
# description: |
#   meters is an entry of data.usage, bound "hold" or "deny".
#
#   That arguments are an object is no condition, they always are. It keeps partial
#   evaluation from multiplying out what it means that no bound is passed.
beyond(meters, bound) if {
	some name, meter in meters
	most := meter[bound].calls
	is_object(input.arguments)
	not left_out(meter.where)
	not calls_within(name, most)
}

beyond(meters, bound) if {
	some name, meter in meters
	most := meter[bound].sum
	is_object(input.arguments)
	not left_out(meter.where)
	not arguments.fits(meter.sum, {"within": {"meter": name, "most": most}})
}

calls_within(name, most) if {
	is_number(most)
	is_number(input.usage[name].calls)
	input.usage[name].calls < most
}

left_out(where) if {
	some pointer, values in where
	arguments.fits(pointer, {"none_of": values})
}
