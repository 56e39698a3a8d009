# METADATA
# title: toolgate default policy
# description: |
#   This file says how calls are judged; data.json says who may do what. The
#   conditions come from lib, one package for each subject.
#
#   data.roles, data.directory                  who may use which tool (lib/roles.rego)
#   data.models[tool]                           models that the tool may be asked for, a list or
#                                               {"card-1": true}
#   data.facts[tool]                            what toolgate reads of the arguments before the policy
#                                               (input.facts): for a tool with facts, the names in
#                                               thresholds, known and transfers are facts
#   data.pixels[tool]                           most pixels of an image; larger ones are denied, and so
#                                               are calls without the fact pixels
#   data.thresholds[tool][argument]             largest number that passes without a person, or
#                                               {"per": "asset", "most": {"USD": 100}}: the largest
#                                               for each value of another argument; other values are held.
#                                               Of a fact with decimals both are in whole units.
#                                               Or a list of such objects, each with the roles and the
#                                               quorum that decide: the highest that is passed counts
#   data.known[tool][argument]                  values that pass without a person (lib/arguments.rego),
#                                               in calls that move something
#   data.unmetered[tool][argument]              values with which the call moves nothing
#   data.usage[tool][meter]                     bounds over time (lib/usage.rego)
#   data.annotations[hint]                      "hold" or "deny" for tools whose server claims the hint
#   data.approval                               who decides on held calls
#   data.tools[tool]                            what else holds for a tool, for every caller:
#     arguments    constraints on every call (lib/arguments.rego)
#     transfers    constraints on calls that move something: those not unmetered
#     facts        constraints on the facts of every call
#     hours        name of one of data.schedules (lib/hours.rego), or {"transfer": name}: only
#                  calls with that action are bound to it
#     hold         true: a person decides on every call
#     approval     replaces data.approval
#     limit        a rate, {"rate": "5/1m"}
#     redact       {"*": JSON Pointers into the result, role: more for holders of the role}
#   data.roles[role].resources[server], data.roles[role].prompts[server]
#                                               true: the role may read the server's resources or
#                                               get its prompts, and complete towards them
#   data.roles[role].servers[server]            what the server may ask of holders of the role, each
#                                               true: sampling, elicitation, roots
#   data.roles[role].methods[server][method]    true: the role may use a method of an extension
#
#   Tools are keyed by the name under which agents call them, so a tool of the same
#   name on another server inherits nothing. For resources, prompts and servers "*"
#   is every server.
#
#   Deny takes precedence over hold, hold over allow, and a call that nothing
#   allows is denied. Rules of one effect do not exclude each other; toolgate reports
#   the one that comes first in this file.
#
#   custom.policy-data lists data that has the form of schemas/policy-data.json. toolgate
#   loads no policy with a member in it that the form does not have.
# custom: {policy-data: [models, pixels, thresholds, known, unmetered, annotations, approval, tools, trail, operators, stops, definitions, arguments, exports, connections]}
package toolgate

import rego.v2

import data.toolgate.lib.arguments
import data.toolgate.lib.facts
import data.toolgate.lib.hours
import data.toolgate.lib.roles
import data.toolgate.lib.usage

# METADATA
# title: The caller sees the tools of its roles
visible if {
	named
	not roles.denied
	not alarming
}

deny contains lack if {
	not granted == true
	input.tool
	some lack in lacking
}

