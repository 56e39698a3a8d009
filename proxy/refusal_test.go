package proxy_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// callAs makes a call of the tool name with arguments, as a client.
func (b *bench) callAs(t *testing.T, client, name, arguments string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := request(t, `{"name":"`+name+`","arguments":`+arguments+`}`)
	in.Client = client
	return b.Call(t.Context(), in)
}

// What others cause costs the caller nothing of its limit of refused calls, so that honest
// retries pass; what the caller causes does.
func TestRetriesCostNoQuota(t *testing.T) {
	for name, row := range map[string]struct {
		set  func(b *bench)
		want string
	}{
		"the state is away":             {func(b *bench) { b.claimErr = store.ErrAway }, signal.CodeStoreUnavailable},
		"too many tickets of one's own": {func(b *bench) { b.claim = approval.Claim{Outcome: approval.TooMany} }, signal.CodeRateLimited},
		"denied":                        {func(b *bench) { b.decision = policy.Decision{Effect: policy.Deny, Rule: "R2", Reason: "no"} }, signal.CodeRateLimited},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.decision = policy.Decision{Effect: policy.Hold, Rule: "R1", Approval: &policy.Approval{Roles: []string{"approver"}, Quorum: 1}}
			row.set(b)
			one := limit.Rate{Count: 1, Per: time.Hour, Burst: 1}
			g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b,
				Refused: limit.New(limit.Rules{Default: &one}), Fold: func(audit.Principal, audit.Event) {},
				Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}})
			if err != nil {
				t.Fatal(err)
			}
			var f *proxy.Failure
			for range 3 {
				_, f = g.Call(t.Context(), request(t, plain))
			}
			if f == nil || f.Kernel.Code != row.want {
				t.Errorf("the third call: %v, want %s", f, row.want)
			}
		})
	}
}

// A denial says who was refused, by which rule, and what would help.
func TestDenialSaysWhoAndWhy(t *testing.T) {
	for _, tt := range []struct {
		roles []string
		want  string
	}{
		{nil, "rule R2, ann without a role"},
		{[]string{"a"}, "rule R2, ann with role a"},
		{[]string{"a", "b"}, "rule R2, ann with roles a, b"},
		{[]string{"a", "b", "c", "d", "e", "f", "g"}, "rule R2, ann with roles a, b, c, d, e and 2 more"},
	} {
		b := newBench(t)
		b.who.Roles = tt.roles
		b.decision = policy.Decision{Effect: policy.Deny, Rule: "R2", Reason: "no", Remedy: "ask"}
		if _, f := b.call(t, plain); f == nil || f.Context != tt.want || f.Reason != "no" || f.Remedy != "ask" {
			t.Errorf("got %+v, want %q", f, tt.want)
		}
	}
}

// TestStepUpHasTheScopesOfTheDecision holds which scopes the challenge of a denied call names: those
// that the policy says it lacks and those it has, no other, and none where no token helps.
func TestStepUpHasTheScopesOfTheDecision(t *testing.T) {
	for _, tt := range []struct {
		issuer          string
		has, lacks, got []string
	}{
		{"https://idp", nil, []string{"pay"}, []string{"pay"}},
		{"https://idp", []string{"media", "admin"}, []string{"pay"}, []string{"admin", "media", "pay"}},
		{"https://idp", []string{"pay", "z"}, []string{"a", "pay"}, []string{"a", "pay", "z"}},
		{"https://idp", []string{"media"}, nil, nil}, // the policy asks for none
		{"", nil, []string{"pay"}, nil},              // a configured token cannot get any
	} {
		b := newBench(t)
		b.who.Issuer, b.who.Scopes = tt.issuer, tt.has
		b.decision = policy.Decision{Effect: policy.Deny, Rule: "no", Scopes: tt.lacks}
		_, f := b.call(t, plain)
		if f == nil || !slices.Equal(f.Scopes, tt.got) || (f.Scopes == nil) != (tt.got == nil) {
			t.Errorf("%+v: got %+v", tt, f)
		}
	}
}

