# METADATA
# title: Facts
# description: |
#   toolgate reads facts of the arguments of a call before the policy judges it, as
#   data.facts[tool] declares. A fact that counts the smallest units of an asset has
#   decimals, by asset:
#
#     data.facts[tool]
#       {"contract": "manage_wallet", "amount": {"decimals": {"USD": 2, "BTC": 8}}}
#
#   Other data states amounts in whole units, 0.001 BTC for one. units makes smallest
#   units of them, so that amounts are compared as whole numbers.
# custom: {policy-data: [facts]}
package toolgate.lib.facts

import rego.v2

# METADATA
# title: An amount as the fact of a tool counts it
# description: |
#   In smallest units of the asset where the fact has decimals, else as it is. Undefined
#   for an asset without decimals, and for what is not a number.
units(tool, name, asset, amount) := round(amount * to_number(sprintf("1e%d", [decimals]))) if {
	is_number(amount)
	decimals := data.facts[tool][name].decimals[asset]
}

units(tool, name, _, amount) := amount if not data.facts[tool][name].decimals

# METADATA
# title: An amount as people write it
# description: |
#   In whole units of the asset where the fact has decimals, else as it is, with the fewest
#   digits: 450 for 45000 cents. Undefined for what is not a number.
written(tool, name, asset, amount) := concat(".", [part | some part in [substring(digits, 0, point), trim_right(substring(digits, point, -1), "0")]; part != ""]) if {
	is_number(amount)
	decimals := data.facts[tool][name].decimals[asset]
	digits := sprintf(sprintf("%%0%dd", [decimals + 1]), [amount])
	point := count(digits) - decimals
}

written(tool, name, asset, amount) := regex.replace(json.marshal(amount), `^(-?[0-9]+)(?:\.0+|(\.[0-9]*[1-9])0+)$`, "$1$2") if {
	is_number(amount)
	not data.facts[tool][name].decimals[asset]
}

# METADATA
# title: How to state the amounts of a tool, for the agent
amounts(tool, _) := "send the amount as a JSON number, not as text" if not data.facts[tool]

amounts(tool, thresholds) := sprintf("send a decimal number above zero of a listed asset, with at most so many digits after the point: %s", [json.marshal(decimals)]) if {
	data.facts[tool]
	decimals := {name: data.facts[tool][name].decimals | some name, _ in thresholds}
}
