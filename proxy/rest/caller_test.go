package rest_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

const anyArtifact = "/v1/artifacts/sha256:0000000000000000000000000000000000000000000000000000000000000000"

// everything is each route with a request that alice may make.
var everything = []struct {
	method, path, body, accept string
	status                     int
}{
	{"POST", "/v1/jobs", `{"query":"a"}`, "application/json", 200},
	{"POST", "/v1/rpc", `{"jsonrpc":"2.0","id":"1","method":"ping","params":{}}`, "application/json", 200},
	{"GET", "/v1/tools", "", "application/json", 200},
	{"HEAD", "/v1/tools", "", "application/json", 200},
	{"GET", anyArtifact, "", "", 404},
	{"HEAD", anyArtifact, "", "", 404},
	{"GET", "/v1/signals", "", "text/event-stream", 200},
	{"GET", "/v1/openapi.json", "", "application/json", 200},
}

// TestStrangers: nobody comes in unknown, whatever else they send; only a call
// of theirs leaves a record.
func TestStrangers(t *testing.T) {
	d := open(t, nil)
	for _, route := range everything {
		for _, header := range []string{
			"X: y", "Authorization: Bearer", "Authorization: Bearer unknown", "Authorization: Basic YWxpY2U6", "Authorization: alice-token",
			"X-Forwarded-User: alice", "X-Api-Key: alice-token", "Cookie: token=alice-token",
		} {
			want := 401
			if route.path == "/v1/openapi.json" {
				want = 200
			}
			got := d.do("", route.method, route.path, route.body, header)
			if got.status != want || (got.head.Get("WWW-Authenticate") == "") == (want == 401) {
				t.Errorf("%s %s with %s: status %d, %v", route.method, route.path, header, got.status, got.head)
			}
		}
		req := d.request("", route.method, route.path, route.body)
		req.Header["Authorization"] = []string{"Bearer alice-token", "Bearer alice-token"}
		if got := d.send(req); got.status == route.status && route.path != "/v1/openapi.json" {
			t.Errorf("%s %s with two credentials: status %d", route.method, route.path, got.status)
		}
	}
	if n, last := d.records(); n != 0 {
		t.Errorf("%d records of what were no calls, the last %+v", n, last)
	}
	told := d.told()
	if len(told) != 9 {
		t.Errorf("%d events of 9 envelopes", len(told))
	}
	for _, e := range told {
		if e.Status != wire.StatusError || e.Method != "ping" || e.DecisionID != "" || !bytes.Contains(e.Error, []byte(`"UNAUTHENTICATED"`)) {
			t.Errorf("event %+v", e)
		}
	}
}

// TestUnauthenticatedCalls: an unauthenticated call is refused with a record of what was
// wanted, however malformed it is otherwise.
func TestUnauthenticatedCalls(t *testing.T) {
	for _, tt := range []struct{ name, path, body string }{
		{"a job", "/v1/jobs", echoJob},
		{"a job with a fault", "/v1/jobs", `{"tool":"demo__echo","args":[1],"more":1}`},
		{"an envelope", "/v1/rpc", `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__echo"}}`},
	} {
		d := open(t, nil)
		got := d.do("mallory", http.MethodPost, tt.path, tt.body)
		n, last := d.records()
		if got.status != 401 || n != 1 || last.Code != signal.CodeUnauthenticated || last.Principal.Subject != "" || got.text("/decision_id") != last.DecisionID {
			t.Errorf("%s: status %d, %d records, the last %+v: %s", tt.name, got.status, n, last, got.body)
		}
		if sent := d.reached(); sent != nil {
			t.Errorf("%s: a tool got %q", tt.name, sent)
		}
		if told := d.told(); tt.path == "/v1/rpc" && (len(told) != 1 || told[0].DecisionID != last.DecisionID) {
			t.Errorf("%s: events %+v", tt.name, told)
		}
	}
}

