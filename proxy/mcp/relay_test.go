package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// library is a fake gate for what calls no tool. As the real one it serves the
// roads of single servers alone.
type library struct{ *fakeGate }

func (l library) Relay(_ context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	if in.Route == "" {
		return nil, l.fail(signal.CodeEnvelopeMethod, "served at /mcp/{server}")
	}
	if strings.Contains(string(in.Message.Params), "secret") {
		return nil, l.fail(signal.CodePolicyDenied, "not for you")
	}
	return &proxy.Reply{Result: json.RawMessage(`{"of":"` + in.Message.Method + `",  "n":1e2}`), DecisionID: "dec_r", TraceID: "trc_r"}, nil
}

func (l library) Enumerate(_ context.Context, in *proxy.Call, who policy.Principal) (json.RawMessage, *proxy.Failure) {
	if in.Route == "" {
		return nil, l.fail(signal.CodeEnvelopeMethod, "served at /mcp/{server}")
	}
	return json.RawMessage(`{"of":"` + in.Message.Method + `","for":"` + who.Subject + `"}`), nil
}

func (l library) serve(o *mcp.Options) {
	o.Relayer = l
	o.Offers = func(_ context.Context, name string) json.RawMessage {
		if name == "other" {
			return nil
		}
		return json.RawMessage("{\"resources\":{\"subscribe\":true},\"prompts\":{},\"x-vendor\":{\"n\":1e2},\"tools\":{\"y\":[]}}")
	}
}

// A greeting names what the road's servers offer, as they declared it, and that
// the list of tools may change.
func TestCapabilities(t *testing.T) {
	const tools = `{"tools":{"listChanged":true}`
	const offers = `{"resources":{"subscribe":true},"prompts":{},"x-vendor":{"n":1e2},"tools":{"y":[],"listChanged":true}}`
	for _, tt := range []struct {
		name, path string
		change     func(*mcp.Options)
		want       string
	}{
		{"the road of a server", "/mcp/demo", library{newGate()}.serve, offers},
		{"a server that is not known yet", "/mcp/other", library{newGate()}.serve, tools + `}`},
		{"the road of all", "/mcp", library{newGate()}.serve, offers},
		{"nothing is relayed", "/mcp/demo", func(o *mcp.Options) { library{newGate()}.serve(o); o.Relayer = nil }, tools + `}`},
	} {
		srv, _ := newServer(t, newGate(), tt.change)
		h := &far{t: t, url: srv.URL + tt.path, who: "alice"}
		if _, body := h.post(initialize); !strings.Contains(body, `"capabilities":`+tt.want+`,`) {
			t.Errorf("%s: %s, want capabilities %s", tt.name, body, tt.want)
		}
	}
}

// What calls no tool passes through the gate of its server's road, byte for
// byte, and is refused on any other and without a session.
func TestRelayed(t *testing.T) {
	told := &events{}
	g := newGate()
	srv, _ := newServer(t, g, func(o *mcp.Options) { library{g}.serve(o); o.Observe = told.observe })
	demo, all := openAt(t, srv.URL+"/mcp/demo", "alice"), openAt(t, srv.URL+"/mcp", "alice")
	ask := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":"r","method":"` + method + `","params":` + params + `}`
	}
	told.take()
	for _, method := range []string{"resources/read", "prompts/get", "completion/complete"} {
		if _, body := demo.post(ask(method, `{}`)); body != `{"jsonrpc":"2.0","id":"r","result":{"of":"`+method+`",  "n":1e2}}` {
			t.Errorf("%s: %s", method, body)
		}
		if e := told.take(); len(e) != 1 || e[0].Method != method || e[0].DecisionID != "dec_r" || e[0].Status != "ok" {
			t.Errorf("%s: events %+v", method, e)
		}
		if res, body := all.post(ask(method, `{}`)); res.StatusCode != http.StatusOK || !strings.Contains(body, `"code":-32601`) {
			t.Errorf("%s on /mcp: %d %s", method, res.StatusCode, body)
		}
		if _, body := demo.post(ask(method, `{"uri":"secret"}`)); !strings.Contains(body, "POLICY_DENIED") {
			t.Errorf("%s of a secret: %s", method, body)
		}
		told.take()
	}
	for _, method := range []string{"resources/list", "resources/templates/list", "prompts/list"} {
		if _, body := demo.post(ask(method, `{}`)); body != `{"jsonrpc":"2.0","id":"r","result":{"of":"`+method+`","for":"alice"}}` {
			t.Errorf("%s: %s", method, body)
		}
		if _, body := all.post(ask(method, `{}`)); !strings.Contains(body, `"code":-32601`) {
			t.Errorf("%s on /mcp: %s", method, body)
		}
	}
	if got := g.refusals(); !slices.Contains(got, signal.CodeEnvelopeMethod+" prompts/list") {
		t.Errorf("a list that is not served was not recorded: %v", got)
	}
	stranger := &far{t: t, url: srv.URL + "/mcp/demo", who: "alice"}
	if _, body := stranger.post(ask("resources/read", `{}`)); !strings.Contains(body, "no session") {
		t.Errorf("without a session: %s", body)
	}
}

// Without a relayer the methods are refused, and that is recorded.
func TestNothingIsRelayed(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := openAt(t, srv.URL+"/mcp/demo", "alice")
	for _, method := range []string{"resources/list", "resources/read", "prompts/list", "prompts/get", "completion/complete"} {
		if _, body := h.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{}}`); !strings.Contains(body, `"code":-32601`) {
			t.Errorf("%s: %s", method, body)
		}
		if got := g.refusals(); got[len(got)-1] != signal.CodeEnvelopeMethod+" "+method {
			t.Errorf("%s: refused %v", method, got)
		}
	}
}
