package workbench_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

func explain(t *testing.T, e *rego.Engine, in *policy.Input) workbench.Explanation {
	t.Helper()
	x, err := workbench.Explain(t.Context(), e, in, false)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := e.Decide(t.Context(), in)
	if diff := cmp.Diff(d, x.Decision); diff != "" {
		t.Errorf("explains another decision (-decided +explained):\n%s", diff)
	}
	return x
}

func facts(x workbench.Explanation) map[string]string {
	out := map[string]string{}
	for _, f := range x.Facts {
		out[f.Path] = string(f.Value)
	}
	return out
}

const explainable = `
import data.limits

granted if {
	some role in input.principal.roles
	data.roles[role].tools[input.tool.exposed] == true
}

other if input.arguments.unrelated == data.unrelated

big if {
	is_number(input.arguments.amount)
	input.arguments.amount > limits[input.tool.exposed]
}

# METADATA
# title: no right to the tool
# labels:
#   rule: no-right
decision := {"effect": "deny", "rule": "no-right"} if not granted

# METADATA
# title: too large
# description: Amounts above the limit of the tool.
# labels:
#   rule: too-large
decision := {"effect": "hold", "rule": "too-large", "approval": {"roles": ["boss"]}} if {
	granted
	big
}

# METADATA
# labels:
#   rule: fine
decision := {"effect": "allow", "rule": "fine"} if {
	granted
	not big
	not other
}
`

var explainableData = []string{"p.rego", module(explainable), "data.json", `{"roles": {"r": {"tools": {"pay": true}}}, "limits": {"pay": 100}, "unrelated": 7}`}

// TestExplain holds that the rule is named with its place and title, that what
// was read is what it and the rules below it have read and nothing else, and
// that the ways out are those that there are.
func TestExplain(t *testing.T) {
	e := load(t, explainableData...)
	x := explain(t, e, input("r", "pay", `{"amount": 12345678901234567890, "unrelated": 1}`))
	if x.Title != "too large" || x.Description != "Amounts above the limit of the tool." || x.Where != "p.rego:29" || x.Failure != "" {
		t.Errorf("got %+v", x)
	}
	want := map[string]string{
		"input.arguments.amount": "12345678901234567890", "input.principal.roles": `["r"]`, "input.tool.exposed": `"pay"`,
		"data.roles.r.tools.pay": "true", "data.limits.pay": "100",
	}
	if diff := cmp.Diff(want, facts(x)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if len(x.Ways) != 1 || x.Ways[0].Decision.Rule != "fine" {
		t.Fatalf("got ways %+v", x.Ways)
	}
	if diff := cmp.Diff([]string{"not {is_number(input.arguments.amount); input.arguments.amount > 100}"}, x.Ways[0].Lacking); diff != "" || len(x.Ways[0].Open) > 0 {
		t.Errorf("lacking (-want +got):\n%s\nopen: %q", diff, x.Ways[0].Open)
	}

	x = explain(t, e, input("s", "pay", `{}`))
	want = map[string]string{"input.principal.roles": `["s"]`, "input.tool.exposed": `"pay"`, "data.roles.s.tools.pay": ""}
	if diff := cmp.Diff(want, facts(x)); diff != "" || len(x.Ways) > 0 || x.Title != "no right to the tool" {
		t.Errorf("%+v, facts (-want +got):\n%s", x, diff)
	}

	x = explain(t, e, input("r", "pay", `{"unrelated": 7}`))
	if len(x.Ways) != 2 || x.Decision.Rule != rego.RuleUndefined || x.Where != "" || len(facts(x)) < 4 {
		t.Errorf("undefined: got %+v", x)
	}
	if x = explain(t, e, input("r", "pay", `{}`)); len(x.Ways) > 0 || x.Decision.Effect != policy.Allow {
		t.Errorf("allowed: got %+v", x)
	}
}

// TestExplainFailures holds that a policy which fails is explained too, and that
// what cannot be known is said.
func TestExplainFailures(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow"} if {
	some x in input.arguments.list
	startswith(x, "a")
} else := {"effect": "deny", "rule": "r"}`))
	x, err := workbench.Explain(t.Context(), e, input("r", "t", `{"list": [1]}`), true)
	if err != nil || x.Decision.Rule != rego.RuleError || !strings.Contains(x.Failure, "startswith") || x.Where != "" {
		t.Errorf("got %+v, %v", x, err)
	}
	if !strings.Contains(x.Trace, "p.rego:") || !strings.Contains(x.Trace, "startswith") {
		t.Errorf("trace: %s", x.Trace)
	}
	e = load(t, "p.rego", module(`decision := {"effect": "allow"} if input.arguments.x with input.arguments as {"x": input.arguments.y}
else := {"effect": "deny"}`))
	if x := explain(t, e, input("r", "t", `{}`)); x.Whole == "" || len(x.Ways) > 0 {
		t.Errorf("what is not split: got %+v", x)
	}
	other := &policy.Input{Action: "resources/read", Resource: &policy.Resource{Server: "s", URI: "u"}, Principal: policy.Principal{Subject: "a"}}
	e = load(t, "p.rego", module(`decision := {"effect": "deny", "rule": "r"} if input.resource.uri == "u"`))
	if x := explain(t, e, other); x.Where != "p.rego:3" || facts(x)["input.resource.uri"] != `"u"` || x.Whole != "" {
		t.Errorf("no tool: got %+v", x)
	}
	broken := input("r", "t", `{"a":`)
	if _, err := workbench.Explain(t.Context(), e, broken, false); err == nil {
		t.Error("an input that is no JSON was explained")
	}
}

// TestExplainVerdictSets holds that an explanation names the rule that decided.
func TestExplainVerdictSets(t *testing.T) {
	e := load(t, "p.rego", module(`
# METADATA
# title: too large
# labels: {rule: large}
hold contains {"rule": "large", "approval": {"roles": ["boss"]}} if input.arguments.amount == 500

# METADATA
# title: anybody
# labels: {rule: anybody}
allow contains {"rule": "anybody"} if input.tool
`))
	for arguments, want := range map[string]string{`{"amount":500}`: "too large p.rego:7", `{"amount":5}`: "anybody p.rego:12"} {
		x := explain(t, e, input("r", "t", arguments))
		if got := x.Title + " " + x.Where; got != want {
			t.Errorf("%s: got %q, want %q", arguments, got, want)
		}
	}
}
