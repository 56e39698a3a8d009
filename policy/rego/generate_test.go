package rego_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/policy"
)

// Conditions of generated policies: known ones, unknown ones, ones that fail
// on some arguments, and every way Rego has to combine them. A condition in
// braces gives variables their values.
var atoms = []string{
	// known before a call
	`input.tool.exposed == "t"`,
	`input.tool.exposed != "u"`,
	`startswith(input.tool.name, "t")`,
	`input.tool.risk == "high"`,
	`input.tool.annotations.readOnlyHint`,
	`"r" in input.principal.roles`,
	`data.roles[input.principal.roles[_]].tools[input.tool.exposed]`,
	`input.principal.subject == "a"`,
	`data.nothing[input.principal.subject]`,
	`data.nothing`,
	`input.principal.client != "c"`,
	`input.principal.tenant`,
	`granted`,
	`count(grants) > 0`,
	`to_number(input.tool.exposed) > 1`,
	`to_number(input.tool.name) > 1`,
	`{ some grant in grants; is_object(grant) }`,
	`true`,
	`false`,
	// of one call
	`input.arguments.x == 1`,
	`input.arguments.x > 1`,
	`input.arguments.y in ["p", "q"]`,
	`is_number(input.arguments.x)`,
	`input.arguments.z.k`,
	`input.arguments.z["k"] == true`,
	`input.arguments[input.tool.exposed]`,
	`input.arguments.list[0] == 1`,
	`input.arguments.list[_] == "p"`,
	`input.request.transport == "http"`,
	`input.usage.day.sum > 3`,
	`input.usage.day.sum + input.arguments.x > 3`,
	`object.get(input, ["arguments", "x"], 7) == 7`,
	`object.get(input.arguments, "x", 0) >= 2`,
	`count(input.arguments) > 1`,
	`sprintf("%v", [input.arguments.x]) == "1"`,
	`json.marshal(input.arguments.z) != "{}"`,
	`$"{input.arguments.x}" == "1"`,
	`input[_] == "x"`,
	`input.tool.annotations.readOnlyHint == input.arguments.z.k`,
	`time.parse_rfc3339_ns(input.request.time) > 1000`,
	// that fail on some arguments
	`to_number(input.arguments.y) > 1`,
	`startswith(input.arguments.y, "p")`,
	`regex.match("^a", input.arguments.y)`,
	`{ k := concat("", [input.arguments.y]); regex.match(k, "p") }`,
	`1 / (input.arguments.x - 1) > 0`,
	`count(input.arguments.list) > 1`,
	`{ is_string(input.arguments.y); startswith(input.arguments.y, "p") }`,
	`{ is_number(input.arguments.x); input.arguments.x * 2 > 2 }`,
	// with data by what a call brings
	`data.lists[input.tool.exposed][_] == input.arguments.y`,
	`input.arguments.y in data.lists[input.tool.exposed]`,
	`data.limits[input.arguments.y].most > 1`,
	`data.limits[input.arguments.x].most > 1`,
	`data.lists.t[input.arguments.x] == "q"`,
	`{ some name, most in data.limits.x; input.arguments[name] > most }`,
	// literals whose keys a call brings, which may be the same
	`count({input.arguments.x: true, input.arguments.y: true}) == 2`,
	`count({input.arguments.x, input.arguments.y}) == 2`,
	`count({1, input.arguments.x, input.arguments.y}) == 1`,
	`object.get({"p": 1, input.arguments.y: 2}, "p", 0) == 2`,
	`{input.arguments.y: 1, "p": 2} == {"p": 2}`,
	`{ some k in {input.arguments.x, input.arguments.y}; k == 1 }`,
	`count({input.tool.exposed: 1, input.arguments.y: 1}) == 1`,
	`sum({input.arguments.x, 1}) == 1`,
	`count({"k": {input.arguments.x: 1, "x": 2}}["k"]) == 1`,
	// that fail next to what is undefined
	`to_number(input.arguments.y) == data.nothing[input.arguments.x]`,
	`to_number(input.arguments.y) == data.nothing`,
	`data.nothing.at == to_number(input.arguments.y)`,
	`startswith(input.arguments.x, "p") == data.limits.none.most`,
	`to_number(input.arguments.y) == input.arguments.none`,
	`{ v := to_number(input.arguments.y); v == data.nothing.at }`,
	`[to_number(input.arguments.y), data.nothing.at] == [1, 2]`,
	`to_number(input.arguments.y) + data.nothing.at > 1`,
	// loops
	`every k, v in input.arguments { k != v }`,
	`every name, values in data.allowed { input.arguments[name] in values }`,
	`every v in input.arguments.list { is_number(v); v > 0 }`,
	`every v in input.arguments.list { startswith(v, "p") }`,
	`some k, v in input.arguments; v == 1; k == "x"`,
	`{ some k; input.arguments.list[k] == k }`,
	`{ [k, v] := input.arguments.list; k == v }`,
	`{ {"k": v} := input.arguments.z; v }`,
	`{ some [k, v] in input.arguments.pairs; k == v }`,
	`{ i := input; i.arguments.x == 1 }`,
	`{ v := input.arguments.x; k := v + 1; k > 2 }`,
	`count({k | some k, _ in input.arguments}) > 0`,
	`concat(",", [v | some v in input.arguments.list; is_string(v)]) == "p,q"`,
	`{k: v | some k, v in input.arguments; is_number(v)} == {"x": 1}`,
	`walk(input, [p, v]); count(p) == 2; v == 1`,
	`{ walk(input.arguments, [p, "q"]); count(p) > 0 }`,
	// of other rules
	`twice == 1`,
	`twice == 2`,
	`once == 1`,
	`level == "high"`,
	`level != "low"`,
	`numbers[1]`,
	`count(numbers) > 1`,
	`{ some v in numbers; v > 1 }`,
	`"p" in words`,
	`words["q"]`,
	`table.p == 1`,
	`table[input.arguments.y] == 1`,
	`{ some k; table[k] == 2 }`,
	`count([k | table[k]]) == 1`,
	`double(input.arguments.x) == 2`,
	`double(1) == 2`,
	`small(input.arguments.x)`,
	`kind(input.arguments.y) == "text"`,
	`kind(input.tool.exposed) == "text"`,
	`pick(input.arguments.list) == 1`,
	`rank(input.arguments.y) > 1`,
	`{ k := rank(input.arguments.y); k < 2 }`,
}

