package proxy_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// bench is a gate whose every control can be set for one test. The zero
// controls let everything pass.
type bench struct {
	*proxy.Gate
	who        policy.Principal
	whoErr     error
	decision   policy.Decision
	decideErr  error
	hidden     bool
	visibleErr error
	exceeded   *limit.Exceeded
	claim      approval.Claim
	claimErr   error
	result     string
	forwardErr error
	steps      []string // progress that the upstream reports
	brake      brake
	panicAt    string

	mu          sync.Mutex // protects the fields below
	decisions   []audit.Record
	outcomes    []audit.Record
	decisionErr error
	outcomeErr  error
	sent        []string // argument bytes that reached the upstream
	released    []string
	finished    []string
	judged      []string // argument bytes that the policy saw
	asked       []string // all that the policy saw but time and ID
}

var searcher = &registry.Tool{
	Server: "web", Name: "find", Exposed: "web__find", Fingerprint: "sha256:f", Timeout: time.Second, MaxTimeout: 10 * time.Minute,
	OutputMode: "warn", Input: mustSchema(`{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":true}`),
}

func mustSchema(text string) *schema.Schema {
	s, err := schema.Compile(json.RawMessage(text))
	if err != nil {
		panic(err)
	}
	return s
}

func newBench(t testing.TB, tools ...*registry.Tool) *bench {
	t.Helper()
	if tools == nil {
		tools = []*registry.Tool{searcher}
	}
	b := &bench{
		who:      policy.Principal{Subject: "ann", Roles: []string{"r"}},
		decision: policy.Decision{Effect: policy.Allow, Rule: "R1", Reason: "because", Revision: "sha256:p"},
		result:   `{"content":[{"type":"text","text":"hello"}]}`,
	}
	g, err := proxy.New(proxy.Options{
		Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Stops: &b.brake,
		Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, tools...)},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Gate = g
	return b
}

func (b *bench) Identify(context.Context, identity.Credential) (policy.Principal, error) {
	b.maybePanic("identify")
	return b.who, b.whoErr
}

func (b *bench) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	b.maybePanic("decide")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.judged = append(b.judged, string(in.Arguments))
	seen := *in
	seen.Request = policy.Request{Transport: in.Request.Transport}
	text, _ := json.Marshal(seen)
	b.asked = append(b.asked, string(text))
	return b.decision, b.decideErr
}

func (b *bench) Visible(context.Context, policy.Principal, policy.Tool) (bool, error) {
	b.maybePanic("resolve")
	return !b.hidden, b.visibleErr
}

func (b *bench) Revision() string { return "sha256:p" }

func (b *bench) Spend(time.Time, policy.Principal, policy.Tool, *policy.Limit) *limit.Exceeded {
	b.maybePanic("limit")
	return b.exceeded
}

func (b *bench) Claim(_ context.Context, h approval.Held) (approval.Claim, error) {
	b.maybePanic("approve")
	return b.claim, b.claimErr
}

func (b *bench) Release(_ context.Context, id string) error {
	b.released = append(b.released, id)
	return nil
}

func (b *bench) Finish(_ context.Context, id string, s approval.State, result []byte, note string) error {
	ended := id + " " + string(s)
	if s == approval.StateDone && note != "" {
		ended += ": " + note
	}
	b.finished = append(b.finished, ended)
	return nil
}

func (b *bench) Write(kind audit.Kind, r *audit.Record) error {
	if kind == audit.KindDecision {
		b.maybePanic("record")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if kind == audit.KindOutcome {
		b.outcomes = append(b.outcomes, *r)
		return b.outcomeErr
	}
	b.decisions = append(b.decisions, *r)
	return b.decisionErr
}

func (b *bench) maybePanic(stage string) {
	if b.panicAt == stage {
		panic("planted in " + stage)
	}
}

type upstreams struct {
	*bench
	catalogue *registry.Catalogue
}

func (u upstreams) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return u.catalogue.View(route)
}

