package bridge_test

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/proxy/bridge"
)

// respond answers with a status and a body.
func respond(status int, media, body string, headers ...string) handler {
	return func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Type", media)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const (
	problemJSON = "application/problem+json"
	plainJSON   = "application/json"
)

// What an endpoint answers in place of an answer, and what becomes of it. The
// bridge lives on after each.
func TestRefusals(t *testing.T) {
	unknown := "whether the request took effect is unknown"
	for _, test := range []struct {
		name   string
		do     handler
		code   string
		reason string
		retry  bool
		after  float64
	}{
		{"401", respond(401, problemJSON, `{"detail":"who are you"}`), "UNAUTHENTICATED", "who are you", false, 0},
		{"401 without a body", respond(401, "", ""), "UNAUTHENTICATED", "the endpoint answered with status 401", false, 0},
		{"403", respond(403, problemJSON, `{"title":"Forbidden","detail":"host or origin"}`), "UNAUTHENTICATED", "host or origin", false, 0},
		{"problem details with our code", respond(403, problemJSON, `{"detail":"Denied: x","reason":"not you","remedy":"ask","code":"POLICY_DENIED","decision_id":"dec_9"}`), "POLICY_DENIED", "not you", false, 0},
		{"problem details with another code", respond(403, problemJSON, `{"detail":"x","code":"NOT_OURS"}`), "UNAUTHENTICATED", "x", false, 0},
		{"429", respond(429, "text/plain", "slow", "Retry-After", "7"), "RATE_LIMITED", "the endpoint answered with status 429", true, 7000},
		{"413", respond(413, "", ""), "TOO_LARGE", "", false, 0},
		{"503", respond(503, problemJSON, `{"detail":"shutting down"}`), "UPSTREAM_UNAVAILABLE", "shutting down", true, 0},
		{"415", respond(415, problemJSON, `{"detail":"send JSON"}`), "UPSTREAM_UNAVAILABLE", "send JSON", false, 0},
		{"a redirect", respond(307, "", "", "Location", "http://elsewhere.example/mcp"), "UPSTREAM_UNAVAILABLE", "status 307", false, 0},
		{"500", respond(500, "text/html", "<p>"), "TOOL_FAILED", unknown, false, 0},
		{"502", respond(502, "text/html", "<p>"), "TOOL_FAILED", unknown, false, 0},
		{"504", respond(504, "", ""), "TOOL_FAILED", unknown, false, 0},
		{"202 for a request", respond(202, "", ""), "TOOL_FAILED", unknown, false, 0},
		{"a web page", respond(200, "text/html", "<p>"), "TOOL_FAILED", "content type text/html", false, 0},
		{"no JSON", respond(200, plainJSON, "{"), "TOOL_FAILED", unknown, false, 0},
		{"no answer", respond(200, plainJSON, `{"jsonrpc":"2.0","id":99,"result":{}}`), "TOOL_FAILED", unknown, false, 0},
		{"no message", respond(200, plainJSON, `{}`), "TOOL_FAILED", unknown, false, 0},
		{"nothing", respond(200, plainJSON, ``), "TOOL_FAILED", unknown, false, 0},
		{"an answer that breaks off", respond(200, plainJSON, `{"jsonrpc"`, "Content-Length", "100"), "TOOL_FAILED", unknown, false, 0},
		{"an answer without end", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", plainJSON)
			for range 17 {
				_, _ = w.Write([]byte(strings.Repeat(" ", 1<<20)))
			}
		}, "TOOL_FAILED", "too large", false, 0},
		{"an event without end", func(w http.ResponseWriter, _ *http.Request, _ int) {
			begin(w, "id: 1\ndata: ")
			for range 17 {
				_, _ = w.Write([]byte(strings.Repeat(" ", 1<<20)))
			}
		}, "TOOL_FAILED", unknown, false, 0},
		{"a broken connection", hangUp, "TOOL_FAILED", unknown, false, 0},
		{"a broken stream", func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, ": x\n\n"); panic(http.ErrAbortHandler) }, "TOOL_FAILED", unknown, false, 0},
		{"a stream without an answer", func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, ": x\n\n") }, "TOOL_FAILED", unknown, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := misbehave(t, map[string]handler{"tools/call": test.do})
			c := connect(t, e.URL, nil).open()
			f := c.fails(call(`"7"`, "x"), `"7"`, test.code)
			d := f.Error.Data
			if !strings.Contains(d.Reason, test.reason) || !strings.Contains(f.Error.Message, test.reason) || d.RetryEligible != test.retry || d.RetryAfterMS != test.after {
				t.Errorf("refused with %+v", f)
			}
			if test.code == "POLICY_DENIED" && (d.Remedy != "ask" || d.DecisionID != "dec_9") {
				t.Errorf("refused with %+v", f)
			}
			if n := e.count(http.MethodPost, "tools/call"); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
			if got := c.Ask(`{"jsonrpc":"2.0","id":8,"method":"ping"}`); !strings.Contains(got, `"result"`) {
				t.Errorf("afterwards: %s", got)
			}
			if rest, err := c.End(); rest != "" || err != nil {
				t.Errorf("at the end: %q, %v", rest, err)
			}
		})
	}
}

