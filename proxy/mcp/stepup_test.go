package mcp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// TestStepUp is the table of where a denied call that a token with more scopes would pass is answered
// with 403 and a challenge. Where the answer is not the whole of a response over HTTP, it is the
// refusal that every denied call gets.
func TestStepUp(t *testing.T) {
	g := newGate()
	g.behave["short"] = func(_ context.Context, g *fakeGate, _ *proxyCall, _ raw) (raw, *proxyFailure) {
		f := g.fail(signal.CodePolicyDenied, "the token may not pay")
		f.Scopes = []string{"media", "payments"}
		return nil, f
	}
	g.tools = append(g.tools, tool("short"))
	srv, d := newServer(t, g, nil)
	const (
		short = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__short"}}`
		want  = `Bearer error="insufficient_scope", scope="media payments", resource_metadata="/.well-known/oauth-protected-resource/mcp`
	)
	over := func(req *http.Request) func() (int, string, string) {
		return func() (int, string, string) {
			req.RequestURI = ""
			req.URL.Scheme, req.URL.Host = "http", strings.TrimPrefix(srv.URL, "http://")
			res, body := (&far{t: t}).do(req)
			return res.StatusCode, res.Header.Get("WWW-Authenticate"), body
		}
	}
	session := open(t, srv, "alice")
	events := session.request(http.MethodPost, short)
	events.Header.Set("Accept", "text/event-stream, application/json;q=0.5")
	one := openAt(t, srv.URL+"/mcp/demo", "alice").request(http.MethodPost, strings.Replace(short, "demo__", "", 1))
	batches := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	res, _ := batches.post(strings.Replace(initialize, "2025-11-25", "2025-03-26", 1))
	batches.session = res.Header.Get("Mcp-Session-Id")
	stream := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	for name, tt := range map[string]struct {
		ask       func() (status int, challenge, body string)
		status    int
		challenge string
	}{
		"without a session":       {over(sessionless("alice", "/mcp", "tools/call", `"name":"demo__short","arguments":{}`)), 403, want + `"`},
		"in a session":            {over(session.request(http.MethodPost, short)), 403, want + `"`},
		"at one server":           {over(one), 403, want + `/demo"`},
		"on a stream of events":   {over(events), 200, ""},
		"in a batch":              {over(batches.request(http.MethodPost, `[`+short+`]`)), 200, ""},
		"over HTTP+SSE":           {func() (int, string, string) { return 200, "", stream.ask(short) }, 200, ""},
		"on stdio":                {func() (int, string, string) { return 200, "", dial(t, d).open().Ask(short) }, 200, ""},
		"a denial without scopes": {over(session.request(http.MethodPost, strings.Replace(short, "short", "denied", 1))), 200, ""},
	} {
		status, challenge, body := tt.ask()
		if status != tt.status || challenge != tt.challenge || !strings.Contains(body, `"code":"POLICY_DENIED"`) {
			t.Errorf("%s: %d %q %s", name, status, challenge, body)
		}
	}
}

// TestDeprecatedIsCounted holds that each use of what MCP has deprecated is counted under its name.
func TestDeprecatedIsCounted(t *testing.T) {
	g, counted := newGate(), make(chan string, 9)
	srv, d := newServer(t, g, func(o *mcp.Options) {
		library{g}.serve(o)
		o.Relayer, o.Deprecated = library{g}, func(feature string) { counted <- feature }
	})
	session := open(t, srv, "alice")
	gone, stop := context.WithCancel(t.Context())
	stop()
	for _, tt := range []struct {
		name, want string
		use        func()
	}{
		{"a stream of HTTP+SSE", "http+sse", func() { openSSE(t, srv, "/sse", "alice") }},
		{"a question for roots", "roots", func() { <-asking(gone, session.home(g), "roots/list") }},
		{"the same without a session", "roots", func() { serve(d, sessionless("alice", "/mcp", "tools/call", askRoots)) }},
		{"a question for a model", "sampling", func() { <-asking(gone, session.home(g), "sampling/createMessage") }},
		{"a level of a session", "logging", func() {
			session.post(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}`)
		}},
		{"a level of a request", "logging", func() {
			req := sessionless("alice", "/mcp", "tools/list", "")
			req.Body = io.NopCloser(strings.NewReader(strings.Replace(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+modernMeta+`}}`, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"info",`, 1)))
			req.ContentLength = -1
			serve(d, req)
		}},
		{"a call", "", func() { session.post(echoCall) }},
	} {
		tt.use()
		select {
		case got := <-counted:
			if got != tt.want {
				t.Errorf("%s is counted as %q, want %q", tt.name, got, tt.want)
			}
		default:
			if tt.want != "" {
				t.Errorf("%s is not counted", tt.name)
			}
		}
	}
	if len(counted) > 0 {
		t.Errorf("%d uses are counted twice", len(counted))
	}
}
