package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// library is an upstream with resources and prompts, and the policy's memory of
// what it was asked.
type library struct {
	*bench
	err    error
	result string
	asked  []string // server, method and params
	noted  []string // server, session, method and params of what clients notify
	inputs []policy.Input
	listed func(registry.Downstream)

	offered int // how often servers were waited for

	refuses, holds, exceeds, unrecorded, panics string // one method each
}

// Offers says that the one server has everything.
func (l *library) Offers(context.Context) []registry.Offer {
	l.offered++
	return []registry.Offer{{Server: "web", Prefix: "web__", Capabilities: json.RawMessage(`{"resources":{},"prompts":{},"tasks":{"list":{}}}`)}}
}

const notification = jsonrpc.Notification

func (l *library) Notify(server, session, method string, params json.RawMessage) {
	l.noted = append(l.noted, server+" "+session+" "+method+" "+string(params))
}

func (l *library) Ask(_ context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	l.asked = append(l.asked, server+" "+ask.Method+" "+string(ask.Params))
	return json.RawMessage(l.result), l.err
}

// Decide denies what is called secret.
func (l *library) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	l.mu.Lock()
	l.inputs = append(l.inputs, *in)
	l.mu.Unlock()
	if in.Resource != nil && in.Resource.URI == "file:///secret" || in.Prompt != nil && in.Prompt.Name == "secret" {
		return policy.Decision{Effect: policy.Deny, Rule: "S", Reason: "secret"}, nil
	}
	switch {
	case l.refuses != "" && in.Action == l.refuses:
		return policy.Decision{Effect: policy.Deny, Rule: "S", Reason: "secret reason"}, nil
	case l.holds != "" && in.Action == l.holds:
		return held, nil
	case l.panics != "" && in.Action == l.panics:
		panic("planted in the policy")
	}
	return l.bench.Decide(ctx, in)
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	l := &library{bench: newBench(t), result: `{"contents":[{"uri":"file:///a","text":"<a>"}],"x":1e2}`}
	g, err := proxy.New(proxy.Options{Identifier: l, Policy: l, Limiter: l, Tickets: l, Recorder: l, Servers: l, Stops: &l.brake,
		Upstreams: upstreams{bench: l.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}})
	if err != nil {
		t.Fatal(err)
	}
	l.Gate = g
	return l
}

func relayed(t *testing.T, route, method, params string) *proxy.Call {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":`+params+`}`), jsonrpc.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &proxy.Call{Message: m, Transport: "http", Route: route, Session: "s1"}
}

