# METADATA
# title: Arguments
# description: |
#   Constraints on arguments, written as data. A constraint names an argument, or
#   points to a nested one: "path", or "/payment/amount" (JSON Pointer, not
#   through lists). The constraint is a list of permitted values, or an object
#   whose members must all hold:
#
#     "enum": ["a", "b"]          one of these
#     "none_of": ["c"]            anything else, of any type
#     "in": …, "not_in": …        text that is, or is not, listed: a list, an
#                                 object {"text": true} for long lists, or the
#                                 name of one of data.lists
#     "min": 0, "max": 100        a number within these bounds, inclusive
#     "above": 0, "below": 100    a number within these bounds, exclusive
#     "integer": true             a whole number
#     "pattern": "[A-Z]{3}"       text that matches from beginning to end (RE2)
#     "prefix": ["/srv/docs/"]    text that begins with one of these, without ".."
#     "hosts": ["api.example.com", "localhost:8080"]
#                                 http(s) URL of one of these hosts
#     "domains": [".example.org"] http(s) URL of this domain or a subdomain
#     "min_length": 1, "max_length": 80
#                                 characters of a text, elements of a list
#     "optional": true            may be absent or null (names only, not pointers)
#     "within": {"meter": "day", "most": 1000}
#                                 a number that, added to the sum of that meter,
#                                 is at most this (lib/usage.rego)
#
#   A missing argument, another type and an unknown constraint do not fit: a typing
#   error in data refuses calls, it never lets one pass.
# custom: {policy-data: [lists]}
package toolgate.lib.arguments

import rego.v2

# METADATA
# title: Every named argument fits
# description: wanted maps names and pointers to constraints.
fit(wanted) if {
	every name, want in wanted {
		fits(name, want)
	}
}

# METADATA
# title: One argument fits
fits(name, want) if {
	is_array(want)
	startswith(name, "/") == false
	input.arguments[name] in want
}

fits(name, want) if {
	is_object(want)
	startswith(name, "/") == false
	argument := input.arguments[name]
	not {
		some word, limit in want
		not satisfies(word, argument, limit)
	}
}

fits(pointer, want) if {
	startswith(pointer, "/")
	holds(lookup(pointer), want)
}

fits(name, want) if {
	want.optional == true
	startswith(name, "/") == false
	object.get(input.arguments, name, null) == null
}

# METADATA
# title: The argument to which a pointer leads
# description: Undefined where the call has none.
lookup(pointer) := input.arguments[name] if {
	["", name] = split(pointer, "/")
	contains(name, "~") == false
}

lookup(pointer) := found if {
	regex.match(`(?s)~|/.*/`, pointer)
	keys := [key |
		some part in split(pointer, "/")
		key := strings.replace_n({"~1": "/", "~0": "~"}, part)
	]
	found := reached(keys)
}

# reached follows the tokens of a JSON Pointer (RFC 6901). The first token is the
# empty text before the first slash.
reached([_, a]) := input.arguments[a]

reached([_, a, b]) := input.arguments[a][b]

reached(tokens) := found if {
	tokens[3]
	is_object(input.arguments)
	found := object.get(input.arguments, array.slice(tokens, 1, count(tokens)), set())
	not is_set(found)
}

holds(argument, want) if {
	is_array(want)
	argument in want
}

holds(argument, want) if {
	is_object(want)
	every word, limit in want {
		satisfies(word, argument, limit)
	}
}

# satisfies holds where an argument is what one word of a constraint asks for. The
# word is compared in the body, which OPA indexes. Every rule tests the types of
# both operands: in Rego text is above every number and null below.
satisfies(word, value, values) if {
	word == "enum"
	value in values
}

satisfies(word, value, values) if {
	word == "none_of"
	is_array(values)
	not value in values
}

satisfies(word, value, table) if {
	word == "in"
	is_string(value)
	listed(value, table)
}

satisfies(word, value, table) if {
	word == "not_in"
	is_string(value)
	is_table(table)
	not listed(value, table)
}

satisfies(word, value, least) if {
	word == "min"
	is_number(least)
	is_number(value)
	value >= least
}

satisfies(word, value, most) if {
	word == "max"
	is_number(most)
	is_number(value)
	value <= most
}

satisfies(word, value, bound) if {
	word == "above"
	is_number(bound)
	is_number(value)
	value > bound
}

satisfies(word, value, bound) if {
	word == "below"
	is_number(bound)
	is_number(value)
	value < bound
}

satisfies(word, value, yes) if {
	word == "integer"
	yes == true
	is_number(value)
	value == floor(value)
}

satisfies(word, value, pattern) if {
	word == "pattern"
	is_string(value)
	regex.match(concat("", ["^(?:", pattern, ")$"]), value)
}

satisfies(word, value, prefixes) if {
	word == "prefix"
	is_string(value)
	strings.any_prefix_match(value, prefixes)
	not contains(value, "..")
}

satisfies(word, value, hosts) if {
	word == "hosts"
	is_string(value)
	regex.match(url, value)
	lower(regex.replace(value, url, "$1")) in hosts
}

satisfies(word, value, domains) if {
	word == "domains"
	is_string(value)
	regex.match(url, value)
	strings.any_suffix_match(concat("", [".", lower(regex.replace(value, url, "$1"))]), domains)
}

satisfies(word, value, least) if {
	word == "min_length"
	is_number(least)
	is_string(value)
	count(value) >= least
}

satisfies(word, value, least) if {
	word == "min_length"
	is_number(least)
	is_array(value)
	count(value) >= least
}

satisfies(word, value, most) if {
	word == "max_length"
	is_number(most)
	is_string(value)
	count(value) <= most
}

satisfies(word, value, most) if {
	word == "max_length"
	is_number(most)
	is_array(value)
	count(value) <= most
}

satisfies(word, value, want) if {
	word == "within"
	is_number(want.most)
	is_number(value)
	is_number(input.usage[want.meter].sum)
	input.usage[want.meter].sum + value <= want.most
}

satisfies(word, _, _) if word == "optional"

# url matches URLs that every parser reads alike: the host comes first, and neither
# a user name nor a backslash can move it.
url := `(?is)^https?://([a-z0-9.-]+(?::[0-9]+)?)(?:[/?#][^\s\\]*)?$`

listed(value, name) if data.lists[name][value] == true

listed(value, table) if {
	is_array(table)
	value in table
}

listed(value, table) if {
	is_object(table)
	table[value] == true
}

listed(value, name) if {
	is_string(name)
	table := data.lists[name]
	is_array(table)
	value in table
}

# A missing list would exclude nobody, so a name without a list fits nothing.
is_table(table) if is_array(table)

is_table(table) if is_object(table)

is_table(name) if {
	is_string(name)
	data.lists[name]
}