// A denied call of a tool that the caller sees also says what its schema refuses, and
// stays a denial in code and record.
func TestDenialNamesSchemaFaults(t *testing.T) {
	b := newBench(t)
	b.decision = policy.Decision{Effect: policy.Deny, Rule: "R2", Reason: "no", Remedy: "ask"}
	_, f := b.callAs(t, "", searcher.Exposed, `{"n":"x"}`)
	if f == nil || f.Kernel.Code != signal.CodePolicyDenied || f.Reason != "no" || f.Kernel.Detail["schema"] == nil ||
		!strings.HasPrefix(f.Remedy, "the arguments also break the tool's schema: ") || !strings.HasSuffix(f.Remedy, "; ask") {
		t.Fatalf("got %+v", f)
	}
	if got := b.outcomes[0]; got.Code != signal.CodePolicyDenied || got.Error != "no" || got.Policy.Remedy != "ask" {
		t.Errorf("recorded %+v", got)
	}
	if _, f = b.call(t, plain); f == nil || f.Kernel.Detail["schema"] != nil || f.Remedy != "ask" {
		t.Errorf("good arguments: %+v", f)
	}
	b.hidden = true
	if _, f = b.callAs(t, "", searcher.Exposed, `{"n":"x"}`); f == nil || f.Kernel.Code != signal.CodeToolNotFound || strings.Contains(f.Remedy, "schema") {
		t.Errorf("hidden: %+v", f)
	}
}

// Arguments of a denied call that cannot be validated leave the denial as it is, and the
// cause in the log.
func TestDenialWithoutAValidator(t *testing.T) {
	b, log := newBench(t), &bytes.Buffer{}
	b.decision = policy.Decision{Effect: policy.Deny, Rule: "R2", Reason: "no", Remedy: "ask"}
	broken := *searcher
	broken.Input = new(schema.Schema)
	g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Log: hclog.New(&hclog.LoggerOptions{Output: log}),
		Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, &broken)}})
	if err != nil {
		t.Fatal(err)
	}
	b.Gate = g
	_, f := b.call(t, plain)
	if f == nil || f.Kernel.Code != signal.CodePolicyDenied || f.Kernel.Detail["schema"] != nil || f.Remedy != "ask" {
		t.Errorf("got %+v", f)
	}
	if text := log.String(); !strings.Contains(text, "validating against the schema: ") || !strings.Contains(text, "decision=dec_") {
		t.Errorf("log:\n%s", text)
	}
}

// An unknown tool brings the nearest one that the caller sees, and never a hidden one.
func TestUnknownToolSuggests(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"web__fnd", "web__find"},
		{"find", "web__find"},
		{"mcp__web__find", "web__find"},
		{"web.find", "web__find"},
		{"pathfind", ""},
		{"transfer_money", ""},
		{strings.Repeat("x", 500) + "__find", ""},
	} {
		b := newBench(t)
		_, f := b.callAs(t, "", tt.name, `{}`)
		if f == nil || f.Kernel.Code != signal.CodeToolNotFound {
			t.Fatalf("%s: %+v", tt.name, f)
		}
		want := "list the tools with tools/list"
		if tt.want != "" {
			want = `did you mean "` + tt.want + `"? if not, ` + want
		}
		if f.Remedy != want {
			t.Errorf("%s: %q, want %q", tt.name, f.Remedy, want)
		}
		b.hidden = true
		if _, f = b.callAs(t, "", tt.name, `{}`); f.Remedy != "list the tools with tools/list" {
			t.Errorf("%s suggests what is hidden: %q", tt.name, f.Remedy)
		}
	}
}

// A bucket that no wait fills does not say "try again".
func TestLimitSaysWhenToTryAgain(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		600 * time.Millisecond: "rate limit 60/1m exceeded; try again in 0.6 s",
		0:                      "rate limit 60/1m exceeded; waiting does not help",
	} {
		b := newBench(t)
		b.exceeded = &limit.Exceeded{Rule: "default", Scope: "ann", Limit: "60/1m", RetryAfter: wait}
		if _, f := b.call(t, plain); f == nil || f.Reason != want || f.Context != "rule default, ann with role r" {
			t.Errorf("got %+v, want %q", f, want)
		}
	}
}