# METADATA
# title: No role of the caller has the tool
# labels: {rule: role-lacks-tool}
lacking contains {
	"rule": "role-lacks-tool",
	"reason": sprintf("no role of the caller (%s) may call %s", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": "use a tool from the tools list, or ask the operator for a role that has this one",
} if {
	not named
}

# METADATA
# title: A role of the caller denies the tool
# labels: {rule: role-denies-tool}
deny contains {
	"rule": "role-denies-tool",
	"reason": sprintf("a role of the caller (%s) denies %s", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": "use a tool from the tools list, or ask the operator to be without that role",
} if {
	roles.denied == true
}

# METADATA
# title: The server claims something of the tool that is denied
# labels: {rule: annotation-denied}
deny contains {
	"rule": "annotation-denied",
	"reason": sprintf("%s is, as its server says, of a kind that is denied", [input.tool.exposed]),
	"remedy": "use another tool",
} if {
	some hint, effect in data.annotations
	effect == "deny"
	input.tool.annotations[hint] == true
}

# METADATA
# title: No role of the caller has the tool with these arguments
# labels: {rule: role-lacks-argument}
lacking contains {
	"rule": "role-lacks-argument",
	"reason": sprintf("no role of the caller (%s) may call %s with these arguments", [concat(", ", input.principal.roles), input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal({grant.arguments | some grant in roles.grants})]),
} if {
	named
}

# toolgate evaluates a rule once for each revision when it reads only data, and once for
# each caller and tool when it reads only these and data. So what is known before a call
# stands in rules of its own, such as roles.denied and listing.

# Conditions on single tools. Callers without a grant are denied whatever they send, so
# the arguments are not looked at. Each rule ends with the data that it needs, by the name
# of the tool: OPA's index then passes over it for all other tools, and the line itself is
# evaluated only where everything before it holds. (OPA compares a rule with true for less
# than it takes to ask for the rule alone.)

deny contains verdict if {
	granted == true
	some verdict in refuse
	data.tools[input.tool.exposed]
}

# METADATA
# title: The model is not listed for the tool
# labels: {rule: model-not-listed}
deny contains {
	"rule": "model-not-listed",
	"reason": sprintf("the model is not on the list for %s", [tool]),
	"remedy": sprintf("use one of: %s", [concat(", ", models)]),
} if {
	granted == true
	tool := input.tool.exposed
	models := offered[tool]
	not input.arguments.model in models
	data.models[tool]
}

# METADATA
# title: An image is larger than the tool may make
# labels: {rule: image-too-large}
deny contains {
	"rule": "image-too-large",
	"reason": sprintf("%s may not make an image of this size", [tool]),
	"remedy": sprintf("ask for a listed size of at most %v pixels", [most]),
} if {
	granted == true
	tool := input.tool.exposed
	most := data.pixels[tool]
	not {
		is_number(most)
		is_number(input.facts.pixels)
		input.facts.pixels <= most
	}
	data.pixels[tool]
}

# METADATA
# title: An amount is not a number above zero
# labels: {rule: amount-not-a-positive-number}
deny contains {
	"rule": "amount-not-a-positive-number",
	"reason": sprintf("%s needs a number above zero for: %s", [tool, concat(", ", measured[tool])]),
	"remedy": texts.amounts[tool],
} if {
	granted == true
	tool := input.tool.exposed
	some name in measured[tool]
	not {
		amount := stated[name]
		is_number(amount)
		amount > 0
	}
	not unmetered
	data.thresholds[tool]
}

# METADATA
# title: An argument is not one with which the tool may move something
# labels: {rule: transfer-not-permitted}
refuse contains {
	"rule": "transfer-not-permitted",
	"reason": sprintf("%s may not move this, so much of it, or there", [input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal(wanted)]),
} if {
	wanted := data.tools[input.tool.exposed].transfers
	not {
		every name, want in wanted {
			meets(name, want)
		}
	}
	wanted != false
	not unmetered
}

# METADATA
# title: A fact is not what the tool may be called with
# labels: {rule: fact-not-permitted}
refuse contains {
	"rule": "fact-not-permitted",
	"reason": sprintf("a fact of the call is not what %s may be called with", [input.tool.exposed]),
	"remedy": sprintf("permitted facts: %s", [json.marshal(wanted)]),
} if {
	wanted := data.tools[input.tool.exposed].facts
	not {
		every name, want in wanted {
			arguments.holds(input.facts[name], want)
		}
	}
	wanted != false
}

# METADATA
# title: An argument is not what the tool may be called with
# labels: {rule: argument-not-permitted}
refuse contains {
	"rule": "argument-not-permitted",
	"reason": sprintf("an argument is not what %s may be called with", [input.tool.exposed]),
	"remedy": sprintf("permitted arguments: %s", [json.marshal(wanted)]),
} if {
	wanted := data.tools[input.tool.exposed].arguments
	not {
		every name, want in wanted {
			arguments.fits(name, want)
		}
	}
	wanted != false
}

# METADATA
# title: The call would pass a bound over time that nobody can lift
# labels: {rule: usage-above-limit}
deny contains {
	"rule": "usage-above-limit",
	"reason": sprintf("the call would use more of %s than its window has left", [tool]),
	"remedy": sprintf("wait, or use less: %s", [texts.usage.deny[tool]]),
} if {
	tool := input.tool.exposed
	usage.checks.deny[tool]
	granted == true
	usage.reached(tool, "deny")
	data.usage[tool]
}

# METADATA
# title: The tool is closed at this hour
# labels: {rule: outside-hours}
refuse contains {
	"rule": "outside-hours",
	"reason": sprintf("%s is closed at this hour", [input.tool.exposed]),
	"remedy": sprintf("call within the hours of %s", [json.marshal(name)]),
} if {
	name := data.tools[input.tool.exposed].hours
	not is_object(name)
	not hours.open(data.schedules[name])
	name != false
}

# METADATA
# title: An action of the tool is closed at this hour
# description: A call whose action is no text is bound to the hours of every action.
# labels: {rule: outside-hours}
refuse contains {
	"rule": "outside-hours",
	"reason": sprintf("%s is closed at this hour for the action %s", [input.tool.exposed, action]),
	"remedy": sprintf("call within the hours of %s", [json.marshal(name)]),
} if {
	some action, name in data.tools[input.tool.exposed].hours
	not {
		is_string(input.arguments.action)
		input.arguments.action != action
	}
	not hours.open(data.schedules[name])
	is_object(data.tools[input.tool.exposed].hours)
}

# METADATA
# title: A person decides on every call of the tool
# labels: {rule: tool-needs-approval}
hold contains {
	"rule": "tool-needs-approval",
	"reason": sprintf("a person decides on every call of %s", [input.tool.exposed]),
	"remedy": "wait for a person to decide",
	"approval": approval,
} if {
	data.tools[input.tool.exposed]
	data.tools[input.tool.exposed].hold
}

# METADATA
# title: The server claims something of the tool for which a person decides
# labels: {rule: tool-needs-approval}
hold contains {
	"rule": "tool-needs-approval",
	"reason": sprintf("a person decides on every call of %s", [input.tool.exposed]),
	"remedy": "wait for a person to decide",
	"approval": approval,
} if {
	some hint, effect in data.annotations
	effect == "hold"
	input.tool.annotations[hint] == true
}

# METADATA
# title: An amount is above what passes without a person
# labels: {rule: amount-above-threshold}
hold contains {
	"rule": "amount-above-threshold",
	"reason": above(tool, name, most),
	"remedy": "wait for a person to decide, or stay at or below the threshold",
	"approval": approval,
} if {
	granted == true
	tool := input.tool.exposed
	thresholds := data.thresholds[tool]
	is_object(thresholds)
	some name, most in thresholds

	# Rego compares across types (text is above every number, null below), so the type
	# comes before every comparison. Everything is above a threshold that is not a number.
	not {
		limit := limits[tool][name][stated[most.per]]
		is_number(limit)
		amount := stated[name]
		is_number(amount)
		amount <= limit
	}
	not {
		is_number(most)
		not {
			amount := stated[name]
			is_number(amount)
			amount > most
		}
	}
	not unmetered
	data.thresholds[tool]
}

# METADATA
# title: An amount is above an entry of the list of thresholds, and the entry is the highest
# labels: {rule: amount-above-threshold}
hold contains {
	"rule": "amount-above-threshold",
	"reason": above(tool, step.name, step.most),
	"remedy": "wait for a person to decide, or stay at or below the threshold",
	"approval": deciding(step.deciders),
} if {
	granted == true
	tool := input.tool.exposed
	some step in steps[tool]
	about(step)
	not {
		amount := stated[step.name]
		is_number(amount)
		is_number(step.from)
		amount <= step.from
	}
	not {
		some to in step.to
		stated[step.name] > to
	}
	not unmetered
	data.thresholds[tool]
}

# METADATA
# title: The call would pass a bound over time
# labels: {rule: usage-above-threshold}
hold contains {
	"rule": "usage-above-threshold",
	"reason": sprintf("the call would use more of %s than passes without a person: %s", [tool, texts.usage.hold[tool]]),
	"remedy": "wait for a person to decide, or use less",
	"approval": approval,
} if {
	granted == true
	tool := input.tool.exposed
	usage.reached(tool, "hold")
	data.usage[tool]
}

# METADATA
# title: An argument is not one of those that pass without a person
# labels: {rule: argument-not-known}
hold contains {
	"rule": "argument-not-known",
	"reason": sprintf("the %s is not one of those that %s is known to be called with", [name, tool]),
	"remedy": "wait for a person to decide, or ask the operator to list it in data.known",
	"approval": approval,
} if {
	granted == true
	tool := input.tool.exposed
	some name, values in listed[tool]
	not stated[name] in values
	not unmetered
	not meets(name, data.known[tool][name])
	data.known[tool]
}

# METADATA
# title: A role of the caller has the tool
# labels: {rule: role-has-tool}
allow contains {"rule": "role-has-tool", "reason": sprintf("a role of the caller may call %s", [input.tool.exposed])} if granted == true

allow contains verdict if {
	data.tools[input.tool.exposed]
	entry := data.tools[input.tool.exposed]
	some word in ["limit", "redact"]
	entry[word]
	some verdict in obligation
}

# METADATA
# title: A role of the caller has the tool, at a rate
# labels: {rule: role-has-tool}
obligation contains {
	"rule": "role-has-tool",
	"reason": sprintf("a role of the caller may call %s", [input.tool.exposed]),
	"limit": object.union({"key": input.tool.exposed}, limit),
} if {
	limit := data.tools[input.tool.exposed].limit
	limit != false
	granted == true
}

# METADATA
# title: A role of the caller has the tool, and parts of the result are redacted
# labels: {rule: role-has-tool}
obligation contains {
	"rule": "role-has-tool",
	"reason": sprintf("a role of the caller may call %s", [input.tool.exposed]),
	"redact": {pointer | some role in roles.held | {"*"}; some pointer in pointers[role]},
} if {
	pointers := data.tools[input.tool.exposed].redact
	granted == true
}

# Who calls which tool.

named if {
	some grant in roles.grants
	grant != false
}

# Grants without constraints come first: OPA asks no further once a rule of a complete
# document holds.
granted if true in roles.grants

granted if {
	some wanted in listing
	not {
		some name, values in wanted
		not input.arguments[name] in values
	}
}

granted if {
	some wanted in constraining
	every name, want in wanted {
		arguments.fits(name, want)
	}
}

# The constraints of grants that list values for every argument, as most do, and those
# of the other grants.
listing contains wanted if {
	some grant in roles.grants
	wanted := grant.arguments
	is_object(wanted)
	every name, values in wanted {
		is_array(values)
		startswith(name, "/") == false
	}
}

constraining contains grant.arguments if {
	some grant in roles.grants
	not listing[grant.arguments]
}

# A server's claims about its tools can only tighten.
alarming if {
	some hint, effect in data.annotations
	effect == "deny"
	input.tool.annotations[hint] == true
}

unmetered if {
	arguments := data.unmetered[input.tool.exposed]
	some name, values in arguments
	input.arguments[name] in values
}

# stated holds what thresholds and known values are about: the facts of a tool for which
# data.facts declares any, else the arguments.
stated := input.facts if data.facts[input.tool.exposed]

stated := input.arguments if not data.facts[input.tool.exposed]

# meets holds where what is stated fits a constraint.
meets(name, want) if {
	data.facts[input.tool.exposed]
	arguments.holds(input.facts[name], want)
}

meets(name, want) if {
	not data.facts[input.tool.exposed]
	arguments.fits(name, want)
}

# Without an approver the hold denies: a hold that names no role is an error.
approval := given if {
	given := data.tools[input.tool.exposed].approval
	given != false
} else := given if {
	given := data.approval
	given != false
} else := {"roles": []}

# deciding is approval, with the roles and the quorum of an entry of thresholds in it.
deciding(deciders) := approval if deciders == {}

deciding(deciders) := object.union(object.remove(approval, ["roles", "quorum"]), deciders) if deciders.roles

deciding(deciders) := object.union(object.remove(approval, ["roles", "quorum"]), deciders) if {
	not deciders.roles
	is_object(deciders.quorum)
}

deciding(deciders) := object.union(object.remove(approval, ["quorum"]), deciders) if {
	not deciders.roles
	is_number(deciders.quorum)
}

# The values of data.known for arguments that have a list of them.
listed := {tool: {name: values |
	some name, want in known
	values := [value | is_array(want); is_string(name); not startswith(name, "/"); some value in want]
} | some tool, known in data.known}

# The models of each tool: those of a list, or those that are true in an object.
offered := {tool: array.concat(
	[model | is_array(models); some model in models],
	[model | is_object(models); some model, listed_as in models; listed_as == true],
) | some tool, models in data.models}

# The largest amounts that pass, by the value of another argument or fact.
limits := {tool: {name: {value: limit |
	some value, most in bounds.most
	limit := facts.units(tool, name, value, most)
} |
	some name, bounds in thresholds
} | some tool, thresholds in data.thresholds}

# Lists of thresholds: what each entry bounds, and who decides above it.
entries := {tool: list |
	some tool, thresholds in data.thresholds
	is_array(thresholds)
	list := [{"bounds": object.remove(entry, people), "deciders": object.filter(entry, people)} | some entry in thresholds]
}

people := ["roles", "quorum"]

# The arguments or facts of each tool that have a threshold.
measured[tool] := object.keys(data.thresholds[tool]) if {
	some tool
	is_object(data.thresholds[tool])
}

measured[tool] := {name | some entry in list; some name, _ in entry.bounds} if some tool, list in entries

# steps are the ranges of amounts in which one entry of a list counts: above from, and not
# above the single element of to. A bound by asset has ranges for each asset that an entry
# lists ("each"), and one for the other assets ("other"). An entry that does not list an
# asset is passed by all of it, and is higher than those that do.
steps := {tool: found |
	some tool, list in entries
	found := {step |
		some [name, per] in {[name, by(most)] | some entry in list; some name, most in entry.bounds}
		values := {value | some entry in list; by(entry.bounds[name]) == per; some value, _ in entry.bounds[name].most}
		some [kind, value] in {["plain", ""] | per == ""} | {["other", null] | per != ""} | {["each", value] | some value in values}
		ranks := sort([[rank(tool, name, entry.bounds[name], value), i] | some i, entry in list; by(entry.bounds[name]) == per])
		some at, [from, i] in ranks
		next := array.slice(ranks, at + 1, at + 2)
		every higher in next {
			is_number(higher[0])
		}
		step := {
			"name": name, "per": per, "kind": kind, "value": value, "values": values,
			"from": from, "to": [to | some [to, _] in next],
			"most": list[i].bounds[name], "deciders": list[i].deciders,
		}
	}
}

by(most) := most.per

by(most) := "" if not most.per

# Text is above every number, and so is an entry without a number.
rank(tool, name, most, value) := most if {
	is_number(most)
} else := units if {
	units := facts.units(tool, name, value, most.most[value])
	is_number(units)
} else := "none"

about(step) if step.kind == "plain"

about(step) if {
	step.kind == "each"
	stated[step.per] == step.value
}

about(step) if {
	step.kind == "other"
	not stated[step.per] in step.values
}

# above says in words of the asset what an amount is above. It has a text for everything: a
# hold without a reason would be none.
above(tool, name, most) := sprintf("%s is above the threshold: %s %s is above %s %[3]s", [tool, facts.written(tool, name, asset, stated[name]), asset, facts.written(tool, name, asset, limit)]) if {
	asset := stated[most.per]
	limit := facts.units(tool, name, asset, most.most[asset])
} else := sprintf("%s is above the threshold: %s %s is above %s", [tool, name, facts.written(tool, name, null, stated[name]), facts.written(tool, name, null, most)]) if {
	is_number(most)
} else := sprintf("%s is above the threshold: there is none for %s", [tool, json.marshal(stated[most.per])]) if {
	stated[most.per]
} else := sprintf("%s is above the threshold", [tool])

texts := {
	"amounts": {tool: facts.amounts(tool, {name: true | some name in names}) | some tool, names in measured},
	"usage": {bound: {tool: concat("; ", [bounded(meter[bound], meter) | some meter in meters]) | some tool, meters in data.usage} | some bound in ["deny", "hold"]},
}

# bounded says what a meter lets pass: "at most 0.01 BTC, 1000 USD, 20 calls in 24h".
bounded(bounds, meter) := sprintf("at most %s in %s", [concat(", ", array.concat(sums, calls)), meter.window]) if {
	sums := array.concat(
		[json.marshal(bounds.sum) | is_number(bounds.sum)],
		[sprintf("%s %s", [json.marshal(most), value]) | some value, most in bounds.sum.most],
	)
	calls := [sprintf("%s calls", [json.marshal(bounds.calls)]) | is_number(bounds.calls)]
}

# Requests that call no tool.

deny contains verdict if {
	input.resource
	some verdict in refusal
}

deny contains verdict if {
	input.prompt
	some verdict in refusal
}

deny contains verdict if {
	input.server
	some verdict in refusal
}

allow contains verdict if {
	input.resource
	some verdict in permit
}

allow contains verdict if {
	input.prompt
	some verdict in permit
}

allow contains verdict if {
	input.server
	some verdict in permit
}

# Roles read the resources and get the prompts of the servers that data.roles names,
# and complete towards them.

# METADATA
# title: A role of the caller may use what the server offers
# labels: {rule: role-has-server}
permit contains {
	"rule": "role-has-server",
	"reason": sprintf("a role of the caller may use the %s of %s", [kind, server]),
} if {
	some kind, server in offer
	shared(kind, server)
}

# METADATA
# title: No role of the caller may use what the server offers
# labels: {rule: role-lacks-server}
refusal contains {
	"rule": "role-lacks-server",
	"reason": sprintf("no role of the caller (%s) may use the %s of %s", [concat(", ", input.principal.roles), kind, server]),
	"remedy": "ask the operator for a role that may",
} if {
	some kind, server in offer
	not shared(kind, server)
}

offer["resources"] := input.resource.server

offer["prompts"] := input.prompt.server

shared(kind, server) if {
	some name in [server, "*"]
	some role in roles.held
	data.roles[role][kind][name] == true
}

# Requests of a server to the caller, and requests to a server about anything other
# than its tools, resources and prompts.

# METADATA
# title: A role of the caller permits the request
# labels: {rule: role-has-server}
permit contains {
	"rule": "role-has-server",
	"reason": sprintf("a role of the caller permits %s with %s", [input.action, input.server.name]),
} if {
	permitted
}

# METADATA
# title: No role of the caller permits the request
# labels: {rule: role-lacks-server}
refusal contains {
	"rule": "role-lacks-server",
	"reason": sprintf("no role of the caller (%s) permits %s with %s", [concat(", ", input.principal.roles), input.action, input.server.name]),
	"remedy": "ask the operator for a role that does",
} if {
	input.server
	not permitted
}

# A server asks what a role lets it ask. The caller follows a task of its own with
# the right that began the task.
permitted if {
	some right in asking[input.server.asks]
	some server in [input.server.name, "*"]
	some role in roles.held
	data.roles[role].servers[server][right] == true
}

asking := {
	"sampling/createMessage": ["sampling"],
	"elicitation/create": ["elicitation"],
	"roots/list": ["roots"],
	"tasks/list": ["sampling", "elicitation"],
}

# Callers with one of the tools, whatever the arguments, may set the server's log
# level and follow the tasks of that tool.
permitted if {
	input.server
	not input.server.asks
	some tool in input.server.tools
	roles.has(tool)
}

permitted if {
	input.server
	not input.server.asks
	some role in roles.held
	data.roles[role].methods[input.server.name][input.action] == true
}