// A JSON-RPC body is passed on whatever the status; an error without an id
// becomes the answer to what was asked.
func TestAnswersUnderAnotherStatus(t *testing.T) {
	const object = `{"code":-32020,"message":"Header mismatch","data":{"x":1e2}}`
	for _, status := range []int{200, 400, 404, 500} {
		for _, id := range []string{`"id":"7",`, `"id":null,`, ``} {
			e := misbehave(t, map[string]handler{"tools/call": respond(status, plainJSON, `{"jsonrpc":"2.0",`+id+`"error":`+object+`}`)})
			c := connect(t, e.URL, nil)
			want := `{"jsonrpc":"2.0","id":"7","error":` + object + `}`
			if got := c.Ask(call(`"7"`, "x")); got != want {
				t.Errorf("%d, %s: %s", status, id, got)
			}
		}
	}
}

// A lost session is said once for each request, and a new initialize begins
// another.
func TestALostSession(t *testing.T) {
	for _, body := range []string{`{"detail":"the session is not known here"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"gone"}}`, ""} {
		e := misbehave(t, map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, n int) {
			if r.Header.Get("Mcp-Session-Id") == "s1" {
				respond(404, plainJSON, body)(w, r, n)
				return
			}
			answerJSON(w, []byte("2"), `{"session":"`+r.Header.Get("Mcp-Session-Id")+`"}`)
		}})
		c := connect(t, e.URL, nil).open()
		f := c.fails(call("1", "x"), "1", "SESSION_LOST")
		if !strings.Contains(f.Error.Message, "send initialize") || !f.Error.Data.RetryEligible {
			t.Errorf("lost with %+v", f)
		}
		if got := c.Ask(call("2", "x")); !strings.Contains(got, `{"session":""}`) {
			t.Errorf("the lost session is still shown: %s", got)
		}
		c.open()
		if got := c.Ask(call("2", "x")); !strings.Contains(got, `{"session":"s2"}`) {
			t.Errorf("after a new initialize: %s", got)
		}
		if n := e.count(http.MethodDelete, ""); n != 0 {
			t.Errorf("the lost session was ended %d times", n)
		}
	}
	// A 404 with the server's own answer says nothing about the session.
	const own = `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}`
	e := misbehave(t, map[string]handler{"tools/call": respond(404, plainJSON, own)})
	c := connect(t, e.URL, nil).open()
	if got := c.Ask(call("1", "x")); got != own {
		t.Errorf("answered with %s", got)
	}
	c.Ask(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	if got := e.await(http.MethodPost, "ping").head.Get("Mcp-Session-Id"); got != "s1" {
		t.Errorf("session %q afterwards", got)
	}
}