func (u upstreams) Forward(_ context.Context, _ *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	u.maybePanic("forward")
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent = append(u.sent, string(out.Arguments))
	for _, step := range u.steps {
		if out.Progress != nil {
			out.Progress(json.RawMessage(step))
		}
	}
	if u.forwardErr != nil {
		return nil, u.forwardErr
	}
	return growing(u.result), nil
}

// growing returns a result with capacity behind it, as large answers over HTTP have.
func growing(result string) json.RawMessage {
	return append(make([]byte, 0, len(result)+4<<10), result...)
}

// request decodes a tools/call as a door does.
func request(t testing.TB, params string) *proxy.Call {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":`+params+`}`), jsonrpc.MostLimits())
	if err != nil {
		t.Fatal(err)
	}
	return &proxy.Call{Message: m, Transport: "http"}
}

func (b *bench) call(t testing.TB, params string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	reply, f := b.Call(context.Background(), request(t, params))
	if reply != nil {
		if err := signal.ValidateResult(reply.Kernel); err != nil {
			t.Errorf("the kernel Result is not valid: %v", err)
		}
	}
	return reply, f
}

const plain = `{"name":"web__find","arguments":{"n":1}}`

var held = policy.Decision{Effect: policy.Hold, Rule: "H", Reason: "large", Revision: "sha256:p",
	Approval: &policy.Approval{Roles: []string{"boss"}}}

func pendingClaim() approval.Claim {
	return approval.Claim{Ticket: ticket(approval.StateProposed), Outcome: approval.Pending}
}

func ticket(state approval.State) approval.Ticket {
	return approval.Ticket{
		Held: approval.Held{Approval: policy.Approval{Roles: []string{"boss"}}, Rule: "H", Reason: "large"}, ID: "apr_1", State: state, Expires: time.Unix(1e9, 0),
	}
}

