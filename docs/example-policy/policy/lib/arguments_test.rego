package toolgate.lib.arguments_test

import rego.v2

import data.toolgate.lib.arguments

fits(value, want) if arguments.fit({"x": want}) with input as {"arguments": {"x": value}}

# One of each type, none of them the value that a test is about.
others := [null, true, false, [], ["a"], {}, {"a": true}]

test_list if {
	fits("a", ["a", "b"])
	fits(1, [1, "b"])
	fits(null, [null])
	not fits("c", ["a", "b"])
	not fits("1", [1])
	not fits(["a"], ["a"])
	not fits("a", [])
	not arguments.fit({"x": ["a"]}) with input as {"arguments": {}}
}

test_nothing_wanted_is_met if arguments.fit({}) with input as {"arguments": {"x": 1}}

test_every_argument_counts if {
	wanted := {"x": ["a"], "y": {"max": 5}}
	arguments.fit(wanted) with input as {"arguments": {"x": "a", "y": 5, "z": "free"}}
	not arguments.fit(wanted) with input as {"arguments": {"x": "b", "y": 5}}
	not arguments.fit(wanted) with input as {"arguments": {"x": "a", "y": 6}}
	not arguments.fit(wanted) with input as {"arguments": {"x": "a"}}
}

test_enum if {
	fits("a", {"enum": ["a", 2]})
	fits(2, {"enum": ["a", 2]})
	not fits("b", {"enum": ["a", 2]})
	not fits("a", {"enum": "a"})
}

test_none_of if {
	fits("b", {"none_of": ["a", 2]})
	fits(null, {"none_of": ["a", 2]})
	not fits("a", {"none_of": ["a", 2]})
	not fits("b", {"none_of": "a"})
	not arguments.fit({"x": {"none_of": ["a"]}}) with input as {"arguments": {}}
}

test_in if {
	every table in [["a", "b"], {"a": true, "b": true}, "listed", "keyed"] {
		fits("a", {"in": table}) with data.lists as {"listed": ["a"], "keyed": {"a": true}}
		not fits("c", {"in": table}) with data.lists as {"listed": ["a"], "keyed": {"a": true}}
		every value in others {
			not fits(value, {"in": table}) with data.lists as {"listed": others, "keyed": {"a": true}}
		}
	}
	not fits("a", {"in": "missing"})
	not fits("a", {"in": {"a": false}})
	not fits("a", {"in": 1})
}

test_not_in if {
	every table in [["a", "b"], {"a": true, "b": true}, "listed", "keyed"] {
		fits("c", {"not_in": table}) with data.lists as {"listed": ["a"], "keyed": {"a": true}}
		not fits("a", {"not_in": table}) with data.lists as {"listed": ["a"], "keyed": {"a": true}}
		every value in others {
			not fits(value, {"not_in": table}) with data.lists as {"listed": ["a"], "keyed": {"a": true}}
		}
	}
	not fits("a", {"not_in": "missing"})
	not fits("a", {"not_in": 1})
}

test_numbers if {
	every case in [
		["min", 5, [5, 5.5, 6], [4, 4.999]], ["max", 5, [5, 4, -1], [6, 5.001]],
		["above", 5, [5.1, 6], [5, 4]], ["below", 5, [4.9, -1], [5, 6]],
	] {
		[word, bound, good, bad] := case
		every value in good {
			fits(value, {word: bound})
			not fits(value, {word: "5"})
			not fits(value, {word: null})
			not fits(sprintf("%v", [value]), {word: bound})
		}
		every value in array.concat(bad, others) {
			not fits(value, {word: bound})
		}
	}
	fits(12345678901234567890123, {"max": 12345678901234567890123})
	not fits(12345678901234567890124, {"max": 12345678901234567890123})
}

test_integer if {
	fits(5, {"integer": true})
	fits(5.0, {"integer": true})
	not fits(5.5, {"integer": true})
	not fits(5, {"integer": "yes"})
	every value in array.concat(others, ["5"]) {
		not fits(value, {"integer": true})
	}
}

test_pattern_is_of_the_whole if {
	fits("ABC", {"pattern": "[A-Z]{3}"})
	fits("b", {"pattern": "a|b"})
	every value in array.concat(others, ["ABCD", "xABC", "ABC\n", "abc", ""]) {
		not fits(value, {"pattern": "[A-Z]{3}"})
	}
	not fits("bc", {"pattern": "a|b"})
}

test_prefix_does_not_climb if {
	fits("/srv/docs/a", {"prefix": ["/srv/docs/", "/srv/public/"]})
	fits("/srv/public/", {"prefix": ["/srv/docs/", "/srv/public/"]})
	every value in array.concat(others, ["/etc", "/srv/docs/../x", "x/srv/docs/", ""]) {
		not fits(value, {"prefix": ["/srv/docs/", "/srv/public/"]})
	}
}

hosts := {"hosts": ["api.example.com", "localhost:8080"]}

