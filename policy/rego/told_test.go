package rego_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy/rego"
)

// TestTrialFindsWhatEverySampleFinds: samples that a policy cannot tell apart are left out of its trial, and
// whatever the policy reads, in whichever way, the trial has the error that all samples have.
func TestTrialFindsWhatEverySampleFinds(t *testing.T) {
	t.Parallel()
	paths := []string{
		"action", "resource.uri", "prompt.name", "server.asks", "server.tools", "tool.exposed", "principal.roles", "request.time", "arguments", "arguments.action", "arguments.amount",
		"arguments.model", "arguments.model.v", "arguments.path", "arguments.query", "arguments.text",
	}
	forms := []string{ // of a rule that reads input.%[1]s and fails in the function %[2]s for some of its values
		"broken if %[2]s(input.%[1]s)",
		"broken if { whole := input; %[2]s(whole.%[1]s) }",
		"broken if { some member; %[2]s(input[member]); member }",
		"broken if { [at, found] := walk(input); at == split(\"%[1]s\", \".\"); %[2]s(found) }",
		"broken if { part := [x | x := input.%[1]s]; %[2]s(part[0]) }",
		"fails(of) if %[2]s(of.%[1]s)\nbroken if fails(input)",
		"default read := \"none\"\nread := input.%[1]s\nbroken if %[2]s(read)",
		"broken if not %[2]s(input.%[1]s)",
		"broken if { read with input as {\"held\": input.%[1]s} }\nread if %[2]s(input.held)",
	}
	leftOut, refused := 0, 0
	for _, path := range paths {
		for i, form := range forms {
			function := []string{"to_number", "lower", "count"}[i%3]
			e, err := rego.LoadUntried(t.Context(), rego.Options{Timeout: testTimeout, Path: writeFiles(t, "p.rego", module(fmt.Sprintf(form, path, function)+"\ndeny contains {\"rule\": \"a\", \"reason\": \"b\"} if broken"),
				"data.json", `{"roles": {"r": {"tools": {"t": true}}, "s": {"tools": {"u": true}}}}`)})
			if err != nil {
				continue // the types of input have a fault already
			}
			n, want := e.TryAll(t.Context())
			got := e.Try(t.Context())
			if (got == nil) != (want == nil) || got != nil && got.Error() != want.Error() {
				t.Errorf("%s of %s: the trial says %v, want %v", form, path, got, want)
			}
			leftOut += n
			if want != nil {
				refused++
			}
		}
	}
	if leftOut < 150 || refused < 50 {
		t.Errorf("%d samples are left out, and %d policies are refused: too few to prove anything", leftOut, refused)
	}
}

// The samples of a policy are as many as it can tell apart.
func TestSamplesOfATrial(t *testing.T) {
	t.Parallel()
	for condition, want := range map[string]int{ // how many of 9 requests and 5 arguments are left out
		`input.principal.roles[_] == "a"`: 8 + 4,
		`input.arguments.text`:            8 + 4,
		`input.arguments.model`:           8,
		`input.action`:                    0 + 4,
		`input.arguments.amount`:          8,
		`input`:                           0,
		`input[_]`:                        0,
	} {
		n, err := load(t, "p.rego", module("deny contains {\"rule\": \"a\", \"reason\": \"b\"} if {"+condition+"}")).TryAll(t.Context())
		if err != nil || n != want {
			t.Errorf("%s: %d samples are left out, %v, want %d", condition, n, err, want)
		}
	}
}

// The facts of a tool come from its arguments, which are all tried then.
func TestTrialOfFacts(t *testing.T) {
	t.Parallel()
	_, err := tryLoad(t, "p.rego", module(`deny contains {"rule": "a", "reason": "b"} if time.parse_rfc3339_ns(input.facts.sum) > 1`),
		"data.json", `{"roles": {"r": {"tools": {"pay": true}}}, "facts": {"pay": {"sum": {"kind": "value", "at": ["/amount"]}}}}`)
	if err == nil || !strings.Contains(err.Error(), `role "r" calls "pay" with {"action":null`) {
		t.Errorf("the trial says %v", err)
	}
}