// Each row breaks one control and says what the caller gets. Nothing that was
// refused before forward may have reached the upstream, and every row leaves
// exactly one outcome record.
func TestEveryStageRefuses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		params  string
		tool    *registry.Tool
		set     func(*bench)
		code    string
		stage   string
		outcome audit.Outcome
		sent    bool
		reason  string // "" = any
	}{
		{name: "no name", params: `{"arguments":{}}`, code: signal.CodeEnvelopeInvalid, stage: "receive", outcome: audit.Invalid},
		{name: "name is no string", params: `{"name":5}`, code: signal.CodeEnvelopeInvalid, stage: "receive", outcome: audit.Invalid},
		{name: "arguments are no object", params: `{"name":"web__find","arguments":[1]}`, code: signal.CodeEnvelopeInvalid, stage: "receive", outcome: audit.Invalid},
		{name: "meta is no object", params: `{"name":"web__find","_meta":1}`, code: signal.CodeEnvelopeInvalid, stage: "receive", outcome: audit.Invalid},
		{name: "nobody", set: func(b *bench) { b.whoErr = identity.ErrUnauthenticated }, code: signal.CodeUnauthenticated, stage: "identify", outcome: audit.Denied},
		{name: "identity fails", set: func(b *bench) { b.whoErr = errors.New("down") }, code: signal.CodeUnauthenticated, stage: "identify", outcome: audit.Denied},
		{name: "empty principal", set: func(b *bench) { b.who = policy.Principal{} }, code: signal.CodeUnauthenticated, stage: "identify", outcome: audit.Denied},
		{name: "unknown tool", params: `{"name":"nope"}`, code: signal.CodeToolNotFound, stage: "resolve", outcome: audit.Unknown},
		{name: "hidden tool", set: func(b *bench) { b.hidden = true }, code: signal.CodeToolNotFound, stage: "resolve", outcome: audit.Unknown},
		{name: "visibility fails", set: func(b *bench) { b.visibleErr = errors.New("down") }, code: signal.CodeToolNotFound, stage: "resolve", outcome: audit.Unknown},
		{name: "quarantined", tool: &registry.Tool{Server: "web", Name: "find", Exposed: "web__find", Quarantine: "changed\nhint: toolgate tool diff"}, code: signal.CodeToolQuarantined, stage: "resolve", outcome: audit.Denied, reason: "changed"},
		{name: "case variants", params: `{"name":"web__find","arguments":{"n":1,"N":2}}`, code: signal.CodeEnvelopeInvalid, stage: "resolve", outcome: audit.Invalid},
		{name: "denied", set: func(b *bench) { b.decision.Effect = policy.Deny }, code: signal.CodePolicyDenied, stage: "decide", outcome: audit.Denied},
		{name: "policy fails", set: func(b *bench) { b.decideErr = errors.New("down") }, code: signal.CodePolicyDenied, stage: "decide", outcome: audit.Denied},
		{name: "no effect", set: func(b *bench) { b.decision.Effect = "" }, code: signal.CodePolicyDenied, stage: "decide", outcome: audit.Denied},
		{name: "over the limit", set: func(b *bench) { b.exceeded = &limit.Exceeded{RetryAfter: time.Second} }, code: signal.CodeRateLimited, stage: "limit", outcome: audit.Limited},
		{name: "schema", params: `{"name":"web__find","arguments":{"n":"many"}}`, code: signal.CodeSchemaMismatch, stage: "validate", outcome: audit.Invalid},
		{name: "no schema", tool: &registry.Tool{Server: "web", Name: "find", Exposed: "web__find"}, code: signal.CodeToolQuarantined, stage: "validate", outcome: audit.Denied},
		{name: "validator fails", tool: &registry.Tool{Server: "web", Name: "find", Exposed: "web__find", Input: new(schema.Schema)}, code: signal.CodeInternal, stage: "validate", outcome: audit.Failed},
		{name: "approval store fails", set: func(b *bench) { b.decision, b.claimErr = held, errors.New("down") }, code: signal.CodeInternal, stage: "approve", outcome: audit.Failed},
		{name: "the approval store is away", set: func(b *bench) { b.decision, b.claimErr = held, fmt.Errorf("claiming: %w", store.ErrAway) }, code: signal.CodeStoreUnavailable, stage: "approve", outcome: audit.Failed},
		{name: "the state went back", set: func(b *bench) { b.decision, b.claimErr = held, approval.ErrComparing }, code: signal.CodeStoreUnavailable, stage: "approve", outcome: audit.Failed,
			reason: "approvals are closed until the state is compared with the audit trail"},
		{name: "a credential cannot be looked up", set: func(b *bench) { b.whoErr = &identity.Refusal{Kind: identity.Unread} }, code: signal.CodeStoreUnavailable, stage: "identify", outcome: audit.Failed},
		{name: "a ticket cannot be recorded", set: func(b *bench) { b.decision, b.claimErr = held, fmt.Errorf("full: %w", approval.ErrUntold) }, code: signal.CodeAuditUnavailable, stage: "approve", outcome: audit.Failed},
		{name: "person denied", set: func(b *bench) {
			b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateDenied), Outcome: approval.Denied}
		}, code: signal.CodeApprovalDenied, stage: "approve", outcome: audit.Denied},
		{name: "nobody decided", set: func(b *bench) {
			b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateExpired), Outcome: approval.Expired}
		}, code: signal.CodeApprovalExpired, stage: "approve", outcome: audit.Denied},
		{name: "outcome unknown", set: func(b *bench) {
			b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateUnknown), Outcome: approval.Unknown}
		}, code: signal.CodeToolFailed, stage: "approve", outcome: audit.Failed},
		{name: "too many tickets", set: func(b *bench) { b.decision, b.claim = held, approval.Claim{Outcome: approval.TooMany} }, code: signal.CodeOverloaded, stage: "approve", outcome: audit.Limited},
		{name: "no record", set: func(b *bench) { b.decisionErr = errors.New("disk full") }, code: signal.CodeAuditUnavailable, stage: "record", outcome: audit.Failed},
		{name: "upstream error", set: func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":1,"message":"no"}`)}
		}, code: signal.CodeToolFailed, stage: "forward", outcome: audit.Failed, sent: true},
		{name: "upstream slow", set: func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true} }, code: signal.CodeToolTimeout, stage: "forward", outcome: audit.Failed, sent: true},
		{name: "upstream slow in spite of progress", set: func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true, Err: registry.ErrMaxTimeout}
		}, code: signal.CodeToolTimeout, stage: "forward", outcome: audit.Failed, sent: true, reason: "the tool reported progress and did not answer within 10m0s"},
		{name: "upstream down", set: func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Unavailable} }, code: signal.CodeUpstreamUnavailable, stage: "forward", outcome: audit.Failed, sent: true},
		{name: "cancelled", set: func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Cancelled, Sent: true} }, code: signal.CodeCancelled, stage: "forward", outcome: audit.Cancelled, sent: true},
		{name: "result is no object", set: func(b *bench) { b.result = `[1]` }, code: signal.CodeOutputInvalid, stage: "normalise", outcome: audit.Failed, sent: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tool := searcher
			if tt.tool != nil {
				tool = tt.tool
			}
			b := newBench(t, tool)
			if tt.set != nil {
				tt.set(b)
			}
			if tt.params == "" {
				tt.params = plain
			}
			reply, f := b.call(t, tt.params)
			if f == nil || reply != nil {
				t.Fatalf("got reply %v and failure %v, want a failure alone", reply, f)
			}
			if f.Kernel.Code != tt.code {
				t.Errorf("code %s, want %s", f.Kernel.Code, tt.code)
			}
			if tt.reason != "" && f.Reason != tt.reason {
				t.Errorf("reason %q, want %q", f.Reason, tt.reason)
			}
			if got := len(b.sent) > 0; got != tt.sent {
				t.Errorf("reached the upstream: %v, want %v", got, tt.sent)
			}
			if len(b.outcomes) != 1 || b.outcomes[0].Outcome != tt.outcome || b.outcomes[0].Stage != tt.stage {
				t.Errorf("outcome records %+v, want one %s at %s", b.outcomes, tt.outcome, tt.stage)
			}
			if f.DecisionID == "" || f.DecisionID != b.outcomes[0].DecisionID || f.TraceID == "" {
				t.Errorf("failure names decision %q, trace %q; the record has %q", f.DecisionID, f.TraceID, b.outcomes[0].DecisionID)
			}
		})
	}
}