// TestStrangersAreBrief: little is read of somebody who is not known.
func TestStrangersAreBrief(t *testing.T) {
	d := open(t, nil)
	long := strings.Replace(echoJob, "say it", strings.Repeat("x", 100_000), 1)
	if got := d.job("mallory", long); got.status != 401 {
		t.Errorf("status %d", got.status)
	}
	if n, _ := d.records(); n != 0 {
		t.Error("the whole body was read")
	}
}

// TestGuards: at every route, what a browser on another site can send does not
// come in, and what cannot be read is said to be so before anybody is asked
// for.
func TestGuards(t *testing.T) {
	d := open(t, nil)
	for _, route := range everything {
		for _, tt := range []struct {
			header string
			status int
			code   string
			posts  bool // only where there is a body
			reads  bool // only where the answer has one type
		}{
			{"Host: evil.example", 403, "HOST_REFUSED", false, false},
			{"Host: localhost.evil.example", 403, "HOST_REFUSED", false, false},
			{"Origin: http://evil.example", 403, "HOST_REFUSED", false, false},
			{"Origin: null", 403, "HOST_REFUSED", false, false},
			{"Content-Type: text/plain", 415, "UNSUPPORTED_MEDIA_TYPE", true, false},
			{"Content-Type: (none)", 415, "UNSUPPORTED_MEDIA_TYPE", true, false},
			{"Content-Type: application/json; charset=utf-16", 415, "UNSUPPORTED_MEDIA_TYPE", true, false},
			{"Content-Encoding: gzip", 415, "UNSUPPORTED_MEDIA_TYPE", true, false},
			{"Accept: text/html", 406, "NOT_ACCEPTABLE", false, true},
			{"Accept: */*;q=0", 406, "NOT_ACCEPTABLE", false, true},
		} {
			if tt.posts && route.body == "" || tt.reads && route.accept == "" {
				continue
			}
			got := d.do("alice", route.method, route.path, route.body, tt.header)
			if got.status != tt.status || route.method != "HEAD" && got.text("/code") != tt.code {
				t.Errorf("%s %s with %s: status %d, want %d %s: %s", route.method, route.path, tt.header, got.status, tt.status, tt.code, got.body)
			}
			if got.head.Get("Access-Control-Allow-Origin") != "" || got.head.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s %s: headers %v", route.method, route.path, got.head)
			}
		}
		if route.path == "/v1/signals" {
			continue // it would not end
		}
		for _, header := range []string{"Host: localhost:1", "Host: GATE.example", "Origin: http://localhost:3000", "Origin: https://gate.example", "Accept: " + route.accept, "Accept: (none)"} {
			if got := d.do("alice", route.method, route.path, route.body, header); got.status != route.status {
				t.Errorf("%s %s with %s: status %d, want %d", route.method, route.path, header, got.status, route.status)
			}
		}
	}
	if n, _ := d.records(); n != 0 {
		t.Errorf("%d records", n)
	}
}

// TestMethods: a path takes its methods and says which.
func TestMethods(t *testing.T) {
	d := open(t, nil)
	for _, route := range everything {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} {
			served := false
			for _, other := range everything {
				served = served || other.path == route.path && (other.method == method || other.method == "GET" && method == "HEAD" && other.path != "/v1/signals")
			}
			if served {
				continue
			}
			got := d.do("alice", method, route.path, "")
			if got.status != 405 || !strings.Contains(got.head.Get("Allow"), route.method) || strings.Contains(got.head.Get("Allow"), method) {
				t.Errorf("%s %s: status %d, Allow %q", method, route.path, got.status, got.head.Get("Allow"))
			}
		}
	}
}

