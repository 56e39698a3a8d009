package proxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/telemetry"
	"github.com/toolgate/toolgate/internal/testkit/otlp"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// tracing is a bench whose gate is traced, and what a collector received.
type tracing struct {
	*bench
	receiver *otlp.Receiver
	tel      *telemetry.Telemetry
	out      registry.Outgoing // the last that was forwarded
	ask      registry.Ask      // the last that was asked
}

func newTracing(t testing.TB, ratio float64, set func(*proxy.Options)) *tracing {
	t.Helper()
	b := &tracing{bench: newBench(t), receiver: otlp.New(t)}
	var err error
	if b.tel, err = telemetry.New(t.Context(), telemetry.Options{
		Endpoint: b.receiver.URL, Ratio: ratio, ParentBased: true, Interval: time.Hour, Version: "test", Gatherer: prometheus.NewRegistry(), Log: hclog.NewNullLogger(),
		Upstream: func(string) (_, _, _ string) { return "http", "mcp.example", "8443" },
		Dropped:  func(signal string, n int) { t.Errorf("%d of %s were dropped", n, signal) },
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.tel.Close(context.Background()) })
	o := proxy.Options{
		Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Tracer: b.tel, Servers: b,
		Upstreams: forwarding{upstreams{bench: b.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}, b},
	}
	if set != nil {
		set(&o)
	}
	if b.Gate, err = proxy.New(o); err != nil {
		t.Fatal(err)
	}
	return b
}

// forwarding notes what is forwarded.
type forwarding struct {
	upstreams
	to *tracing
}

func (f forwarding) Forward(ctx context.Context, tool *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	f.to.out = out
	return f.upstreams.Forward(ctx, tool, out)
}

func (b *tracing) Offers(context.Context) []registry.Offer {
	return []registry.Offer{{Server: "web", Capabilities: json.RawMessage(`{"prompts":{},"resources":{}}`)}}
}

func (b *tracing) Ask(_ context.Context, _ string, ask registry.Ask) (json.RawMessage, error) {
	b.ask = ask
	if b.forwardErr != nil {
		return nil, b.forwardErr
	}
	return json.RawMessage(`{"prompts":[{"name":"p"}],"messages":[]}`), nil
}

func (b *tracing) Notify(string, string, string, json.RawMessage) {}

// spans flushes and returns what the collector received. Every span has an id of its
// own: none was ended twice.
func (b *tracing) spans(t *testing.T) []otlp.Span {
	t.Helper()
	b.tel.Close(t.Context())
	seen := map[string]bool{}
	all := b.receiver.Spans()
	for _, s := range all {
		if seen[s.ID] {
			t.Errorf("span %s was sent twice", s.Name)
		}
		seen[s.ID] = true
	}
	return all
}