func TestJudgedBytesAreSent(t *testing.T) {
	for _, args := range []string{
		`{"b":9007199254740993,"a":1e2}`, `{ "s" : "\u0041<>&\u2028" }`, `{"π":"😀 "}`, `{"n":1,"deep":{"x":[1, 2 ,3]}}`,
	} {
		b := newBench(t)
		if _, f := b.call(t, `{"name":"web__find","arguments":`+args+`}`); f != nil {
			t.Fatalf("%s: %v", args, f)
		}
		if len(b.sent) != 1 || b.sent[0] != args || b.judged[0] != args || string(b.decisions[0].Arguments) != args {
			t.Errorf("sent %q, judged %q, recorded %q, want %q", b.sent, b.judged, b.decisions[0].Arguments, args)
		}
	}
}

func TestAPanicIsOneFailedCall(t *testing.T) {
	for _, stage := range []string{"identify", "resolve", "decide", "limit", "approve", "record", "forward"} {
		b := newBench(t)
		b.panicAt = stage
		b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		_, f := b.call(t, plain)
		if f == nil || f.Kernel.Code != signal.CodeInternal || strings.Contains(fmt.Sprint(f), "planted") {
			t.Errorf("%s: got %v, want %s without the panic's text", stage, f, signal.CodeInternal)
		}
		if len(b.outcomes) != 1 || b.outcomes[0].Stage != stage {
			t.Errorf("%s: outcomes %+v, want one", stage, b.outcomes)
		}
		want := map[string]string{"record": "released", "forward": "apr_1 unknown"}[stage]
		got := strings.Join(b.finished, ",")
		if len(b.released) > 0 {
			got = "released"
		}
		if got != want {
			t.Errorf("%s: ticket %q, want %q", stage, got, want)
		}
	}
}