// definitions are rules and functions that conditions use, in several forms.
var definitions = map[string][]string{
	"once": {"once := 1 if input.arguments.x == 1\nonce := 2 if input.tool.exposed == \"u\""},
	"twice": {
		"twice := 1 if input.tool.exposed != \"u\"\ntwice := 2 if input.tool.exposed != \"t\"",
		"twice := 1 if input.tool.exposed != \"u\"\ntwice := 1 if input.arguments.x",
	},
	"grants":  {"grants contains grant if { some role in input.principal.roles; grant := data.roles[role].tools[input.tool.exposed] }"},
	"granted": {"granted if true in grants", "granted if { some grant in grants; input.arguments.y in grant.only }\ngranted if true in grants"},
	"level": {
		"level := \"high\" if input.arguments.x > 1\nlevel := \"low\" if input.arguments.x == 1",
		"default level := \"low\"\nlevel := \"high\" if startswith(input.arguments.y, \"p\")",
		"level := \"high\" if input.arguments.x > 1\nelse := \"low\" if input.arguments.y\nelse := \"none\"",
		"level := input.arguments.y",
	},
	"numbers": {"numbers contains v if { some v in input.arguments.list; is_number(v) }\nnumbers contains 1 if input.arguments.x == 1", "numbers contains input.arguments.x\nnumbers contains 2"},
	"words":   {"words contains \"p\" if input.tool.exposed == \"t\"\nwords contains input.arguments.y", "words contains w if some w in data.lists.t"},
	"table":   {"table[k] := v if { some k, v in input.arguments; is_number(v) }\ntable[\"p\"] := 1 if input.arguments.y == \"p\"", "table[k] := 1 if some k in data.lists.t\ntable[input.arguments.y] := 2", "table.p := 1\ntable.p := input.arguments.x\ntable.q := 2"},
	"double":  {"double(v) := v * 2", "double(v) := k if { k := v + v }", "default double(_) := 2\ndouble(v) := v * 2 if is_number(v)"},
	"small":   {"small(v) if v < 2\nsmall(v) if v == 9", "small(v) if { is_number(v); v < 2 }", "small(1)\nsmall(v) := false if v == 2"},
	"kind":    {"kind(v) := \"text\" if is_string(v)\nkind(v) := \"number\" if is_number(v)", "kind(v) := type_name(v)"},
	"pick":    {"pick([v, _]) := v\npick([_, v]) := v", "pick(list) := list[0] if count(list) > 0"},
	"rank":    {"rank(\"p\") := 1\nrank(\"q\") := 2\nrank(v) := 3 if not v in [\"p\", \"q\"]", "rank(v) := 1 if v == \"p\"\nelse := 2 if startswith(v, \"a\")"},
	"terms":   {"terms := {\"effect\": \"allow\", \"rule\": \"x\"} if input.arguments.x\nterms := {\"effect\": \"deny\", \"rule\": \"none\"} if not input.arguments.x", "terms := {\"effect\": effect} if { effect := {\"p\": \"allow\", \"q\": \"deny\"}[input.arguments.y] }"},
}