// What is relayed arrives byte for byte but for what of _meta belongs to this
// hop, comes back byte for byte, and is judged by what it is about.
func TestRelay(t *testing.T) {
	for _, tt := range []struct {
		method, params, sent string
		want                 policy.Input
	}{
		{"resources/read", `{ "uri": "file:///\u0061", "n": 1e2}`, `{ "uri": "file:///\u0061", "n": 1e2}`,
			policy.Input{Action: "resources/read", Resource: &policy.Resource{Server: "web", URI: "file:///a"}, Arguments: json.RawMessage("{}")}},
		{"resources/subscribe", `{"uri":"file:///a"}`, `{"uri":"file:///a"}`,
			policy.Input{Action: "resources/read", Resource: &policy.Resource{Server: "web", URI: "file:///a"}, Arguments: json.RawMessage("{}")}},
		{"resources/unsubscribe", `{"uri":"file:///a"}`, `{"uri":"file:///a"}`,
			policy.Input{Action: "resources/read", Resource: &policy.Resource{Server: "web", URI: "file:///a"}, Arguments: json.RawMessage("{}")}},
		{"logging/setLevel", `{"level": "info"}`, `{"level": "info"}`,
			policy.Input{Action: "logging/setLevel", Server: &policy.Server{Name: "web", Tools: []string{"web__find"}}, Arguments: json.RawMessage(`{"level": "info"}`)}},
		{"resources/read", `{"uri":"file:///a","_meta":{"progressToken":1,"io.modelcontextprotocol/x":1,"io.toolgate/approval":{"ticket":"apr_1"},"vendor":2}}`, `{"uri":"file:///a","_meta":{"vendor":2}}`,
			policy.Input{Action: "resources/read", Resource: &policy.Resource{Server: "web", URI: "file:///a"}, Arguments: json.RawMessage("{}")}},
		{"prompts/get", `{"name":"p","arguments":{"a":"1"}}`, `{"name":"p","arguments":{"a":"1"}}`,
			policy.Input{Action: "prompts/get", Prompt: &policy.Prompt{Server: "web", Name: "p"}, Arguments: json.RawMessage(`{"a":"1"}`)}},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":"x"}}`, `{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":"x"}}`,
			policy.Input{Action: "completion/complete", Prompt: &policy.Prompt{Server: "web", Name: "p"}, Arguments: json.RawMessage("{}")}},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"file:///{x}"},"argument":{}}`, `{"ref":{"type":"ref/resource","uri":"file:///{x}"},"argument":{}}`,
			policy.Input{Action: "completion/complete", Resource: &policy.Resource{Server: "web", URI: "file:///{x}"}, Arguments: json.RawMessage("{}")}},
	} {
		l := newLibrary(t)
		reply, f := l.Relay(t.Context(), relayed(t, "web", tt.method, tt.params))
		if f != nil {
			t.Fatalf("%s: %v", tt.method, f)
		}
		if string(reply.Result) != l.result {
			t.Errorf("%s came back as %s", tt.method, reply.Result)
		}
		if diff := cmp.Diff([]string{"web " + tt.method + " " + tt.sent}, l.asked); diff != "" {
			t.Errorf("%s sent (-want +got):\n%s", tt.method, diff)
		}
		got := l.inputs[0]
		if got.Principal.Subject != "ann" || got.Request.ID != "7" || got.Tool.Exposed != "" {
			t.Errorf("%s: judged %+v", tt.method, got)
		}
		got.Principal, got.Request = policy.Principal{}, policy.Request{}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s judged (-want +got):\n%s", tt.method, diff)
		}
		if len(l.decisions) != 1 || len(l.outcomes) != 1 || l.outcomes[0].Method != tt.method || l.outcomes[0].Server != "web" ||
			l.outcomes[0].Outcome != audit.Allowed || string(l.decisions[0].Arguments) != tt.sent {
			t.Errorf("%s: records %+v %+v", tt.method, l.decisions, l.outcomes)
		}
	}
}

