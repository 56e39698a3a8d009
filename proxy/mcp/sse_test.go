package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/wire"
)

// older is a client of HTTP+SSE.
type older struct {
	*far
	stream   *flow
	endpoint string
}

// openSSE opens a stream and reads where to post.
func openSSE(t testing.TB, srv *httptest.Server, path, who string) *older {
	t.Helper()
	h := &far{t: t, url: srv.URL + path, who: who}
	o := &older{far: h, stream: h.flow(h.request(http.MethodGet, ""))}
	e, _ := o.stream.next()
	if !strings.HasPrefix(e.data, "/messages?sessionId=") || len(e.data) != len("/messages?sessionId=")+26 {
		t.Fatalf("the stream begins with %+v", e)
	}
	o.endpoint = srv.URL + e.data
	o.url = o.endpoint
	return o
}

// greet does the handshake.
func (o *older) greet(version string) *older {
	o.t.Helper()
	answer := o.ask(strings.Replace(initialize, "2025-11-25", version, 1))
	if !strings.Contains(answer, `"protocolVersion":"`+version+`"`) {
		o.t.Fatalf("initialize: %s", answer)
	}
	if got := o.status(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); got != http.StatusAccepted {
		o.t.Fatalf("initialized: status %d", got)
	}
	return o
}

// ask posts one message and gives what comes on the stream, or the body of a
// refusal.
func (o *older) ask(body string) string {
	o.t.Helper()
	res, answer := o.post(body)
	if res.StatusCode != http.StatusAccepted {
		return fmt.Sprint(res.StatusCode, " ", answer)
	}
	if answer != "" {
		o.t.Errorf("202 with a body: %s", answer)
	}
	return o.receive()
}

// receive reads the next message.
func (o *older) receive() string {
	o.t.Helper()
	e, ok := o.stream.next()
	if !ok || e.id != "" {
		o.t.Fatalf("the stream gave %+v, %v", e, ok)
	}
	return e.data
}