// What becomes of a spent grant: back when nothing was sent, final when the
// end is known, unknown otherwise.
func TestSpentGrants(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*bench)
		want string
	}{
		{"answered", func(*bench) {}, "apr_1 done"},
		{"isError is an answer", func(b *bench) { b.result = `{"content":[],"isError":true}` }, "apr_1 done: the tool answered with an error: the tool reported an error without text"},
		{"a long error is cut", func(b *bench) {
			b.result = `{"content":[{"type":"text","text":"` + strings.Repeat("é", 500) + `"}],"isError":true}`
		}, "apr_1 done: the tool answered with an error: " + strings.Repeat("é", 199) + "…"},
		{"upstream's error", func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":1,"message":"no"}`)}
		}, "apr_1 failed"},
		{"upstream died", func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true} }, "apr_1 unknown"},
		{"timeout", func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true} }, "apr_1 unknown"},
		{"too large to be sent", func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.TooLarge} }, "released"},
		{"never sent", func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Unavailable} }, "released"},
		{"no record", func(b *bench) { b.decisionErr = errors.New("disk full") }, "released"},
		{"an error of unknown kind", func(b *bench) { b.forwardErr = errors.New("?") }, "apr_1 unknown"},
		{"result withheld", func(b *bench) { b.result = `[]` }, "apr_1 failed"},
	} {
		b := newBench(t)
		b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		tt.set(b)
		_, _ = b.call(t, plain)
		got := strings.Join(b.finished, ",")
		if len(b.released) > 0 {
			got += "released"
		}
		if got != tt.want {
			t.Errorf("%s: ticket %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A result whose record cannot be written is withheld. What may have happened
// must not look like something to try again.
func TestOutcomeThatCannotBeRecorded(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(*bench)
		retry bool
		says  string
	}{
		{"after the call", func(*bench) {}, false, "may have been made"},
		{"after a refusal", func(b *bench) { b.decision.Effect = policy.Deny }, true, "was not made"},
		{"when the decision could not be recorded either", func(b *bench) { b.decisionErr = errors.New("disk full") }, true, "was not made"},
	} {
		b := newBench(t)
		b.outcomeErr = errors.New("disk full")
		tt.set(b)
		reply, f := b.call(t, plain)
		if reply != nil || f == nil || f.Kernel.Code != signal.CodeAuditUnavailable {
			t.Fatalf("%s: got %v, %v, want %s alone", tt.name, reply, f, signal.CodeAuditUnavailable)
		}
		if f.Kernel.RetryEligible != tt.retry || !strings.Contains(f.Reason, tt.says) {
			t.Errorf("%s: retry %v, %q, want %v, %q", tt.name, f.Kernel.RetryEligible, f.Reason, tt.retry, tt.says)
		}
	}
}

func TestListedIfAndOnlyIfCallable(t *testing.T) {
	for _, hidden := range []bool{true, false} {
		b := newBench(t)
		b.hidden = hidden
		listed := len(b.List(context.Background(), &proxy.Call{}, b.who)) == 1
		found := b.Find(context.Background(), &proxy.Call{}, b.who, searcher.Exposed)
		if (found == searcher) != listed || b.Find(context.Background(), &proxy.Call{}, b.who, "none") != nil {
			t.Errorf("hidden %v: found %v", hidden, found)
		}
		_, f := b.call(t, plain)
		if callable := f == nil; listed != callable || listed == hidden {
			t.Errorf("hidden %v: listed %v, callable %v", hidden, listed, callable)
		}
	}
}

func TestRefuseLeavesOneRecord(t *testing.T) {
	b := newBench(t)
	f := b.Refuse(context.Background(), request(t, plain), signal.CodeSessionLost, "the session has ended")
	if f.Kernel.Code != signal.CodeSessionLost || len(b.outcomes) != 1 || b.outcomes[0].Principal.Subject != "ann" {
		t.Errorf("got %v and %+v", f, b.outcomes)
	}
}

func TestOverload(t *testing.T) {
	b := newBench(t)
	var inner *proxy.Failure
	first := make(chan struct{})
	done := make(chan struct{})
	blocked := &blocking{bench: b, entered: first, leave: done}
	g, err := proxy.New(proxy.Options{Identifier: b, Policy: blocked, Limiter: b, Tickets: b, Recorder: b,
		Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}, Settings: proxy.Settings{InFlight: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = g.Call(context.Background(), request(t, plain)) })
	<-first
	_, inner = g.Call(context.Background(), request(t, plain))
	close(done)
	wg.Wait()
	if inner == nil || inner.Kernel.Code != signal.CodeOverloaded {
		t.Errorf("second call: %v, want %s", inner, signal.CodeOverloaded)
	}
	if _, f := g.Call(context.Background(), request(t, plain)); f != nil {
		t.Errorf("after the first has ended: %v, want a reply", f)
	}
}

// blocking is a policy that waits inside its first decision.
type blocking struct {
	*bench
	once           sync.Once
	entered, leave chan struct{}
}

func (b *blocking) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	b.once.Do(func() {
		close(b.entered)
		<-b.leave
	})
	return b.bench.Decide(ctx, in)
}

// A failure keeps the error of the part that refused as its cause. What a
// connection said itself stays in the log: it may hold secrets.
func TestFailuresKeepTheirCauses(t *testing.T) {
	for _, tt := range []struct {
		name, params string
		set          func(*bench)
		code         string
		cause        signal.KernelError
		reason       string
	}{
		{"the policy", plain, func(b *bench) { b.decision.Effect = policy.Deny }, signal.CodePolicyDenied,
			signal.KernelError{Code: "T5_POLICY_POLICY", Category: signal.Policy, Severity: signal.Fatal, Message: "because"}, "because"},
		{"a limit", plain, func(b *bench) {
			b.exceeded = &limit.Exceeded{Limit: "60/1m", Scope: "default", RetryAfter: 510 * time.Millisecond}
		}, signal.CodeRateLimited, signal.KernelError{Code: "T4_LIMIT_RESOURCE", Category: signal.Resource, Severity: signal.Transient, Message: "no token is left for default"},
			"rate limit 60/1m exceeded; try again in 0.6 s"},
		{"the schema", `{"name":"web__find","arguments":{"n":"x"}}`, nil, signal.CodeSchemaMismatch,
			signal.KernelError{Code: "T0_VALIDATION_INPUT", Category: signal.Input, Severity: signal.Transient, Message: `/n: type: want integer, got string "x"`}, `/n: type: want integer, got string "x"`},
		{"the schema, of a number as text", `{"name":"web__find","arguments":{"n":"1"}}`, nil, signal.CodeSchemaMismatch,
			signal.KernelError{Code: "T0_VALIDATION_INPUT", Category: signal.Input, Severity: signal.Transient, Message: `/n: type: "1" is text where the number 1 is wanted`}, `/n: type: "1" is text where the number 1 is wanted`},
		{"the audit log", plain, func(b *bench) { b.decisionErr = errors.New("secret") }, signal.CodeAuditUnavailable,
			signal.KernelError{Code: "T0_AUDIT_PROCESSING", Category: signal.Processing, Severity: signal.Degraded, Message: "the audit log took no record"},
			"the decision could not be recorded, so the call was not made"},
		{"a server that is down", plain, func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Unavailable, Err: errors.New("secret")}
		}, signal.CodeUpstreamUnavailable, signal.KernelError{Code: "T4_UPSTREAM_EXTERNAL", Category: signal.External, Severity: signal.Transient, Message: "nothing was sent"}, "server web is not available"},
		{"a server's error", plain, func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":1,"message":"no"}`)}
		}, signal.CodeToolFailed, signal.KernelError{Code: "T4_UPSTREAM_EXTERNAL", Category: signal.External, Severity: signal.Transient, Message: "no"}, "no"},
		{"an invalid answer", plain, func(b *bench) {
			fault := &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: `duplicate key "content"`, Offset: 61}
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: fmt.Errorf("secret: %w", fault)}
		}, signal.CodeToolFailed, signal.KernelError{Code: "T4_UPSTREAM_EXTERNAL", Category: signal.External, Severity: signal.Transient, Message: `duplicate key "content"`},
			`server web sent an invalid answer: duplicate key "content" at byte 61`},
		{"a server whose process ended", plain, func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: fmt.Errorf("%w: secret", mcpclient.ErrEnded)}
		}, signal.CodeToolFailed, signal.KernelError{Code: "T4_UPSTREAM_EXTERNAL", Category: signal.External, Severity: signal.Transient, Message: "the connection ended before the answer"},
			"server web ended during the call; whether it took effect is unknown"},
		{"a stream that closed", plain, func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: errors.New("secret")}
		}, signal.CodeToolFailed, signal.KernelError{Code: "T4_UPSTREAM_EXTERNAL", Category: signal.External, Severity: signal.Transient, Message: "the connection ended before the answer"},
			"the connection to server web ended during the call; whether it took effect is unknown"},
		{"an answer that cannot be read", plain, func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: fmt.Errorf("secret: %w", &mcpclient.AnswerError{Reason: "status 502"})}
		}, signal.CodeToolFailed, signal.KernelError{Code: "T4_UPSTREAM_EXTERNAL", Category: signal.External, Severity: signal.Transient, Message: "status 502"},
			"server web sent an invalid answer: status 502"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			if tt.set != nil {
				tt.set(b)
			}
			_, f := b.call(t, tt.params)
			if f == nil || f.Kernel.Code != tt.code || f.Reason != tt.reason || f.Kernel.Cause == nil {
				t.Fatalf("got %+v, want %s: %s", f, tt.code, tt.reason)
			}
			got := *f.Kernel.Cause
			got.Source, got.Detail, got.RetryEligible = signal.ModuleRef{}, nil, false
			if diff := cmp.Diff(tt.cause, got); diff != "" {
				t.Error(diff)
			}
			if text, _ := f.Kernel.MarshalJSON(); strings.Contains(string(text), "secret") {
				t.Errorf("the error shows %s", text)
			}
		})
	}
}