// Each row breaks one control. What was refused before forward has reached
// nobody, and every row leaves exactly one outcome record.
func TestEveryRelayStageRefuses(t *testing.T) {
	const read = `{"uri":"file:///a"}`
	for _, tt := range []struct {
		name, method, params string
		set                  func(*library)
		code, stage          string
		sent                 bool
	}{
		{name: "a method without a row", method: "tasks/moon", params: `{}`, code: signal.CodeEnvelopeMethod, stage: "receive"},
		{name: "a list", method: "tasks/list", params: `{}`, code: signal.CodeEnvelopeMethod, stage: "resolve"},
		{name: "a task that is none", method: "tasks/get", params: `{"taskId":"t"}`, code: signal.CodeNotFound, stage: "resolve"},
		{name: "a task without an id", method: "tasks/get", params: `{}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "a tool call", method: "tools/call", params: `{"name":"web__find"}`, code: signal.CodeEnvelopeMethod, stage: "receive"},
		{name: "a level that is none", method: "logging/setLevel", params: `{"level":"loud"}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "no level", method: "logging/setLevel", params: `{}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "a level that is denied", method: "logging/setLevel", params: `{"level":"info"}`, set: func(l *library) { l.refuses = "logging/setLevel" }, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "subscribing to what is denied", method: "resources/subscribe", params: `{"uri":"file:///secret"}`, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "subscribing over the limit", method: "resources/subscribe", params: read, set: func(l *library) { l.exceeded = &limit.Exceeded{RetryAfter: time.Second} }, code: signal.CodeRateLimited, stage: "limit"},
		{name: "no uri", method: "resources/read", params: `{}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "a uri that is no string", method: "resources/read", params: `{"uri":1}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "no name", method: "prompts/get", params: `{}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "arguments that are no object", method: "prompts/get", params: `{"name":"p","arguments":[]}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "arguments that differ by case", method: "prompts/get", params: `{"name":"p","arguments":{"a":"1","A":"2"}}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "a reference to nothing", method: "completion/complete", params: `{"ref":{"type":"ref/moon","name":"p"}}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "meta that is no object", method: "resources/read", params: `{"uri":"file:///a","_meta":1}`, code: signal.CodeEnvelopeInvalid, stage: "receive"},
		{name: "nobody", method: "resources/read", params: read, set: func(l *library) { l.whoErr = identity.ErrUnauthenticated }, code: signal.CodeUnauthenticated, stage: "identify"},
		{name: "denied", method: "resources/read", params: `{"uri":"file:///secret"}`, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "a prompt that is denied", method: "prompts/get", params: `{"name":"secret"}`, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "completing what is denied", method: "completion/complete", params: `{"ref":{"type":"ref/prompt","name":"secret"}}`, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "held", method: "resources/read", params: read, set: func(l *library) { l.decision = held }, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "policy fails", method: "resources/read", params: read, set: func(l *library) { l.decideErr = errors.New("down") }, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "over the limit", method: "resources/read", params: read, set: func(l *library) { l.exceeded = &limit.Exceeded{RetryAfter: time.Second} }, code: signal.CodeRateLimited, stage: "limit"},
		{name: "no record", method: "resources/read", params: read, set: func(l *library) { l.decisionErr = errors.New("disk full") }, code: signal.CodeAuditUnavailable, stage: "record"},
		{name: "upstream error", method: "resources/read", params: read, sent: true, set: func(l *library) {
			l.err = &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":-32002,"message":"no such"}`)}
		}, code: signal.CodeToolFailed, stage: "forward"},
		{name: "upstream slow", method: "resources/read", params: read, sent: true, set: func(l *library) { l.err = &registry.ForwardError{Kind: registry.Timeout, Sent: true} }, code: signal.CodeToolTimeout, stage: "forward"},
		{name: "result is no object", method: "resources/read", params: read, sent: true, set: func(l *library) { l.result = "[]" }, code: signal.CodeOutputInvalid, stage: "forward"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLibrary(t)
			if tt.set != nil {
				tt.set(l)
			}
			reply, f := l.Relay(t.Context(), relayed(t, "web", tt.method, tt.params))
			if reply != nil || f == nil || f.Kernel.Code != tt.code {
				t.Fatalf("got %+v, %v, want %s", reply, f, tt.code)
			}
			if (len(l.asked) > 0) != tt.sent || len(l.sent) > 0 {
				t.Errorf("reached the upstream: %v", l.asked)
			}
			if len(l.outcomes) != 1 || l.outcomes[0].Code != tt.code || l.outcomes[0].Stage != tt.stage {
				t.Errorf("records %+v", l.outcomes)
			}
		})
	}
}

// Completions, the log level and the end of a subscription cost no quota.
func TestWhatIsFree(t *testing.T) {
	for method, params := range map[string]string{
		"completion/complete":   `{"ref":{"type":"ref/prompt","name":"p"}}`,
		"logging/setLevel":      `{"level":"debug"}`,
		"resources/unsubscribe": `{"uri":"file:///a"}`,
	} {
		l := newLibrary(t)
		l.exceeded = &limit.Exceeded{RetryAfter: time.Second}
		if _, f := l.Relay(t.Context(), relayed(t, "web", method, params)); f != nil {
			t.Error(method, f)
		}
	}
}

