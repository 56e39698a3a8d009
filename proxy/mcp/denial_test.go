package mcp_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// refusal is what a client can tell of an error answer.
type refusal struct {
	ID    string
	RPC   int
	Code  string
	Calls int // how many came as far as a tool
}

// denials is what must not pass, whatever the transport.
var denials = []struct {
	name string
	body string
	want refusal
	http int
}{
	{"batch", `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"}}]`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"empty batch", `[]`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"argument twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":1,"a":2}}}`, refusal{"1", -32600, "INVALID_ENVELOPE", 0}, 200},
	{"member of another case", `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"demo__echo"},"Method":"ping"}`, refusal{`"x"`, -32600, "INVALID_ENVELOPE", 0}, 200},
	{"two values", `{"jsonrpc":"2.0","id":1,"method":"ping"} {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"1", -32700, "PARSE_ERROR", 0}, 200},
	{"breaks off", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"`, refusal{"1", -32700, "PARSE_ERROR", 0}, 200},
	{"invalid UTF-8", "{\"method\":\"tools/call\",\"params\":{\"name\":\"demo__echo\",\"arguments\":{\"a\":\"\xff\"}},\"jsonrpc\":\"2.0\",\"id\":1}", refusal{"1", -32700, "PARSE_ERROR", 0}, 200},
	{"lone surrogate", `{"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":"\ud800"}},"jsonrpc":"2.0","id":1}`, refusal{"1", -32700, "PARSE_ERROR", 0}, 200},
	{"too deep", `{"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `}},"jsonrpc":"2.0","id":1}`, refusal{"1", -32600, "INVALID_ENVELOPE", 0}, 200},
	{"id twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"byte order mark", "\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"null", -32700, "PARSE_ERROR", 0}, 400},
	{"no json", `hello`, refusal{"null", -32700, "PARSE_ERROR", 0}, 400},
	{"call without id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"list without id", `{"jsonrpc":"2.0","method":"tools/list"}`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"id null", `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"id fraction", `{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"id object", `{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"demo__echo"}}`, refusal{"null", -32600, "INVALID_ENVELOPE", 0}, 400},
	{"method in capitals", `{"jsonrpc":"2.0","id":1,"method":"Tools/Call","params":{"name":"demo__echo"}}`, refusal{"1", -32601, "METHOD_NOT_FOUND", 0}, 200},
	{"method with a space", `{"jsonrpc":"2.0","id":1,"method":"tools/call ","params":{"name":"demo__echo"}}`, refusal{"1", -32601, "METHOD_NOT_FOUND", 0}, 200},
	{"method with a fullwidth slash", `{"jsonrpc":"2.0","id":1,"method":"tools／call","params":{"name":"demo__echo"}}`, refusal{"1", -32601, "METHOD_NOT_FOUND", 0}, 200},
	{"side door", `{"jsonrpc":"2.0","id":"s","method":"resources/read","params":{"uri":"file:///etc/passwd"}}`, refusal{`"s"`, -32601, "METHOD_NOT_FOUND", 0}, 200},
	{"a notification's name as a request", `{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}`, refusal{"1", -32601, "METHOD_NOT_FOUND", 0}, 200},
	{"hidden tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__hidden"}}`, refusal{"1", -32601, "TOOL_NOT_FOUND", 0}, 200},
	{"made up cursor", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}`, refusal{"1", -32602, "INVALID_PARAMS", 0}, 200},
	{"cursor of a hidden tool", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"YWZ0ZXI6aGlkZGVu"}}`, refusal{"1", -32602, "INVALID_PARAMS", 0}, 200},
	{"cursor that is no string", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":1}}`, refusal{"1", -32602, "INVALID_PARAMS", 0}, 200},
	{"too large", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":"` + strings.Repeat("x", 5000) + `"}}}`, refusal{"1", -32600, "TOO_LARGE", 0}, 200},
	{"too large, id last", `{"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":"` + strings.Repeat("x", 5000) + `"}},"jsonrpc":"2.0","id":1}`, refusal{"1", -32600, "TOO_LARGE", 0}, 200},
	{"too large without id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"demo__echo","arguments":{"id":1,"a":"` + strings.Repeat("x", 5000) + `"}}}`, refusal{"null", -32600, "TOO_LARGE", 0}, 400},
	{"denied by the gate", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__denied"}}`, refusal{"1", -32600, "POLICY_DENIED", 1}, 200},
	{"limited by the gate", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__limited"}}`, refusal{"1", -32001, "RATE_LIMITED", 1}, 200},
}

func small(o *mcp.Options) { o.Limits.Bytes = 4096 }

func TestDenialsOverHTTP(t *testing.T) {
	for _, tt := range denials {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate()
			srv, _ := newServer(t, g, small)
			h := open(t, srv, "alice")
			res, body := h.post(tt.body)
			if res.StatusCode != tt.http {
				t.Errorf("status %d, want %d", res.StatusCode, tt.http)
			}
			if diff := cmp.Diff(tt.want, refusalOf(t, body, g)); diff != "" {
				t.Errorf("answer (-want +got):\n%s\n%s", diff, body)
			}
			if _, body := h.post(`{"jsonrpc":"2.0","id":"after","method":"ping"}`); body != `{"jsonrpc":"2.0","id":"after","result":{}}` {
				t.Errorf("the session does not go on: %s", body)
			}
		})
	}
}

func TestDenialsOverStdio(t *testing.T) {
	for _, tt := range denials {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate()
			c := dial(t, newDoor(t, g, small)).open()
			body := c.Ask(tt.body)
			if diff := cmp.Diff(tt.want, refusalOf(t, body, g)); diff != "" {
				t.Errorf("answer (-want +got):\n%s\n%s", diff, body)
			}
			if body := c.Ask(`{"jsonrpc":"2.0","id":"after","method":"ping"}`); body != `{"jsonrpc":"2.0","id":"after","result":{}}` {
				t.Errorf("the connection does not go on: %s", body)
			}
		})
	}
}

