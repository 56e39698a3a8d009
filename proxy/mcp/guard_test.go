package mcp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy/mcp"
)

const echoCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"}}`

// TestGuard: what a browser on another site can send does not come in.
func TestGuard(t *testing.T) {
	tests := []struct {
		name, header string
		want         int
	}{
		{"plain", "Accept: application/json, text/event-stream", 200},
		{"loopback name", "Host: localhost:8787", 200},
		{"loopback name in capitals", "Host: LOCALHOST", 200},
		{"loopback in v6", "Host: [::1]:8787", 200},
		{"configured name", "Host: gate.example", 200},
		{"rebound name", "Host: evil.example", 403},
		{"rebound name with our prefix", "Host: localhost.evil.example", 403},
		{"another address", "Host: 10.1.2.3:8787", 403},
		{"another port of this machine", "Origin: http://localhost:3000", 403},
		{"configured origin", "Origin: https://gate.example", 200},
		{"foreign origin", "Origin: http://evil.example", 403},
		{"origin null", "Origin: null", 403},
		{"origin of another scheme", "Origin: file://localhost", 403},
		{"origin with a user", "Origin: http://localhost@evil.example", 403},
		{"media type in capitals", "Content-Type: APPLICATION/JSON", 200},
		{"charset", "Content-Type: application/json; charset=UTF-8", 200},
		{"other charset", "Content-Type: application/json; charset=utf-16", 415},
		{"text", "Content-Type: text/plain", 415},
		{"no media type", "Content-Type: (none)", 415},
		{"form", "Content-Type: application/x-www-form-urlencoded", 415},
		{"compressed", "Content-Encoding: gzip", 415},
		{"accepts anything", "Accept: */*", 200},
		{"says nothing of what it accepts", "Accept: (none)", 200},
		{"accepts HTML", "Accept: text/html", 406},
		{"refuses both", "Accept: application/json;q=0, text/event-stream;q=0.0", 406},
		{"claims to be somebody", "X-Forwarded-User: root", 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate()
			srv, _ := newServer(t, g, func(o *mcp.Options) { o.Hosts, o.Origins = []string{"gate.example"}, []string{"https://gate.example"} })
			h := open(t, srv, "alice")
			req := h.request(http.MethodPost, echoCall)
			setHeader(req, tt.header)
			res, body := h.do(req)
			if res.StatusCode != tt.want {
				t.Errorf("status %d, want %d: %s", res.StatusCode, tt.want, body)
			}
			if passed := g.calls() == 1; passed != (tt.want == 200) {
				t.Errorf("a tool was called: %v", passed)
			}
			if res.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Error("a CORS header was sent")
			}
		})
	}
}

// TestPaths: only the canonical spelling of a path is one.
func TestPaths(t *testing.T) {
	srv, _ := newServer(t, newGate(), nil)
	for path, want := range map[string]int{
		"/mcp": 200, "/mcp/demo": 200, "/mcp?x=1": 200,
		"/": 404, "/mcp/": 404, "//mcp": 404, "/%6dcp": 404, "/MCP": 404, "/mcp/demo/": 404,
		"/mcp/demo/x": 404, "/mcp/..": 404, "/mcp/%64emo": 404, "/mcp/nowhere": 404, "/mcp/demo%2f": 404,
	} {
		h := &far{t: t, url: srv.URL + path, who: "alice"}
		if got := h.status(http.MethodPost, initialize); got != want {
			t.Errorf("POST %s: status %d, want %d", path, got, want)
		}
	}
}

// TestMethods: a preflight from a foreign page is refused like anything else
// from there, and from our own pages it is just not served.
func TestMethods(t *testing.T) {
	srv, _ := newServer(t, newGate(), nil)
	h := open(t, srv, "alice")
	for method, want := range map[string]int{"PUT": 405, "OPTIONS": 405, "PATCH": 405, "HEAD": 405, "DELETE": 204} {
		if got := h.status(method, ""); got != want {
			t.Errorf("%s: status %d, want %d", method, got, want)
		}
	}
	req := h.request(http.MethodOptions, "")
	req.Header.Set("Origin", "http://evil.example")
	if res, _ := h.do(req); res.StatusCode != http.StatusForbidden {
		t.Errorf("foreign preflight: status %d, want 403", res.StatusCode)
	}
}

// TestNoHeaderIsAKey: no header makes a sender somebody.
func TestNoHeaderIsAKey(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	sender := &far{t: t, url: srv.URL + "/mcp", who: "nobody", session: h.session}
	for _, line := range []string{
		"X-Internal: 1", "Mcp-Init-Host: x", "X-Agent-Role: admin", "X-Forwarded-User: alice", "X-Api-Key: alice-token",
		"Cookie: token=alice-token", "Proxy-Authorization: Bearer alice-token", "User-Agent: kube-probe/1.30",
		"Authorization: Bearer", "Authorization: Bearer  ", "Authorization: bearer x, Bearer alice-token", "Authorization: alice-token",
		"X-Http-Method-Override: GET", "Upgrade: websocket",
	} {
		req := sender.request(http.MethodPost, echoCall)
		setHeader(req, line)
		if res, _ := sender.do(req); res.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: status %d, want 401 with a challenge", line, res.StatusCode)
		}
	}
	req := sender.request(http.MethodPost, echoCall)
	req.Header["Authorization"] = []string{"Bearer alice-token", "Bearer alice-token"}
	if res, _ := sender.do(req); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("two credentials: status %d, want 401", res.StatusCode)
	}
	if g.calls() != 0 {
		t.Errorf("%d calls reached a tool", g.calls())
	}
}

// TestMalformedCredentialIsNotNone: where callers without a token are let in,
// one with a broken token still is not.
func TestMalformedCredentialIsNotNone(t *testing.T) {
	g := newGate()
	g.anonymous = true
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "nobody")
	if got := h.status(http.MethodPost, echoCall); got != http.StatusOK {
		t.Errorf("without a token: status %d, want 200", got)
	}
	for _, value := range []string{"Bearer", "Basic bG9jYWw6", "Bearer a b", "nonsense", "Bearer unknown"} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			req := h.request(method, echoCall)
			req.Header.Set("Authorization", value)
			if res, _ := h.do(req); res.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with %q: status %d, want 401", method, value, res.StatusCode)
			}
		}
	}
	if g.calls() != 1 {
		t.Errorf("%d calls reached a tool, want 1", g.calls())
	}
}

// TestStrangersAreBrief: little is read of somebody who is not known.
func TestStrangersAreBrief(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	mallory := &far{t: t, url: srv.URL + "/mcp", who: "mallory"}
	long := strings.Replace(echoCall, `"params":{`, `"params":{"arguments":{"a":"`+strings.Repeat("x", 100_000)+`"},`, 1)
	if got := mallory.status(http.MethodPost, long); got != http.StatusUnauthorized {
		t.Errorf("status %d, want 401", got)
	}
	if got := g.refusals(); len(got) != 0 {
		t.Errorf("the whole body was read: %v", got)
	}
}
