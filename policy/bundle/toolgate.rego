# METADATA
# title: toolgate default policy
# description: |
#   How calls are judged; data.json says to whom and how much. The conditions are
#   those of lib, one package to a subject; here are their order and their words.
#
#   data.roles, data.directory                  who may use which tool (lib/roles.rego)
#   data.models[tool]                           the models that a tool may be asked for
#   data.thresholds[tool][argument]             largest number that passes without a person
#   data.unmetered[tool][argument]              values that move nothing
#   data.usage[tool][meter]                     bounds over time (lib/usage.rego)
#   data.annotations[hint]                      "hold" or "deny" where a server claims hint of a tool
#   data.approval                               who decides on what is held
#   data.tools[tool]                            what else holds of a tool, whoever calls:
#     arguments    constraints on every call (lib/arguments.rego)
#     transfers    the same for calls that move something: those that are not unmetered
#     hours        name of one of data.schedules (lib/hours.rego)
#     hold         true: a person decides on every call
#     approval     in place of data.approval
#     limit        a rate, {"rate": "5/1m"}
#     redact       {"*": JSON Pointers into the result, role: more for who holds it}
#     observe      arguments, transfers, hours, models, thresholds and usage to try: what
#                  these would refuse or hold is said in the reason, and passes
#   data.roles[role].resources[server], data.roles[role].prompts[server]
#                                               true: the role may read what a server offers, and
#                                               complete towards it
#   data.roles[role].servers[server]            true for what that server may ask of those with
#                                               the role: sampling, elicitation, roots
#   data.roles[role].methods[server][method]    true: the role may use a method of an extension
#
#   Tools are keyed by the name under which agents call them, so that another
#   server's tool of the same name inherits nothing. For resources, prompts and
#   servers "*" is every server. What no rule allows is denied. Conditions on what
#   is known before a call (who, which tool) stand before conditions on arguments:
#   most verdicts are then constant.
package toolgate

import rego.v2

import data.toolgate.lib.arguments
import data.toolgate.lib.hours
import data.toolgate.lib.roles
import data.toolgate.lib.usage

decision := request if not input.tool

# Requests that call no tool: resources are read, prompts are got, and either is
# completed, by roles that have the server's.

# METADATA
# title: A role of the caller may use what the server offers
# labels: {rule: role-has-server}
request := {
	"effect": "allow",
	"rule": "role-has-server",
	"reason": sprintf("a role of the caller may use the %s of %s", [kind, offered.server]),
} if {
	shared
}

# METADATA
# title: No role of the caller may use what the server offers
# labels: {rule: role-lacks-server}
request := {
	"effect": "deny",
	"rule": "role-lacks-server",
	"reason": sprintf("no role of the caller (%s) may use the %s of %s", [concat(", ", input.principal.roles), kind, offered.server]),
	"remedy": "ask the operator for a role that may",
} if {
	offered
	not shared
}

shared if {
	some server in [offered.server, "*"]
	some entry in roles.entries
	entry[kind][server] == true
}

offered := input.resource

offered := input.prompt

kind := "resources" if input.resource

kind := "prompts" if input.prompt

# What is about a server: what it asks of the caller, and what the caller wants
# of it beside tools, resources and prompts.

# METADATA
# title: A role of the caller permits the request
# labels: {rule: role-has-server}
request := {
	"effect": "allow",
	"rule": "role-has-server",
	"reason": sprintf("a role of the caller permits %s with %s", [input.action, input.server.name]),
} if {
	permitted
}

# METADATA
# title: No role of the caller permits the request
# labels: {rule: role-lacks-server}
request := {
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
	some right in asking[input.server.asks]
	some server in [input.server.name, "*"]
	some entry in roles.entries
	entry.servers[server][right] == true
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
	some tool in input.server.tools
	roles.has(tool)
}

permitted if {
	not input.server.asks
	some entry in roles.entries
	entry.methods[input.server.name][input.action] == true
}

# Exactly one verdict holds for a call: it is denied for the first thing that it
# lacks, then held, then allowed. A rule begins with what seldom holds.

