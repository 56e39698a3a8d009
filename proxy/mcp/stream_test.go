package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/proxy/mcp"
)

const waitCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__wait","arguments":{"n":1}}}`

// record serves one request in process.
func record(d *mcp.Door, who, session, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(body))
	standardHeaders(req, who)
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	rec := httptest.NewRecorder()
	d.ServeHTTP(rec, req)
	return rec
}

// events opens the event stream of h and reads the event that it begins with.
func (h *far) events(ctx context.Context) *bufio.Reader {
	h.t.Helper()
	res, err := http.DefaultClient.Do(h.request(http.MethodGet, "").WithContext(ctx))
	if err != nil {
		h.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		h.t.Fatalf("GET: %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	h.t.Cleanup(func() { _ = res.Body.Close() })
	r := bufio.NewReader(res.Body)
	if first, ok := strings.CutPrefix(nextEvent(h.t, r), "id: "); !ok || !strings.HasSuffix(first, "-0\nretry: 1000\ndata: \n") {
		h.t.Errorf("the stream begins with %q", first)
	}
	return r
}

// event reads one event without its id, or a comment.
func event(t testing.TB, r *bufio.Reader) string {
	t.Helper()
	all := nextEvent(t, r)
	if id, rest, ok := strings.Cut(all, "\n"); ok && strings.HasPrefix(id, "id: ") {
		return rest
	}
	return all
}

// nextEvent reads one event or comment.
func nextEvent(t testing.TB, r *bufio.Reader) string {
	t.Helper()
	var all strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("reading events: %v", err)
		}
		if line == "\n" {
			return all.String()
		}
		all.WriteString(line)
	}
}

const reportCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__report","_meta":{"progressToken":1}}}`

const listChanged = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n"

func TestListChanged(t *testing.T) {
	srv, d := newServer(t, newGate(), nil)
	alice, bob := open(t, srv, "alice"), openAt(t, srv.URL+"/mcp/demo", "bob")
	a, b := alice.events(t.Context()), bob.events(t.Context())
	d.ToolsChanged()
	for name, r := range map[string]*bufio.Reader{"alice": a, "bob": b} {
		if got := event(t, r); got != listChanged {
			t.Errorf("%s got %q", name, got)
		}
	}
}

// TestWhoseListChanged: who sees what a server offers hears of its lists, and of
// no other's. What a server says itself of a list comes to the same.
func TestWhoseListChanged(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	all, demo, other := open(t, srv, "alice"), openAt(t, srv.URL+"/mcp/demo", "alice"), openAt(t, srv.URL+"/mcp/other", "alice")
	home := all.home(g)
	for range 2 {
		d.ListChanged("demo", "notifications/resources/list_changed")
		d.ListChanged("demo", "notifications/prompts/list_changed")
		d.ListChanged("demo", "notifications/vendor/list_changed")
		home.Tell("notifications/prompts/list_changed", json.RawMessage(`{"_meta":{}}`))
	}
	d.ListChanged("other", "notifications/tools/list_changed")
	changed := func(kinds ...string) string {
		var all strings.Builder
		for _, kind := range kinds {
			all.WriteString(strings.Replace(listChanged, "tools", kind, 1))
		}
		return all.String()
	}
	for _, tt := range []struct {
		name string
		h    *far
		want []string
	}{{"/mcp/demo", demo, []string{"resources", "prompts"}}, {"/mcp/other", other, []string{"tools"}}, {"/mcp", all, []string{"tools", "resources", "prompts"}}} {
		r := tt.h.events(t.Context())
		var got strings.Builder
		for range tt.want {
			got.WriteString(event(t, r))
		}
		if want := changed(tt.want...); got.String() != want {
			t.Errorf("%s got %q, want %q", tt.name, got.String(), want)
		}
		tt.h.post(talkOn(tt.name)) // nothing else was left
		if got := event(t, r); got != "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n" {
			t.Errorf("%s then got %q", tt.name, got)
		}
	}
}

// talkOn calls the tool talk of a road, which then tells something.
func talkOn(road string) string {
	call := talkCall(`{"home":true,"tell":[{"method":"notifications/message","params":{}}]}`)
	if road != "/mcp" {
		call = strings.Replace(call, "demo__", "", 1)
	}
	return call
}