// TestRefusalsAreRecorded: what a door refuses by itself leaves a record.
func TestRefusalsAreRecorded(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	h.post(`{"jsonrpc":"2.0","id":1,"method":"resources/read"}`)
	h.post(`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"demo__echo"}}`)
	nobody := &far{t: t, url: srv.URL + "/mcp", who: "mallory"}
	nobody.post(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	nobody.post(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"demo__echo"}}`)
	lost := &far{t: t, url: srv.URL + "/mcp", who: "alice", session: "gone"}
	lost.post(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"demo__echo"}}`)
	want := []string{
		"T0_ENVELOPE_METHOD resources/read",
		"T0_ENVELOPE_INVALID tools/call",
		"T0_IDENTITY_UNAUTHENTICATED tools/call",
		"T0_SESSION_LOST tools/call",
	}
	if diff := cmp.Diff(want, g.refusals()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestAuthenticationOverStdio: the stdio door judges each message, so that a
// token that is revoked stops its client.
func TestAuthenticationOverStdio(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, func(o *mcp.Options) { o.Stdio.Bearer = "forged" }))
	want := refusal{"1", -32600, "UNAUTHENTICATED", 0}
	got := refusalOf(t, c.Ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"}}`), g)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func refusalOf(t *testing.T, body string, g *fakeGate) refusal {
	t.Helper()
	var m struct {
		ID    json.RawMessage
		Error struct {
			Code int
			Data struct{ Code string }
		}
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("answer %q: %v", body, err)
	}
	return refusal{string(m.ID), m.Error.Code, m.Error.Data.Code, g.calls()}
}

// far is the client end of an HTTP session.
type far struct {
	t       testing.TB
	url     string
	who     string
	session string
}

// open does the handshake on /mcp.
func open(t testing.TB, srv *httptest.Server, who string) *far {
	t.Helper()
	return openAt(t, srv.URL+"/mcp", who)
}

func openAt(t testing.TB, url, who string) *far {
	t.Helper()
	h := &far{t: t, url: url, who: who}
	res, body := h.post(initialize)
	if h.session = res.Header.Get("Mcp-Session-Id"); h.session == "" {
		t.Fatalf("initialize gave no session: %d %s", res.StatusCode, body)
	}
	return h
}

// request makes a request of the session.
func (h *far) request(method, body string) *http.Request {
	h.t.Helper()
	req, err := http.NewRequest(method, h.url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	standardHeaders(req, h.who)
	if h.session != "" {
		req.Header.Set("Mcp-Session-Id", h.session)
	}
	return req
}

// post sends body and gives the whole answer.
func (h *far) post(body string) (*http.Response, string) {
	h.t.Helper()
	return h.do(h.request(http.MethodPost, body))
}

func (h *far) do(req *http.Request) (*http.Response, string) {
	h.t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return res, string(answer)
}

// status sends body and gives the status of the answer.
func (h *far) status(method, body string) int {
	h.t.Helper()
	res, _ := h.do(h.request(method, body))
	return res.StatusCode
}

// A client that declared URL elicitation gets the error of the protocol, on every endpoint; on that
// of one server everybody does.
func TestConnectionRequired(t *testing.T) {
	const list = `[{"mode":"url","elicitationId":"dec_1","url":"https://console.example.org/connections/demo","message":"connect"}]`
	for name, tt := range map[string]struct {
		path    string
		elicits bool
		want    int
	}{
		"all servers":          {"/mcp", false, -32600},
		"all servers, elicits": {"/mcp", true, -32042},
		"one server":           {"/mcp/demo", false, -32042},
		"one server, elicits":  {"/mcp/demo", true, -32042},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			g.behave["echo"] = func(_ context.Context, g *fakeGate, _ *proxy.Call, _ json.RawMessage) (json.RawMessage, *proxy.Failure) {
				f := g.fail(signal.CodeConnectionRequired, "you are not connected")
				f.Elicitations, f.Elicits = json.RawMessage(list), tt.elicits
				return nil, f
			}
			tool := "echo"
			if tt.path == "/mcp" {
				tool = "demo__echo"
			}
			rec := serve(newDoor(t, g, nil), sessionless("alice", tt.path, "tools/call", `"name":"`+tool+`"`))
			var m struct {
				Error struct {
					Code int
					Data struct {
						Code         string
						Elicitations json.RawMessage
					}
				}
			}
			if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil || rec.Code != http.StatusOK {
				t.Fatalf("%d %v: %s", rec.Code, err, rec.Body)
			}
			if m.Error.Code != tt.want || m.Error.Data.Code != "CONNECTION_REQUIRED" || (string(m.Error.Data.Elicitations) == list) != (tt.want == -32042) {
				t.Errorf("got %s", rec.Body)
			}
		})
	}
}