// A notification that cannot be delivered is logged; one that finds the session
// gone is the end of it.
func TestUndelivered(t *testing.T) {
	for name, test := range map[string]struct {
		do      handler
		said    string
		session string // afterwards
	}{
		"refused": {respond(400, problemJSON, `{"detail":"not now"}`), "not now", "s1"},
		"broken":  {hangUp, "a message was not delivered", "s1"},
		"lost":    {respond(404, problemJSON, `{}`), "forgotten the session", ""},
	} {
		e := misbehave(t, map[string]handler{"notifications/x": test.do})
		c := connect(t, e.URL, nil).open()
		c.Send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		c.Ask(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
		if got := e.await(http.MethodPost, "ping").head.Get("Mcp-Session-Id"); got != test.session {
			t.Errorf("%s: session %q afterwards", name, got)
		}
		if !strings.Contains(c.log.String(), test.said) {
			t.Errorf("%s: logged %s", name, c.log)
		}
		if n := e.count(http.MethodPost, "notifications/x"); n != 1 {
			t.Errorf("%s: sent %d times", name, n)
		}
	}
}

// Nobody listens: the request was not sent, and may be sent again. When
// somebody listens again, it goes through.
func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	c := connect(t, "http://"+address+"/mcp?key="+secret, nil)
	f := c.fails(initialize, "0", "UPSTREAM_UNAVAILABLE")
	if !f.Error.Data.RetryEligible || f.Error.Code != -32000 || strings.Contains(f.Error.Message, secret) {
		t.Errorf("failed with %+v", f)
	}
	c.Send(initialized)
	if _, err := c.End(); !errors.Is(err, bridge.ErrUnreachable) || strings.Contains(err.Error(), secret) {
		t.Errorf("ended with %v", err)
	}
}

// A talk in which every message was refused for its sender ends so.
func TestNobodyIsKnown(t *testing.T) {
	no := respond(401, problemJSON, `{"detail":"who"}`)
	e := misbehave(t, map[string]handler{"initialize": no, "tools/call": no})
	c := connect(t, e.URL, nil)
	c.fails(initialize, "0", "UNAUTHENTICATED")
	c.fails(call("1", "x"), "1", "UNAUTHENTICATED")
	if _, err := c.End(); !errors.Is(err, bridge.ErrUnauthorised) || strings.Contains(err.Error(), secret) {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(c.log.String(), "say who asks with --token") {
		t.Errorf("logged %s", c.log)
	}
}

// A redirect is not followed: it could take the token elsewhere.
func TestRedirectsAreNotFollowed(t *testing.T) {
	e := misbehave(t, nil)
	moved := misbehave(t, map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, _ int) {
		http.Redirect(w, r, e.URL+"/mcp", http.StatusPermanentRedirect)
	}})
	connect(t, moved.URL, nil).fails(call("1", "x"), "1", "UPSTREAM_UNAVAILABLE")
	if len(e.requests()) > 0 {
		t.Errorf("the redirect was followed: %v", e.requests())
	}
}

// A certificate that nobody vouches for is not trusted.
func TestCertificatesAreVerified(t *testing.T) {
	reached := make(chan struct{}, 10)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	c := connect(t, srv.URL, nil)
	f := c.fails(call("1", "x"), "1", "UPSTREAM_UNAVAILABLE")
	if len(reached) > 0 || !strings.Contains(f.Error.Message, "certificate") {
		t.Errorf("reached %d times, failed with %s", len(reached), f.Error.Message)
	}
	if _, err := c.End(); !errors.Is(err, bridge.ErrUnreachable) {
		t.Errorf("ended with %v", err)
	}
}

