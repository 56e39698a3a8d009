package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

// openAs does the handshake in a revision.
func openAs(t testing.TB, url, who, version string) *far {
	t.Helper()
	h := &far{t: t, url: url, who: who}
	res, body := h.post(strings.Replace(initialize, "2025-11-25", version, 1))
	if h.session = res.Header.Get("Mcp-Session-Id"); h.session == "" {
		t.Fatalf("initialize gave no session: %d %s", res.StatusCode, body)
	}
	return h
}

// sse is one event as a client reads it.
type sse struct{ id, data, retry string }

// flow is one connection that carries events.
type flow struct {
	t    testing.TB
	body io.ReadCloser
	r    *bufio.Reader
}

// next reads one event; ok is false at the end of the connection.
func (f *flow) next() (e sse, ok bool) {
	f.t.Helper()
	for {
		line, err := f.r.ReadString('\n')
		if err != nil {
			return e, false
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			e.id = value
		case "data":
			e.data = value
		case "retry":
			e.retry = value
		case "":
			return e, true
		}
	}
}

// take reads n messages, or what comes until the connection ends, and gives the
// id of the last event.
func (f *flow) take(n int) (messages []string, last string) {
	f.t.Helper()
	for len(messages) < n || last == "" {
		e, ok := f.next()
		if !ok {
			break
		}
		if e.id != "" {
			last = e.id
		}
		if e.data != "" {
			messages = append(messages, e.data)
		}
	}
	return messages, last
}

// flow sends a request that is answered with events.
func (h *far) flow(req *http.Request) *flow {
	h.t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		body, _ := io.ReadAll(res.Body)
		h.t.Fatalf("%s: %d %s %s", req.Method, res.StatusCode, res.Header.Get("Content-Type"), body)
	}
	h.t.Cleanup(func() { _ = res.Body.Close() })
	return &flow{h.t, res.Body, bufio.NewReader(res.Body)}
}

// after is the request that continues a stream after event id.
func (h *far) after(id string) *http.Request {
	req := h.request(http.MethodGet, "")
	req.Header.Set("Last-Event-ID", id)
	return req
}

// reporter makes the tool "report" send n progress notifications and answer. It
// waits for the test before event number hold, of n+1.
func reporter(g *fakeGate, n, hold int) {
	g.behave["report"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		for i := range n + 1 {
			if i == hold {
				g.started <- struct{}{}
				<-g.release
			}
			if i < n && in.Progress != nil {
				in.Progress(json.RawMessage(fmt.Sprintf(`{"progress":%d}`, i+1)))
			}
		}
		return json.RawMessage(`{"content":[]}`), nil
	}
}

// overs tells of each tools/call whose answer is known.
func overs(calls chan struct{}) func(*mcp.Options) {
	return func(o *mcp.Options) {
		o.Observe = func(e wire.Event) {
			if e.Method == "tools/call" {
				calls <- struct{}{}
			}
		}
	}
}

func progressed(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d,"progressToken":1}}`, n)
}

const reported = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`

// reportEvents posts reportCall as a client that reads events only, whose
// stream begins at once.
func (h *far) reportEvents() *flow {
	req := h.request(http.MethodPost, reportCall)
	req.Header.Set("Accept", "text/event-stream")
	return h.flow(req)
}

