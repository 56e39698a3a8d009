package rego_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestVerdictSetsOfPair holds that verdict sets that are read once for a principal and a tool
// change no decision, whatever else decides, and that callers may write to what they got.
func TestVerdictSetsOfPair(t *testing.T) {
	const depends = "\nhold contains {\"rule\": \"large\", \"approval\": {\"roles\": [\"b\", \"a\"]}, \"redact\": [\"/h\"]} if input.arguments.n > 10\n" +
		"deny contains {\"rule\": \"never\"} if input.arguments.n > 100\n"
	for name, rules := range map[string]string{
		"allow with obligations": `allow contains {"rule": "mine", "redact": ["/z", "/a"], "limit": {"rate": "5/1m"}} if "r" in input.principal.roles` + depends,
		"two that allow":         "allow contains {\"rule\": \"one\", \"redact\": [\"/b\"]}\nallow contains {\"rule\": \"two\", \"redact\": [\"/a\"]} if input.tool.name == \"t\"" + depends,
		"hold with a quorum":     "hold contains {\"rule\": \"mine\", \"approval\": {\"roles\": [\"a\", \"b\", \"c\"], \"quorum\": 2}} if input.tool.name == \"t\"\nallow contains {\"rule\": \"small\"} if input.arguments.n < 10",
		"nothing allows":         `allow contains {"rule": "theirs"} if "other" in input.principal.roles` + depends,
		"malformed":              `allow contains {"rule": "mine", "effect": "allow"} if "r" in input.principal.roles` + depends,
		"one of two malformed":   "allow contains {\"rule\": \"mine\", \"effect\": \"allow\"} if \"r\" in input.principal.roles\ndeny contains {\"rule\": \"off\"} if \"other\" in input.principal.roles\nhold contains {\"rule\": \"large\", \"approval\": {\"roles\": [\"b\"]}} if input.arguments.n > 10",
		"fails":                  `allow contains {"rule": "mine"} if to_number(input.principal.subject) > 1` + depends,
		"reads the request":      `allow contains {"rule": input.request.transport}` + depends,
		"reads the input whole":  "about(x) := object.get(x, [\"request\", \"id\"], \"none\")\nallow contains {\"rule\": about(input)}" + depends,
	} {
		t.Run(name, func(t *testing.T) {
			e := loadUntried(t, writeFiles(t, "p.rego", module(rules)))
			for _, arguments := range []string{`{"n":1}`, `{"n":1}`, `{"n":1}`, `{"n":11}`, `{"n":101}`, `{}`, `{"\u006e":11}`, `{"n":1,"\u006e":11}`, `{"n":1}`} {
				in := input("r", "t", arguments)
				want, wantErr := e.Reference().Decide(t.Context(), in)
				got, err := e.Decide(t.Context(), in)
				if diff := gocmp.Diff(want, got); diff != "" || (err == nil) != (wantErr == nil) {
					t.Fatalf("%s: %v, want %v (-want +got):\n%s", arguments, err, wantErr, diff)
				}
				scribble(&got)
			}
		})
	}
}

// scribble writes to everything that d points to.
func scribble(d *policy.Decision) {
	for i := range d.Redact {
		d.Redact[i] = "/scribbled"
	}
	if d.Limit != nil {
		d.Limit.Rate = "1/1h"
	}
	if d.Approval != nil {
		clear(d.Approval.Roles)
		d.Approval.Quorum = 99
	}
}

// BenchmarkPair is the cost of a verdict on arguments where a set is the same in every call.
func BenchmarkPair(b *testing.B) {
	e, err := rego.Load(b.Context(), rego.Options{Path: writeFiles(b, "data.json", `{"longest": {"t": 10000}, "held": {"t": "held"}, "roles": {"r": {"tools": {"t": true}}}}`, "p.rego", module(`
granted if data.roles[input.principal.roles[_]].tools[input.tool.name]
deny contains {"rule": "not-granted"} if not granted
deny contains {"rule": "too-long"} if count(input.arguments.text) > data.longest[input.tool.name]
hold contains {"rule": "held", "approval": {"roles": ["approver"]}} if startswith(input.arguments.text, data.held[input.tool.name])
allow contains {"rule": "granted", "reason": "a role has the tool"} if granted`)), Timeout: testTimeout})
	if err != nil {
		b.Fatal(err)
	}
	in := input("r", "t", `{"text":"hello"}`)
	in.Usage = nil
	b.ReportAllocs()
	for b.Loop() {
		if d, err := e.Decide(b.Context(), in); err != nil || d.Effect != policy.Allow {
			b.Fatalf("got %+v, %v", d, err)
		}
	}
}