// TestChangedOverStdio: a client hears of changes when it is ready.
func TestChangedOverStdio(t *testing.T) {
	d := newDoor(t, newGate(), nil)
	c := dial(t, d)
	c.Ask(initialize)
	d.ListChanged("demo", "notifications/prompts/list_changed")
	if got := c.Ask(ping); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
		t.Errorf("before it is ready it hears %s", got)
	}
	c.Send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := c.Receive(); got != `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}` {
		t.Errorf("heard %s", got)
	}
}

// TestMissedChange: a change while nobody listened is told once, to the next
// stream.
func TestMissedChange(t *testing.T) {
	srv, d := newServer(t, newGate(), func(o *mcp.Options) { o.Heartbeat = time.Millisecond })
	h := open(t, srv, "alice")
	d.ToolsChanged()
	d.ToolsChanged()
	r := h.events(t.Context())
	var got []string
	for beats := 0; beats < 3; {
		e := event(t, r)
		if strings.HasPrefix(e, ":") {
			beats++
			continue
		}
		got = append(got, e)
	}
	if len(got) != 1 || got[0] != listChanged {
		t.Errorf("got %q", got)
	}
}

// TestStreamEnds: with its session, its door, and when a newer one takes over.
func TestStreamEnds(t *testing.T) {
	srv, d := newServer(t, newGate(), nil)
	h := open(t, srv, "alice")
	first := h.events(t.Context())
	second := h.events(t.Context())
	if _, err := first.ReadByte(); err != io.EOF {
		t.Errorf("the older stream: %v, want EOF", err)
	}
	h.status(http.MethodDelete, "")
	if _, err := second.ReadByte(); err != io.EOF {
		t.Errorf("the stream of an ended session: %v, want EOF", err)
	}
	third := open(t, srv, "alice").events(t.Context())
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := third.ReadByte(); err != io.EOF {
		t.Errorf("the stream of a closed door: %v, want EOF", err)
	}
}

// TestListeningIsUse: a session whose client only listens does not end.
func TestListeningIsUse(t *testing.T) {
	c := &clock{at: time.Unix(1e9, 0)}
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.Now, o.SessionTTL = c.now, time.Minute })
	h := open(t, srv, "alice")
	h.events(t.Context())
	c.advance(time.Hour)
	if got := h.status(http.MethodPost, ping); got != http.StatusOK {
		t.Errorf("status %d, want 200", got)
	}
}

// stuck is a client that takes the head of an answer and nothing more.
type stuck struct {
	header   http.Header
	deadline time.Time
}

func (s *stuck) Header() http.Header                 { return s.header }
func (s *stuck) WriteHeader(int)                     {}
func (s *stuck) FlushError() error                   { return nil }
func (s *stuck) SetWriteDeadline(at time.Time) error { s.deadline = at; return nil }
func (s *stuck) Write([]byte) (int, error) {
	time.Sleep(time.Until(s.deadline)) // the bubble's clock
	return 0, context.DeadlineExceeded
}

// TestSlowReader: a client that does not read loses its stream, and a call
// that reports to one is held up only for a moment. What is then dropped is counted, and logged once.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		took := make(chan time.Duration, 1)
		g.behave["report"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
			began := time.Now()
			for range 1000 { // more than is kept
				in.Progress(json.RawMessage(`{"progress":1}`))
			}
			took <- time.Since(began)
			return echo(ctx, g, in, args)
		}
		var dropped atomic.Int64
		var log bytes.Buffer
		d, err := mcp.New(mcp.Options{Gate: g, Refuser: g, Crowded: func() { dropped.Add(1) }, Log: hclog.New(&hclog.LoggerOptions{Output: &log})})
		if err != nil {
			t.Fatal(err)
		}
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		ended := make(chan struct{})
		go func() {
			req := httptest.NewRequest(http.MethodGet, "http://localhost/mcp", nil)
			standardHeaders(req, "alice")
			req.Header.Set("Mcp-Session-Id", session)
			d.ServeHTTP(&stuck{header: http.Header{}}, req)
			close(ended)
		}()
		synctest.Wait()
		d.ToolsChanged()
		<-ended

		req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(reportCall))
		standardHeaders(req, "alice")
		req.Header.Set("Mcp-Session-Id", session)
		d.ServeHTTP(&stuck{header: http.Header{}}, req)
		if took := <-took; took > 5*time.Second {
			t.Errorf("the call was held up for %v", took)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		// The first event was written, and the last 256 are kept: of the 1000, those before the answer.
		if got := dropped.Load(); got != 1000-255 || strings.Count(log.String(), "does not read") != 1 {
			t.Errorf("%d messages dropped, want %d; log:\n%s", got, 1000-255, log.String())
		}
	})
}