// TestPaths: only the canonical spelling of a path is one, but for the colon
// in an artifact's id.
func TestPaths(t *testing.T) {
	d := open(t, nil)
	for path, code := range map[string]string{
		"/": "NOT_FOUND", "/v1": "NOT_FOUND", "/v1/": "NOT_FOUND", "/v1/tools/": "NOT_FOUND", "//v1/tools": "NOT_FOUND", "/V1/tools": "NOT_FOUND",
		"/v1/%74ools": "NOT_FOUND", "/v1/tools%2f": "NOT_FOUND", "/v1/artifacts": "NOT_FOUND", "/v1/artifacts/": "NOT_FOUND", "/v1/artifacts/{id}": "ARTIFACT_NOT_FOUND",
		"/v1/artifacts/a/b": "NOT_FOUND", "/v1/artifacts/..": "ARTIFACT_NOT_FOUND", "/v1/approvals": "NOT_FOUND", "/v1/audit/tail": "NOT_FOUND",
		"/v1/artifacts/sha256%3A00": "ARTIFACT_NOT_FOUND", "/v1/artifacts/sha256%3a00": "ARTIFACT_NOT_FOUND", "/v1/artifacts/%73ha256:00": "NOT_FOUND",
		"/v1/artifacts/sha256:" + strings.Repeat("G", 64): "ARTIFACT_NOT_FOUND",
	} {
		if got := d.do("alice", http.MethodGet, path, ""); got.status != 404 || got.text("/code") != code {
			t.Errorf("GET %s: status %d %s, want 404 %s", path, got.status, got.text("/code"), code)
		}
	}
}

// TestShortBody: a body that ends before its length is nobody's job.
func TestShortBody(t *testing.T) {
	d := open(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice-token\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
	if _, err := conn.Write([]byte(head + echoJob)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(conn); err != nil || !strings.Contains(got.String(), " 400 ") || !strings.Contains(got.String(), "BODY_INCOMPLETE") {
		t.Errorf("%v: %q", err, got.String())
	}
	if d.reached() != nil {
		t.Error("half a job was done")
	}
}

// TestNew: a handler without a control is no handler.
func TestNew(t *testing.T) {
	g := newGate(t, 0)
	whole := rest.Options{Gate: g, Refuser: g, ToolIO: g.ToolIO, Artifacts: g, Bus: g}
	if h, err := rest.New(whole); err != nil {
		t.Errorf("whole: %v", err)
	} else {
		h.Close()
		h.Close()
	}
	for name, without := range map[string]func(*rest.Options){
		"gate":      func(o *rest.Options) { o.Gate = nil },
		"refuser":   func(o *rest.Options) { o.Refuser = nil },
		"schemas":   func(o *rest.Options) { o.ToolIO = nil },
		"artifacts": func(o *rest.Options) { o.Artifacts = nil },
		"bus":       func(o *rest.Options) { o.Bus = nil },
	} {
		opts := whole
		without(&opts)
		if _, err := rest.New(opts); err == nil {
			t.Errorf("without %s: no error", name)
		}
	}
}

// TestNobodyIsNobody: a gate that identifies an empty principal lets nobody in.
func TestNobodyIsNobody(t *testing.T) {
	d := open(t, func(g *gate, o *rest.Options) { o.Gate = nobody{g} })
	for _, route := range everything[:7] {
		if got := d.do("alice", route.method, route.path, route.body); got.status != 401 {
			t.Errorf("%s %s: status %d", route.method, route.path, got.status)
		}
	}
}

// short denies every call that a token with another scope would pass.
type short struct{ *gate }

func (short) Call(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	f := failure(signal.CodePolicyDenied)
	f.Scopes = []string{"media", "payments"}
	return nil, f
}

// TestStepUp holds that the challenge names the scopes that a call needs, and /mcp, whose tokens are
// good here.
func TestStepUp(t *testing.T) {
	d := open(t, func(g *gate, o *rest.Options) { o.Gate = short{g} })
	const want = `Bearer error="insufficient_scope", scope="media payments", resource_metadata="/.well-known/oauth-protected-resource/mcp"`
	for name, got := range map[string]answer{
		"a job": d.job("alice", echoJob), "a message": d.rpc("alice", `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__echo","arguments":{}}}`),
	} {
		if got.status != http.StatusForbidden || got.head.Get("WWW-Authenticate") != want || !strings.Contains(got.body, `"code":"POLICY_DENIED"`) {
			t.Errorf("%s: %d %v %s", name, got.status, got.head, got.body)
		}
	}
}