// A list holds what the principal may use, byte for byte and in order, and
// nothing that cannot be judged.
func TestEnumerate(t *testing.T) {
	for _, tt := range []struct{ method, page, want string }{
		{"resources/list", `{"resources":[ {"uri":"file:///a", "n":1e2},{"uri":"file:///secret"},{"name":"no uri"},7,{"uri":"file:///b"}],"nextCursor":"","x":1}`,
			`{"resources":[{"uri":"file:///a", "n":1e2},{"uri":"file:///b"}],"nextCursor":"","x":1}`},
		{"resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"file:///{x}"}]}`, `{"resourceTemplates":[{"uriTemplate":"file:///{x}"}]}`},
		{"prompts/list", `{"prompts":[{"name":"secret"},{"name":"p"}]}`, `{"prompts":[{"name":"p"}]}`},
		{"prompts/list", `{"prompts":[]}`, `{"prompts":[]}`},
		{"prompts/list", `{"prompts":{}}`, ""},
		{"prompts/list", `{}`, ""},
	} {
		l := newLibrary(t)
		l.result = tt.page
		got, f := l.Enumerate(t.Context(), relayed(t, "web", tt.method, `{"x":1}`), l.who)
		if string(got) != tt.want || (f == nil) != (tt.want != "") {
			t.Errorf("%s: got %s, %v\nwant %s", tt.method, got, f, tt.want)
		}
		if diff := cmp.Diff([]string{"web " + tt.method + ` {"x":1}`}, l.asked); diff != "" {
			t.Error(diff)
		}
		if len(l.outcomes) != 0 {
			t.Errorf("a list left %+v", l.outcomes)
		}
	}
}

// The cursor of one server's list is ours: the server gets its own back, and no
// other is taken for one.
func TestEnumerateCursors(t *testing.T) {
	l := newLibrary(t)
	l.result = `{"prompts":[{"name":"p"}],"nextCursor":"a\u0000b \"c","x":1e2}`
	first, f := l.Enumerate(t.Context(), relayed(t, "web", "prompts/list", `{}`), l.who)
	ours, _ := jsonrpc.Get(first, "nextCursor")
	if f != nil || !strings.HasSuffix(string(first), `,"x":1e2}`) || strings.Contains(string(ours), "c\"") {
		t.Fatalf("got %s, %v", first, f)
	}
	if _, f := l.Enumerate(t.Context(), relayed(t, "web", "prompts/list", `{"cursor":`+string(ours)+`}`), l.who); f != nil {
		t.Fatal(f)
	}
	if got := l.asked[1]; got != `web prompts/list {"cursor":"a\u0000b \"c"}` {
		t.Errorf("the server was asked %s", got)
	}
	for method, cursor := range map[string]string{"prompts/list": `"YQ"`, "resources/list": string(ours), "resources/templates/list": `7`} {
		if got, f := l.Enumerate(t.Context(), relayed(t, "web", method, `{"cursor":`+cursor+`}`), l.who); f == nil || len(l.asked) != 2 {
			t.Errorf("%s with %s: %s, asked %s", method, cursor, got, l.asked)
		}
	}
}

// A policy that fails shows nothing.
func TestEnumerateFailsClosed(t *testing.T) {
	l := newLibrary(t)
	l.decideErr, l.result = errors.New("down"), `{"prompts":[{"name":"p"}]}`
	if got, f := l.Enumerate(t.Context(), relayed(t, "web", "prompts/list", `{}`), l.who); f != nil || string(got) != `{"prompts":[]}` {
		t.Errorf("got %s, %v", got, f)
	}
}

// Somebody who is not connected to a server has none of its lists, and is not refused: clients list by
// themselves.
func TestEnumerateWithoutConnection(t *testing.T) {
	l := newLibrary(t)
	l.err = &registry.ForwardError{Kind: registry.Unconnected, Err: &registry.Missing{Server: "web"}}
	if got, f := l.Enumerate(t.Context(), relayed(t, "web", "prompts/list", `{}`), l.who); f != nil || string(got) != `{"prompts":[]}` {
		t.Errorf("got %s, %v", got, f)
	}
}