// of returns the one span of a kind.
func of(t *testing.T, spans []otlp.Span, kind string) otlp.Span {
	t.Helper()
	var found []otlp.Span
	for _, s := range spans {
		if s.Kind == kind {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans of kind %s in %+v, want 1", len(found), kind, spans)
	}
	return found[0]
}

const (
	callerTrace  = "0af7651916cd43dd8448eb211c80319c"
	callerSpan   = "b7ad6b7169203331"
	callerParent = "00-" + callerTrace + "-" + callerSpan + "-01"
	tracedParams = `{"name":"web__find","arguments":{"n":1,"q":"s3cret-argument"},"_meta":{"traceparent":"` + callerParent + `","tracestate":"vendor=1","baggage":"k=v","x":1}}`
)

// One trace goes through caller, gate and upstream: a span of the call below the
// caller's, one for each stage in order, and one for the upstream, whose _meta
// continues it. The trail has the same trace.
func TestTraceOfACall(t *testing.T) {
	b := newTracing(t, 0, nil) // the caller decides
	b.result = `{"content":[{"type":"text","text":"s3cret-result"}]}`
	reply, f := b.call(t, tracedParams)
	if f != nil {
		t.Fatal(f)
	}
	spans := b.spans(t)
	server, client := of(t, spans, "server"), of(t, spans, "client")
	var stages []string
	for _, s := range spans {
		if s.Kind == "internal" {
			stages = append(stages, s.Name)
			if s.Parent != server.ID || s.Failed {
				t.Errorf("%s is below %s, failed %v; want it below the call", s.Name, s.Parent, s.Failed)
			}
			if s.Name == "toolgate.forward" && s.ID != client.Parent {
				t.Errorf("the upstream's span is below %s, want %s", client.Parent, s.ID)
			}
		}
		if s.Trace != callerTrace || s.Service != "toolgate" || s.ServiceVer != "test" {
			t.Errorf("%s: trace %s of service %s %s", s.Name, s.Trace, s.Service, s.ServiceVer)
		}
	}
	want := []string{"toolgate.receive", "toolgate.identify", "toolgate.stop", "toolgate.resolve", "toolgate.policy.evaluate", "toolgate.connect", "toolgate.limit", "toolgate.validate",
		"toolgate.approve", "toolgate.record", "toolgate.forward", "toolgate.normalise"}
	if diff := cmp.Diff(want, stages); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	if server.Parent != callerSpan || server.State != "vendor=1" || server.Name != "tools/call web__find" || client.Name != "tools/call find" || server.Failed || client.Failed {
		t.Errorf("server %+v, client %+v", server, client)
	}
	for key, value := range map[string]string{
		"mcp.method.name": "tools/call", "gen_ai.tool.name": "web__find", "gen_ai.operation.name": "execute_tool", "network.transport": "tcp", "jsonrpc.request.id": "7",
		"user.id": "ann", "toolgate.decision.effect": "allow", "toolgate.rule": "R1", "toolgate.policy.revision": "sha256:p",
		"toolgate.decision.id": reply.DecisionID, "opa.decision_id": reply.DecisionID,
	} {
		if server.Attributes[key] != value {
			t.Errorf("%s = %q, want %q", key, server.Attributes[key], value)
		}
	}
	if a := client.Attributes; a["gen_ai.tool.name"] != "find" || a["server.address"] != "mcp.example" || a["server.port"] != "8443" {
		t.Errorf("the client span has %v", a)
	}
	next := "00-" + callerTrace + "-" + client.ID + "-01"
	if b.out.Trace["traceparent"] != next || b.out.Trace["tracestate"] != "vendor=1" {
		t.Errorf("the upstream got the context %v", b.out.Trace)
	}
	if b.sent[0] != `{"n":1,"q":"s3cret-argument"}` {
		t.Errorf("the upstream got %s", b.sent[0])
	}
	if reply.TraceID != callerTrace || b.decisions[0].TraceID != callerTrace || b.outcomes[0].TraceID != callerTrace {
		t.Errorf("reply %s, records %s and %s", reply.TraceID, b.decisions[0].TraceID, b.outcomes[0].TraceID)
	}
	if bytes.Contains(b.receiver.Raw(), []byte("s3cret")) {
		t.Error("arguments or results were sent")
	}
}

// The context in _meta is the parent and that of HTTP a link; without the one the
// other is the parent; without both the trace is new, and the trail's.
func TestTraceParents(t *testing.T) {
	const other = "4bf92f3577b34da6a3ce929d0e0e4736"
	header := http.Header{"Traceparent": {"00-" + other + "-00f067aa0ba902b7-01"}, "Tracestate": {"h=2"}}
	for _, tt := range []struct {
		name, meta           string
		header               http.Header
		trace, parent, state string
		links                []string
	}{
		{"both", `,"_meta":{"traceparent":"` + callerParent + `"}`, header, callerTrace, callerSpan, "", []string{"00f067aa0ba902b7"}},
		{"HTTP", "", header, other, "00f067aa0ba902b7", "h=2", nil},
		{"HTTP, and an invalid _meta", `,"_meta":{"traceparent":"00-0-0-01"}`, header, other, "00f067aa0ba902b7", "h=2", nil},
		{"the same", `,"_meta":{"traceparent":"` + callerParent + `"}`, http.Header{"Traceparent": {callerParent}}, callerTrace, callerSpan, "", nil},
		{"none", "", nil, "", "", "", nil},
		{"no text", `,"_meta":{"traceparent":7}`, nil, "", "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newTracing(t, 1, nil)
			in := request(t, `{"name":"web__find","arguments":{"n":1}`+tt.meta+`}`)
			in.Trace = span.FromHeader(tt.header)
			reply, f := b.Call(t.Context(), in)
			if f != nil {
				t.Fatal(f)
			}
			s := of(t, b.spans(t), "server")
			if tt.trace != "" && s.Trace != tt.trace || s.Parent != tt.parent || s.State != tt.state || !slices.Equal(s.Links, tt.links) {
				t.Errorf("got %+v, want %+v", s, tt)
			}
			if reply.TraceID != s.Trace || b.outcomes[0].TraceID != s.Trace {
				t.Errorf("the reply has trace %s, the record %s, the span %s", reply.TraceID, b.outcomes[0].TraceID, s.Trace)
			}
		})
	}
}