// The size that an answer may have is said.
func TestTooLargeAnswer(t *testing.T) {
	b := newBench(t)
	b.forwardErr = &registry.ForwardError{Kind: registry.TooLarge, Sent: true, Err: &mcpclient.AnswerError{Reason: "an answer of more than 12 MiB"}}
	_, f := b.call(t, plain)
	if f == nil || f.Kernel.Code != signal.CodeToolFailed || f.Reason != "server web sent an answer of more than 12 MiB" || b.outcomes[0].Error != f.Reason {
		t.Errorf("%+v, %+v", f, b.outcomes)
	}
}

// Arguments that are null are none: one and the same {} is judged, recorded, hashed and
// sent, for those and for absent ones.
func TestNullArguments(t *testing.T) {
	b := newBench(t)
	for _, params := range []string{`{"name":"web__find"}`, `{"name":"web__find","arguments":null,"_meta":null,"task":null}`} {
		if _, f := b.call(t, params); f != nil {
			t.Fatalf("%s: %v", params, f)
		}
	}
	if want := []string{"{}", "{}"}; !slices.Equal(b.judged, want) || !slices.Equal(b.sent, want) {
		t.Errorf("judged %v, sent %v", b.judged, b.sent)
	}
	for _, r := range b.decisions {
		if string(r.Arguments) != "{}" || r.ArgumentsSHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte("{}"))) {
			t.Errorf("recorded %s, %s", r.Arguments, r.ArgumentsSHA256)
		}
	}
}

// A missing argument is named in words.
func TestMissingArgument(t *testing.T) {
	strict := *searcher
	strict.Input = mustSchema(`{"type":"object","required":["query"]}`)
	b := newBench(t, &strict)
	if _, f := b.call(t, plain); f == nil || f.Reason != `missing required argument "query"` {
		t.Errorf("got %v", f)
	}
}
