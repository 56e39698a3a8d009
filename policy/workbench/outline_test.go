package workbench_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

func TestOutlineConstant(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow", "rule": "r"}`))
	in := input("r", "t", "")
	got, err := workbench.OutlineOf(t.Context(), e, in.Principal, in.Tool)
	want := workbench.Outline{Branches: []workbench.Branch{{Decision: policy.Decision{Effect: policy.Allow, Rule: "r", Revision: e.Revision()}}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := workbench.OutlineOf(t.Context(), e, policy.Principal{}, in.Tool); err == nil {
		t.Error("nobody has an outline")
	}
}

// outlined is an outline as lines of text.
func outlined(t *testing.T, e *rego.Engine, role, tool string) []string {
	t.Helper()
	in := input(role, tool, "")
	o, err := workbench.OutlineOf(t.Context(), e, in.Principal, in.Tool)
	if err != nil {
		t.Fatal(err)
	}
	if o.Whole != "" {
		return []string{"whole: " + o.Whole}
	}
	var out []string
	for _, b := range o.Branches {
		out = append(out, strings.Join(append([]string{string(b.Decision.Effect) + " " + b.Decision.Rule}, b.When...), " | "))
	}
	return out
}

// TestOutlineAnybody holds that what a policy says about subjects is a condition
// for a caller of whom only roles are known.
func TestOutlineAnybody(t *testing.T) {
	for rules, want := range map[string]string{
		`allow contains {"rule": "a"} if input.principal.subject == "ann"`:                                     `allow a | input.principal.subject == "ann"`,
		`allow contains {"rule": "a"} if { "r" in input.principal.roles; not input.principal.subject == "x" }`: `allow a | not input.principal.subject == "x"`,
		`allow contains {"rule": "a"} if "r" in input.principal.roles`:                                         `allow a`,
	} {
		e := loadUntried(t, writeFiles(t, "p.rego", module(rules)))
		in := input("r", "t", "")
		o, err := workbench.OutlineOf(t.Context(), e, policy.Principal{Roles: []string{"r"}}, in.Tool)
		if err != nil || len(o.Branches) != 1 {
			t.Errorf("%s: %+v, %v", rules, o, err)
			continue
		}
		b := o.Branches[0]
		if got := strings.Join(append([]string{string(b.Decision.Effect) + " " + b.Decision.Rule}, b.When...), " | "); got != want {
			t.Errorf("%s: got %q, want %q", rules, got, want)
		}
	}
}

func TestOutline(t *testing.T) {
	const amount = "is_number(input.arguments.amount) | input.arguments.amount > "
	for name, c := range map[string]struct {
		rules string
		want  []string
	}{
		"one condition":   {`decision := {"effect": "allow"} if input.arguments.x == 1`, []string{"allow  | input.arguments.x == 1"}},
		"known condition": {`decision := {"effect": "allow"} if { input.tool.exposed == "t"; input.arguments.x }`, []string{"allow  | input.arguments.x"}},
		"else chain": {"decision := {\"effect\": \"deny\", \"rule\": \"a\"} if input.arguments.x == 1\nelse := {\"effect\": \"allow\", \"rule\": \"b\"} if input.arguments.y",
			[]string{"whole: the verdict comes from the call"}},
		"default": {"default decision := {\"effect\": \"deny\"}\ndecision := {\"effect\": \"allow\"} if { input.arguments.x; input.arguments.y }",
			[]string{"whole: the verdict comes from the call"}},
		"rules in between": {"big if { is_number(input.arguments.amount); input.arguments.amount > 5 }\nbig if input.arguments.huge\ndecision := {\"effect\": \"deny\"} if big\ndecision := {\"effect\": \"allow\"} if not big",
			[]string{"deny  | " + amount + "5", "deny  | input.arguments.huge", "allow  | not input.arguments.huge | not {is_number(input.arguments.amount); input.arguments.amount > 5}"}},
		"contradiction": {"paid if input.arguments.paid\ndecision := {\"effect\": \"allow\"} if { paid; not paid }\ndecision := {\"effect\": \"deny\"} if { paid; not input.arguments.free }",
			[]string{"deny  | input.arguments.paid | not input.arguments.free"}},
		"obligation from another rule": {"terms := {\"effect\": \"allow\", \"rule\": \"r\"} if input.arguments.x\ndecision := object.union(terms, {\"redact\": [\"/y\"]}) if input.arguments.z",
			[]string{"allow r | input.arguments.z | input.arguments.x"}},
		"reason from arguments": {`decision := {"effect": "deny", "rule": "r", "reason": sprintf("no %v", [input.arguments.x])}`, []string{"deny r"}},
		"loop":                  {`decision := {"effect": "allow"} if { some x in input.arguments.list; x > 3 }`, []string{"allow  | input.arguments.list[_] > 3"}},
		"every":                 {`decision := {"effect": "allow"} if { every x in input.arguments.list { x > 3 } }`, []string{"allow  | every _, x1 in input.arguments.list { x1 > 3 }"}},
		"function":              {"f(x) if x > 3\nf(x) if x == 1\ndecision := {\"effect\": \"allow\"} if f(input.arguments.x)", []string{"allow  | input.arguments.x > 3", "allow  | input.arguments.x == 1"}},
		"parts of a list":       {`decision := {"effect": "allow"} if { [a, b, _] := input.arguments.list; a > b }`, []string{"allow  | [x1, x2, _] == input.arguments.list | x1 > x2"}},
		"not not": {"small if { is_number(input.arguments.x); input.arguments.x < 3 }\nlarge if not small\ndecision := {\"effect\": \"allow\"} if not large",
			[]string{"allow  | is_number(input.arguments.x) | input.arguments.x < 3"}},
		"lists": {`decision := {"effect": "allow", "rule": "a"} if { input.arguments.x in ["a"]; not input.arguments.x in ["a", "b"] }
decision := {"effect": "allow", "rule": "b"} if { input.arguments.x in ["a"]; input.arguments.x in ["c"] }
decision := {"effect": "allow", "rule": "c"} if { input.arguments.x in ["a", "b"]; not input.arguments.x in ["b", "c"] }
decision := {"effect": "allow", "rule": "d"} if { input.arguments.x in ["a"]; not input.arguments.y in ["a"] }`,
			[]string{`allow c | input.arguments.x in ["a", "b"] | not input.arguments.x in ["b", "c"]`, `allow d | input.arguments.x in ["a"] | not input.arguments.y in ["a"]`}},
		"effect from arguments": {`decision := {"effect": input.arguments.x}`, []string{"whole: the effect comes from the call, or is none"}},
		"with":                  {`decision := {"effect": "allow"} if input.arguments.x with input.arguments as {"x": 1}`, []string{"whole: its conditions cannot be told apart before a call"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := loadUntried(t, writeFiles(t, "p.rego", module(c.rules)))
			if diff := cmp.Diff(c.want, outlined(t, e, "r", "t")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestOutlineDefault is what people read of the default policy.
func TestOutlineDefault(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		role, tool string
		want       []string
	}{
		{"approver", "manage_wallet", []string{"deny role-lacks-tool"}},
		{"observer", "manage_wallet", []string{
			`deny role-lacks-argument | not input.arguments.action in ["balance"]`,
			`allow role-has-tool | input.arguments.action in ["balance"]`}},
		{"creator", "generate_media", []string{
			`deny model-not-listed | not input.arguments.model in ["card-1", "chart-1", "diagram-1", "poster-1"]`,
			`deny image-too-large | not {is_number(input.facts.pixels); input.facts.pixels <= 2097152}`,
			`allow role-has-tool | input.arguments.model in ["card-1", "chart-1", "diagram-1", "poster-1"] | is_number(input.facts.pixels) | input.facts.pixels <= 2097152`}},
	} {
		if diff := cmp.Diff(c.want, outlined(t, e, c.role, c.tool)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.role, c.tool, diff)
		}
	}
}
