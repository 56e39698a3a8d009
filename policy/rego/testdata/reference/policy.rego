# METADATA
# title: reference policy
# description: |
#   One decision as an else chain, as policies are that were written for speed of
#   full evaluation: booleans first, reasons only where a call is not allowed.
#   data.roles[role].tools[tool] is true or says what the arguments must be: enum,
#   pattern or most for each. Benchmarks measure it; operators may begin with it.
package toolgate

import rego.v2

# METADATA
# title: what is held to no rule is denied
# labels: {rule: role-lacks-tool}
default decision := {
	"effect": "deny",
	"rule": "role-lacks-tool",
	"reason": "no role of the caller may call this tool",
}

# METADATA
# title: a role of the caller has the tool with these arguments
# labels: {rule: role-has-tool}
decision := {"effect": "allow", "rule": "role-has-tool"} if {
	granted
	not above_threshold
} else := {
	"effect": "hold",
	"rule": "amount-above-threshold",
	"reason": "the amount is above the threshold",
	"approval": data.approval,
} if {
	granted
} else := {
	"effect": "deny",
	"rule": "role-lacks-argument",
	"reason": "no role of the caller may call this tool with these arguments",
} if {
	some role in input.principal.roles
	data.roles[role].tools[input.tool.exposed]
}

granted if {
	some role in input.principal.roles
	grant := data.roles[role].tools[input.tool.exposed]
	fits(grant)
}

fits(grant) if grant == true

fits(grant) if {
	is_object(grant)
	every name, constraint in grant {
		permitted(input.arguments[name], constraint)
	}
}

permitted(value, constraint) if value in constraint.enum

permitted(value, constraint) if {
	is_string(value)
	regex.match(constraint.pattern, value)
}

permitted(value, constraint) if {
	is_number(value)
	value <= constraint.most
}

above_threshold if {
	some name, most in data.thresholds[input.tool.exposed]
	is_number(input.arguments[name])
	input.arguments[name] > most
}