// A profile shapes what a client is shown, by the name that the client claims: not the
// verdict, the code or the record, and nothing of what comes before the caller is known.
func TestProfileShapesErrorsAndResults(t *testing.T) {
	profiles := []proxy.ClientProfile{{Name: "agents", Errors: "result"}, {Name: "chain", Results: "off"}, {Name: "chain*", Errors: "kernel", Results: "full"}}
	b := newBench(t)
	b.Apply(proxy.Settings{Clients: profiles})
	for client, want := range map[string]bool{"agents/1": true, "chain/1": false, "chainsaw/1": true, "": true} {
		reply, f := b.callAs(t, client, searcher.Exposed, `{"n":1}`)
		if f != nil || strings.Contains(string(reply.Result), "io.toolgate/result") != want {
			t.Errorf("%s: %v, %v", client, reply, f)
		}
	}
	b.exceeded = &limit.Exceeded{Rule: "default", Limit: "1/1m", RetryAfter: time.Second}
	for client, want := range map[string]string{"agents/1": "result", "chain/1": "", "chainsaw/1": "kernel", "": ""} {
		if _, f := b.callAs(t, client, searcher.Exposed, `{"n":1}`); f == nil || f.Errors != want || f.Kernel.Code != signal.CodeRateLimited {
			t.Errorf("%s: %+v, want %q", client, f, want)
		}
	}
	in := request(t, `{}`)
	in.Client = "agents"
	if _, f := b.Call(t.Context(), in); f == nil || f.Errors != "" {
		t.Errorf("a malformed call: %+v", f)
	}
	in = request(t, plain)
	in.Client, in.Transport = "agents", "rest"
	if _, f := b.Call(t.Context(), in); f == nil || f.Errors != "" {
		t.Errorf("over REST: %+v", f)
	}
}

// What the operator says of a token outranks what is said of the server, and that what a
// client's name says.
func TestShapePrecedence(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		token, server, client policy.Shape
		route, tool           string
		errors                string // of a denied call
		results               bool   // the result of an allowed one has its summary
	}{
		{name: "nothing", tool: searcher.Exposed, results: true},
		{name: "client", client: policy.Shape{Errors: "mcp", Results: "off"}, tool: searcher.Exposed, errors: "mcp"},
		{
			name: "server", server: policy.Shape{Errors: "kernel", Results: "compact"}, client: policy.Shape{Errors: "mcp", Results: "off"},
			tool: searcher.Exposed, errors: "kernel", results: true,
		},
		{
			name: "token", token: policy.Shape{Errors: "result", Results: "off"}, server: policy.Shape{Errors: "kernel", Results: "full"},
			client: policy.Shape{Errors: "mcp", Results: "full"}, tool: searcher.Exposed, errors: "result",
		},
		{
			name: "each for itself", token: policy.Shape{Results: "off"}, server: policy.Shape{Errors: "kernel", Results: "full"},
			tool: searcher.Exposed, errors: "kernel",
		},
		{name: "an unknown tool of all servers", server: policy.Shape{Errors: "kernel"}, tool: "none", errors: ""},
		{name: "an unknown tool of one server", server: policy.Shape{Errors: "kernel"}, route: searcher.Server, tool: "none", errors: "kernel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.who.Shape = tt.token
			b.Apply(proxy.Settings{
				Shapes:  map[string]policy.Shape{searcher.Server: tt.server},
				Clients: []proxy.ClientProfile{{Name: "c", Errors: tt.client.Errors, Results: tt.client.Results}},
			})
			in := request(t, `{"name":"`+tt.tool+`","arguments":{"n":1}}`)
			in.Client, in.Route = "c/1", tt.route
			reply, f := b.Call(t.Context(), in)
			if f == nil && strings.Contains(string(reply.Result), "io.toolgate/result") != tt.results {
				t.Errorf("result %s", reply.Result)
			}
			b.decision = policy.Decision{Effect: policy.Deny, Rule: "R2", Reason: "no"}
			if _, f = b.Call(t.Context(), in); f == nil || f.Errors != tt.errors {
				t.Errorf("got %+v, want %q", f, tt.errors)
			}
		})
	}
}