# METADATA
# title: No role of the caller has the tool
# labels: {rule: role-lacks-tool}
decision := {
	"effect": "deny",
	"rule": "role-lacks-tool",
	"reason": sprintf("no role of the caller (%s) may call %s", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": "use a tool from the tools list, or ask the operator for a role that has this one",
} if {
	input.tool
	not named
}

# METADATA
# title: A role of the caller denies the tool
# labels: {rule: role-denies-tool}
decision := {
	"effect": "deny",
	"rule": "role-denies-tool",
	"reason": sprintf("a role of the caller (%s) denies %s", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": "use a tool from the tools list, or ask the operator to be without that role",
} if {
	roles.denied
	named
}

# METADATA
# title: The server claims something of the tool that is denied
# labels: {rule: annotation-denied}
decision := {
	"effect": "deny",
	"rule": "annotation-denied",
	"reason": sprintf("%s is, as its server says, of a kind that is denied", [input.tool.exposed]),
	"remedy": "use another tool",
} if {
	alarming
	named
	not roles.denied
}

# METADATA
# title: No role of the caller has the tool with these arguments
# labels: {rule: role-lacks-argument}
decision := {
	"effect": "deny",
	"rule": "role-lacks-argument",
	"reason": sprintf("no role of the caller (%s) may call %s with these arguments", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal({grant.arguments | some grant in roles.grants})]),
} if {
	entitled
	not granted
}

# Of most tools the data says no more than who has them.

# METADATA
# title: A role of the caller has the tool
# labels: {rule: role-has-tool}
decision := {
	"effect": "allow",
	"rule": "role-has-tool",
	"reason": sprintf("a role of the caller may call %s", [input.tool.exposed]),
} if {
	plain
	entitled
	granted
}

decision := special if {
	not plain
	entitled
	granted
}

# METADATA
# title: The model is not listed for the tool
# labels: {rule: model-not-listed}
special := {
	"effect": "deny",
	"rule": "model-not-listed",
	"reason": sprintf("the model is not on the list for %s", [input.tool.exposed]),
	"remedy": sprintf("use one of: %s", [concat(", ", models)]),
} if {
	not model_listed
}

# METADATA
# title: An amount is not a number above zero
# labels: {rule: amount-not-a-positive-number}
special := {
	"effect": "deny",
	"rule": "amount-not-a-positive-number",
	"reason": sprintf("%s needs a number above zero for: %s", [input.tool.exposed, concat(", ", object.keys(thresholds))]),
	"remedy": "send the amount as a JSON number, not as text",
} if {
	not measured
	not unmetered
	model_listed
}

# METADATA
# title: An argument is not one with which the tool may move something
# labels: {rule: transfer-not-permitted}
special := {
	"effect": "deny",
	"rule": "transfer-not-permitted",
	"reason": sprintf("%s may not move this, so much of it, or there", [input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal(settings.transfers)]),
} if {
	not transfer_fits
	not unmetered
	measured
	model_listed
}

special := refusal if {
	wide
	sound
}

# METADATA
# title: An argument is not what the tool may be called with
# labels: {rule: argument-not-permitted}
refusal := {
	"effect": "deny",
	"rule": "argument-not-permitted",
	"reason": sprintf("an argument is not what %s may be called with", [input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal(settings.arguments)]),
} if {
	not arguments_fit
}

# METADATA
# title: The call would pass a bound over time that nobody can lift
# labels: {rule: usage-above-limit}
refusal := {
	"effect": "deny",
	"rule": "usage-above-limit",
	"reason": sprintf("the call would use more of %s than its window has left", [input.tool.exposed]),
	"remedy": sprintf("wait, or use less: %s", [json.marshal(meters)]),
} if {
	over_limit
	arguments_fit
}

# METADATA
# title: The tool is closed at this hour
# labels: {rule: outside-hours}
refusal := {
	"effect": "deny",
	"rule": "outside-hours",
	"reason": sprintf("%s is closed at this hour", [input.tool.exposed]),
	"remedy": sprintf("call within the hours of %s", [json.marshal(settings.hours)]),
} if {
	not in_hours
	arguments_fit
	not over_limit
}

special := consent if not wide

special := object.union(consent, obligations) if {
	wide
	not settings.observe
}

special := object.union_n([passed, obligations, {"reason": concat("", [passed.reason, note])}]) if {
	settings.observe
	passed := consent
}

# METADATA
# title: A person decides on every call of the tool
# labels: {rule: tool-needs-approval}
consent := {
	"effect": "hold",
	"rule": "tool-needs-approval",
	"reason": sprintf("a person decides on every call of %s", [input.tool.exposed]),
	"remedy": "wait for a person to decide",
	"approval": approval,
} if {
	wide
	attended
	sound
	proper
}

# METADATA
# title: The call would pass a bound over time
# labels: {rule: usage-above-threshold}
consent := {
	"effect": "hold",
	"rule": "usage-above-threshold",
	"reason": sprintf("the call would use more of %s than passes without a person: %s", [input.tool.exposed, json.marshal(meters)]),
	"remedy": "wait for a person to decide, or use less",
	"approval": approval,
} if {
	wide
	over_threshold
	sound
	proper
	not attended
}

# METADATA
# title: An amount is above what passes without a person
# labels: {rule: amount-above-threshold}
consent := {
	"effect": "hold",
	"rule": "amount-above-threshold",
	"reason": sprintf("%s is above the threshold: %s", [input.tool.exposed, json.marshal(thresholds)]),
	"remedy": "wait for a person to decide, or stay at or below the threshold",
	"approval": approval,
} if {
	above_threshold
	model_listed
	measured
	transfer_fits
	free
}

# METADATA
# title: A role of the caller has the tool
# labels: {rule: role-has-tool}
consent := {
	"effect": "allow",
	"rule": "role-has-tool",
	"reason": sprintf("a role of the caller may call %s", [input.tool.exposed]),
} if {
	sound
	free
	not above_threshold
}

# Who and which tool: all of this is known before any call.

named if {
	some grant in roles.grants
	grant != false
}

entitled if {
	named
	not roles.denied
	not alarming
}

# What a server claims of its tools is a reason to take care, never one to allow.
alarming if {
	some hint, claim in input.tool.annotations
	claim == true
	data.annotations[hint] == "deny"
}

cautioned if {
	some hint, claim in input.tool.annotations
	claim == true
	data.annotations[hint] == "hold"
}

plain if {
	not wide
	not models
	not thresholds
}

# wide: the data says something of it besides models and thresholds.
wide if data.tools[input.tool.exposed]

wide if data.usage[input.tool.exposed]

wide if cautioned

settings := data.tools[input.tool.exposed]

models := data.models[input.tool.exposed]

thresholds := data.thresholds[input.tool.exposed]

meters := data.usage[input.tool.exposed]

attended if settings.hold

attended if cautioned

approval := data.approval if not settings.approval

approval := settings.approval if settings.approval

# What a call must be. sound: the caller may name this model and move this much;
# proper: and what the data says besides does not refuse it; free: nor hold it.

granted if true in roles.grants

granted if {
	some grant in roles.grants
	arguments.fit(grant.arguments)
}

sound if {
	model_listed
	movable
}

movable if unmetered

movable if {
	not unmetered
	measured
	transfer_fits
}

proper if {
	arguments_fit
	not over_limit
	in_hours
}

free if not wide

free if {
	wide
	proper
	not attended
	not over_threshold
}

arguments_fit if not settings.arguments

arguments_fit if arguments.fit(settings.arguments)

model_listed if not models

model_listed if input.arguments.model in models

unmetered if {
	some name, values in data.unmetered[input.tool.exposed]
	input.arguments[name] in values
}

# Rego compares across types (text is above every number, null below), so the
# type comes before every comparison.
measured if not thresholds

measured if {
	every name, _ in thresholds {
		is_number(input.arguments[name])
		input.arguments[name] > 0
	}
}

transfer_fits if not wide

transfer_fits if {
	wide
	not settings.transfers
}

transfer_fits if arguments.fit(settings.transfers)

above_threshold if above(thresholds)

above(table) if {
	some name, most in table
	is_number(most)
	is_number(input.arguments[name])
	input.arguments[name] > most
	not unmetered
}

# A threshold that is no number is one that everything is above.
above(table) if {
	some _, most in table
	not is_number(most)
	not unmetered
}

over_limit if usage.beyond(meters, "deny")

over_threshold if usage.beyond(meters, "hold")

in_hours if not settings.hours

in_hours if hours.open(data.schedules[settings.hours])

# What a call that passes is bound to.

obligations := {"redact": redact} if not settings.limit

obligations := {"redact": redact, "limit": object.union({"key": input.tool.exposed}, settings.limit)} if settings.limit

redact contains pointer if some pointer in settings.redact["*"]

redact contains pointer if {
	some role in roles.held
	some pointer in settings.redact[role]
}

# What settings.observe would have refused or held, by the rules that would have:
# the reason of the decision says it, and nothing else changes. Such a tool is
# evaluated whole for every call.

note := sprintf("; observed: %s", [concat(", ", observed)]) if some _ in observed

note := "" if count(observed) == 0

observed contains "argument-not-permitted" if {
	settings.observe.arguments
	not arguments.fit(settings.observe.arguments)
}

observed contains "model-not-listed" if {
	settings.observe.models
	not input.arguments.model in settings.observe.models
}

observed contains "transfer-not-permitted" if {
	settings.observe.transfers
	not unmetered
	not arguments.fit(settings.observe.transfers)
}

observed contains "amount-above-threshold" if above(settings.observe.thresholds)

observed contains "usage-above-limit" if usage.beyond(settings.observe.usage, "deny")

observed contains "usage-above-threshold" if usage.beyond(settings.observe.usage, "hold")

observed contains "outside-hours" if {
	settings.observe.hours
	not hours.open(data.schedules[settings.observe.hours])
}