test_hosts if {
	every url in ["https://api.example.com", "http://API.example.com/x?y#z", "https://api.example.com?x", "http://localhost:8080/"] {
		fits(url, hosts)
	}
}

domains := {"domains": [".example.com"]}

test_domains if {
	every url in ["https://example.com/", "https://a.b.Example.com/x", "https://api.example.com?x"] {
		fits(url, domains)
	}
}

test_hosts_and_domains_are_not_tricked if {
	every url in array.concat(others, [
		"https://evil.com/", "https://evil.com/api.example.com", "https://evil.com?.example.com", "https://evil.com#.example.com",
		"https://api.example.com@evil.com/", "https://evil.com\\@api.example.com/", "https://evil.com\\.example.com",
		"https://api.example.com:pw@evil.com", "https://evilexample.com/", "https://api.example.com.evil.com/",
		"https://evil.com%2f.example.com/", "https://[::1]/", "ftp://api.example.com/", "//api.example.com/", "api.example.com",
		".example.com", "https:api.example.com", "https:///api.example.com", "https://api.example.com /", "https://api.example.com\n",
		" https://api.example.com", "https://api.example.com:99999x/", "https://аpi.example.com/", "https://", "", "javascript:api.example.com",
	]) {
		not fits(url, hosts)
		not fits(url, domains)
	}
	not fits("https://api.example.com:8443/", hosts)
	not fits("http://localhost/", hosts)
}

test_lengths if {
	fits("äöü", {"max_length": 3, "min_length": 3})
	fits(["a", "b"], {"max_length": 2, "min_length": 2})
	not fits("äöüß", {"max_length": 3})
	not fits("ä", {"min_length": 2})
	not fits(["a", "b"], {"max_length": 1})
	not fits(["a"], {"min_length": 2})
	every value in [null, true, 7, {}, {"a": 1}] {
		not fits(value, {"max_length": 3})
		not fits(value, {"min_length": 0})
	}
	not fits("a", {"max_length": "3"})
	not fits("a", {"min_length": null})
	not fits(["a"], {"max_length": "3"})
	not fits(["a"], {"min_length": null})
}

test_optional if {
	want := {"x": {"optional": true, "max": 5}}
	arguments.fit(want) with input as {"arguments": {}}
	arguments.fit(want) with input as {"arguments": {"x": null}}
	arguments.fit(want) with input as {"arguments": {"x": 5}}
	not arguments.fit(want) with input as {"arguments": {"x": 6}}
	not arguments.fit(want) with input as {"arguments": {"x": false}}
	not arguments.fit({"x": {"optional": false, "max": 5}}) with input as {"arguments": {}}
	not arguments.fit({"/x/y": {"optional": true, "max": 5}}) with input as {"arguments": {}}
}

test_within if {
	document := {"arguments": {"x": 5}, "usage": {"day": {"sum": 95}}}
	arguments.fit({"x": {"within": {"meter": "day", "most": 100}}}) with input as document
	every want in [{"meter": "day", "most": 99}, {"meter": "week", "most": 100}, {"meter": "day", "most": "100"}, {"meter": "day"}, 100] {
		not arguments.fit({"x": {"within": want}}) with input as document
	}
	not fits("5", {"within": {"meter": "day", "most": 100}}) with input.usage as {"day": {"sum": 0}}
}

test_all_words_count if {
	fits("abc", {"pattern": "[a-z]+", "max_length": 3})
	not fits("abcd", {"pattern": "[a-z]+", "max_length": 3})
	not fits("ABC", {"pattern": "[a-z]+", "max_length": 3})
}

test_what_is_no_constraint_refuses if {
	every want in [{"maximum": 5}, {"max": 5, "maks": 5}, "5", 5, true, null] {
		not fits(5, want)
	}
	every wanted in ["x", 5, true, null] {
		not arguments.fit(wanted) with input as {"arguments": {"x": 5}}
	}
}

deep := {"arguments": {"a": {"b": {"c": {"d": {"e": 1}, "m": 4}, "n": null}, "x/y": {"~z": 2}, "k": 5}, "/a": 3, "l": [7]}}

test_pointers if {
	every pointer, value in {"/a/b/c/d/e": 1, "/a/x~1y/~0z": 2, "/~1a": 3, "/a/b/n": null, "/a/b/c/m": 4, "/a/k": 5} {
		arguments.fit({pointer: [value]}) with input as deep
		not arguments.fit({pointer: [9]}) with input as deep
	}
	arguments.fit({"/a/b/c/d": {"none_of": [1]}}) with input as deep
	arguments.fit({"/l": {"max_length": 1}}) with input as deep
	every pointer in ["/", "/x", "/a/x", "/a/b/x", "/a/b/c/x", "/a/b/c/d/x", "/a/b/c/d/e/f", "/l/0", "a/b"] {
		not arguments.fit({pointer: {"none_of": [9]}}) with input as deep
	}
}