// TestResumeEverywhere drops the stream of a call after each of its events and
// comes back to it, while the call goes on or when it is over: the client gets
// each event once, and the answer.
func TestResumeEverywhere(t *testing.T) {
	const steps = 4
	want := []string{progressed(1), progressed(2), progressed(3), progressed(4), reported}
	for _, era := range []string{"2025-11-25", "2025-06-18", "2025-03-26"} {
		for drop := range steps + 1 {
			if drop == 0 && era != "2025-11-25" {
				continue // no id was given
			}
			for _, over := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s after %d, over %v", era, drop, over), func(t *testing.T) {
					g, calls := newGate(), make(chan struct{}, 1)
					reporter(g, steps, drop)
					srv, _ := newServer(t, g, overs(calls))
					h := openAs(t, srv.URL+"/mcp", "alice", era)
					first := h.reportEvents()
					<-g.started
					got, last := first.take(drop)
					_ = first.body.Close()
					if over {
						close(g.release)
						<-calls
					}
					second := h.flow(h.after(last))
					if !over {
						close(g.release)
					}
					rest, _ := second.take(100)
					if diff := cmp.Diff(want, append(got, rest...)); diff != "" {
						t.Errorf("events (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

// TestResumeTwice: a client may lose the connection that it came back with.
func TestResumeTwice(t *testing.T) {
	g := newGate()
	reporter(g, 6, 6)
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	f := h.reportEvents()
	got, last := f.take(1)
	for range 5 {
		_ = f.body.Close()
		f = h.flow(h.after(last))
		var more []string
		more, last = f.take(1)
		got = append(got, more...)
	}
	close(g.release)
	rest, _ := f.take(100)
	want := []string{progressed(1), progressed(2), progressed(3), progressed(4), progressed(5), progressed(6), reported}
	if diff := cmp.Diff(want, append(got, rest...)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestNewerConnection: who comes back takes the stream from a connection that
// is not known to be dead.
func TestNewerConnection(t *testing.T) {
	g := newGate()
	reporter(g, 1, 1)
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	first := h.reportEvents()
	_, last := first.take(1)
	second := h.flow(h.after(last))
	if rest, _ := first.take(100); rest != nil {
		t.Errorf("the older connection got %v", rest)
	}
	close(g.release)
	if rest, _ := second.take(100); len(rest) != 1 || rest[0] != reported {
		t.Errorf("the newer connection got %v", rest)
	}
}

// TestResumeRefused: nobody but the owner of a session, on its road, with an id
// that was given out and is still kept, gets anything; and no id but a lost
// session's is 404.
func TestResumeRefused(t *testing.T) {
	g, calls := newGate(), make(chan struct{}, 1)
	reporter(g, 6, -1)
	srv, _ := newServer(t, g, func(o *mcp.Options) {
		overs(calls)(o)
		o.EventLog.Events = 4
	})
	alice := open(t, srv, "alice")
	got, last := alice.reportEvents().take(100)
	if len(got) != 7 {
		t.Fatalf("events %v", got)
	}
	stream := strings.TrimSuffix(last, "-7")
	other := open(t, srv, "alice")
	bob := &far{t: t, url: alice.url, who: "bob", session: alice.session}
	lost := &far{t: t, url: alice.url, who: "alice", session: "gone"}
	road := &far{t: t, url: srv.URL + "/mcp/demo", who: "alice", session: alice.session}
	nobody := &far{t: t, url: alice.url, who: "mallory", session: alice.session}
	for _, tt := range []struct {
		name string
		who  *far
		id   string
		want int
	}{
		{"evicted", alice, stream + "-2", 400},
		{"kept", alice, stream + "-3", 200},
		{"had it all", alice, stream + "-7", 204},
		{"never given out", alice, stream + "-8", 400},
		{"another spelling", alice, stream + "-05", 400},
		{"unknown stream", alice, strings.Repeat("A", 26) + "-0", 400},
		{"no id", alice, "7", 400},
		{"empty", alice, "", 400},
		{"another session of the same principal", other, stream + "-5", 400},
		{"another principal", bob, stream + "-5", 404},
		{"another road", road, stream + "-5", 404},
		{"a lost session", lost, stream + "-5", 404},
		{"a sender", nobody, stream + "-5", 401},
	} {
		res, body := tt.who.do(tt.who.after(tt.id))
		if res.StatusCode != tt.want || tt.want >= 400 && strings.Contains(body, "progress") {
			t.Errorf("%s: status %d, want %d: %s", tt.name, res.StatusCode, tt.want, body)
		}
	}
	two := alice.after(stream + "-5")
	two.Header.Add("Last-Event-ID", stream+"-5")
	if res, _ := alice.do(two); res.StatusCode != http.StatusBadRequest {
		t.Errorf("two ids: status %d, want 400", res.StatusCode)
	}
	alice.status(http.MethodDelete, "")
	if res, _ := alice.do(alice.after(stream + "-5")); res.StatusCode != http.StatusNotFound {
		t.Errorf("after the session: status %d, want 404", res.StatusCode)
	}
}

// TestEventIDs: an id says nothing of session, principal or call.
func TestEventIDs(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	seen := map[string]bool{}
	for range 20 {
		_, last := h.flow(h.request(http.MethodPost, stepsCall)).take(100)
		stream, n, _ := strings.Cut(last, "-")
		if len(stream) != 26 || n != "3" || seen[stream] || strings.Contains(h.session, stream) {
			t.Errorf("id %q", last)
		}
		seen[stream] = true
	}
}

const stepsCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__steps","_meta":{"progressToken":1}}}`

// TestResumeListening: the stream of the session is continued too, each change
// told once.
func TestResumeListening(t *testing.T) {
	srv, d := newServer(t, newGate(), nil)
	h := open(t, srv, "alice")
	first := h.flow(h.request(http.MethodGet, ""))
	prime, _ := first.next()
	d.ToolsChanged()
	first.next()
	_ = first.body.Close()
	second := h.flow(h.after(prime.id)) // as if the change had been lost on the way
	if got, _ := second.take(1); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	again, _ := second.next()
	_ = second.body.Close()
	third := h.flow(h.after(again.id))
	d.ToolsChanged()
	if got, _ := third.take(1); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	fresh := h.flow(h.request(http.MethodGet, ""))
	if e, _ := fresh.next(); e.data != "" {
		t.Errorf("a new stream got %v", e)
	}
	if res, _ := h.do(h.after(again.id)); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a stream that was replaced: status %d, want 400", res.StatusCode)
	}
}

// TestCancelledStream: what was reported before a cancellation can be asked
// for, and then there is no more.
func TestCancelledStream(t *testing.T) {
	g, calls := newGate(), make(chan struct{}, 1)
	srv, _ := newServer(t, g, overs(calls))
	h := open(t, srv, "alice")
	req := h.request(http.MethodPost, strings.Replace(stepsCall, "steps", "wait", 1))
	f := h.flow(req)
	e, _ := f.next()
	h.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-calls
	f.take(100)
	got, last := h.flow(h.after(e.id)).take(100)
	if len(got) != 1 || !strings.Contains(got[0], "progress") {
		t.Errorf("got %v", got)
	}
	if res, _ := h.do(h.after(last)); res.StatusCode != http.StatusNoContent {
		t.Errorf("status %d, want 204", res.StatusCode)
	}
}

// TestPatience: a call that takes long begins its stream before it reports, so
// that its answer can be asked for.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		reporter(g, 0, 0)
		d, err := mcp.New(mcp.Options{Gate: g, Refuser: g})
		if err != nil {
			t.Fatal(err)
		}
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		done := make(chan *httptest.ResponseRecorder)
		go func() { done <- record(d, "alice", session, reportCall) }()
		time.Sleep(2 * time.Second)
		g.release <- struct{}{}
		if body := (<-done).Body.String(); !strings.HasPrefix(body, "id: ") || !strings.Contains(body, "-0\nretry: 1000\ndata: \n\nid: ") {
			t.Errorf("got %q", body)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestPolling: the connection is closed when its life is over, with word when to
// come back; the call goes on.
func TestPolling(t *testing.T) {
	g := newGate()
	reporter(g, 1, 1)
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.StreamLife = time.Millisecond })
	h := open(t, srv, "alice")
	f := h.reportEvents()
	var got []string
	for range 5 {
		last, retry := "", ""
		for e, ok := f.next(); ok; e, ok = f.next() {
			if e.data != "" {
				got = append(got, e.data)
			}
			last, retry = max(last, e.id), retry+e.retry
		}
		if retry != "1000" {
			t.Errorf("retry %q, want 1000", retry)
		}
		f = h.flow(h.after(last))
	}
	close(g.release)
	for len(got) < 2 {
		rest, last := f.take(100)
		if got = append(got, rest...); len(got) < 2 {
			f = h.flow(h.after(last))
		}
	}
	if diff := cmp.Diff([]string{progressed(1), reported}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestStreamLife: the event stream of a 2025-11-25 client is closed at the age
// StreamLife; an older client, which could not continue its stream, keeps it.
func TestStreamLife(t *testing.T) {
	for version, want := range map[string]time.Duration{"2025-11-25": time.Minute, "2025-06-18": 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate()
			d, err := mcp.New(mcp.Options{Gate: g, Refuser: g, StreamLife: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			req := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/mcp", nil)
			standardHeaders(req, "alice")
			req.Header.Set("Mcp-Session-Id", record(d, "alice", "", strings.Replace(initialize, "2025-11-25", version, 1)).Header().Get("Mcp-Session-Id"))
			ended := make(chan time.Duration, 1)
			began := time.Now()
			go func() {
				d.ServeHTTP(httptest.NewRecorder(), req)
				ended <- time.Since(began)
			}()
			time.Sleep(10 * time.Minute) // of the bubble
			hangUp()
			if got := <-ended; got != want {
				t.Errorf("%s: the stream ended after %v, want %v", version, got, want)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSlowReaderAlone: a client that does not read holds up nobody else.
func TestSlowReaderAlone(t *testing.T) {
	g := newGate()
	reporter(g, 1000, -1)
	d := newDoor(t, g, nil)
	slow := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
	w := &blocked{header: http.Header{}, release: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(reportCall))
		standardHeaders(req, "alice")
		req.Header.Set("Mcp-Session-Id", slow)
		d.ServeHTTP(w, req)
		close(done)
	}()
	session := record(d, "bob", "", initialize).Header().Get("Mcp-Session-Id")
	for range 10 {
		if body := record(d, "bob", session, reportCall).Body.String(); !strings.HasSuffix(body, reported+"\n\n") {
			t.Errorf("another got %q", body[max(0, len(body)-200):])
		}
	}
	close(w.release)
	<-done
}

// blocked is a client that does not read until the test says so.
type blocked struct {
	header  http.Header
	release chan struct{}
}

func (b *blocked) Header() http.Header              { return b.header }
func (b *blocked) WriteHeader(int)                  {}
func (b *blocked) FlushError() error                { return nil }
func (b *blocked) Write(data []byte) (int, error)   { <-b.release; return len(data), nil }
func (b *blocked) SetWriteDeadline(time.Time) error { return nil }

// FuzzLastEventID: whatever is shown, only the ids that were given out bring
// anything back.
func FuzzLastEventID(f *testing.F) {
	for _, id := range []string{"", "-", "0", "-0", "STREAM-0", "STREAM-3", "STREAM-4", "STREAM-03", "STREAM--1", "STREAM-18446744073709551615", "stream-0", "STREAM- 1"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		d := newDoor(t, newGate(), nil)
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		body := record(d, "alice", session, stepsCall).Body.String()
		stream := strings.TrimSuffix(strings.TrimPrefix(body[:strings.Index(body, "\n")], "id: "), "-0")
		req := httptest.NewRequest(http.MethodGet, "http://localhost/mcp", nil)
		standardHeaders(req, "alice")
		req.Header.Set("Mcp-Session-Id", session)
		req.Header["Last-Event-Id"] = []string{strings.Replace(id, "STREAM", stream, 1)}
		rec := httptest.NewRecorder()
		d.ServeHTTP(rec, req)
		want := map[string]int{"STREAM-0": 200, "STREAM-1": 200, "STREAM-2": 200, "STREAM-3": 204}[id]
		if want == 0 {
			want = 400
		}
		if rec.Code != want {
			t.Errorf("%q: status %d, want %d", id, rec.Code, want)
		}
		if given := strings.Index(body, "id: "+stream+"-"+strings.TrimPrefix(id, "STREAM-")+"\n"); want == 200 {
			after := body[given:]
			after = after[strings.Index(after, "\n\n")+2:]
			if rec.Body.String() != after {
				t.Errorf("%q brought %q, want %q", id, rec.Body.String(), after)
			}
		}
	})
}