// TestCancel: a cancelled call ends without an answer, and only by its own
// session and its own id, where "1" is not 1.
func TestCancel(t *testing.T) {
	g := newGate()
	causes := make(chan error, 1)
	g.behave["wait"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		result, f := wait(ctx, g, in, args)
		causes <- context.Cause(ctx)
		return result, f
	}
	srv, _ := newServer(t, g, nil)
	alice, other := open(t, srv, "alice"), open(t, srv, "alice")
	type ending struct {
		res  *http.Response
		body string
	}
	done := make(chan ending, 1)
	go func() {
		res, body := alice.post(waitCall)
		done <- ending{res, body}
	}()
	<-g.started
	other.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	alice.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`)
	alice.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	alice.post(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
	select {
	case e := <-done:
		t.Fatalf("the call was cancelled by another: %d %s", e.res.StatusCode, e.body)
	default:
	}
	if got := alice.status(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"`+strings.Repeat("no ", 200)+`"}}`); got != http.StatusAccepted {
		t.Errorf("status %d, want 202", got)
	}
	var cause interface{ CancelReason() string }
	if err := <-causes; !errors.As(err, &cause) || !strings.HasPrefix(cause.CancelReason(), "no no ") || len(cause.CancelReason()) > 259 {
		t.Errorf("the road ends with the cause %v", err)
	}
	e := <-done
	if e.res.StatusCode != http.StatusOK || e.res.Header.Get("Content-Type") != "text/event-stream" || e.body != "" {
		t.Errorf("a cancelled call was answered: %d %s", e.res.StatusCode, e.body)
	}
	if got := alice.status(http.MethodPost, ping); got != http.StatusOK {
		t.Errorf("afterwards: status %d", got)
	}
}

// TestCancelAndResult: a tool that answers although it was cancelled is not
// heard.
func TestCancelAndResult(t *testing.T) {
	g := newGate()
	g.behave["wait"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		g.started <- struct{}{}
		<-ctx.Done()
		return echo(ctx, g, in, args)
	}
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	done := make(chan string, 1)
	go func() {
		_, body := h.post(waitCall)
		done <- body
	}()
	<-g.started
	h.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if body := <-done; body != "" {
		t.Errorf("answer %s", body)
	}
}

// TestSpelledID: two spellings of one string are one id.
func TestSpelledID(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	done := make(chan string, 1)
	go func() {
		_, body := h.post(strings.Replace(waitCall, `"id":1`, `"id":"a"`, 1))
		done <- body
	}()
	<-g.started
	_, body := h.post(`{"jsonrpc":"2.0","id":"\u0061","method":"ping"}`)
	if got := refusalOf(t, body, g); got.Code != "INVALID_ENVELOPE" || got.ID != `"\u0061"` {
		t.Errorf("an id in flight was taken again: %s", body)
	}
	h.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061"}}`)
	if body := <-done; body != "" {
		t.Errorf("answer %s", body)
	}
}

// TestHangUp: a client of this era that hangs up has not cancelled.
func TestHangUp(t *testing.T) {
	g := newGate()
	results := make(chan error, 1)
	before := g.behave["wait"]
	g.behave["wait"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		defer func() { results <- ctx.Err() }()
		return before(ctx, g, in, args)
	}
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		_, err := http.DefaultClient.Do(h.request(http.MethodPost, waitCall).WithContext(ctx))
		if err == nil {
			t.Error("the call was answered")
		}
		close(gone)
	}()
	<-g.started
	hangUp()
	<-gone
	h.post(ping) // the server has had time to notice
	close(g.release)
	if err := <-results; err != nil {
		t.Errorf("the call ended with its client: %v", err)
	}
}

// TestTaskIsReportedOn: what is reported on a call's task after the call goes to
// the session, under the token that the client gave the call.
func TestTaskIsReportedOn(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	h.post(`{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":"demo__echo","arguments":{},"task":{},"_meta":{"progressToken":1e1}}}`)
	g.last().Later(raw(`{"progress":2e0}`))
	if got := event(t, h.events(t.Context())); !strings.Contains(got, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2e0,"progressToken":1e1}}`) {
		t.Errorf("told %q", got)
	}
	h.post(echoCall)
	if g.last().Later != nil {
		t.Error("a call without a token is reported on")
	}
}
