package proxy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// A gate that lacks a control is not made, nor a ticket worker without a store.
func TestNothingIsLeftOut(t *testing.T) {
	b := newBench(t)
	whole := proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue(nil)}}
	if _, err := proxy.New(whole); err != nil {
		t.Error(err)
	}
	for name, drop := range map[string]func(o *proxy.Options){
		"identifier": func(o *proxy.Options) { o.Identifier = nil },
		"policy":     func(o *proxy.Options) { o.Policy = nil },
		"limiter":    func(o *proxy.Options) { o.Limiter = nil },
		"tickets":    func(o *proxy.Options) { o.Tickets = nil },
		"recorder":   func(o *proxy.Options) { o.Recorder = nil },
		"upstreams":  func(o *proxy.Options) { o.Upstreams = nil },
	} {
		o := whole
		drop(&o)
		if _, err := proxy.New(o); err == nil {
			t.Errorf("a gate without %s", name)
		}
	}
	d := newHoldingGate(t, 0, proxy.Settings{})
	for name, o := range map[string]hold.Options{"nothing": {}, "no ledger": {Gate: d.Gate}} {
		if w, err := hold.NewWorker(o); err == nil {
			_ = w.Close(t.Context())
			t.Errorf("a worker with %s", name)
		}
	}
	if _, err := b.Resume(t.Context(), approval.Ticket{}); err == nil {
		t.Error("a gate without a book makes approved calls")
	}
}

// A message that names neither a tool nor the subject of its method is refused, with a reason.
func TestReceive(t *testing.T) {
	l := newLibrary(t)
	b := newBench(t)
	call := func(c *proxy.Call) *proxy.Failure { _, f := b.Call(context.Background(), c); return f }
	relay := func(c *proxy.Call) *proxy.Failure { _, f := l.Relay(context.Background(), c); return f }
	for _, tc := range []struct {
		by           func(*proxy.Call) *proxy.Failure
		text         string // "" = no message
		fault        *jsonrpc.Fault
		code, reason string
	}{
		{call, "", nil, signal.CodeEnvelopeInvalid, "there is no message"},
		{call, "", &jsonrpc.Fault{Kind: jsonrpc.Parse, Reason: "odd"}, signal.CodeEnvelopeParse, "odd"},
		{call, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"web__find"}}`, nil, signal.CodeEnvelopeInvalid, "tools/call needs an id"},
		{call, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, nil, signal.CodeEnvelopeInvalid, "params.name is missing"},
		{call, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":""}}`, nil, signal.CodeEnvelopeInvalid, "must be a string"},
		{call, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}`, nil, signal.CodeEnvelopeInvalid, "must be a string"},
		{call, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"web__find","_meta":[]}}`, nil, signal.CodeEnvelopeInvalid, "_meta must be an object"},
		{call, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"web__find","arguments":[1]}}`, nil, signal.CodeEnvelopeInvalid, "arguments must be an object"},
		{relay, "", nil, signal.CodeEnvelopeInvalid, "there is no message"},
		{relay, "", &jsonrpc.Fault{Kind: jsonrpc.Parse, Reason: "odd"}, signal.CodeEnvelopeParse, "odd"},
		{relay, `{"jsonrpc":"2.0","method":"resources/read","params":{"uri":"file:///a"}}`, nil, signal.CodeEnvelopeInvalid, "resources/read needs an id"},
	} {
		c := &proxy.Call{Transport: "http", Route: "web", Fault: tc.fault}
		if tc.text != "" {
			var err error
			if c.Message, err = jsonrpc.Decode([]byte(tc.text), jsonrpc.Limits{}); err != nil {
				t.Fatal(err)
			}
		}
		if f := tc.by(c); f == nil || f.Kernel.Code != tc.code || !strings.Contains(f.Reason, tc.reason) {
			t.Errorf("%s: %v, want %s %s", tc.text, f, tc.code, tc.reason)
		}
	}
	if last := b.outcomes[len(b.outcomes)-1]; string(last.Arguments) != "{}" {
		t.Errorf("arguments that are none are recorded as %s", last.Arguments)
	}
}
