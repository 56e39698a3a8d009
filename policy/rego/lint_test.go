package rego_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy/rego"
)

// found is what check says of files: level, code and place of each finding.
func found(t *testing.T, files ...string) []rego.Finding {
	t.Helper()
	_, list, err := rego.Check(t.Context(), rego.Options{Path: writeFiles(t, files...), Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(f rego.Finding) bool { return f.Code == "no-visible" })
}

// TestVisibleLint is the table of what visible must not read.
func TestVisibleLint(t *testing.T) {
	const decides = "decision := {\"effect\": \"allow\"} if input.arguments.x == 1\n"
	for rules, want := range map[string]string{
		"":                              "note no-visible ",
		`visible if input.tool.exposed`: "",
		`visible if { some r in input.principal.roles; data.roles[r] }`:                      "",
		`visible if input.arguments.x`:                                                       "error visible-reads-call p.rego:4",
		`visible if input.request.time`:                                                      "error visible-reads-call p.rego:4",
		`visible if input.action == "tools/call"`:                                            "error visible-reads-call p.rego:4",
		`visible if not input.usage.day`:                                                     "error visible-reads-call p.rego:4",
		`visible if count(input) > 1`:                                                        "error visible-reads-call p.rego:4",
		"visible if helper\nhelper if input.tool.name == \"t\"\nhelper if input.arguments.x": "error visible-reads-call p.rego:6",
		"visible if f(input.tool)\nf(t) if t.name == input.arguments.x":                      "error visible-reads-call p.rego:5",
		"visible if false\nelse if input.arguments.x":                                        "error visible-reads-call p.rego:5",
	} {
		_, list, err := rego.Check(t.Context(), rego.Options{Path: writeFiles(t, "p.rego", module(decides+rules)), Timeout: testTimeout})
		if err != nil {
			t.Fatal(rules, err)
		}
		var got []string
		for _, f := range list {
			if strings.Contains(f.Code, "visible") {
				got = append(got, said([]rego.Finding{f})...)
			}
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: got %q, want %q", rules, text, want)
		}
	}
}

func said(list []rego.Finding) []string {
	var out []string
	for _, f := range list {
		out = append(out, fmt.Sprintf("%s %s %s", f.Level, f.Code, f.Where()))
	}
	return out
}

// rule is a policy of one rule with its label, whose head is at line 6.
func rule(head, body string) string {
	return module("# METADATA\n# labels:\n#   rule: r\ndecision := " + head + " if {\n" + body + "\n}")
}

const allowR = `{"effect": "allow", "rule": "r"}`

// TestComparisons is the table of what counts as a test of an argument's type.
func TestComparisons(t *testing.T) {
	const warns = "warning untyped-comparison p.rego:7"
	for body, want := range map[string]string{
		`input.arguments.amount > 100`:                                                           warns,
		`100 >= input.arguments.amount`:                                                          warns,
		`not input.arguments.amount <= 100`:                                                      warns,
		`input.arguments["amount"] < 3`:                                                          warns,
		`x := input.arguments.amount; x > 3`:                                                     warns,
		`some x in input.arguments.list; is_number(x); input.arguments.amount > 3`:               warns,
		`input.usage.day.sum + input.arguments.amount > 1000`:                                    warns,
		`every n in ["a"] { input.arguments[n] > 3 }`:                                            warns,
		`count([1 | input.arguments.amount > 3]) == 1`:                                           warns,
		`is_number(input.arguments.other); input.arguments.amount > 3`:                           warns,
		`not is_number(input.arguments.amount); input.arguments.amount > 3`:                      warns,
		`is_number(input.arguments.amount); input.arguments.amount > 100`:                        "",
		`x := input.arguments.amount; is_number(x); x > 3`:                                       "",
		`x := input.arguments.amount; is_number(input.arguments.amount); x > 3`:                  "",
		`is_number(input.arguments.amount); every n in [1] { input.arguments.amount > n }`:       "",
		`every n in ["a"] { is_number(input.arguments[n]); input.arguments[n] > 3 }`:             "",
		`is_number(input.arguments.amount); input.usage.day.sum + input.arguments.amount > 1000`: "",
		`type_name(input.arguments.amount) == "number"; input.arguments.amount > 3`:              "",
		`is_string(input.arguments.path); count(input.arguments.path) > 3`:                       "",
		`input.usage.day.sum > 3`:                                                                "",
		`input.arguments.amount == 3`:                                                            "",
		`object.get(input.arguments, "amount", 0) == 3`:                                          "",
	} {
		got := strings.Join(said(found(t, "p.rego", rule(allowR, body))), "; ")
		if got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	list := found(t, "p.rego", "package toolgate\nimport rego.v2\nimport input.arguments as args\n# METADATA\n# labels:\n#   rule: r\ndecision := "+allowR+" if args.amount > 3")
	if len(list) != 1 || !strings.Contains(list[0].Hint, "is_number(input.arguments.amount)") {
		t.Errorf("an imported name: got %+v", list)
	}
}

// TestComputedKeys is the table of object literals of which two keys can be the same.
func TestComputedKeys(t *testing.T) {
	for body, warned := range map[string]bool{
		`x := {input.arguments.from: 1, input.arguments.to: 2}; x.a`:                         true,
		`count({input.arguments.from: true, "a": true}) == 2`:                                true,
		`a := input.arguments; {a.from: 1, a.to: 2} == {"a": 2}`:                             true,
		`f := lower(input.arguments.from); {f: 1, lower(input.arguments.to): 2} == {"a": 2}`: true,
		`{from: 1, to: 2} == {"a": 2}`:                                                       true,
		`{key("from"): 1, "to": 2} == {"a": 2}`:                                              true,
		`not count({input.request.id: 1, "b": 2}) == 2`:                                      true,
		`some k in ["a", "b"]; {k: 1, "b": input.arguments.x} == {"a": 1, "b": 2}`:           true,
		`[{"in": {input.arguments.from: 1, "b": 2}}][0].in.b`:                                true,
		`{input.arguments.from: 1} == {"a": 1}`:                                              false,
		`{"a": input.arguments.from, "b": 2} == {"a": 1, "b": 2}`:                            false,
		`count({input.arguments.from, input.arguments.to}) == 2`:                             false,
		`{k: v | some k, v in input.arguments} == {"a": 1}`:                                  false,
	} {
		want := []string{}
		if warned {
			want = append(want, "warning computed-keys p.rego:7")
		}
		policy := rule(allowR, body) + "from := input.arguments.from\nto := input.arguments.to\nkey(name) := input.arguments[name]\n"
		got := slices.DeleteFunc(said(found(t, "p.rego", policy)), func(line string) bool { return !strings.Contains(line, "computed-keys") })
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

// TestShapes is the table of decisions that the engine would refuse.
func TestShapes(t *testing.T) {
	for head, want := range map[string]string{
		allowR: "",
		`{"effect": "hold", "rule": "r", "approval": data.approval}`:     "",
		`{"effect": data.effect, "rule": "r"}`:                           "",
		`{"rule": "r"}`:                                                  "the decision has no effect",
		`{"effect": "alow", "rule": "r"}`:                                `"alow" is no effect`,
		`{"effect": 7, "rule": "r"}`:                                     `7 is no effect`,
		`{"effect": "hold", "rule": "r"}`:                                "a hold says who may approve",
		`{"effect": "allow", "rule": "r", "approval": {"roles": ["a"]}}`: "an allow has no approval",
		`{"effect": "allow", "rule": "r", "redacted": []}`:               "did you mean redact?",
		`{"effect": "allow", "rule": "s"}`:                               `labels.rule is "r", and the decision says rule "s"`,
	} {
		list := found(t, "p.rego", rule(head, "input.arguments.it == 1"), "data.json", `{"approval": {"roles": ["a"]}, "effect": "allow"}`)
		var got []string
		for _, f := range list {
			if f.Code == "decision-shape" || f.Code == "rule-label" {
				got = append(got, f.String())
			}
		}
		if text := strings.Join(got, "\n"); (want == "") != (text == "") || !strings.Contains(text, want) || want != "" && !strings.HasPrefix(text, "p.rego:6: ") {
			t.Errorf("%s: got %q, want %q", head, text, want)
		}
	}
}

// TestUnreadData holds that what is written and does nothing is found, at its
// place, and that nothing else is.
func TestUnreadData(t *testing.T) {
	const reads = `some role in input.principal.roles
		grant := data.roles[role].tools[input.tool.exposed]
		grant.arguments.action == input.arguments.action
		input.arguments.amount == data.thresholds[input.tool.exposed].amount
		data.switches.on == data.more.depth.list[_]`
	got := found(t, "p.rego", rule(allowR, reads),
		"data.json", `{
  "roles": {"a": {"tools": {"t": {"arguments": {"action": 1}, "also": 2}},
                  "toolz": {"t": true}}},
  "thresholdz": {"t": {"amount": 3}},
  "thresholds": {"t": {"amount": 3}}, "switches": {"on": 1, "off": 2, "2 b": 3},
  "usage": {"t": {"day": {"window": "24h"}}},
  "system": {"log": {}}
}`, "more/data.yaml", "depth: {list: [1], lisd: [2]}\nother: {}\n")
	want := []rego.Finding{
		{Level: "warning", Code: "unread-data", File: "data.json", Row: 3, Message: "no rule reads data.roles.a.toolz", Hint: "did you mean tools?"},
		{Level: "warning", Code: "unread-data", File: "data.json", Row: 4, Message: "no rule reads data.thresholdz", Hint: "did you mean thresholds?"},
		{Level: "note", Code: "unread-data", File: "data.json", Row: 5, Message: "no rule reads data.switches.off"},
		{Level: "note", Code: "unread-data", File: "data.json", Row: 5, Message: `no rule reads data.switches["2 b"]`},
		{Level: "warning", Code: "unread-data", File: "more/data.yaml", Message: "no rule reads data.more.depth.lisd", Hint: "did you mean list?"},
		{Level: "note", Code: "unread-data", File: "more/data.yaml", Message: "no rule reads data.more.other"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if list := found(t, "p.rego", rule(allowR, "x := data.anything; x.goes"), "data.json", `{"anything": {"goes": 1, "more": 2}}`); len(list) > 0 {
		t.Errorf("what is read through a name: got %v", list)
	}
}

// TestReach holds that rules which can never hold, or that nobody asks, are
// found, and that others are not.
func TestReach(t *testing.T) {
	for body, want := range map[string]string{
		`1 > 2`:                         "warning never-fires p.rego:6",
		`input.arguments.x == 1; false`: "warning never-fires p.rego:6",
		`some x in [1]; x > 3; input.arguments.x == x`:      "warning never-fires p.rego:6",
		`not yes; input.arguments.x == 1`:                   "warning never-fires p.rego:6",
		`data.absent == 1; input.arguments.x == 1`:          "note never-fires p.rego:6",
		`some t, _ in data.limits; input.tool.exposed == t`: "note never-fires p.rego:6",
		`data.here == 1; input.arguments.x == 1`:            "",
		`some t, _ in data.here2; input.tool.exposed == t`:  "",
		`not no; input.arguments.x == 1`:                    "",
		`every x in input.arguments.list { x == 3 }`:        "",
		`startswith(input.arguments.x, "a")`:                "",
	} {
		text := rule(allowR, body) + "yes if true\nno if input.arguments.y == 1\n"
		var got []string
		for _, f := range found(t, "p.rego", text, "data.json", `{"here": 1, "here2": {"a": 1}, "limits": {}}`) {
			if f.Code == "never-fires" {
				got = append(got, said([]rego.Finding{f})...)
			}
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	list := said(found(t, "p.rego", rule(allowR, "helper(input.arguments.x)")+"helper(x) if inner == x\ninner := 1\nidle if inner == 1\nf(_) := 1\n"))
	if diff := cmp.Diff([]string{"note unused-rule p.rego:11", "note unused-rule p.rego:12"}, list); diff != "" {
		t.Errorf("unused rules (-want +got):\n%s", diff)
	}
}

// TestMeantToDecide is the table of rules and packages that were probably meant to decide,
// and do not. Each is a warning of every load.
func TestMeantToDecide(t *testing.T) {
	const verdict = `{"rule": "r", "reason": "x"}`
	for _, c := range []struct{ file, want string }{
		{module("denies contains " + verdict), "p.rego:3: no decision asks data.toolgate.denies, which looks like a rule that decides and decides nothing (hint: did you mean deny? there is decision, "},
		{module("Hold contains {}"), "p.rego:3: no decision asks data.toolgate.Hold, which looks"},
		{module("blocked contains " + verdict), "p.rego:3: no decision asks data.toolgate.blocked, which looks"},
		{module("verdict := {\"effect\": \"deny\"}"), "p.rego:3: no decision asks data.toolgate.verdict, which looks"},
		{module("idle if true"), ""},
		{module("allow contains x if some x in blocked\nblocked contains " + verdict), ""},
		{"package toolgat\nimport rego.v2\ndeny contains " + verdict, "p.rego:1: no decision asks any rule of package toolgat (hint: did you mean package toolgate? "},
		{"package acme.limits\nimport rego.v2\nlarge if true", "p.rego:1: no decision asks any rule of package acme.limits (hint: rules of package toolgate decide"},
		{"package toolgate.lib.own\nimport rego.v2\nlarge if true", ""},
		{"package system.log\nimport rego.v2\ndrop if data.acme.quiet", ""},
	} {
		e, err := tryLoad(t, "p.rego", c.file, "a.rego", module("allow contains "+verdict+" if data.used.yes\ndeny contains "+verdict+" if input.tool.risk == \"high\""),
			"used.rego", "package used\nimport rego.v2\nyes if true\nno if false")
		if err != nil {
			t.Fatal(c.file, err)
		}
		if got := strings.Join(e.Warnings(), "\n"); c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", c.file, got, c.want)
		}
	}
}

// TestShippedPoliciesPassLint holds what we ship to what we tell others.
func TestShippedPoliciesPassLint(t *testing.T) {
	parts.Long(t, "lints all policies")
	for _, path := range []string{"", "testdata/lean"} {
		_, list, err := rego.Check(t.Context(), rego.Options{Path: path, Timeout: testTimeout})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			if f.Level != rego.LevelNote || path == "" {
				t.Errorf("%q: %v", path, f)
			}
		}
	}
}
