# The policy of the benchmarks. data.json names the tools of each role.
#
# A call of echo or big is judged the same for every call of a role: its verdict is
# constant. A call of checked is judged by its text.
package toolgate

import rego.v2

granted if {
	some role in input.principal.roles
	data.roles[role].tools[input.tool.name]
}

visible if granted

deny contains {"rule": "not-granted", "reason": "no role of the caller has the tool"} if not granted

deny contains {"rule": "too-long", "reason": "the text is too long"} if {
	data.longest[input.tool.name]
	count(input.arguments.text) > data.longest[input.tool.name]
}

hold contains {"rule": "held", "reason": "a person decides", "approval": {"roles": ["approver"]}} if {
	data.held[input.tool.name]
	startswith(input.arguments.text, data.held[input.tool.name])
}

allow contains {"rule": "granted", "reason": "a role of the caller has the tool"} if granted

# The agent's token also opens the pages of the console that follow calls.
trail := "all" if "agent" in input.principal.roles