func TestOlderClient(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	for path, tool := range map[string]string{"/sse": "demo__steps", "/sse/demo": "steps"} {
		o := openSSE(t, srv, path, "alice").greet("2024-11-05")
		if got := o.ask(ping); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("%s: ping: %s", path, got)
		}
		if got := o.ask(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`); !strings.Contains(got, `"name":"`+tool+`"`) {
			t.Errorf("%s: list: %s", path, got)
		}
		first := o.ask(strings.Replace(stepsCall, "demo__steps", tool, 1))
		got := []string{first, o.receive(), o.receive()}
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1, "total":2,"progressToken":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2,"total":2,"progressToken":1}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":""}], 	"big":9007199254740993}}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: call (-want +got):\n%s", path, diff)
		}
		if got := o.ask(initialize); !strings.Contains(got, "initialized already") {
			t.Errorf("%s: initialize again: %s", path, got)
		}
	}
}

// TestDenialsOverSSE: the same denials as over /mcp; what has an id is answered
// on the stream, what has none by the POST.
func TestDenialsOverSSE(t *testing.T) {
	for _, tt := range denials {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate()
			srv, _ := newServer(t, g, small)
			o := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
			body, refused := strings.CutPrefix(o.ask(tt.body), "400 ")
			if refused != (tt.want.ID == "null") {
				t.Errorf("refused by the POST %v: %s", refused, body)
			}
			if diff := cmp.Diff(tt.want, refusalOf(t, body, g)); diff != "" {
				t.Errorf("answer (-want +got):\n%s\n%s", diff, body)
			}
			if body := o.ask(`{"jsonrpc":"2.0","id":"after","method":"ping"}`); body != `{"jsonrpc":"2.0","id":"after","result":{}}` {
				t.Errorf("the session does not go on: %s", body)
			}
		})
	}
}

// TestOlderNeedsHandshake: nothing is called before initialize.
func TestOlderNeedsHandshake(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	o := openSSE(t, srv, "/sse", "alice")
	if got := refusalOf(t, o.ask(echoCall), g); got.Code != "INVALID_ENVELOPE" || got.Calls != 0 {
		t.Errorf("got %+v", got)
	}
}

// TestOlderSessionBelongs: a session is worth nothing to another principal, nor
// on the other transport, nor when its stream has ended.
func TestOlderSessionBelongs(t *testing.T) {
	g := newGate()
	ended := make(chan string, 1)
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.Ended = func(key string) { ended <- key } })
	o := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	_, id, _ := strings.Cut(o.endpoint, "=")
	newer := open(t, srv, "alice")
	base := srv.URL + "/messages"
	for _, tt := range []struct {
		name string
		who  *far
		want int
	}{
		{"another principal", &far{t: t, url: o.endpoint, who: "bob"}, 404},
		{"a sender", &far{t: t, url: o.endpoint, who: "mallory"}, 401},
		{"unknown", &far{t: t, url: base + "?sessionId=x", who: "alice"}, 404},
		{"no id", &far{t: t, url: base, who: "alice"}, 404},
		{"two ids", &far{t: t, url: o.endpoint + "&sessionId=" + id, who: "alice"}, 404},
		{"the id of a newer session", &far{t: t, url: base + "?sessionId=" + newer.session, who: "alice"}, 404},
		{"on the newer transport", &far{t: t, url: srv.URL + "/mcp", who: "alice", session: id}, 404},
	} {
		if got := tt.who.status(http.MethodPost, echoCall); got != tt.want {
			t.Errorf("%s: status %d, want %d", tt.name, got, tt.want)
		}
	}
	if g.calls() != 0 {
		t.Errorf("%d calls reached a tool", g.calls())
	}
	_ = o.stream.body.Close()
	<-ended
	if got := o.status(http.MethodPost, echoCall); got != http.StatusNotFound {
		t.Errorf("after the stream: status %d, want 404", got)
	}
}

func TestOlderPaths(t *testing.T) {
	srv, _ := newServer(t, newGate(), nil)
	for _, tt := range []struct {
		method, path, who string
		want              int
		allow             string
	}{
		{"POST", "/sse", "alice", 405, "GET"}, // newer clients try this first
		{"DELETE", "/sse", "alice", 405, "GET"},
		{"GET", "/messages", "alice", 405, "POST"},
		{"GET", "/sse/nowhere", "alice", 404, ""},
		{"GET", "/sse/nowhere", "mallory", 401, ""},
		{"GET", "/sse", "mallory", 401, ""},
		{"GET", "/sse/", "alice", 404, ""},
		{"GET", "/sse/demo/x", "alice", 404, ""},
		{"GET", "/ss%65", "alice", 404, ""},
		{"GET", "/sse/d%2Fx", "alice", 404, ""},
		{"POST", "/messages/demo", "alice", 404, ""},
	} {
		h := &far{t: t, url: srv.URL + tt.path, who: tt.who}
		ctx, cancel := context.WithCancel(t.Context())
		res, err := http.DefaultClient.Do(h.request(tt.method, "").WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != tt.want || res.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d %q, want %d %q", tt.method, tt.path, res.StatusCode, res.Header.Get("Allow"), tt.want, tt.allow)
		}
		cancel()
		_ = res.Body.Close()
	}
	foreign := (&far{t: t, url: srv.URL + "/sse", who: "alice"}).request(http.MethodGet, "")
	foreign.Header.Set("Origin", "https://example.com")
	plain := (&far{t: t, url: srv.URL + "/sse", who: "alice"}).request(http.MethodGet, "")
	plain.Header.Set("Accept", "application/json")
	for want, req := range map[int]*http.Request{403: foreign, 406: plain} {
		if res, _ := (&far{t: t}).do(req); res.StatusCode != want {
			t.Errorf("status %d, want %d", res.StatusCode, want)
		}
	}
}

// TestOlderHangUp: a stream that ends ends its session and no call.
func TestOlderHangUp(t *testing.T) {
	g := newGate()
	results, ended := make(chan error, 1), make(chan string, 1)
	before := g.behave["wait"]
	g.behave["wait"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		defer func() { results <- ctx.Err() }()
		return before(ctx, g, in, args)
	}
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.Ended = func(key string) { ended <- key } })
	o := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	if got := o.status(http.MethodPost, waitCall); got != http.StatusAccepted {
		t.Fatalf("status %d", got)
	}
	<-g.started
	_ = o.stream.body.Close()
	for o.status(http.MethodPost, ping) != http.StatusNotFound { // until the door has noticed
	}
	select {
	case <-ended:
		t.Error("the session was reported as over during a call")
	default:
	}
	close(g.release)
	if err := <-results; err != nil {
		t.Errorf("the call ended with its client: %v", err)
	}
	<-ended
}

// TestOlderCancel: a cancelled call is not answered, and the session goes on.
func TestOlderCancel(t *testing.T) {
	g, calls := newGate(), make(chan struct{}, 1)
	srv, _ := newServer(t, g, overs(calls))
	o := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	o.post(waitCall)
	<-g.started
	o.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-calls
	if got := o.ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("got %s", got)
	}
}

// TestOlderListChanged: a client hears of changes once it is ready, of those
// since it could list anything.
func TestOlderListChanged(t *testing.T) {
	srv, d := newServer(t, newGate(), nil)
	o := openSSE(t, srv, "/sse", "alice")
	d.ToolsChanged()
	o.ask(initialize)
	d.ToolsChanged()
	if got := o.ask(ping); !strings.Contains(got, `"id":1`) {
		t.Errorf("before it was ready: %s", got)
	}
	o.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := o.receive(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("got %s", got)
	}
}

// TestOlderClose: a closing door gives the answers that are due, then ends the
// stream; a stream that waits for nothing ends at once.
func TestOlderClose(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	busy, idle := openSSE(t, srv, "/sse", "alice").greet("2024-11-05"), openSSE(t, srv, "/sse", "bob").greet("2024-11-05")
	busy.post(waitCall)
	busy.post(strings.Replace(waitCall, `"id":1`, `"id":2`, 1))
	<-g.started
	<-g.started
	closed := make(chan error, 1)
	go func() { closed <- d.Close(context.Background()) }()
	if e, ok := idle.stream.next(); ok {
		t.Errorf("the idle client got %+v", e)
	}
	for range 2 {
		g.release <- struct{}{}
		if got := busy.receive(); !strings.Contains(got, `"result"`) {
			t.Errorf("got %s", got)
		}
	}
	if e, ok := busy.stream.next(); ok {
		t.Errorf("after the answer: %+v", e)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestOlderRoom: sessions of both transports share one bound, and give way alike.
func TestOlderRoom(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.MaxSessions = 2 })
	first := openSSE(t, srv, "/sse", "alice")
	open(t, srv, "alice")
	open(t, srv, "alice")
	if e, ok := first.stream.next(); ok {
		t.Errorf("the oldest got %+v, want its end", e)
	}
	a, b := openSSE(t, srv, "/sse", "alice").greet("2024-11-05"), openSSE(t, srv, "/sse", "bob").greet("2024-11-05")
	for _, o := range []*older{a, b} {
		o.post(waitCall)
		<-g.started
	}
	third := &far{t: t, url: srv.URL + "/sse", who: "bob"}
	if got := third.status(http.MethodGet, ""); got != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", got)
	}
	close(g.release)
}

// TestOlderFlights: requests of one client beyond those that run wait, and what they
// take is bounded; pings do not wait.
func TestOlderFlights(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.MaxFlights, o.Limits.Bytes = 1, 4096 })
	o := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	o.post(waitCall)
	<-g.started
	o.post(sizedCall(2))
	if got := refusalOf(t, o.ask(sizedCall(3)), g); got.Code != "OVERLOADED" {
		t.Errorf("got %+v", got)
	}
	if got := o.ask(`{"jsonrpc":"2.0","id":4,"method":"ping"}`); !strings.Contains(got, `"id":4,"result"`) {
		t.Errorf("ping: %s", got)
	}
	close(g.release)
	for id := 1; id <= 2; id++ {
		if got := o.receive(); !strings.Contains(got, fmt.Sprintf(`"id":%d,"result"`, id)) {
			t.Errorf("answer %d: %.100s", id, got)
		}
	}
}

// TestOlderSlowReader: a client that does not read loses its session; the call
// is held up for a moment only.
func TestOlderSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, took := newGate(), make(chan time.Duration, 1)
		g.behave["report"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
			began := time.Now()
			for range 1000 {
				in.Progress(json.RawMessage(`{"progress":1}`))
			}
			took <- time.Since(began)
			return echo(ctx, g, in, args)
		}
		d, err := mcp.New(mcp.Options{Gate: g, Refuser: g})
		if err != nil {
			t.Fatal(err)
		}
		w := &reluctant{stuck: stuck{header: http.Header{}}, endpoint: make(chan string, 1)}
		ended := make(chan struct{})
		go func() {
			req := httptest.NewRequest(http.MethodGet, "http://localhost/sse", nil)
			standardHeaders(req, "alice")
			d.ServeHTTP(w, req)
			close(ended)
		}()
		endpoint := <-w.endpoint
		for _, body := range []string{initialize, reportCall} {
			req := httptest.NewRequest(http.MethodPost, "http://localhost"+endpoint, strings.NewReader(body))
			standardHeaders(req, "alice")
			rec := httptest.NewRecorder()
			d.ServeHTTP(rec, req)
			if rec.Code != http.StatusAccepted {
				t.Errorf("status %d", rec.Code)
			}
		}
		if took := <-took; took > 5*time.Second {
			t.Errorf("the call was held up for %v", took)
		}
		<-ended
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// reluctant reads the endpoint and nothing more.
type reluctant struct {
	stuck
	endpoint chan string
}

func (w *reluctant) Write(data []byte) (int, error) {
	if where, ok := strings.CutPrefix(string(data), "event: endpoint\ndata: "); ok {
		w.endpoint <- strings.TrimSpace(where)
		return len(data), nil
	}
	return w.stuck.Write(data)
}

// TestOlderEvents: the envelope log names the road, not the path.
func TestOlderEvents(t *testing.T) {
	events := make(chan wire.Event, 10)
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.Observe = func(e wire.Event) { events <- e } })
	o := openSSE(t, srv, "/sse/demo", "alice").greet("2024-11-05")
	o.ask(strings.Replace(echoCall, "demo__", "", 1))
	var got []string
	session := ""
	for range 3 {
		e := <-events
		if session == "" {
			session = e.Session
		}
		if e.Session != session || session == "" {
			t.Errorf("session %q, want %q", e.Session, session)
		}
		got = append(got, strings.Join([]string{e.Transport, e.Route, e.Method, e.Status}, " "))
	}
	want := []string{"http /mcp/demo initialize ok", "http /mcp/demo notifications/initialized accepted", "http /mcp/demo tools/call ok"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestOlderBytes: the stream as it is on the wire.
func TestOlderBytes(t *testing.T) {
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.Heartbeat = time.Hour })
	h := &far{t: t, url: srv.URL + "/sse", who: "alice"}
	res, err := http.DefaultClient.Do(h.request(http.MethodGet, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	r := bufio.NewReader(res.Body)
	endpoint := event(t, r)
	_, where, _ := strings.Cut(strings.TrimSpace(endpoint), "data: ")
	h.url = srv.URL + where
	h.post(ping)
	want := "event: endpoint\ndata: " + where + "\n" + "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"
	if got := endpoint + event(t, r); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := res.Header.Get("Content-Type") + " " + res.Header.Get("Cache-Control"); got != "text/event-stream no-store" {
		t.Errorf("headers %q", got)
	}
}
