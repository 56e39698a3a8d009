package rego_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// verdictRules answer by what the argument want lists.
const verdictRules = `
# METADATA
# labels: {rule: no-a, team: x}
deny contains {"rule": "no-a", "reason": "a", "remedy": "do not"} if "deny-a" in input.arguments.want
deny contains {"rule": "no-b", "reason": "b"} if "deny-b" in input.arguments.want
deny contains {"rule": "no-s", "scopes": ["w", "a", "w"]} if "deny-s" in input.arguments.want
deny contains {"rule": "no-t", "scopes": {"b"}} if "deny-t" in input.arguments.want
deny contains {"rule": "no-u", "scopes": ["two words"]} if "deny-u" in input.arguments.want
deny contains {"rule": "no-v", "scopes": []} if "deny-v" in input.arguments.want
hold contains {"rule": "ask-s", "scopes": ["a"], "approval": {"roles": ["boss"]}} if "hold-s" in input.arguments.want
hold contains {"rule": "ask-b", "reason": "b", "approval": {"roles": ["lead", "boss"], "quorum": 2, "ttl": "1h", "hold": "45s", "execute_on_approve": true}} if "hold-b" in input.arguments.want
hold contains {"rule": "ask-a", "reason": "a", "approval": {"roles": ["boss", "chief"], "ttl": "2h", "execute_on_approve": true}, "redact": ["/h"]} if "hold-a" in input.arguments.want
hold contains {"rule": "ask-c", "reason": "c", "approval": {"roles": ["boss"], "quorum": 3, "hold": "5s"}} if "hold-c" in input.arguments.want
hold contains {"rule": "ask-d", "reason": "d", "approval": {"roles": []}} if "hold-d" in input.arguments.want
hold contains {"rule": "ask-e", "approval": {"quorum": {"finance": 1, "security": 2}, "ttl": "1h"}} if "hold-e" in input.arguments.want
hold contains {"rule": "ask-f", "approval": {"quorum": {"finance": 2}}} if "hold-f" in input.arguments.want
hold contains {"rule": "ask-g", "approval": {"roles": ["finance"], "quorum": {"legal": 2}}} if "hold-g" in input.arguments.want
# METADATA
# labels: {rule: yes-b, team: y}
allow contains {"rule": "yes-b", "reason": "b", "limit": {"rate": "60/1m"}, "redact": ["/b", "/z"]} if "allow-b" in input.arguments.want
allow contains {"rule": "yes-a", "reason": "a", "limit": {"rate": "10/1m", "key": "slow"}, "redact": ["/a", "/b"]} if "allow-a" in input.arguments.want
allow contains {"rule": "odd", "effect": "allow"} if "allow-odd" in input.arguments.want
allow contains {"rule": "error", "reason": sprintf("%d", [1 / (count(input.arguments.want) - 2)])} if "error" in input.arguments.want
`

