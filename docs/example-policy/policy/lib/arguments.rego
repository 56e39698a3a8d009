# METADATA
# title: Arguments
# description: |
#   Constraints on arguments, written as data. An argument is named, or pointed
#   at where it stands deeper: "path", or "/payment/amount" (JSON Pointer, not
#   through lists). What it must be is a list of the
#   values that it may have, or an object all of whose members hold:
#
#     "enum": ["a", "b"]          one of these
#     "none_of": ["c"]            anything else, of whatever type
#     "in": …, "not_in": …        text that is, or is not, listed: a list, an
#                                 object {"text": true} for long ones, or the
#                                 name of one of data.lists
#     "min": 0, "max": 100        a number from, a number to
#     "above": 0, "below": 100    the same without the bound itself
#     "integer": true             a whole number
#     "pattern": "[A-Z]{3}"       text that matches whole (RE2)
#     "prefix": ["/srv/docs/"]    text that begins with one of these, without ".."
#     "hosts": ["api.example.com", "localhost:8080"]
#                                 http(s) URL of one of these hosts
#     "domains": [".example.org"] http(s) URL of this domain or one below it
#     "min_length": 1, "max_length": 80
#                                 characters of a text, elements of a list
#     "optional": true            it may be absent, or null (not where a pointer is)
#     "within": {"meter": "day", "most": 1000}
#                                 a number that together with the sum of that
#                                 meter is at most so much (lib/usage.rego)
#
#   What is absent, of another type or constrained by a word that is not in this
#   list does not fit: a slip of the pen refuses calls, it lets none pass.
package toolgate.lib.arguments

import rego.v2

# METADATA
# title: Every argument that is named fits
# description: wanted maps names and pointers to what they must be.
fit(wanted) if {
	every name, want in wanted {
		fits(name, want)
	}
}

# METADATA
# title: One argument fits
fits(name, want) if {
	not startswith(name, "/")
	holds(input.arguments[name], want)
}

fits(name, want) if {
	startswith(name, "/")
	reaches(keys(name), want)
}

fits(name, want) if {
	want.optional == true
	not startswith(name, "/")
	not input.arguments[name] != null
}

reaches([a], want) if holds(input.arguments[a], want)

reaches([a, b], want) if holds(input.arguments[a][b], want)

reaches([a, b, c], want) if holds(input.arguments[a][b][c], want)

reaches(path, want) if {
	count(path) > 3
	is_object(input.arguments)
	value := object.get(input.arguments, path, set())
	not is_set(value)
	holds(value, want)
}

# keys are the members that a JSON Pointer leads through (RFC 6901).
keys(pointer) := [key |
	some i, part in split(pointer, "/")
	i > 0
	key := strings.replace_n({"~1": "/", "~0": "~"}, part)
]

holds(value, want) if {
	is_array(want)
	value in want
}

holds(value, want) if {
	is_object(want)
	every word, limit in want {
		satisfies(word, value, limit)
	}
}

# A word's rule tests the types of what it compares, that of the bound too: in
# Rego text is above every number and null below.
satisfies("enum", value, values) if value in values

satisfies("none_of", value, values) if {
	is_array(values)
	not value in values
}

satisfies("in", value, table) if {
	is_string(value)
	listed(value, table)
}

satisfies("not_in", value, table) if {
	is_string(value)
	is_table(table)
	not listed(value, table)
}

satisfies("min", value, least) if {
	is_number(least)
	is_number(value)
	value >= least
}

satisfies("max", value, most) if {
	is_number(most)
	is_number(value)
	value <= most
}

satisfies("above", value, bound) if {
	is_number(bound)
	is_number(value)
	value > bound
}

satisfies("below", value, bound) if {
	is_number(bound)
	is_number(value)
	value < bound
}

satisfies("integer", value, true) if {
	is_number(value)
	value == floor(value)
}

satisfies("pattern", value, pattern) if {
	is_string(value)
	regex.match(concat("", ["^(?:", pattern, ")$"]), value)
}

satisfies("prefix", value, prefixes) if {
	is_string(value)
	strings.any_prefix_match(value, prefixes)
	not contains(value, "..")
}

satisfies("hosts", value, hosts) if {
	is_string(value)
	regex.match(url, value)
	lower(regex.replace(value, url, "$1")) in hosts
}

satisfies("domains", value, domains) if {
	is_string(value)
	regex.match(url, value)
	strings.any_suffix_match(concat("", [".", lower(regex.replace(value, url, "$1"))]), domains)
}

satisfies("min_length", value, least) if {
	is_number(least)
	is_string(value)
	count(value) >= least
}

satisfies("min_length", value, least) if {
	is_number(least)
	is_array(value)
	count(value) >= least
}

satisfies("max_length", value, most) if {
	is_number(most)
	is_string(value)
	count(value) <= most
}

satisfies("max_length", value, most) if {
	is_number(most)
	is_array(value)
	count(value) <= most
}

satisfies("within", value, want) if {
	is_number(want.most)
	is_number(value)
	is_number(input.usage[want.meter].sum)
	input.usage[want.meter].sum + value <= want.most
}

satisfies("optional", _, _)

# A URL that every parser reads alike: its host is the first part, and neither a
# name and password before it nor a backslash can move it.
url := `(?is)^https?://([a-z0-9.-]+(?::[0-9]+)?)(?:[/?#][^\s\\]*)?$`

listed(value, table) if {
	is_array(table)
	value in table
}

listed(value, table) if {
	is_object(table)
	object.get(table, value, false) == true
}

listed(value, name) if {
	is_string(name)
	table := data.lists[name]
	is_array(table)
	value in table
}

listed(value, name) if {
	is_string(name)
	table := data.lists[name]
	is_object(table)
	object.get(table, value, false) == true
}

# A list that is not there keeps nobody out: that is a fault of the data.
is_table(table) if is_array(table)

is_table(table) if is_object(table)

is_table(name) if {
	is_string(name)
	data.lists[name]
}
