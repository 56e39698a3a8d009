package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/signal"
)

// faultyPolicy fails in the way that the argument fault names; what it answers with
// is an argument too, so that no check of the policy by itself can know it.
const faultyPolicy = `package toolgate

import rego.v2

decision := input.arguments.answer if input.arguments.fault == "answer"

decision := {"effect": "allow", "rule": "number"} if {
	input.arguments.fault == "number"
	to_number(input.arguments.text) > 0
}

decision := {"effect": "allow", "rule": "moment"} if {
	input.arguments.fault == "moment"
	time.parse_rfc3339_ns(input.arguments.text) > 0
}

decision := {"effect": "allow", "rule": "quotient"} if {
	input.arguments.fault == "quotient"
	1 / input.arguments.by > 0
}

decision := {"effect": "allow", "rule": "one"} if input.arguments.fault == "conflict"

decision := {"effect": "allow", "rule": "other"} if input.arguments.fault == "conflict"

pairs contains [a, b] if {
	some a in numbers.range(1, 100000)
	some b in numbers.range(1, 100000)
}

decision := {"effect": "allow", "rule": "endless"} if {
	input.arguments.fault == "endless"
	count(pairs) > 0
}

visible := true
`

// policyFaults are the ways in which a policy fails for one call.
var policyFaults = []struct{ name, args, rule string }{
	{"undefined", `{"fault":"undefined"}`, "policy_undefined"},
	{"undefined without arguments", `{}`, "policy_undefined"},
	{"a built-in fails: number", `{"fault":"number","text":"planted"}`, "policy_error"},
	{"a built-in fails: type", `{"fault":"number","text":[1]}`, "policy_error"},
	{"a built-in fails: moment", `{"fault":"moment","text":"planted"}`, "policy_error"},
	{"arithmetic fails", `{"fault":"quotient","by":0}`, "policy_error"},
	{"two rules answer", `{"fault":"conflict"}`, "policy_error"},
	{"an endless loop", `{"fault":"endless"}`, "policy_error"},
	{"the answer is text", `{"fault":"answer","answer":"allow"}`, "policy_error"},
	{"the answer is true", `{"fault":"answer","answer":true}`, "policy_error"},
	{"the answer is null", `{"fault":"answer","answer":null}`, "policy_error"},
	{"the answer is a list", `{"fault":"answer","answer":[{"effect":"allow"}]}`, "policy_error"},
	{"no effect", `{"fault":"answer","answer":{"rule":"r"}}`, "policy_error"},
	{"an unknown effect", `{"fault":"answer","answer":{"effect":"permit"}}`, "policy_error"},
	{"an effect in capitals", `{"fault":"answer","answer":{"effect":"ALLOW"}}`, "policy_error"},
	{"an effect of another type", `{"fault":"answer","answer":{"effect":["allow"]}}`, "policy_error"},
	{"an unknown member", `{"fault":"answer","answer":{"effect":"allow","allow":true}}`, "policy_error"},
	{"a hold that nobody may decide", `{"fault":"answer","answer":{"effect":"hold"}}`, "policy_error"},
	{"a hold without a role", `{"fault":"answer","answer":{"effect":"hold","approval":{"roles":[]}}}`, "policy_error"},
	{"an approval of what is allowed", `{"fault":"answer","answer":{"effect":"allow","approval":{"roles":["r"]}}}`, "policy_error"},
	{"a rate that is none", `{"fault":"answer","answer":{"effect":"allow","limit":{"rate":"often"}}}`, "policy_error"},
	{"a pointer that is none", `{"fault":"answer","answer":{"effect":"allow","redact":["iban"]}}`, "policy_error"},
	{"a rule of another type", `{"fault":"answer","answer":{"effect":"allow","rule":7}}`, "policy_error"},
}