// TestScopesGrantNothing: scopes that no rule asks for are nothing to the default policy, whatever
// their names are.
func TestScopesGrantNothing(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	in := input("", "manage_wallet", `{"action":"balance"}`)
	in.Principal.Scopes = append(e.Roles(), "manage_wallet", "admin", "*")
	if d, err := e.Decide(t.Context(), in); err != nil || d.Rule != "role-lacks-tool" {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestVerdictSets is the table of how the sets come to one decision.
func TestVerdictSets(t *testing.T) {
	e := load(t, "p.rego", module(verdictRules))
	boss := func(quorum int, ttl time.Duration, hold *time.Duration, run bool, roles ...string) *policy.Approval {
		return &policy.Approval{Roles: roles, Quorum: quorum, TTL: ttl, Hold: hold, ExecuteOnApprove: run}
	}
	failed := policy.Decision{Effect: policy.Deny, Rule: rego.RuleError, Reason: "the policy could not judge this call"}
	for want, decision := range map[string]policy.Decision{
		``:                       {Effect: policy.Deny, Rule: rego.RuleUndefined, Reason: "the policy allows nothing of this kind"},
		`deny-a`:                 {Effect: policy.Deny, Rule: "no-a", Reason: "a", Remedy: "do not", Labels: map[string]string{"rule": "no-a", "team": "x"}},
		`deny-b deny-a allow-a`:  {Effect: policy.Deny, Rule: "no-a", Reason: "a", Remedy: "do not", Labels: map[string]string{"rule": "no-a", "team": "x"}},
		`deny-s`:                 {Effect: policy.Deny, Rule: "no-s", Scopes: []string{"a", "w"}},
		`deny-t deny-s`:          {Effect: policy.Deny, Rule: "no-s", Scopes: []string{"a", "b", "w"}},
		`deny-t deny-b`:          {Effect: policy.Deny, Rule: "no-b", Reason: "b"}, // no token would help
		`deny-u`:                 failed,
		`deny-v`:                 failed,
		`hold-s`:                 failed,
		`deny-b hold-a allow-a`:  {Effect: policy.Deny, Rule: "no-b", Reason: "b"},
		`allow-b`:                {Effect: policy.Allow, Rule: "yes-b", Reason: "b", Limit: &policy.Limit{Rate: "60/1m", Key: "yes-b"}, Redact: []string{"/b", "/z"}, Labels: map[string]string{"rule": "yes-b", "team": "y"}},
		`allow-b allow-a`:        {Effect: policy.Allow, Rule: "yes-b", Reason: "b", Limit: &policy.Limit{Rate: "10/1m", Key: "slow"}, Redact: []string{"/a", "/b", "/z"}, Labels: map[string]string{"rule": "yes-b", "team": "y"}},
		`hold-b`:                 {Effect: policy.Hold, Rule: "ask-b", Reason: "b", Approval: boss(2, time.Hour, new(45*time.Second), true, "lead", "boss")},
		`hold-a allow-b`:         {Effect: policy.Hold, Rule: "ask-a", Reason: "a", Approval: boss(0, 2*time.Hour, nil, true, "boss", "chief"), Limit: &policy.Limit{Rate: "60/1m", Key: "yes-b"}, Redact: []string{"/b", "/h", "/z"}},
		`hold-a hold-b`:          {Effect: policy.Hold, Rule: "ask-b", Reason: "b", Approval: boss(2, time.Hour, new(45*time.Second), true, "boss"), Redact: []string{"/h"}},
		`hold-a hold-b hold-c`:   {Effect: policy.Hold, Rule: "ask-b", Reason: "b", Approval: boss(3, time.Hour, new(5*time.Second), false, "boss"), Redact: []string{"/h"}},
		`hold-e`:                 {Effect: policy.Hold, Rule: "ask-e", Approval: &policy.Approval{Roles: []string{"finance", "security"}, Quorum: 3, Each: map[string]int{"finance": 1, "security": 2}, TTL: time.Hour}},
		`hold-e hold-f`:          {Effect: policy.Hold, Rule: "ask-e", Approval: &policy.Approval{Roles: []string{"finance", "security"}, Quorum: 4, Each: map[string]int{"finance": 2, "security": 2}, TTL: time.Hour}},
		`hold-c hold-f`:          {Effect: policy.Hold, Rule: "ask-c", Reason: "c", Approval: &policy.Approval{Roles: []string{"boss", "finance"}, Quorum: 5, Each: map[string]int{"boss": 3, "finance": 2}, Hold: new(5 * time.Second)}},
		`hold-b hold-f`:          failed, // either of two roles, and a third
		`hold-g`:                 failed,
		`hold-d`:                 failed,
		`hold-d deny-a`:          failed,
		`allow-odd`:              failed,
		`error allow-a`:          failed,
		`error deny-a`:           failed,
		`deny-a deny-b error`:    {Effect: policy.Deny, Rule: "no-a", Reason: "a", Remedy: "do not", Labels: map[string]string{"rule": "no-a", "team": "x"}},
		`hold-c hold-b hold-a x`: {Effect: policy.Hold, Rule: "ask-b", Reason: "b", Approval: boss(3, time.Hour, new(5*time.Second), false, "boss"), Redact: []string{"/h"}},
	} {
		list := `"` + strings.Join(strings.Fields(want), `","`) + `"`
		got, err := e.Decide(t.Context(), input("r", "t", `{"want":[`+list+`]}`))
		decision.Revision = e.Revision()
		if diff := cmp.Diff(decision, got); diff != "" || (err != nil) != (decision.Rule == rego.RuleError) {
			t.Errorf("%q: %v (-want +got):\n%s", want, err, diff)
		}
	}
}

// TestMembershipOfConstantsAndVariables holds that a set of a constant and a variable
// matches either: OPA 1.22.0 looked in its index for the constant alone.
func TestMembershipOfConstantsAndVariables(t *testing.T) {
	e := load(t, "p.rego", module(`
deny contains {"rule": "matched"} if input.arguments.x in {"a", input.arguments.y}
allow contains {"rule": "not-matched"} if input.tool
`))
	for arguments, want := range map[string]string{
		`{"x":"a","y":"b"}`: "matched",
		`{"x":"b","y":"b"}`: "matched",
		`{"x":"c","y":"b"}`: "not-matched",
		`{"x":"c"}`:         "not-matched",
	} {
		if d, err := e.Decide(t.Context(), input("r", "t", arguments)); err != nil || d.Rule != want {
			t.Errorf("%s: got %+v, %v; want rule %s", arguments, d, err, want)
		}
	}
}

// TestVerdictForms holds that a policy answers in one form, and that what does
// not is refused with the place of the rule.
func TestVerdictForms(t *testing.T) {
	for rules, want := range map[string]string{
		`allow contains {"rule": "a"} if input.tool`:                                                  "",
		`deny contains {"rule": "a"} if input.tool`:                                                   "",
		"allow if input.tool\ndecision := {\"effect\": \"allow\"} if allow":                           "",
		"decision := {\"effect\": \"allow\"} if input.tool\nallow contains {\"rule\": \"a\"} if true": "p.rego:4: the policy defines both data.toolgate.decision and the set data.toolgate.allow\nhint: keep one form: remove decision (p.rego:3)",
		`allow if input.tool`:     "p.rego:3: data.toolgate.allow is not a set of verdicts, and no rule defines data.toolgate.decision\nhint: allow contains",
		`deny := {{"rule": "a"}}`: "p.rego:3: data.toolgate.deny is not a set of verdicts",
		"visible if input.tool":   "no rule defines data.toolgate.decision or one of the sets",
	} {
		_, err := tryLoad(t, "p.rego", module(rules))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", rules, err, want)
		}
	}
}

// TestVerdictSetShapes is the table of elements that the engine refuses.
func TestVerdictSetShapes(t *testing.T) {
	for rule, want := range map[string]string{
		`allow contains {"rule": "r", "limit": data.limit}`:             "",
		`hold contains {"rule": "r", "approval": data.approval}`:        "",
		`deny contains {"rule": "r", "remedy": "x"}`:                    "",
		`deny contains {"rule": "r", "redact": []}`:                     "an element of deny has no member redact",
		`allow contains {"rule": "r", "effect": "allow"}`:               "an element of allow has no member effect",
		`allow contains {"rule": "r", "approval": {"roles": ["boss"]}}`: "an element of allow has no member approval",
		`hold contains {"rule": "r"}`:                                   "a hold says who may approve",
		`deny contains {"rule": "s"}`:                                   `labels.rule is "r", and the decision says rule "s"`,
	} {
		list := found(t, "p.rego", module("# METADATA\n# labels:\n#   rule: r\n"+rule+" if input.arguments.it == 1"), "data.json", `{"approval": {"roles": ["a"]}, "limit": {"rate": "1/1s"}}`)
		var got []string
		for _, f := range list {
			if f.Code == "decision-shape" || f.Code == "rule-label" {
				got = append(got, f.String())
			}
		}
		if text := strings.Join(got, "\n"); (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("%s: got %q, want %q", rule, text, want)
		}
	}
}

// TestSamplesAreOfThisCentury holds that a load evaluates what a schedule depends on.
func TestSamplesAreOfThisCentury(t *testing.T) {
	_, err := tryLoad(t, "p.rego", module(`decision := {"effect": "allow"} if {
startswith(input.request.time, "20")
time.weekday([time.parse_rfc3339_ns(input.request.time), "Nowhere"]) == "Monday"
}`))
	if !strings.Contains(errorText(err), "unknown time zone Nowhere") {
		t.Errorf("got %v", err)
	}
}
