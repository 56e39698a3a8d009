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

// library is a fake gate for what calls no tool. On the road of all servers it
// knows log levels alone, which it answers as the real one does.
type library struct{ *fakeGate }

func (l library) Relay(_ context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	if in.Route == "" && in.Message.Method != "logging/setLevel" {
		return nil, l.fail(signal.CodeEnvelopeMethod, "served at /mcp/{server}")
	}
	if strings.Contains(string(in.Message.Params), "secret") {
		return nil, l.fail(signal.CodePolicyDenied, "not for you")
	}
	if in.Route == "" {
		return &proxy.Reply{Result: json.RawMessage(`{}`), DecisionID: "dec_r", TraceID: "trc_r"}, nil
	}
	return &proxy.Reply{Result: json.RawMessage(`{"of":"` + in.Message.Method + `",  "n":1e2}`), DecisionID: "dec_r", TraceID: "trc_r"}, nil
}

func (l library) Enumerate(_ context.Context, in *proxy.Call, who policy.Principal) (json.RawMessage, *proxy.Failure) {
	if in.Route == "" {
		return nil, l.fail(signal.CodeEnvelopeMethod, "served at /mcp/{server}")
	}
	if _, stopped := in.Message.Param("stopped"); stopped {
		return nil, l.fail(signal.CodeStopped, "incident 7")
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
	for _, method := range []string{
		"resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/get", "completion/complete",
		"tasks/get", "tasks/result", "tasks/cancel", "skills/get", "resources/directory/read",
	} {
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
	for _, method := range []string{"resources/list", "resources/templates/list", "skills/list", "prompts/list", "tasks/list"} {
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
	if _, body := demo.post(ask("prompts/list", `{"stopped":true}`)); !strings.Contains(body, `"code":"STOPPED"`) || !strings.Contains(body, "incident 7") {
		t.Errorf("a list that is stopped: %s", body)
	}
	if got := g.refusals(); !slices.Contains(got, signal.CodeStopped+" prompts/list") {
		t.Errorf("a list that is stopped was not recorded: %v", got)
	}
	sender := &far{t: t, url: srv.URL + "/mcp/demo", who: "alice"}
	if _, body := sender.post(ask("resources/read", `{}`)); !strings.Contains(body, "no session") {
		t.Errorf("without a session: %s", body)
	}
}

// Without a relayer the methods are refused, and that is recorded.
func TestNothingIsRelayed(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := openAt(t, srv.URL+"/mcp/demo", "alice")
	for _, method := range []string{
		"resources/list", "resources/read", "resources/subscribe", "prompts/list", "prompts/get", "completion/complete",
		"logging/setLevel", "tasks/get", "tasks/list", "vendor/thing",
	} {
		if _, body := h.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{}}`); !strings.Contains(body, `"code":-32601`) {
			t.Errorf("%s: %s", method, body)
		}
		if got := g.refusals(); got[len(got)-1] != signal.CodeEnvelopeMethod+" "+method {
			t.Errorf("%s: refused %v", method, got)
		}
	}
}

// TestExtensions: on the road of one server the gate decides on methods that the
// protocol does not have; on the road of all nobody does.
func TestExtensions(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, library{g}.serve)
	demo, all := openAt(t, srv.URL+"/mcp/demo", "alice"), openAt(t, srv.URL+"/mcp", "alice")
	const ask = `{"jsonrpc":"2.0","id":"r","method":"vendor/thing","params":{}}`
	if _, body := demo.post(ask); body != `{"jsonrpc":"2.0","id":"r","result":{"of":"vendor/thing",  "n":1e2}}` {
		t.Errorf("on /mcp/demo: %s", body)
	}
	if _, body := all.post(ask); !strings.Contains(body, `"code":-32601`) {
		t.Errorf("on /mcp: %s", body)
	}
	if got := g.refusals(); !slices.Equal(got, []string{signal.CodeEnvelopeMethod + " vendor/thing"}) {
		t.Errorf("refused %v", got)
	}
	sender := &far{t: t, url: srv.URL + "/mcp/demo", who: "alice"}
	if _, body := sender.post(ask); !strings.Contains(body, `"code":-32601`) {
		t.Errorf("without a session: %s", body)
	}
}

// TestSetLevel: the level goes with all that its session asks from then on, and
// with nothing that another does.
func TestSetLevel(t *testing.T) {
	level := func(name string) string {
		return `{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":` + name + `}}`
	}
	for path, result := range map[string]string{"/mcp": `{}`, "/mcp/demo": `{"of":"logging/setLevel",  "n":1e2}`} {
		g := newGate()
		srv, _ := newServer(t, g, library{g}.serve)
		h, other := openAt(t, srv.URL+path, "alice"), openAt(t, srv.URL+path, "alice")
		call := strings.Replace(echoCall, "demo__echo", map[string]string{"/mcp": "demo__echo", "/mcp/demo": "echo"}[path], 1)
		heard := func(h *far) string { h.post(call); return g.last().Level }
		for _, bad := range []string{`"loud"`, `"Debug"`, `1`, `null`} {
			if _, body := h.post(level(bad)); !strings.Contains(body, `"error":{"code":-32602,`) {
				t.Errorf("%s: level %s: %s", path, bad, body)
			}
		}
		if got := heard(h); got != "" {
			t.Errorf("%s: level %q, want none", path, got)
		}
		if _, body := h.post(level(`"notice"`)); body != `{"jsonrpc":"2.0","id":"l","result":`+result+`}` {
			t.Errorf("%s: %s", path, body)
		}
		if got := heard(h) + "," + heard(other); got != "notice," {
			t.Errorf("%s: levels %q", path, got)
		}
	}
}

// TestRefusedLevel: what the gate refuses changes nothing.
func TestRefusedLevel(t *testing.T) {
	for path, call := range map[string]string{"/mcp/demo": strings.Replace(echoCall, "demo__", "", 1), "/mcp": echoCall} {
		g := newGate()
		srv, _ := newServer(t, g, library{g}.serve)
		h := openAt(t, srv.URL+path, "alice")
		_, body := h.post(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug","of":"secret"}}`)
		h.post(call)
		if got := g.last().Level; got != "" || !strings.Contains(body, "POLICY_DENIED") {
			t.Errorf("%s: level %q after %s", path, got, body)
		}
	}
}

// TestClientCapabilities: what the client said that it can do goes with each
// call, byte for byte.
func TestClientCapabilities(t *testing.T) {
	const can = `{"sampling":{"tools":{}},  "x":1e2}`
	greet := strings.Replace(initialize, `"capabilities":{}`, `"capabilities":`+can, 1)
	g := newGate()
	srv, d := newServer(t, g, nil)
	h := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	res, _ := h.post(greet)
	h.session = res.Header.Get("Mcp-Session-Id")
	older := openSSE(t, srv, "/sse", "alice")
	older.ask(greet)
	pipe := dial(t, d)
	pipe.Ask(greet)
	for name, call := range map[string]func(){
		"http": func() { h.post(echoCall) }, "sse": func() { older.ask(echoCall) }, "stdio": func() { pipe.Ask(echoCall) },
	} {
		call()
		if got := string(g.last().Capabilities); got != can {
			t.Errorf("%s: %s", name, got)
		}
	}
	huge := strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"x":"`+strings.Repeat("x", 64<<10)+`"}`, 1)
	if _, body := (&far{t: t, url: srv.URL + "/mcp", who: "alice"}).post(huge); !strings.Contains(body, "capabilities is too large") {
		t.Errorf("capabilities without end: %.200s", body)
	}
}

// notified is a gate that takes notifications.
type notified struct {
	*fakeGate
	took chan string
}

func (n notified) Notify(_ context.Context, in *proxy.Call) *proxy.Failure {
	n.took <- in.Message.Method + " " + string(in.Message.Params) + " of " + in.Client + " on " + in.Route
	return n.fail(signal.CodeEnvelopeMethod, "nobody wants it")
}

// TestNotifications: those that are for servers go to the gate, with their
// session; those between client and door do not.
func TestNotifications(t *testing.T) {
	g := notified{newGate(), make(chan string, 10)}
	srv, _ := newServer(t, g.fakeGate, func(o *mcp.Options) { o.Notifier = g })
	h := openAt(t, srv.URL+"/mcp/demo", "alice")
	note := func(method string) string {
		return `{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{"n":1e2}}`
	}
	for _, method := range []string{"initialized", "cancelled", "progress", "roots/list_changed", "vendor/thing"} {
		if status := h.status(http.MethodPost, note(method)); status != http.StatusAccepted {
			t.Errorf("%s: status %d", method, status)
		}
	}
	(&far{t: t, url: srv.URL + "/mcp/demo", who: "alice"}).status(http.MethodPost, note("roots/list_changed")) // no session
	close(g.took)
	var got []string
	for what := range g.took {
		got = append(got, what)
	}
	want := []string{
		`notifications/roots/list_changed {"n":1e2} of test/1 on demo`, `notifications/vendor/thing {"n":1e2} of test/1 on demo`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the gate took %q", got)
	}
}