// Each outcome ends the spans that were started with the error that it is. Metrics have
// no label that only comes from outside.
func TestTraceStatus(t *testing.T) {
	failing := func(e *registry.ForwardError) func(*bench) { return func(b *bench) { b.forwardErr = e } }
	for _, tt := range []struct {
		name, params, span string
		set                func(*bench)
		want, client       string // error.type; "-" = no span
		stage              string // that fails, "" for none
	}{
		{name: "allowed", span: "tools/call web__find"},
		{name: "tool error", span: "tools/call web__find", set: func(b *bench) { b.result = `{"content":[],"isError":true}` }, want: "tool_error", client: "tool_error"},
		{name: "denied", span: "tools/call web__find", set: func(b *bench) { b.decision.Effect = policy.Deny }, want: "policy_denied", client: "-", stage: "toolgate.policy.evaluate"},
		{name: "limited", span: "tools/call web__find", set: func(b *bench) { b.exceeded = &limit.Exceeded{RetryAfter: time.Second} }, want: "T4_RATE_LIMIT_EXCEEDED", client: "-", stage: "toolgate.limit"},
		{name: "unknown", params: `{"name":"s3cret-name"}`, span: "tools/call", want: "T4_TOOL_NOT_FOUND", client: "-", stage: "toolgate.resolve"},
		{name: "schema", params: `{"name":"web__find","arguments":{"n":"x"}}`, span: "tools/call web__find", want: "T0_VALIDATION_SCHEMA_MISMATCH", client: "-", stage: "toolgate.validate"},
		{name: "pending", span: "tools/call web__find", set: func(b *bench) { b.decision, b.claim = held, pendingClaim() }, client: "-"},
		{name: "not approved", span: "tools/call web__find", set: func(b *bench) {
			b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateDenied), Outcome: approval.Denied}
		}, want: "policy_denied", client: "-", stage: "toolgate.approve"},
		{name: "no record", span: "tools/call web__find", set: func(b *bench) { b.decisionErr = errors.New("disk full") }, want: "T0_AUDIT_UNAVAILABLE", client: "-", stage: "toolgate.record"},
		{name: "no outcome record", span: "tools/call web__find", set: func(b *bench) { b.outcomeErr = errors.New("disk full") }, want: "T0_AUDIT_UNAVAILABLE"},
		{name: "upstream error", span: "tools/call web__find", set: failing(&registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":-32602,"message":"s3cret"}`)}),
			want: "-32602", client: "-32602", stage: "toolgate.forward"},
		{name: "time-out", span: "tools/call web__find", set: failing(&registry.ForwardError{Kind: registry.Timeout, Sent: true}), want: "T4_TOOL_TIMEOUT", client: "timeout", stage: "toolgate.forward"},
		{name: "cancelled", span: "tools/call web__find", set: failing(&registry.ForwardError{Kind: registry.Cancelled, Sent: true}), want: "T4_CALL_CANCELLED", client: "cancelled", stage: "toolgate.forward"},
		{name: "panic in a stage", span: "tools/call web__find", set: func(b *bench) { b.panicAt = "decide" }, want: "T0_INTERNAL", client: "-", stage: "toolgate.policy.evaluate"},
		{name: "panic of an upstream", span: "tools/call web__find", set: func(b *bench) { b.panicAt = "forward" }, want: "T0_INTERNAL", client: "panic", stage: "toolgate.forward"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newTracing(t, 1, nil)
			if tt.set != nil {
				tt.set(b.bench)
			}
			if tt.params == "" {
				tt.params = plain
			}
			b.call(t, tt.params)
			spans := b.spans(t)
			server := of(t, spans, "server")
			if server.Name != tt.span || server.Attributes["error.type"] != tt.want || server.Failed != (tt.want != "") {
				t.Errorf("the call's span %q has error %q, failed %v; want %q and %q", server.Name, server.Attributes["error.type"], server.Failed, tt.span, tt.want)
			}
			failed, clients := "", 0
			for _, s := range spans {
				if s.Kind == "client" {
					clients++
					if s.Attributes["error.type"] != tt.client {
						t.Errorf("the upstream's span has error %q, want %q", s.Attributes["error.type"], tt.client)
					}
				}
				if s.Kind == "internal" && s.Failed {
					failed += s.Name
				}
			}
			if failed != tt.stage || (clients == 0) != (tt.client == "-") {
				t.Errorf("stage %q failed, %d requests to the upstream; want %q, %s", failed, clients, tt.stage, tt.client)
			}
			points := b.receiver.Metric("mcp.server.operation.duration").GetHistogram().GetDataPoints()
			if len(points) != 1 || points[0].Count != 1 || len(points[0].Exemplars) != 1 || !strings.Contains(server.Trace, hexOf(points[0].Exemplars[0].TraceId)) {
				t.Errorf("the histogram has %v, want one exemplar of trace %s", points, server.Trace)
			}
			if label := points[0].String(); strings.Contains(label, "s3cret") || strings.Contains(label, "ann") {
				t.Errorf("labels %s", label)
			}
		})
	}
}