// define writes the definitions that source uses, and those that they use.
func define(t *rapid.T, source string) string {
	var b strings.Builder
	done := make(map[string]bool)
	for again := true; again; {
		again = false
		for _, name := range []string{"double", "granted", "grants", "kind", "level", "numbers", "once", "pick", "rank", "small", "table", "terms", "twice", "words"} {
			if done[name] || !uses(source+b.String(), name) {
				continue
			}
			done[name], again = true, true
			b.WriteString(rapid.SampledFrom(definitions[name]).Draw(t, name) + "\n")
		}
	}
	return b.String()
}

func uses(source, name string) bool { return replaceWord(source, name, "") != source }

// condition is one line of a rule's body.
func condition(t *rapid.T, depth int, helpers int) string {
	switch kind := rapid.IntRange(0, 11).Draw(t, "kind"); {
	case kind == 0 && helpers > 0:
		return fmt.Sprintf("not h%d", rapid.IntRange(0, helpers-1).Draw(t, "helper"))
	case kind == 1 && helpers > 0:
		return fmt.Sprintf("h%d", rapid.IntRange(0, helpers-1).Draw(t, "helper"))
	case kind == 2 && helpers > 0 && rapid.IntRange(0, 4).Draw(t, "with") == 0:
		return fmt.Sprintf(`h%d with input.arguments as {"x": 1, "y": "p"}`, rapid.IntRange(0, helpers-1).Draw(t, "helper"))
	case kind == 3 && depth > 0:
		return "count([1 | " + condition(t, depth-1, helpers) + "]) > 0"
	}
	atom := rapid.SampledFrom(atoms).Draw(t, "atom")
	if strings.HasPrefix(atom, "{ ") {
		return strings.TrimSuffix(strings.TrimPrefix(atom, "{ "), " }")
	}
	if !strings.ContainsAny(atom, ";:") && !strings.HasPrefix(atom, "every") && !strings.Contains(atom, "_]") && rapid.IntRange(0, 2).Draw(t, "not") == 0 {
		return "not " + atom
	}
	return atom
}

func body(t *rapid.T, helpers int) string {
	lines := make([]string, rapid.IntRange(1, 3).Draw(t, "lines"))
	for i := range lines {
		line := condition(t, 1, helpers)
		// Variables must not meet across lines.
		for _, v := range []string{"k", "v", "p", "i", "name", "most", "values", "grant"} {
			line = replaceWord(line, v, fmt.Sprintf("%s%d", v, i))
		}
		lines[i] = line
	}
	return "{\n\t" + strings.Join(lines, "\n\t") + "\n}"
}

// replaceWord replaces variables, which stand alone, not members and strings.
func replaceWord(s, from, to string) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		if strings.HasPrefix(s[i:], from) && (i == 0 || !wordByte(s[i-1])) && (i+len(from) == len(s) || !wordByte(s[i+len(from)]) || s[i+len(from)] == '.') {
			out.WriteString(to)
			i += len(from)
			continue
		}
		out.WriteByte(s[i])
		i++
	}
	return out.String()
}

func wordByte(b byte) bool {
	return b == '.' || b == '"' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z'
}

var verdicts = []string{
	`{"effect": "allow"}`, `{"effect": "allow", "rule": input.tool.exposed}`, `{"effect": "deny", "reason": "no"}`,
	`{"effect": "hold", "approval": {"roles": ["boss"]}}`, `{"effect": "deny", "reason": input.arguments.y}`,
	`{"effect": "deny", "rule": concat("", input.principal.roles)}`, `{"effect": "hold"}`, `{"effect": input.arguments.y}`,
	`{"effect": "allow", "limit": {"rate": "1/1s", "key": input.principal.subject}}`,
	`{"effect": "deny", "reason": sprintf("%v", [input.arguments])}`, `{"effect": "allow", "redact": data.hide}`,
	`terms`, `object.union(terms, {"reason": "both"})`, `{"effect": "allow", "reason": kind(input.arguments.x)}`,
}