// Whatever is wrong with a policy, the call is refused on the wire without a cause,
// reaches nobody, and is in the trail and in the decision log with what was judged.
// The control is allowed, so the table can fail.
func TestPolicyErrors(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts a program for each faulty policy")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	files := doorFiles()
	files["policy/p.rego"] = faultyPolicy
	files["up.json"] = `{"Tools": [{"Name": "echo"}]}`
	files["mcp.json"] = strings.Replace(files["mcp.json"], `"path": "policy"`, `"path": "policy", "log": {"file": "decisions.jsonl"}`, 1)
	write(t, dir, files)
	p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	call := throughHTTP(t, agents)
	if got := call(t, doorCase{tool: "up__echo", args: `{"fault":"answer","answer":{"effect":"allow","rule":"control"}}`}); got != "" {
		t.Fatalf("the control: %s", got)
	}
	for _, f := range policyFaults {
		if got := call(t, doorCase{tool: "up__echo", args: f.args}); got != "POLICY_DENIED" {
			t.Errorf("%s: %q", f.name, got)
		}
	}
	record, err := os.ReadFile(filepath.Join(dir, "record"))
	if n := strings.Count(string(record), `"tools/call"`); err != nil || n != 1 {
		t.Errorf("the upstream got %d calls, %v", n, err)
	}
	records := outcomes(t, dir)
	events := awaitEvents(t, filepath.Join(dir, "decisions.jsonl"), 1+len(policyFaults))
	for i, f := range policyFaults {
		checkFault(t, f.name, f.args, f.rule, records[i+1], events[i+1])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !strings.Contains(p.out.String(), "judging a call") {
		t.Error("the log does not say why")
	}
}

func checkFault(t *testing.T, name, args, rule string, r *audit.Record, e decisionlog.Event) {
	t.Helper()
	in, d, err := judgement.Decode(r)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if r.Outcome != audit.Denied || d.Effect != "deny" || d.Rule != rule || d.Revision == "" || string(in.Arguments) != args {
		t.Errorf("%s: the trail has %s %+v of %s", name, r.Outcome, d, in.Arguments)
	}
	var result struct{ Effect, Rule string }
	var input struct{ Arguments json.RawMessage }
	decode(t, e.Result, &result)
	decode(t, e.Input, &input)
	if e.DecisionID != r.DecisionID || result.Effect != "deny" || result.Rule != rule || string(input.Arguments) != args || e.Bundles["toolgate"].Revision != d.Revision {
		t.Errorf("%s: the decision log has %s of %s", name, e.Result, e.Input)
	}
}

// What a policy judges by cannot be read: the call is refused as a failure of ours,
// before the policy is asked, reaches nobody, and is in the trail.
func TestUsageThatCannotBeRead(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	files := doorFiles()
	files["policy/p.rego"] = "package toolgate\n\nimport rego.v2\n\ndecision := {\"effect\": \"allow\"} if input.usage.hour.calls < 10\n"
	files["policy/data.json"] = `{"usage": {"up__echo": {"hour": {"window": "1h"}}}}`
	files["up.json"] = `{"Tools": [{"Name": "echo"}]}`
	write(t, dir, files)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	call := throughHTTP(t, agents)
	if got := call(t, doorCase{tool: "up__echo", args: `{}`}); got != "" {
		t.Fatalf("the control: %s", got)
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, ".toolgate", "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Write.ExecContext(t.Context(), "DROP TABLE usage"); err != nil {
		t.Fatal(err)
	}
	if got := call(t, doorCase{tool: "up__echo", args: `{"second":true}`}); got != "INTERNAL_ERROR" {
		t.Errorf("got %q", got)
	}
	record, err := os.ReadFile(filepath.Join(dir, "record"))
	if n := strings.Count(string(record), `"tools/call"`); err != nil || n != 1 {
		t.Errorf("the upstream got %d calls, %v", n, err)
	}
	code, out := toolgate(t, dir, "audit", "tail", "-n", "1", "-o", "json")
	r, err := audit.Parse([]byte(strings.TrimSpace(out)))
	if code != command.ExitOK || err != nil || r.Outcome != audit.Failed || r.Stage != "decide" || r.Code != signal.CodeInternal || string(r.Arguments) != `{"second":true}` {
		t.Errorf("the trail ends with %s, %v", out, err)
	}
}

// outcomes gives the records of what calls came to, in order.
func outcomes(t testing.TB, dir string) (found []*audit.Record) {
	t.Helper()
	code, out := toolgate(t, dir, "audit", "tail", "-n", "1000", "-o", "json")
	if code != command.ExitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
	for line := range strings.Lines(out) {
		r, err := audit.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == audit.KindDecision || r.Kind == audit.KindOutcome && r.Outcome == audit.Denied {
			found = append(found, r)
		}
	}
	return found
}

// awaitEvents waits until a decision log has n events.
func awaitEvents(t testing.TB, path string, n int) (events []decisionlog.Event) {
	t.Helper()
	program.Await(t, fmt.Sprintf("%d events in %s", n, path), func() bool {
		text, _ := os.ReadFile(path)
		return strings.Count(string(text), "\n") >= n
	})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e decisionlog.Event
		decode(t, []byte(line), &e)
		events = append(events, e)
	}
	return events
}

// A policy that would reach the network, the clock or the process is not loaded,
// and one that serves stays.
func TestForbiddenBuiltins(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts a program for each builtin")
	for name, body := range map[string]string{
		"network": `http.send({"method": "get", "url": input.arguments.url}).status_code == 200`,
		"names":   `count(net.lookup_ip_addr(input.arguments.host)) > 0`,
		"clock":   `time.now_ns() > 0`,
		"chance":  `rand.intn("x", 2) == 1`,
		"process": `opa.runtime().env.HOME`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, map[string]string{"policy/p.rego": "package toolgate\n\nimport rego.v2\n\ndecision := {\"effect\": \"allow\"} if {\n\t" + body + "\n}\n"})
			if code, out := toolgate(t, dir, "policy", "check", "--path", "policy"); code != command.ExitUsage || !strings.Contains(out, "undefined function") {
				t.Errorf("exit %d: %s", code, out)
			}
		})
	}
}