// What New refuses. No refusal shows what may be secret.
func TestNewRefuses(t *testing.T) {
	for _, test := range []struct {
		url, token string
		want       error
	}{
		{"", "", bridge.ErrAddress}, {"127.0.0.1:8787", "", bridge.ErrAddress}, {"ftp://h/mcp", "", bridge.ErrAddress}, {"http://", "", bridge.ErrAddress},
		{"http://:80", "", bridge.ErrAddress}, {"http://u:hidden@h/mcp", "", bridge.ErrAddress}, {"http://hidden@h/mcp", "", bridge.ErrAddress},
		{"http://h/mcp#hidden", "", bridge.ErrAddress}, {"http://h:x/hidden", "", bridge.ErrAddress}, {"http://h/%zzhidden", "", bridge.ErrAddress},
		{"http://h", "hidden\n", bridge.ErrToken}, {"http://h", "hid den", bridge.ErrToken}, {"http://h", "hidden\u00e9", bridge.ErrToken},
	} {
		b, err := bridge.New(bridge.Options{URL: test.url, Token: test.token})
		if b != nil || !errors.Is(err, test.want) {
			t.Errorf("New(%q, %q): %v", test.url, test.token, err)
		} else if strings.Contains(err.Error(), "hid") {
			t.Errorf("New(%q, %q) shows %v", test.url, test.token, err)
		}
	}
}

// Lines that are no message are answered as at the stdio door, and the next
// one is read.
func TestBadLines(t *testing.T) {
	parts.Long(t, "sends large lines")
	e := misbehave(t, nil)
	c := connect(t, e.URL, nil)
	for _, test := range []struct{ line, id, code string }{
		{"{", "null", "PARSE_ERROR"},
		{"hello", "null", "PARSE_ERROR"},
		{"[]", "null", "INVALID_ENVELOPE"},
		{`{"jsonrpc":"1.0","id":3,"method":"ping"}`, "3", "INVALID_ENVELOPE"},
		{`{"jsonrpc":"2.0","id":3,"id":3,"method":"ping"}`, "null", "INVALID_ENVELOPE"},
		{`{"jsonrpc":"2.0","id":3,"method":"ping","params":[]}`, "3", "INVALID_ENVELOPE"},
		{`{"jsonrpc":"2.0","id":3,"method":"x","params":{"x":"` + strings.Repeat("x", 32<<20) + `"}}`, "3", "TOO_LARGE"},
		{`{"method":"x","params":{"x":"` + strings.Repeat("x", 32<<20) + `"},"jsonrpc":"2.0","id":3}`, "3", "TOO_LARGE"},
		{`{"method":"x","params":{"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `},"jsonrpc":"2.0","id":3}`, "3", "INVALID_ENVELOPE"},
		{"{\"method\":\"x\",\"params\":{\"x\":\"\xff\"},\"jsonrpc\":\"2.0\",\"id\":3}", "3", "PARSE_ERROR"},
	} {
		c.fails(test.line, test.id, test.code)
	}
	c.Send("")
	c.Send("  ")
	if len(e.requests()) > 0 {
		t.Errorf("the endpoint got %v", e.requests())
	}
	big := `{"jsonrpc":"2.0","id":4,"method":"ping","params":{"x":"` + strings.Repeat("x", 8<<20-100) + `"}}`
	if got := c.Ask(big); !strings.Contains(got, `"id":4,"result"`) {
		t.Errorf("a large line: %.200s", got)
	}
}

// A server that repeats itself or answers what was not asked does not confuse
// the client.
func TestAnswersOnce(t *testing.T) {
	e := misbehave(t, map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, _ int) {
		begin(w, `data: {"jsonrpc":"2.0","id":99,"result":{}}`+"\n\n", `data: [{"jsonrpc":"2.0","method":"notifications/a"},{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":1,"result":{"again":1}}]`+"\n\n")
	}})
	c := connect(t, e.URL, nil)
	c.Send(call("1", "x"))
	rest, err := c.End()
	const want = `{"jsonrpc":"2.0","method":"notifications/a"}` + "\n" + `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n"
	if rest != want || err != nil {
		t.Errorf("%v, the client got\n%s", err, rest)
	}
	if _, err := jsonrpc.Decode([]byte(strings.Split(want, "\n")[0]), jsonrpc.Limits{}); err != nil {
		t.Fatal(err)
	}
}
