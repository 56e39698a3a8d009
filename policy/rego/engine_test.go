package rego_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// testTimeout is for policies that end: a loaded machine must not deny.
const testTimeout = 10 * time.Second

// load makes an engine of files, named and filled in turn.
func load(t testing.TB, files ...string) *rego.Engine {
	t.Helper()
	e, err := tryLoad(t, files...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func tryLoad(t testing.TB, files ...string) (*rego.Engine, error) {
	t.Helper()
	return rego.Load(t.Context(), rego.Options{Path: writeFiles(t, files...), Timeout: testTimeout})
}

func writeFiles(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		name := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// module is a policy with the given rules.
func module(rules string) string { return "package toolgate\nimport rego.v2\n" + rules + "\n" }

func input(role, tool, arguments string) *policy.Input {
	return &policy.Input{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{role}, Client: "inspector/1"},
		Tool:      policy.Tool{Server: "standard", Name: tool, Exposed: tool, Risk: "high", Fingerprint: "sha256:00"},
		Arguments: json.RawMessage(arguments),
		Request:   policy.Request{ID: "1", Transport: "http", TraceID: "trc_1", Time: time.Unix(1e9, 0)},
		Usage:     map[string]policy.Reading{"day": {Sum: "0"}},
	}
}

func TestDefaultPolicy(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	if w := e.Warnings(); len(w) > 0 {
		t.Errorf("the default policy has warnings: %q", w)
	}
	if diff := cmp.Diff([]string{"approver", "creator", "observer", "researcher", "treasurer"}, e.Roles()); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
	const balance, pay = `{"action":"balance"}`, `{"action":"transfer","asset":"USD","amount":50,"destination":"acme"}`
	for _, c := range []struct{ role, tool, arguments, rule string }{
		{"approver", "search_internet", `{"query":"x"}`, "role-lacks-tool"},
		{"approver", "manage_wallet", balance, "role-lacks-tool"},
		{"observer", "search_internet", `{"query":"x"}`, "role-has-tool"},
		{"observer", "manage_wallet", balance, "role-has-tool"},
		{"observer", "manage_wallet", pay, "role-lacks-argument"},
		{"observer", "generate_media", `{"model":"card-1"}`, "role-lacks-tool"},
		{"researcher", "search_internet", `{"query":"x"}`, "role-has-tool"},
		{"researcher", "manage_wallet", balance, "role-has-tool"},
		{"researcher", "manage_wallet", pay, "role-lacks-argument"},
		{"creator", "search_internet", `{"query":"x"}`, "role-has-tool"},
		{"creator", "generate_media", `{"model":"card-1"}`, "role-has-tool"},
		{"creator", "generate_media", `{"model":"poster-1"}`, "role-has-tool"},
		{"creator", "generate_media", `{"model":"other"}`, "model-not-listed"},
		{"creator", "manage_wallet", balance, "role-lacks-tool"},
		{"treasurer", "search_internet", `{"query":"x"}`, "role-has-tool"},
		{"treasurer", "manage_wallet", balance, "role-has-tool"},
		{"treasurer", "manage_wallet", pay, "role-has-tool"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":500,"destination":"acme"}`, "amount-above-threshold"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"BTC","amount":1.5,"destination":"acme"}`, "amount-above-threshold"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"DOGE","amount":1,"destination":"acme"}`, "amount-not-a-positive-number"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"ETH","amount":"0.050000000000000000","destination":"acme"}`, "role-has-tool"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"ETH","amount":"0.050000000000000001","destination":"acme"}`, "amount-above-threshold"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"ETH","value":"0.05","to":"acme"}`, "role-has-tool"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"ETH","value":"0.05","amount":"0.05","to":"acme"}`, "amount-not-a-positive-number"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"ETH","value":"0.05","to":"eve","destination":"acme"}`, "argument-not-known"},
		{"treasurer", "manage_wallet", `{"action":"reconcile"}`, "role-has-tool"},
		{"treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"eve"}`, "argument-not-known"},
		{"treasurer", "generate_media", `{"model":"card-1"}`, "role-lacks-tool"},
		{"treasurer", "standard__manage_wallet", pay, "role-lacks-tool"},
		{"", "search_internet", `{}`, "role-lacks-tool"},
	} {
		d, err := e.Decide(t.Context(), input(c.role, c.tool, c.arguments))
		if err != nil || d.Rule != c.rule || d.Revision != e.Revision() {
			t.Errorf("%s calls %s with %s: got %+v, %v; want rule %s", c.role, c.tool, c.arguments, d, err, c.rule)
		}
	}
}

// TestDefaultIsConstant holds that calls whose verdict no argument changes are
// judged once.
func TestDefaultIsConstant(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	constant := map[string]bool{"creator generate_media": false, "observer manage_wallet": false, "researcher manage_wallet": false, "treasurer manage_wallet": false}
	for _, role := range e.Roles() {
		for _, tool := range []string{"search_internet", "generate_media", "manage_wallet", "files__read"} {
			want, listed := constant[role+" "+tool]
			in := input(role, tool, "")
			if got := e.Constant(t.Context(), in.Principal, in.Tool); got != (want || !listed) {
				t.Errorf("%s calls %s: constant is %v", role, tool, got)
			}
			shown, err := e.Visible(t.Context(), in.Principal, in.Tool)
			if want := listed || tool == "search_internet" && role != "approver"; shown != want || err != nil {
				t.Errorf("%s sees %s: got %v, %v; want %v", role, tool, shown, err, want)
			}
		}
	}
}

// TestAmounts is the table of typed thresholds: nothing odd is allowed.
func TestAmounts(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	for amount, want := range map[string]policy.Effect{
		`null`: policy.Deny, `true`: policy.Deny, `false`: policy.Deny, `"5000"`: policy.Hold, `"5"`: policy.Allow, `"5 "`: policy.Deny, `"-5"`: policy.Deny, `"5.001"`: policy.Deny,
		`[5000]`: policy.Deny, `[]`: policy.Deny, `{"v":5000}`: policy.Deny, `{}`: policy.Deny,
		`-1`: policy.Deny, `0`: policy.Deny, `-0`: policy.Deny, `0e5`: policy.Deny, `-1e400`: policy.Deny,
		`1`: policy.Allow, `100`: policy.Allow, `100.0`: policy.Allow, `1e2`: policy.Allow, `1E+2`: policy.Allow,
		`99.9999999999999999999999999999`: policy.Deny,
		`1e3`:                             policy.Hold, `1E+3`: policy.Hold, `1000.0`: policy.Hold, `101`: policy.Hold,
		`100.0000000000000000000000000001`: policy.Deny,
		`9007199254740993`:                 policy.Hold,
		`123456789012345678901234567890123456789012345678901234567890`: policy.Hold,
		`1e400`: policy.Deny,
	} {
		d, err := e.Decide(t.Context(), input("treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","destination":"acme","amount":`+amount+`}`))
		if err != nil || d.Effect != want {
			t.Errorf("amount %s: got %s (%s), %v; want %s", amount, d.Effect, d.Rule, err, want)
		}
	}
	for _, missing := range []string{`{"action":"transfer"}`, `{"action":"transfer","Amount":5}`, `{}`, ``, `{"amount":5}`, `{"action":"transfer","amount":5,"destination":"acme"}`} {
		if d, _ := e.Decide(t.Context(), input("treasurer", "manage_wallet", missing)); d.Effect != policy.Deny {
			t.Errorf("arguments %s: got %s, want deny", missing, d.Effect)
		}
	}
}

// TestLeanPolicy is a policy as operators write it: three exclusive rules over
// tools by upstream name, thousands of grants, one amount.
func TestLeanPolicy(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Path: "testdata/lean", Timeout: testTimeout})
	if err != nil || len(e.Warnings()) > 0 {
		t.Fatalf("got %v, warnings %q", err, e.Warnings())
	}
	for _, c := range []struct {
		role, tool, arguments string
		want                  policy.Effect
		constant              bool
	}{
		{"clerk", "t0", `{}`, policy.Allow, true},
		{"clerk", "t1", `{"amount":9}`, policy.Deny, true},
		{"clerk", "pay", `{"amount":100}`, policy.Allow, false},
		{"clerk", "pay", `{"amount":101}`, policy.Hold, false},
		{"guest", "pay", `{"amount":1}`, policy.Deny, true},
	} {
		in := input(c.role, c.tool, c.arguments)
		in.Tool.Exposed = "up__" + c.tool
		d, err := e.Decide(t.Context(), in)
		if got := e.Constant(t.Context(), in.Principal, in.Tool); err != nil || d.Effect != c.want || got != c.constant {
			t.Errorf("%s calls %s with %s: got %s, %v, constant %v; want %s, %v", c.role, c.tool, c.arguments, d.Effect, err, got, c.want, c.constant)
		}
	}
}

// TestBrokenInput holds that what cannot be read is denied.
func TestBrokenInput(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow"} if input.arguments.x != 1`))
	for _, arguments := range []string{
		`[]`, `"x"`, `null`, `1`, `{"x":2}{}`, `{"x":2,"x":3}`, `{"x":`, "{\"x\":\"\xff\"}", `{"x":1e100000000}`, `{"x":01}`,
	} {
		if d, err := e.Decide(t.Context(), input("r", "t", arguments)); d.Effect != policy.Deny || d.Rule != rego.RuleError || err == nil {
			t.Errorf("arguments %s: got %+v, %v; want an error and a denial", arguments, d, err)
		}
	}
	nobody := input("r", "t", `{"x":2}`)
	nobody.Principal = policy.Principal{}
	for _, in := range []*policy.Input{nil, nobody} {
		if d, err := e.Decide(t.Context(), in); d.Effect != policy.Deny || err == nil {
			t.Errorf("nobody: got %+v, %v; want an error and a denial", d, err)
		}
	}
	if d, err := e.Decide(t.Context(), input("r", "t", `{"x":2}`)); d.Effect != policy.Allow || err != nil {
		t.Errorf("sound input: got %+v, %v; want allow", d, err)
	}
}

// misbehave is a condition that no sample call meets.
const misbehave = `input.arguments.now == "misbehave"`

// TestFailedPolicy holds that every way a policy can fail at run time denies.
func TestFailedPolicy(t *testing.T) {
	for name, rule := range map[string]string{
		"divides by zero":       `decision := {"effect": "allow", "rule": sprintf("%d", [1 / (count(input.arguments) - 1)])} if ` + misbehave,
		"converts no number":    `decision := {"effect": "allow"} if { ` + misbehave + `; to_number("5,000") > 1 }`,
		"takes no such type":    `decision := {"effect": "allow"} if { ` + misbehave + `; startswith(json.unmarshal("1"), "") }`,
		"fails in a rule":       "x if { " + misbehave + "; regex.match(\"(\", input.arguments.now) }\ndecision := {\"effect\": \"deny\"} if x",
		"fails below a not":     "x if { " + misbehave + "; to_number(input.arguments.now) > 1 }\ndecision := {\"effect\": \"allow\"} if { " + misbehave + "; not x }",
		"fails for nothing":     "x if { " + misbehave + "; to_number(input.arguments.now) > 1; false }\ndecision := {\"effect\": \"allow\"} if x\ndecision := {\"effect\": \"deny\"} if { " + misbehave + "; input.tool.exposed == \"u\" }",
		"decides twice":         "decision := {\"effect\": \"allow\"} if " + misbehave + "\ndecision := {\"effect\": \"deny\"} if input.arguments.now",
		"is of two minds":       "x := 1 if " + misbehave + "\nx := 2 if input.arguments.now\ndecision := {\"effect\": \"allow\"} if x > 0",
		"computes two values":   "f(_) := 1 if " + misbehave + "\nf(_) := 2 if input.arguments.now\ndecision := {\"effect\": \"allow\"} if f(1) > 0",
		"has two under one key": "o[1] := 1 if " + misbehave + "\no[1] := 2 if input.arguments.now\ndecision := {\"effect\": \"allow\"} if o[1] > 0",
		"gives two values":      `decision := {"effect": "allow", "rule": x} if { ` + misbehave + `; some x in ["a", "b"] }`,
		"is a string":           `decision := "allow" if ` + misbehave,
		"is a boolean":          `decision if ` + misbehave,
		"is a list":             `decision := [{"effect": "allow"}] if ` + misbehave,
		"has a boolean effect":  `decision := {"effect": true} if ` + misbehave,
		"knows no such effect":  `decision := {"effect": "Allow"} if ` + misbehave,
		"has no effect":         `decision := {"rule": "x"} if ` + misbehave,
		"has unknown members":   `decision := {"effect": "allow", "approvals": {"roles": ["boss"]}} if ` + misbehave,
		"holds without role":    `decision := {"effect": "hold"} if ` + misbehave,
		"holds with no roles":   `decision := {"effect": "hold", "approval": {"roles": []}} if ` + misbehave,
		"holds with odd roles":  `decision := {"effect": "hold", "approval": {"roles": [""]}} if ` + misbehave,
		"allows and approves":   `decision := {"effect": "allow", "approval": {"roles": ["boss"]}} if ` + misbehave,
		"has a bad ttl":         `decision := {"effect": "hold", "approval": {"roles": ["a"], "ttl": 5}} if ` + misbehave,
		"has a negative ttl":    `decision := {"effect": "hold", "approval": {"roles": ["a"], "ttl": "-5m"}} if ` + misbehave,
		"has a negative hold":   `decision := {"effect": "hold", "approval": {"roles": ["a"], "hold": "-5m"}} if ` + misbehave,
		"has quorum zero":       `decision := {"effect": "hold", "approval": {"roles": ["a"], "quorum": 0}} if ` + misbehave,
		"has quorum 1.5":        `decision := {"effect": "hold", "approval": {"roles": ["a"], "quorum": 1.5}} if ` + misbehave,
		"has a bad rate":        `decision := {"effect": "allow", "limit": {"rate": "many"}} if ` + misbehave,
		"has no rate":           `decision := {"effect": "allow", "limit": {"burst": 1}} if ` + misbehave,
		"has a bad pointer":     `decision := {"effect": "allow", "redact": ["content"]} if ` + misbehave,
		"has bad tilde":         `decision := {"effect": "allow", "redact": ["/a~2"]} if ` + misbehave,
		"has a numeric reason":  `decision := {"effect": "deny", "reason": 1} if ` + misbehave,
	} {
		t.Run(name, func(t *testing.T) {
			e := load(t, "p.rego", module(rule))
			d, err := e.Decide(t.Context(), input("r", "t", `{"now":"misbehave"}`))
			if d.Effect != policy.Deny || d.Rule != rego.RuleError || err == nil {
				t.Errorf("got %+v, %v; want an error and a denial", d, err)
			}
			d, err = e.Decide(t.Context(), input("r", "t", `{}`))
			if d.Effect != policy.Deny || d.Rule != rego.RuleUndefined || err != nil {
				t.Errorf("undefined: got %+v, %v; want a denial without an error", d, err)
			}
		})
	}
}

const loop = `decision := {"effect": "allow"} if {
	` + misbehave + `
	count([1 | some a in numbers.range(1, 3000); some b in numbers.range(1, 3000); a + b < 0]) == 0
}`

func TestTimeout(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Path: writeFiles(t, "p.rego", module(loop)), Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	d, err := e.Decide(t.Context(), input("r", "t", `{"now":"misbehave"}`))
	if d.Effect != policy.Deny || err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %+v, %v; want a denial for time", d, err)
	}
}

// TestLate holds that reading the arguments counts, and that a decision which
// comes after the timeout is a denial, however it was made: nothing in either
// policy can be cancelled on the way.
func TestLate(t *testing.T) {
	many := `{"list":[1` + strings.Repeat(",1", 1<<20) + `]}`
	for name, c := range map[string]struct{ rule, arguments string }{
		"reading":             {`decision := {"effect": "allow"} if not input.arguments.none`, many},
		"one built-in call":   {`decision := {"effect": "allow"} if count(json.marshal([input.arguments.text, input.arguments.text])) > 1`, `{"text":"` + strings.Repeat(`\u0001`, 4<<20) + `"}`},
		"nothing to evaluate": {`decision := {"effect": "allow"}`, many},
	} {
		e, err := rego.LoadUntried(t.Context(), rego.Options{Path: writeFiles(t, "p.rego", module(c.rule)), Timeout: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Decide(t.Context(), input("r", "t", c.arguments))
		if d.Effect != policy.Deny || d.Rule != rego.RuleError || err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("%s: got %+v, %v; want a denial for time", name, d, err)
		}
		err = e.Bounded(t.Context(), func() {
			for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; {
				_ = name // what ends late and was never cancelled
			}
		})
		if err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("what ends late: got %v", err)
		}
	}
}

func TestCancel(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Path: writeFiles(t, "p.rego", module(loop)), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := e.Decide(ctx, input("r", "t", `{}`)); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(10*time.Millisecond, cancel).Stop() // the loop runs for seconds
	d, err := e.Decide(ctx, input("r", "t", `{"now":"misbehave"}`))
	if d.Effect != policy.Deny || !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v; want a denial and the context's error", d, err)
	}
	fresh := policy.Principal{Subject: "x", Roles: []string{"new"}}
	if _, err := e.Visible(ctx, fresh, policy.Tool{}); !errors.Is(err, context.Canceled) {
		t.Errorf("visible under a dead context: got %v, want its error", err)
	}
	if ok, err := e.Visible(t.Context(), fresh, policy.Tool{}); !ok || err != nil {
		t.Errorf("afterwards: got %v, %v; want true", ok, err)
	}
}

func TestPanic(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow"}`))
	if err := e.Bounded(t.Context(), func() { panic("boom") }); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v, want the panic as an error", err)
	}
}

func TestWholeDecision(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {
		"effect": "hold", "rule": "R-1", "reason": "because", "remedy": "wait",
		"approval": {"roles": {"boss", "cfo"}, "quorum": 2, "ttl": "15m", "hold": "45s"},
		"limit": {"rate": "60/1m", "burst": 5}, "redact": ["", "/content/0", "/a~1b"],
	}`))
	want := policy.Decision{
		Effect: policy.Hold, Rule: "R-1", Reason: "because", Remedy: "wait",
		Approval: &policy.Approval{Roles: []string{"boss", "cfo"}, Quorum: 2, TTL: 15 * time.Minute, Hold: new(45 * time.Second)},
		Limit:    &policy.Limit{Rate: "60/1m", Burst: 5, Key: "R-1"},
		Redact:   []string{"", "/content/0", "/a~1b"}, Revision: e.Revision(),
	}
	for range 2 { // what the first caller changes must not reach the second
		got, err := e.Decide(t.Context(), input("r", "t", `{}`))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("decision (-want +got):\n%s", diff)
		}
		got.Approval.Roles[0], got.Limit.Rate, got.Redact[1] = "x", "x", "x"
	}
}

// TestInput holds that a policy sees every member of the contract.
func TestInput(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "deny", "reason": json.marshal(input)} if input.request.id`))
	in := input("r", "t", `{"n":12345678901234567890.10,"s":"<é>","a":[true,null]}`)
	in.Principal.Tenant = "acme"
	in.Tool.Annotations = json.RawMessage(`{"readOnlyHint":true}`)
	in.Request.Era, in.Request.Tags = "2025-11-25", map[string]string{"urgency": "high", "confidence": "0.9"}
	d, err := e.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"action":"tools/call","principal":{"subject":"agent-7","roles":["r"],"client":"inspector/1","tenant":"acme","scopes":[]},` +
		`"tool":{"server":"standard","name":"t","exposed":"t","risk":"high","annotations":{"readOnlyHint":true},"fingerprint":"sha256:00"},` +
		`"arguments":{"n":12345678901234567890.10,"s":"<é>","a":[true,null]},` +
		`"request":{"id":"1","transport":"http","era":"2025-11-25","trace_id":"trc_1","time":"2001-09-09T01:46:40Z","tags":{"confidence":"0.9","urgency":"high"}},` +
		`"usage":{"day":{"calls":0,"sum":0}}}` // of the meter in the shipped data
	if diff := cmp.Diff(decode(t, want), decode(t, d.Reason)); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
}

// TestInputWithoutATool holds the same for requests that call no tool: the
// policy sees what they are about, and no tool.
func TestInputWithoutATool(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow", "reason": json.marshal(object.remove(input, ["principal", "request", "usage"]))} if input.request.id`))
	for _, tt := range []struct {
		name string
		in   policy.Input
		want string // "" = an error, and thus a denial
	}{
		{"a resource", policy.Input{Action: "resources/read", Resource: &policy.Resource{Server: "s", URI: "file:///a"}},
			`{"action":"resources/read","resource":{"server":"s","uri":"file:///a"},"arguments":{}}`},
		{"a prompt", policy.Input{Action: "prompts/get", Prompt: &policy.Prompt{Server: "s", Name: "p"}, Arguments: json.RawMessage(`{"n":1e2}`)},
			`{"action":"prompts/get","prompt":{"server":"s","name":"p"},"arguments":{"n":1e2}}`},
		{"a server", policy.Input{Action: "logging/setLevel", Server: &policy.Server{Name: "s", Tools: []string{"s__t"}}, Arguments: json.RawMessage(`{"level":"info"}`)},
			`{"action":"logging/setLevel","server":{"name":"s","tools":["s__t"]},"arguments":{"level":"info"}}`},
		{"a server that asks", policy.Input{Action: "roots/list", Server: &policy.Server{Name: "s", Asks: "roots/list"}},
			`{"action":"roots/list","server":{"name":"s","asks":"roots/list"},"arguments":{}}`},
		{"neither", policy.Input{Action: "prompts/get"}, ""},
		{"a server and a prompt", policy.Input{Action: "prompts/get", Prompt: &policy.Prompt{}, Server: &policy.Server{}}, ""},
		{"a server and a resource", policy.Input{Action: "resources/read", Resource: &policy.Resource{}, Server: &policy.Server{}}, ""},
		{"both", policy.Input{Action: "prompts/get", Prompt: &policy.Prompt{}, Resource: &policy.Resource{}}, ""},
		{"arguments that are none", policy.Input{Action: "prompts/get", Prompt: &policy.Prompt{}, Arguments: json.RawMessage(`[]`)}, ""},
	} {
		in := input("r", "t", `{}`)
		in.Action, in.Resource, in.Prompt, in.Server, in.Arguments = tt.in.Action, tt.in.Resource, tt.in.Prompt, tt.in.Server, tt.in.Arguments
		d, err := e.Decide(t.Context(), in)
		if tt.want == "" {
			if err == nil || d.Effect != policy.Deny || d.Rule != rego.RuleError {
				t.Errorf("%s: %+v, %v", tt.name, d, err)
			}
			continue
		}
		if err != nil || d.Effect != policy.Allow {
			t.Fatalf("%s: %+v, %v", tt.name, d, err)
		}
		if diff := cmp.Diff(decode(t, tt.want), decode(t, d.Reason)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func decode(t *testing.T, s string) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestRefusedPolicy holds that what cannot serve does not load, and says why.
func TestRefusedPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"nothing there":           {[]string{"README.md", "x"}, "no policy found"},
		"syntax":                  {[]string{"p.rego", "package toolgate\ndecision :="}, "p.rego:"},
		"unsafe variable":         {[]string{"p.rego", module(`decision := {"effect": x}`)}, "unsafe"},
		"unknown function":        {[]string{"p.rego", module(`decision := nope(1)`)}, "undefined function"},
		"no decision":             {[]string{"p.rego", module(`allow := true`)}, "data.toolgate.decision"},
		"only a test":             {[]string{"p_test.rego", module(`decision := {"effect": "allow"}`)}, "no policy found"},
		"network":                 {[]string{"p.rego", module(`decision := http.send({"method": "get", "url": "http://127.0.0.1/"}).body`)}, "http.send"},
		"name look-up":            {[]string{"p.rego", module(`decision := net.lookup_ip_addr("x")`)}, "net.lookup_ip_addr"},
		"clock":                   {[]string{"p.rego", module(`decision := {"effect": "allow"} if time.now_ns() > 1`)}, "time.now_ns"},
		"environment":             {[]string{"p.rego", module(`decision := {"effect": opa.runtime().env.X}`)}, "opa.runtime"},
		"random":                  {[]string{"p.rego", module(`decision := {"effect": "allow"} if rand.intn("x", 2) == 1`)}, "rand.intn"},
		"foreign schemas":         {[]string{"p.rego", module(`decision := {"effect": "allow"} if json.match_schema({}, {"$ref": "file:///etc/x"})[0]`)}, "json.match_schema"},
		"conflict":                {[]string{"p.rego", module("decision := {\"effect\": \"allow\"}\ndecision := {\"effect\": \"deny\"}")}, "trying policy"},
		"misspelt effect":         {[]string{"p.rego", module(`decision := {"effect": "alow"}`)}, "trying policy"},
		"a request not looked at": {[]string{"p.rego", module("decision := {\"effect\": \"allow\"} if input.tool\ndecision := {\"effect\": \"deny\"} if input.server\ndecision := {\"effect\": \"allow\"} if input.server.asks")}, "input.action"},
		"type not tested":         {[]string{"p.rego", module(`decision := {"effect": "hold", "approval": {"roles": ["a"]}} if to_number(input.arguments.amount) > 1`)}, "trying policy"},
		"data is a list":          {[]string{"p.rego", module(`decision := {"effect": "allow"}`), "data.json", "[]"}, "data.json"},
		"data twice":              {[]string{"p.rego", module(`decision := {"effect": "allow"}`), "data.json", `{"a":1,"a":2}`}, "duplicate"},
		"data trails":             {[]string{"p.rego", module(`decision := {"effect": "allow"}`), "data.json", `{} {}`}, "more than one"},
		"data under a rule":       {[]string{"p.rego", module(`decision := {"effect": "allow"}`), "data.json", `{"toolgate":{"decision":{"effect":"allow"}}}`}, "conflict"},
		"delta bundle":            {[]string{"patch.json", `{"data":[]}`}, "delta"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := tryLoad(t, c.files...)
			if e != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
	if _, err := rego.Load(t.Context(), rego.Options{Path: filepath.Join(t.TempDir(), "absent")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent path: got %v, want ErrNotExist", err)
	}
}

func TestWarnings(t *testing.T) {
	e := load(t, "old.rego", "package toolgate\ndecision := {\"effect\": \"allow\"}")
	w := strings.Join(e.Warnings(), "\n")
	if !strings.Contains(w, "old.rego:1: does not import rego.v2") {
		t.Errorf("got warnings %q, want the language", w)
	}
}

// archive packs files, named and filled in turn, as a bundle.
func archive(t testing.TB, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw := tar.NewWriter(zw)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Name: files[i], Mode: 0o600, Size: int64(len(files[i+1])), Typeflag: tar.TypeReg}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestSources holds that the same policy is the same revision and gives the
// same decisions as a directory and as an archive.
func TestSources(t *testing.T) {
	parts := []string{
		"toolgate/p.rego", module(`decision := {"effect": "allow"} if input.tool.exposed in data.more.tools`),
		"data.json", `{"roles": {"r": {}}}`,
		"more/data.yaml", "tools: [t]\n",
		"p_test.rego", "package broken_test\nthis is no rego",
		"README.md", "words",
		".hidden/q.rego", "no rego either",
	}
	packed := archive(t, append([]string{"./LICENSE", "x"}, parts...)...)
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := os.WriteFile(file, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	revisions := make(map[string]bool)
	for _, where := range []string{writeFiles(t, parts...), file} {
		e, err := rego.Load(t.Context(), rego.Options{Path: where, Timeout: testTimeout})
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		revisions[e.Revision()] = true
		d, err := e.Decide(t.Context(), input("r", "t", ""))
		if err != nil || d.Effect != policy.Allow || len(e.Roles()) != 1 {
			t.Errorf("%s: got %+v, %v, roles %v; want allow and one role", where, d, err, e.Roles())
		}
	}
	if len(revisions) != 1 {
		t.Errorf("got revisions %v, want one", revisions)
	}
}

func TestRevision(t *testing.T) {
	rule := module(`decision := {"effect": "allow"}`)
	base := load(t, "p.rego", rule, "data.json", `{"a":1}`).Revision()
	if !strings.HasPrefix(base, "sha256:") || len(base) != len("sha256:")+64 {
		t.Errorf("revision is %q", base)
	}
	if got, err := rego.RevisionOf(rego.Options{Path: writeFiles(t, "p.rego", rule, "data.json", `{"a":1}`)}); err != nil || got != base {
		t.Errorf("the revision of the files alone is %s, %v", got, err)
	}
	if got := load(t, "p.rego", rule, "data.json", `{"a":1}`, "NOTES", "x").Revision(); got != base {
		t.Errorf("a file that is no policy changed the revision")
	}
	for _, other := range [][]string{
		{"p.rego", rule, "data.json", `{"a":2}`}, {"q.rego", rule, "data.json", `{"a":1}`}, {"p.rego", rule + "\n", "data.json", `{"a":1}`},
	} {
		if load(t, other...).Revision() == base {
			t.Errorf("files %q have the revision of others", other)
		}
	}
}

func TestBrokenArchive(t *testing.T) {
	rule := module(`decision := {"effect": "allow"}`)
	sound := archive(t, "p.rego", rule)
	for name, content := range map[string][]byte{
		"no gzip": []byte("x"), "cut": sound[:len(sound)/2], "empty": nil, "twice": archive(t, "p.rego", rule, "./p.rego", rule),
	} {
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := rego.Load(t.Context(), rego.Options{Path: file}); e != nil || err == nil {
			t.Errorf("%s: loaded, want an error", name)
		}
	}
}

func contains(s, part string) bool { return strings.Contains(s, part) }

// loadUntried is load for a directory.
func loadUntried(t testing.TB, dir string) *rego.Engine {
	t.Helper()
	e, err := rego.LoadUntried(t.Context(), rego.Options{Path: dir, Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
