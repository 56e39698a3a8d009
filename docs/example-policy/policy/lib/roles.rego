# METADATA
# title: Roles
# description: |
#   Who may use which tool. A caller holds the roles of its credential
#   (input.principal.roles). With a directory it also holds the roles of its
#   subject and groups, and every role that these inherit:
#
#     data.directory.subjects[subject]  {"roles": ["auditor"], "groups": ["finance"]}
#     data.directory.groups[group]      ["treasurer"]
#     data.directory.inherits[role]     ["observer"]: holders of role hold these too
#
#   A role grants tools by name, or by pattern where names would be too many. A
#   name costs the same however many there are; each pattern costs a comparison.
#   A deny list of one role takes precedence over the grants of all roles.
#
#     data.roles[role].tools[tool]        true, or {"arguments": {…}} (lib/arguments.rego)
#     data.roles[role].patterns[pattern]  the same; "files__*" is every tool of files
#     data.roles[role].deny.tools[tool]   true
#     data.roles[role].deny.patterns      ["*__delete_*"]
# custom: {policy-data: [roles, directory]}
package toolgate.lib.roles

import rego.v2

# METADATA
# title: The names of the roles that the caller holds
held contains role if some role in input.principal.roles

held contains role if {
	data.directory
	some role in inherited
}

inherited contains role if some role in assigned

inherited contains role if {
	some heir in graph.reachable(data.directory.inherits, assigned)
	some role in data.directory.inherits[heir]
}

assigned contains role if some role in input.principal.roles

assigned contains role if some role in data.directory.subjects[input.principal.subject].roles

assigned contains role if {
	some group in data.directory.subjects[input.principal.subject].groups
	some role in data.directory.groups[group]
}

# METADATA
# title: The entries of data.roles for the roles that the caller holds
entries contains data.roles[role] if some role in held

# METADATA
# title: What these roles grant on the called tool
# description: The grants as data.roles has them. Deny lists are not considered.
grants contains data.roles[role].tools[input.tool.exposed] if some role in held

grants contains grant if some grant in matches

# METADATA
# title: What these roles grant on the called tool by patterns of its name
matches contains grant if {
	some role in held
	some pattern, grant in data.roles[role].patterns
	glob.match(pattern, null, input.tool.exposed)
}

# METADATA
# title: One of these roles denies the called tool
denied if {
	some role in held
	denies(data.roles[role].deny, input.tool.exposed)
}

# METADATA
# title: The caller may use a tool, with some arguments
has(tool) if {
	some role in held
	gives(data.roles[role], tool)
	not withheld(tool)
}

gives(entry, tool) if given(entry.tools[tool])

gives(entry, tool) if {
	some pattern, grant in entry.patterns
	glob.match(pattern, null, tool)
	given(grant)
}

given(grant) if grant == true

given(grant) if is_object(grant)

withheld(tool) if {
	some role in held
	denies(data.roles[role].deny, tool)
}

# METADATA
# title: An entry of data.roles[role].deny names the tool
denies(lists, tool) if lists.tools[tool] == true

denies(lists, tool) if {
	some pattern in lists.patterns
	glob.match(pattern, null, tool)
}
