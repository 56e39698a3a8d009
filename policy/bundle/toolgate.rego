# METADATA
# title: toolgate default policy
# description: |
#   How calls are judged; data.json says to whom and how much.
#
#   data.roles[role].tools[tool] is true, or an object whose arguments member
#   lists, for each argument it names, the values that the role may use.
#   data.models[tool] lists the models that a tool may be asked for.
#   data.thresholds[tool][argument] is the largest number that passes without a
#   person; data.unmetered[tool][argument] lists values that move nothing.
#   data.approval says who decides on what is held.
#   data.roles[role].resources[server] and data.roles[role].prompts[server] are
#   true where a role may read what a server offers, and complete towards it.
#   data.roles[role].servers[server] has true for what that server may ask of
#   those with the role: sampling, elicitation, roots.
#   For these three the server "*" is every server.
#   data.roles[role].methods[server][method] is true where a role may use a
#   method of an extension.
#
#   Tools are keyed by the name under which agents call them, so that another
#   server's tool of the same name inherits nothing. What no rule allows is
#   denied. Conditions on what is known before a call (who, which tool) stand
#   before conditions on arguments: most verdicts are then constant.
package toolgate

import rego.v2

# Requests that call no tool: resources are read, prompts are got, and either is
# completed, by roles that have the server's.

decision := {
	"effect": "allow",
	"rule": "role-has-server",
	"reason": sprintf("a role of the caller may use the %s of %s", [kind, offered.server]),
} if {
	shared
}

decision := {
	"effect": "deny",
	"rule": "role-lacks-server",
	"reason": sprintf("no role of the caller (%s) may use the %s of %s", [concat(", ", input.principal.roles), kind, offered.server]),
	"remedy": "ask the operator for a role that may",
} if {
	offered
	not shared
}

shared if {
	some role in input.principal.roles
	some server in [offered.server, "*"]
	data.roles[role][kind][server] == true
}

offered := input.resource

offered := input.prompt

kind := "resources" if input.resource

kind := "prompts" if input.prompt

# What is about a server: what it asks of the caller, and what the caller wants
# of it beside tools, resources and prompts.

decision := {
	"effect": "allow",
	"rule": "role-has-server",
	"reason": sprintf("a role of the caller permits %s with %s", [input.action, input.server.name]),
} if {
	permitted
}

decision := {
	"effect": "deny",
	"rule": "role-lacks-server",
	"reason": sprintf("no role of the caller (%s) permits %s with %s", [concat(", ", input.principal.roles), input.action, input.server.name]),
	"remedy": "ask the operator for a role that does",
} if {
	input.server
	not permitted
}

# A server may ask for what a role lets it ask; a task of the caller's is asked
# after by whoever could have asked for what it does.
permitted if {
	some role in input.principal.roles
	some server in [input.server.name, "*"]
	some right in asking[input.server.asks]
	data.roles[role].servers[server][right] == true
}

asking := {
	"sampling/createMessage": ["sampling"],
	"elicitation/create": ["elicitation"],
	"roots/list": ["roots"],
	"tasks/list": ["sampling", "elicitation"],
}

# Whoever has one of the tools, with whatever arguments, may set the server's
# log level, and see to the tasks that came of it.
permitted if {
	not input.server.asks
	some role in input.principal.roles
	some tool in input.server.tools
	grant := data.roles[role].tools[tool]
	grants_some(grant)
}

grants_some(grant) if grant == true

grants_some(grant) if is_object(grant)

permitted if {
	not input.server.asks
	some role in input.principal.roles
	data.roles[role].methods[input.server.name][input.action] == true
}

# Exactly one of the six holds for a tool that a role names: a call is denied
# for the first thing that it lacks, then held, then allowed.

decision := {
	"effect": "deny",
	"rule": "role-lacks-tool",
	"reason": sprintf("no role of the caller (%s) may call %s", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": "use a tool from the tools list, or ask the operator for a role that has this one",
} if {
	input.tool
	not named
}

decision := {
	"effect": "deny",
	"rule": "role-lacks-argument",
	"reason": sprintf("no role of the caller (%s) may call %s with these arguments", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal(constraints)]),
} if {
	named
	not granted
}

decision := {
	"effect": "deny",
	"rule": "model-not-listed",
	"reason": sprintf("the model is not on the list for %s", [input.tool.exposed]),
	"remedy": sprintf("use one of: %s", [concat(", ", models)]),
} if {
	granted
	not model_listed
}

decision := {
	"effect": "deny",
	"rule": "amount-not-a-positive-number",
	"reason": sprintf("%s needs a number above zero for: %s", [input.tool.exposed, concat(", ", object.keys(thresholds))]),
	"remedy": "send the amount as a JSON number, not as text",
} if {
	granted
	model_listed
	not measurable
}

decision := {
	"effect": "hold",
	"rule": "amount-above-threshold",
	"reason": sprintf("%s is above the threshold: %s", [input.tool.exposed, json.marshal(thresholds)]),
	"remedy": "wait for a person to decide, or stay at or below the threshold",
	"approval": data.approval,
} if {
	granted
	model_listed
	measurable
	above_threshold
}

decision := {
	"effect": "allow",
	"rule": "role-has-tool",
	"reason": sprintf("a role of the caller may call %s", [input.tool.exposed]),
} if {
	granted
	model_listed
	measurable
	not above_threshold
}

# grants are what the caller's roles say about the tool.
grants contains grant if {
	some role in input.principal.roles
	grant := data.roles[role].tools[input.tool.exposed]
}

named if true in grants

named if {
	some grant in grants
	is_object(grant)
}

granted if true in grants

granted if {
	some grant in grants
	within(grant.arguments)
}

within(arguments) if {
	every name, values in arguments {
		input.arguments[name] in values
	}
}

constraints contains grant.arguments if some grant in grants

models := data.models[input.tool.exposed]

model_listed if not models

model_listed if {
	models
	input.arguments.model in models
}

thresholds := data.thresholds[input.tool.exposed]

# Rego compares across types (text is above every number, null below), so the
# type comes before every comparison.
measurable if not thresholds

measurable if {
	every name, _ in thresholds {
		is_number(input.arguments[name])
		input.arguments[name] > 0
	}
}

measurable if unmetered

unmetered if {
	some name, values in data.unmetered[input.tool.exposed]
	input.arguments[name] in values
}

above_threshold if {
	some name, most in thresholds
	is_number(input.arguments[name])
	input.arguments[name] > most
	not unmetered
}