// Every refused call leaves one debug line in the log, whatever refused it, without
// arguments; a call that is answered leaves none, and there is none above debug.
func TestRefusalsAreLogged(t *testing.T) {
	const arguments = `{"q":"a secret"}`
	for _, tt := range []struct {
		what, name, arguments string
		with                  func(*bench)
		want                  []string // nil = no line
	}{
		{"answered", "web__find", arguments, func(*bench) {}, nil},
		{"denied", "web__find", arguments, func(b *bench) { b.decision = policy.Decision{Effect: policy.Deny, Rule: "R2", Reason: "no"} },
			[]string{"code=" + signal.CodePolicyDenied, "rule=R2", "stage=decide", "server=web", "tool=web__find", "subject=ann", "decision=dec_"}},
		{"unknown", "web__fund", arguments, func(*bench) {}, []string{"code=" + signal.CodeToolNotFound, "tool=web__fund", "subject=ann"}},
		{"limited", "web__find", arguments, func(b *bench) { b.exceeded = &limit.Exceeded{Rule: "default", Scope: "ann", Limit: "1/1m"} },
			[]string{"code=" + signal.CodeRateLimited, "rule=default", "stage=limit"}},
		{"malformed", "web__find", `{"n":"a secret"}`, func(*bench) {}, []string{"code=" + signal.CodeSchemaMismatch, "stage=validate"}},
	} {
		for _, level := range []hclog.Level{hclog.Debug, hclog.Info} {
			b, log := newBench(t), &bytes.Buffer{}
			tt.with(b)
			g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Log: hclog.New(&hclog.LoggerOptions{Output: log, Level: level}),
				Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}})
			if err != nil {
				t.Fatal(err)
			}
			b.Gate = g
			_, f := b.callAs(t, "", tt.name, tt.arguments)
			text := log.String()
			if lines := strings.Count(text, "\n"); f == nil != (tt.want == nil) || lines != 0 && (f == nil || level != hclog.Debug) || lines != 1 && f != nil && level == hclog.Debug {
				t.Errorf("%s at %s: failure %v, log:\n%s", tt.what, level, f, text)
			}
			for _, want := range tt.want {
				if level == hclog.Debug && !strings.Contains(text, want) {
					t.Errorf("%s: the line has no %s: %s", tt.what, want, text)
				}
			}
			if strings.Contains(text, "secret") {
				t.Errorf("%s: the line has arguments: %s", tt.what, text)
			}
		}
	}
}

// A transient error that a retry may fix suggests the configured delay, unless it
// knows its own.
func TestTransientErrorsSuggestTheConfiguredDelay(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(*bench)
		want time.Duration
	}{
		"a server that is down": {func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Unavailable} }, 3 * time.Second},
		"a limit":               {func(b *bench) { b.exceeded = &limit.Exceeded{RetryAfter: time.Minute} }, time.Minute},
		"a failed tool":         {func(b *bench) { b.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true} }, 0},
		"a denial":              {func(b *bench) { b.decision.Effect = policy.Deny }, 0},
	} {
		b := newBench(t)
		b.Apply(proxy.Settings{RetryAfter: 3 * time.Second})
		tt.set(b)
		if _, f := b.call(t, plain); f == nil || f.RetryAfter != tt.want {
			t.Errorf("%s: got %v, want %v", name, f, tt.want)
		}
	}
}

// TestTimeoutOfAReader holds that a call which took too long may be repeated where the accepted
// definition says that the tool only reads, unless people approved this one call.
func TestTimeoutOfAReader(t *testing.T) {
	for _, tt := range []struct {
		name, annotations string
		approved, want    bool
	}{
		{"it only reads", `{"readOnlyHint":true}`, false, true},
		{"it changes something", `{"readOnlyHint":false}`, false, false},
		{"it does not say", `{}`, false, false},
		{"no annotations", "", false, false},
		{"another type", `{"readOnlyHint":"true"}`, false, false},
		{"approved", `{"readOnlyHint":true}`, true, false},
	} {
		tool := *searcher
		tool.Annotations = json.RawMessage(tt.annotations)
		b := newBench(t, &tool)
		b.Apply(proxy.Settings{RetryAfter: 3 * time.Second})
		b.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true}
		if tt.approved {
			b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		}
		_, f := b.call(t, plain)
		if f == nil || f.Kernel.RetryEligible != tt.want || (f.RetryAfter > 0) != tt.want || len(b.sent) != 1 {
			t.Errorf("%s: %+v, sent %d times, want retry eligible %v", tt.name, f, len(b.sent), tt.want)
		}
	}
}