func generatePolicy(t *rapid.T) string {
	var b strings.Builder
	if rapid.IntRange(0, 3).Draw(t, "default") == 0 {
		b.WriteString("default decision := {\"effect\": \"deny\"}\n")
	}
	helpers := rapid.IntRange(0, 2).Draw(t, "helpers")
	for i := range helpers {
		fmt.Fprintf(&b, "h%d if %s\n", i, body(t, i))
	}
	for range rapid.IntRange(1, 3).Draw(t, "rules") {
		fmt.Fprintf(&b, "decision := %s if %s\n", rapid.SampledFrom(verdicts).Draw(t, "verdict"), body(t, helpers))
		if rapid.IntRange(0, 4).Draw(t, "else") == 0 {
			fmt.Fprintf(&b, "else := %s if %s\n", rapid.SampledFrom(verdicts).Draw(t, "verdict"), body(t, helpers))
		}
	}
	language := rapid.SampledFrom([]string{"rego.v1", "rego.v2"}).Draw(t, "language")
	if strings.Contains(b.String(), `$"`) {
		language = "rego.v2"
	}
	return "package toolgate\nimport " + language + "\n" + b.String() + define(t, b.String())
}

func generateInput(t *rapid.T) *policy.Input {
	pick := func(name string, values ...string) string { return rapid.SampledFrom(values).Draw(t, name) }
	in := &policy.Input{
		Principal: policy.Principal{
			Subject: pick("subject", "a", "b"), Client: pick("client", "", "c"), Tenant: pick("tenant", "", "x"),
			Roles: rapid.SampledFrom([][]string{nil, {"r"}, {"s"}, {"s", "r"}, {"limited"}}).Draw(t, "roles"),
		},
		Tool: policy.Tool{
			Server: "s", Name: "t", Exposed: pick("exposed", "t", "u", "x"), Risk: pick("risk", "", "high"),
			Annotations: json.RawMessage(pick("annotations", ``, `{}`, `{"readOnlyHint":true}`)),
		},
		Arguments: json.RawMessage(pick("arguments", `{}`, `{"x":1}`, `{"x":2,"y":"p"}`, `{"x":"1","y":"5,0"}`, `{"x":null,"y":1}`,
			`{"y":"allow"}`, `{"z":{"k":true}}`, `{"t":true,"x":1.0}`, `{"z":{"k":false},"y":"a"}`, `{"list":["p","q"],"y":"q"}`,
			`{"list":[1,1],"x":1}`, `{"list":[1,1.0,2],"x":3}`, `{"list":["p"],"y":"p","x":1,"z":{"k":1,"l":2}}`, `{"list":{"a":1},"y":"("}`,
			`{"pairs":[[1,1],[1,2],3],"x":0}`, `{"pairs":[[2,1]],"list":[0,1],"y":"t"}`, `{"list":[],"y":["p"],"x":{"q":1}}`,
			`{"x":1e400,"y":"p"}`, `{"x":"p","y":"p"}`, `{"x":1,"y":1.0}`, `{"x":"t","y":"t"}`, `{"x":9007199254740993,"list":["p",1]}`, `{"x":"x","y":"y"}`, `{"y":"x","x":1e0}`)),
		Request: policy.Request{ID: "1", Transport: pick("transport", "http", "stdio"), Time: time.Unix(rapid.Int64Range(0, 2).Draw(t, "time"), 0)},
	}
	if rapid.Bool().Draw(t, "usage") {
		in.Usage = map[string]policy.Reading{"day": {Calls: 2, Sum: json.Number(pick("sum", "0", "3", "1e30"))}}
	}
	return in
}

const propertyData = `{"roles": {"r": {"tools": {"t": true, "u": false}}, "s": {"tools": {"x": true}}, "limited": {"tools": {"t": {"only": ["p"]}}}},
	"lists": {"t": ["p", "q"], "u": ["p"]}, "limits": {"p": {"most": 2}, "q": {"most": 1}, "x": {"x": 1}}, "allowed": {"x": [1, 2], "y": ["p"]}, "hide": ["/a"]}`

// TestConditions holds that every condition and every definition is one that a
// policy may have: what does not compile would be tried in no generated policy.
func TestConditions(t *testing.T) {
	for name, forms := range definitions {
		for i := range forms {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) { mustGenerate(t, forms[i]) })
		}
	}
	for _, atom := range atoms {
		t.Run(atom, func(t *testing.T) {
			line := atom
			if strings.HasPrefix(line, "{ ") {
				line = strings.TrimSuffix(strings.TrimPrefix(line, "{ "), " }")
			}
			mustGenerate(t, `decision := {"effect": "allow"} if { `+line+" }")
		})
	}
}

func mustGenerate(t *testing.T, rules string) {
	rest := rules
	for range definitions {
		for name, forms := range definitions {
			if uses(rest, name) && !strings.Contains(rest, "\n"+name) && !strings.HasPrefix(rest, name) && !strings.Contains(rest, "default "+name) {
				rest += "\n" + forms[0]
			}
		}
	}
	if !strings.Contains(rest, "decision :=") {
		rest += "\ndecision := {\"effect\": \"deny\"}"
	}
	loadUntried(t, writeFiles(t, "p.rego", module(rest), "data.json", propertyData))
}
