# METADATA
# title: Roles
# description: |
#   Who may use which tool. A caller holds the roles that its credential names
#   (input.principal.roles) and, where there is a directory, those of its subject
#   and its groups, and what all of these inherit:
#
#     data.directory.subjects[subject]  {"roles": ["auditor"], "groups": ["finance"]}
#     data.directory.groups[group]      ["treasurer"]
#     data.directory.inherits[role]     ["observer"]: whoever has role has these too
#
#   A role is given tools by name, and by pattern where names would not do: a name
#   costs the same however many there are, each pattern costs a comparison. What
#   one role denies no other gives back.
#
#     data.roles[role].tools[tool]        true, or {"arguments": {…}} (lib/arguments.rego)
#     data.roles[role].patterns[pattern]  the same; "files__*" is every tool of files
#     data.roles[role].deny.tools[tool]   true
#     data.roles[role].deny.patterns      ["*__delete_*"]
package toolgate.lib.roles

import rego.v2

# METADATA
# title: What data.roles says of the roles that the caller holds
entries contains data.roles[role] if some role in input.principal.roles

entries contains data.roles[role] if {
	data.directory
	some role in held
}

# METADATA
# title: The names of these roles
held contains role if some role in named

held contains role if {
	some heir in graph.reachable(data.directory.inherits, named)
	some role in data.directory.inherits[heir]
}

named contains role if some role in input.principal.roles

named contains role if some role in data.directory.subjects[input.principal.subject].roles

named contains role if {
	some group in data.directory.subjects[input.principal.subject].groups
	some role in data.directory.groups[group]
}

# METADATA
# title: What these roles say about the tool that is called
# description: The grants, of whatever form; deny lists are not looked at.
grants contains entry.tools[input.tool.exposed] if some entry in entries

grants contains grant if {
	some entry in entries
	some pattern, grant in entry.patterns
	glob.match(pattern, null, input.tool.exposed)
}

# METADATA
# title: One of them denies the tool that is called to whoever has the role
denied if {
	some entry in entries
	denies(entry.deny, input.tool.exposed)
}

# METADATA
# title: The caller may use a tool, whichever is called, with whatever arguments
has(tool) if {
	some entry in entries
	gives(entry, tool)
	not deprived(tool)
}

gives(entry, tool) if given(entry.tools[tool])

gives(entry, tool) if {
	some pattern, grant in entry.patterns
	glob.match(pattern, null, tool)
	given(grant)
}

given(grant) if grant == true

given(grant) if is_object(grant)

deprived(tool) if {
	some entry in entries
	denies(entry.deny, tool)
}

denies(lists, tool) if lists.tools[tool] == true

denies(lists, tool) if {
	some pattern in lists.patterns
	glob.match(pattern, null, tool)
}