func hexOf(id []byte) string {
	const digits = "0123456789abcdef"
	var out []byte
	for _, b := range id {
		out = append(out, digits[b>>4], digits[b&15])
	}
	return string(out)
}

// The span of a call that waits within its request has events, and the wait has no span.
func TestTraceOfAHold(t *testing.T) {
	hold := time.Minute
	b := newTracing(t, 1, func(o *proxy.Options) {
		o.Settings.Hold, o.Waiter = &hold, waiter(func() {
			o.Policy.(*tracing).claim = approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		})
	})
	b.decision, b.claim = held, pendingClaim()
	if _, f := b.call(t, plain); f != nil {
		t.Fatal(f)
	}
	s := of(t, b.spans(t), "server")
	if want := []string{"toolgate.held proposed", "toolgate.decided dispatching"}; !slices.Equal(s.Events, want) {
		t.Errorf("events %q, want %q", s.Events, want)
	}
	if s.Attributes["toolgate.approval.id"] != "apr_1" || s.Failed {
		t.Errorf("got %+v", s)
	}
}

// Requests that call no tool, lists and refusals of doors have spans, too. A method that
// the gate does not know names none.
func TestTraceOfOtherRequests(t *testing.T) {
	for _, tt := range []struct {
		name, method, params string
		do                   func(*tracing, *proxy.Call)
		span, want           string
		client               string
	}{
		{"relay", "prompts/get", `{"name":"p","_meta":{"x":1}}`, func(b *tracing, in *proxy.Call) { _, _ = b.Relay(context.Background(), in) }, "prompts/get p", "", "prompts/get"},
		{"list", "prompts/list", `{}`, func(b *tracing, in *proxy.Call) { _, _ = b.Enumerate(context.Background(), in, b.who) }, "prompts/list", "", "prompts/list"},
		{"tools", "tools/list", `{}`, func(b *tracing, in *proxy.Call) { b.Listing(context.Background(), in, b.who) }, "tools/list", "", ""},
		{"unknown", "s3cret/method", `{}`, func(b *tracing, in *proxy.Call) { _, _ = b.Relay(context.Background(), in) }, "_OTHER", "T0_ENVELOPE_METHOD", ""},
		{"refused", "tools/call", `{}`, func(b *tracing, in *proxy.Call) { b.Refuse(context.Background(), in, "T0_SESSION_LOST", "") }, "tools/call", "T0_SESSION_LOST", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newTracing(t, 1, nil)
			m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"`+tt.method+`","params":`+tt.params+`}`), jsonrpc.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			tt.do(b, &proxy.Call{Message: m, Transport: "http", Route: "web"})
			spans := b.spans(t)
			s := of(t, spans, "server")
			if s.Name != tt.span || s.Attributes["error.type"] != tt.want {
				t.Errorf("got %q with error %q, want %q with %q", s.Name, s.Attributes["error.type"], tt.span, tt.want)
			}
			if bytes.Contains(b.receiver.Raw(), []byte("s3cret")) {
				t.Error("the name of the method was sent")
			}
			if tt.client == "" {
				return
			}
			c := of(t, spans, "client")
			if c.Name != tt.client || c.Trace != s.Trace || b.ask.Trace["traceparent"] != "00-"+s.Trace+"-"+c.ID+"-01" {
				t.Errorf("the upstream's span is %+v, and it got the context %v", c, b.ask.Trace)
			}
		})
	}
}

// A ratio of 0 sends no span, and the upstream learns that nothing is recorded; metrics
// are complete.
func TestTraceUnsampled(t *testing.T) {
	b := newTracing(t, 0, nil)
	if _, f := b.call(t, plain); f != nil {
		t.Fatal(f)
	}
	if spans := b.spans(t); len(spans) != 0 {
		t.Errorf("got %+v", spans)
	}
	if at := b.out.Trace["traceparent"]; !strings.HasSuffix(at, "-00") || b.out.Trace.TraceID() != b.outcomes[0].TraceID {
		t.Errorf("the upstream got %q, the record has trace %s", at, b.outcomes[0].TraceID)
	}
	for _, name := range []string{"mcp.server.operation.duration", "mcp.client.operation.duration"} {
		if points := b.receiver.Metric(name).GetHistogram().GetDataPoints(); len(points) != 1 || points[0].Count != 1 || len(points[0].Exemplars) != 0 {
			t.Errorf("%s: %v", name, points)
		}
	}
}

// Of the caller's baggage the upstream gets the keys that are configured.
func TestBaggage(t *testing.T) {
	for _, tt := range []struct {
		keys       []string
		sent, want string // _meta
	}{
		{nil, `{"baggage":"tenant=7","x":1}`, `{"x":1}`},
		{nil, `{"baggage":"tenant=7"}`, `{}`},
		{[]string{"tenant"}, `{"baggage":"user=ann,tenant=7;p=1 , tenant = 8,Tenant=9,tenants=10","x":1}`, `{"baggage":"tenant=7;p=1 , tenant = 8","x":1}`},
		{[]string{"tenant", "plan"}, `{"baggage":"plan=a%2Cb,tenant=7"}`, `{"baggage":"plan=a%2Cb,tenant=7"}`},
		{[]string{"tenant"}, `{"baggage":"user=tenant=7","x":1}`, `{"x":1}`},
		{[]string{"tenant"}, `{"baggage":["tenant=7"],"x":1}`, `{"x":1}`},
		{[]string{"tenant"}, `{"baggage":"","x":1}`, `{"x":1}`},
	} {
		b := newTracing(t, 1, func(o *proxy.Options) { o.Tracer, o.Baggage = nil, tt.keys })
		if _, f := b.call(t, `{"name":"web__find","arguments":{"n":1,"q":"a"},"_meta":`+tt.sent+`}`); f != nil || string(b.out.Meta) != tt.want {
			t.Errorf("%v, sent %s: the upstream got %s, %v; want %s", tt.keys, tt.sent, b.out.Meta, f, tt.want)
		}
	}
}

// Without a tracer the caller's context reaches the upstream as it was sent.
func TestUntracedMeta(t *testing.T) {
	b := newTracing(t, 1, func(o *proxy.Options) { o.Tracer, o.Baggage = nil, []string{"k"} })
	if _, f := b.call(t, tracedParams); f != nil {
		t.Fatal(f)
	}
	if b.out.Trace != nil || string(b.out.Meta) != `{"traceparent":"`+callerParent+`","tracestate":"vendor=1","baggage":"k=v","x":1}` {
		t.Errorf("the upstream got %s and %v", b.out.Meta, b.out.Trace)
	}
	if spans := b.spans(t); len(spans) != 0 {
		t.Errorf("got %+v", spans)
	}
}
