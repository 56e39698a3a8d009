package proxy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
)

// A call whose memory another call has used before leaves the records and the reply of a call that
// is the first of its gate.
func TestCallLeavesNothingToTheNext(t *testing.T) {
	t.Parallel()
	ofOneCall := cmpopts.IgnoreFields(audit.Record{}, "CallID", "DecisionID", "TraceID", "DurationMS", "UpstreamMS", "Signals", "Input", "ResultSHA256")
	second := func(b *bench) (reply *proxy.Reply, records []audit.Record) {
		b.who, b.result = policy.Principal{Subject: "bob"}, `{"content":[]}`
		b.decision = policy.Decision{Effect: policy.Allow, Rule: "R2"}
		b.decisions, b.outcomes = nil, nil
		reply, f := b.Call(t.Context(), request(t, `{"name":"web__find"}`))
		if f != nil {
			t.Fatal(f)
		}
		return reply, append(b.decisions, b.outcomes...)
	}
	_, want := second(newBench(t))
	for name, first := range map[string]func(b *bench) *proxy.Call{
		"all that a caller may say": func(*bench) *proxy.Call {
			in := request(t, `{"name":"web__find","arguments":{"n":1},"task":{},"_meta":{"x":"y"}}`)
			in.Session, in.Route, in.Era, in.Client, in.Tags = "s1", "", "2025-11-25", "c/1", map[string]string{"a": "b"}
			in.Credential = identity.Credential{Bearer: "t"}
			return in
		},
		"a policy that redacts": func(b *bench) *proxy.Call {
			b.decision.Redact, b.decision.Remedy = []string{"/structuredContent/secret"}, "ask ann"
			b.result = `{"content":[{"type":"text","text":"hidden \u200b"}],"structuredContent":{"secret":1},"isError":true}`
			return request(t, `{"name":"web__find","arguments":{"n":2}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for range 20 { // a pool may give other memory
				if _, f := b.Call(t.Context(), first(b)); f != nil {
					t.Fatal(f)
				}
				reply, got := second(b)
				if diff := cmp.Diff(want, got, ofOneCall); diff != "" {
					t.Fatal(diff)
				}
				if reply.Ticket != "" || reply.Decision.Rule != "R2" || len(reply.Kernel.Signals) != 0 {
					t.Fatalf("the reply is another call's: %+v", reply)
				}
			}
		})
	}
}
