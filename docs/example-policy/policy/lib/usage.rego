# METADATA
# title: Usage
# description: |
#   Bounds on how much a caller uses of a tool within a window of time. toolgate
#   counts what data.usage[tool][meter] describes. Its members hold and deny are
#   the bounds: a call beyond hold waits for a person, a call beyond deny is denied.
#
#     data.usage[tool][meter]
#       {"window": "24h", "sum": "/amount", "per": ["/asset"],
#        "where": {"/action": ["transfer"]},
#        "hold": {"sum": 1000, "calls": 20}, "deny": {"sum": 5000}}
#
#   A bound on a sum is a number, or one for each value of an argument:
#   {"per": "/asset", "most": {"USD": 1000, "BTC": 0.02}}; a value without one is
#   beyond it. The meter should then count the values apart ("per").
#
#   The judged call counts too: ten transfers of 100 are within a sum of 1000, the
#   eleventh is not. A call with a value other than those of where is outside the
#   meter. A missing count, and an amount that is not a number, are beyond every
#   bound.
package toolgate.lib.usage

import rego.v2

import data.toolgate.lib.arguments

# METADATA
# title: The call is beyond a bound of one of the meters
# description: meters is an entry of data.usage, bound is "hold" or "deny".
beyond(meters, bound) if {
	some name
	most := meters[name][bound].calls
	not {
		is_number(most)
		calls := input.usage[name].calls
		is_number(calls)
		calls < most
	}
	not left_out(meters[name])
}

beyond(meters, bound) if {
	some name
	most := meters[name][bound].sum
	not {
		limit := most.most[arguments.lookup(most.per)]
		is_number(limit)
		amount := arguments.lookup(meters[name].sum)
		is_number(amount)
		used := input.usage[name].sum
		is_number(used)
		used + amount <= limit
	}
	not {
		is_number(most)
		amount := arguments.lookup(meters[name].sum)
		is_number(amount)
		used := input.usage[name].sum
		is_number(used)
		used + amount <= most
	}
	not left_out(meters[name])
}

left_out(meter) if {
	some pointer, values in meter.where
	argument := arguments.lookup(pointer)
	is_array(values)
	not argument in values
}
