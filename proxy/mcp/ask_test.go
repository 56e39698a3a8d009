package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
)

// home is where what belongs to no request of h's session goes.
func (h *far) home(g *fakeGate) registry.Peer {
	h.t.Helper()
	h.post(echoCall)
	return g.last().Home
}

// last gives the call that came last as far as a tool.
func (g *fakeGate) last() *proxyCall {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reached[len(g.reached)-1]
}

// asking puts one question and gives what comes of it.
func asking(ctx context.Context, p registry.Peer, method string) <-chan registry.Answer {
	answers := make(chan registry.Answer, 1)
	go func() { answers <- p.Ask(ctx, []registry.Question{{Method: method}})[0] }()
	return answers
}

// answer is the outcome of one message.
func answer(n int, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"ask_%d","result":{"said":%q}}`, n, text)
}

func said(a registry.Answer) string { return string(a.Result) + string(a.Error) }

const (
	whoCall     = `{"jsonrpc":"2.0","id":"ask_1","method":"roots/list"}`
	unreachable = `{"code":-32603,"message":"the client cannot be reached"}`
	sessionOver = `{"code":-32603,"message":"the session of the client has ended"}`
)

// TestForeignAnswers: what one session was asked, no other can answer, be it of
// the same principal.
func TestForeignAnswers(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	alice, again, bob := open(t, srv, "alice"), open(t, srv, "alice"), open(t, srv, "bob")
	home := alice.home(g)
	events := alice.events(t.Context())
	got := asking(t.Context(), home, "roots/list")
	if e := event(t, events); !strings.Contains(e, whoCall) {
		t.Fatalf("the client was asked %q", e)
	}
	for _, h := range []*far{again, bob} {
		if status := h.status(http.MethodPost, answer(1, "forged")); status != http.StatusAccepted {
			t.Errorf("an answer to nothing: status %d", status)
		}
	}
	bob.session = alice.session
	if status := bob.status(http.MethodPost, answer(1, "stolen")); status != http.StatusNotFound {
		t.Errorf("an answer in another's session: status %d", status)
	}
	sender := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	sender.status(http.MethodPost, answer(1, "no session"))
	alice.status(http.MethodPost, answer(1, "mine"))
	if got := said(<-got); got != `{"said":"mine"}` {
		t.Errorf("got %s", got)
	}
}

// TestQuestionsEndWithTheSession, however it ends.
func TestQuestionsEndWithTheSession(t *testing.T) {
	for name, end := range map[string]func(*mcp.Door, *far){
		"deleted": func(_ *mcp.Door, h *far) { h.status(http.MethodDelete, "") },
		"closed":  func(d *mcp.Door, _ *far) { _ = d.Close(context.Background()) },
	} {
		g := newGate()
		srv, d := newServer(t, g, nil)
		h := open(t, srv, "alice")
		home := h.home(g)
		events := h.events(t.Context())
		got := asking(t.Context(), home, "roots/list")
		event(t, events)
		end(d, h)
		if got := said(<-got); got != sessionOver {
			t.Errorf("%s: %s", name, got)
		}
		if got := said(<-asking(t.Context(), home, "roots/list")); got != sessionOver && got != unreachable {
			t.Errorf("%s, afterwards: %s", name, got)
		}
	}
}

// TestStdioHangsUp: a client that has ended its side answers nothing more, so
// that a call which waits for its answer ends.
func TestStdioHangsUp(t *testing.T) {
	c := dial(t, newDoor(t, newGate(), nil)).open()
	if got := c.Ask(talkCall(`{"ask":[{"method":"roots/list"}]}`)); got != whoCall {
		t.Fatalf("asked %s", got)
	}
	if rest, err := c.End(); err != nil || !strings.Contains(rest, sessionOver) {
		t.Errorf("%s, %v", rest, err)
	}
}

func talkCall(args string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__talk","arguments":` + args + `}}`
}

// TestUnreadableAnswer: what was to be an answer and is no message is refused, and
// nobody waits for another.
func TestUnreadableAnswer(t *testing.T) {
	c := dial(t, newDoor(t, newGate(), nil)).open()
	c.Ask(talkCall(`{"ask":[{"method":"roots/list"}]}`))
	got := []string{c.Ask(`{"jsonrpc":"2.0","id":"ask_1","result":{"a":1,"a":2}}`), c.Receive()}
	slices.Sort(got)
	if !strings.Contains(got[0], `"id":"ask_1","error":`) || !strings.Contains(got[1], "the answer of the client cannot be read") {
		t.Errorf("got %s", got)
	}
}

// TestOpenQuestionsKeepASession: nobody has used it for long, but an answer is
// due.
func TestOpenQuestionsKeepASession(t *testing.T) {
	c, g := &clock{at: time.Unix(1e9, 0)}, newGate()
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.Now, o.SessionTTL = c.now, time.Minute })
	h := open(t, srv, "alice")
	home := h.home(g)
	events := h.events(t.Context())
	got := asking(t.Context(), home, "roots/list")
	event(t, events)
	h.events(t.Context()) // takes over, so that the first one ends
	c.advance(time.Hour)
	if status := h.status(http.MethodPost, answer(1, "late")); status != http.StatusAccepted {
		t.Errorf("status %d", status)
	}
	if got := said(<-got); got != `{"said":"late"}` {
		t.Errorf("got %s", got)
	}
}

// TestOlderIsAsked: over HTTP+SSE.
func TestOlderIsAsked(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	o := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	for _, home := range []string{"true", "false"} {
		ask := o.ask(talkCall(`{"home":` + home + `,"tell":[{"method":"notifications/message","params":{"level":"info","data":1}}],"ask":[{"method":"roots/list"}]}`))
		if want := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`; ask != want {
			t.Errorf("told %s, want %s", ask, want)
		}
		var q struct{ ID, Method string }
		if err := json.Unmarshal([]byte(o.receive()), &q); err != nil || q.Method != "roots/list" {
			t.Fatalf("asked %+v, %v", q, err)
		}
		if got, want := o.ask(`{"jsonrpc":"2.0","id":"`+q.ID+`","result":{"roots":[]}}`), `{"jsonrpc":"2.0","id":1,"result":{"content":[],"result 0":{"roots":[]}}}`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	home := g.last().Home
	_ = o.stream.body.Close()
	if got := said(<-asking(t.Context(), home, "roots/list")); got != sessionOver && got != unreachable {
		t.Errorf("when the stream has ended: %s", got)
	}
}

// TestBatchIsAsked: on the stream that answers the batch.
func TestBatchIsAsked(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	res, _ := h.post(strings.NewReplacer("2025-11-25", "2025-03-26", `"capabilities":{}`, `"capabilities":{"roots":{}}`).Replace(initialize))
	h.session = res.Header.Get("Mcp-Session-Id")
	f := h.flow(h.request(http.MethodPost, `[`+talkCall(`{"ask":[{"method":"roots/list"}]}`)+`,{"jsonrpc":"2.0","id":2,"method":"ping"}]`))
	got, _ := f.take(2)
	slices.Sort(got)
	if diff := cmp.Diff([]string{whoCall, `{"jsonrpc":"2.0","id":2,"result":{}}`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	h.status(http.MethodPost, `[`+answer(1, "in a batch")+`]`)
	if got, _ := f.take(1); len(got) != 1 || !strings.Contains(got[0], "in a batch") {
		t.Errorf("got %s", got)
	}
}

// inProcess is a client in the test's own bubble.
type inProcess struct {
	d       *mcp.Door
	session string
	home    registry.Peer
}

// enclose opens a session within a bubble; the door ends with body.
func enclose(t *testing.T, change func(*mcp.Options), body func(*testing.T, *inProcess)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		opts := mcp.Options{Gate: g, Refuser: g}
		if change != nil {
			change(&opts)
		}
		d, err := mcp.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		c := &inProcess{d: d, session: record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")}
		c.post(echoCall)
		c.home = g.last().Home
		body(t, c)
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func (c *inProcess) post(body string) string {
	return record(c.d, "alice", c.session, body).Body.String()
}

// listen opens the GET stream after event last, "" for a new one. What it gives
// ends the connection and says what came.
func (c *inProcess) listen(t *testing.T, last string) (hangUp func() string) {
	ctx, stop := context.WithCancel(t.Context())
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/mcp", nil)
	standardHeaders(req, "alice")
	req.Header.Set("Mcp-Session-Id", c.session)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	rec, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		c.d.ServeHTTP(rec, req)
	}()
	synctest.Wait()
	return func() string {
		synctest.Wait()
		stop()
		<-done
		return rec.Body.String()
	}
}

// TestResumeToAQuestion: a question that was put while nobody read the stream is
// read by who comes back, with the id of the last event or without.
func TestResumeToAQuestion(t *testing.T) {
	for _, withID := range []bool{true, false} {
		enclose(t, nil, func(t *testing.T, c *inProcess) {
			events := c.listen(t, "")()
			got := asking(t.Context(), c.home, "roots/list")
			synctest.Wait()
			last := ""
			if withID {
				last = strings.TrimPrefix(strings.TrimSpace(strings.Split(events, "\n")[0]), "id: ")
			}
			if events := c.listen(t, last)(); strings.Count(events, whoCall) != 1 {
				t.Fatalf("with an id %v: the client was asked %s", withID, events)
			}
			c.post(answer(1, "back"))
			if got := said(<-got); got != `{"said":"back"}` {
				t.Errorf("with an id %v: got %s", withID, got)
			}
		})
	}
}

// TestResumeACallWithAQuestion: the stream of a call is read on after it broke.
func TestResumeACallWithAQuestion(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	req := h.request(http.MethodPost, talkCall(`{"ask":[{"method":"roots/list"}]}`))
	req.Header.Set("Accept", "text/event-stream")
	f := h.flow(req)
	_, id := f.take(0)
	_ = f.body.Close()
	f = h.flow(h.after(id))
	if asked, _ := f.take(1); len(asked) != 1 || asked[0] != whoCall {
		t.Fatalf("asked %s", asked)
	}
	h.status(http.MethodPost, answer(1, "on"))
	if got, _ := f.take(1); len(got) != 1 || !strings.Contains(got[0], `{"said":"on"}`) {
		t.Errorf("got %s", got)
	}
}

// TestForgottenQuestion: a question that had to make room before anybody read it
// ends with an error, and what was read does not.
func TestForgottenQuestion(t *testing.T) {
	enclose(t, func(o *mcp.Options) { o.EventLog.Events = 2 }, func(t *testing.T, c *inProcess) {
		hangUp := c.listen(t, "")
		read := asking(t.Context(), c.home, "roots/list")
		hangUp()
		unread := asking(t.Context(), c.home, "sampling/createMessage")
		synctest.Wait()
		for range 2 {
			c.home.Tell("notifications/message", json.RawMessage(`{"level":"info","data":1}`))
		}
		if got := said(<-unread); got != unreachable {
			t.Errorf("the unread one: %s", got)
		}
		c.post(answer(1, "read"))
		if got := said(<-read); got != `{"said":"read"}` {
			t.Errorf("the one that was read: %s", got)
		}
	})
}

// TestMailbox: what can go nowhere waits for the next stream, within bounds.
// Notifications make room first, then the oldest question fails.
func TestMailbox(t *testing.T) {
	enclose(t, nil, func(t *testing.T, c *inProcess) {
		for i := range 64 {
			c.home.Tell("notifications/message", json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)))
		}
		ctx, stop := context.WithCancel(t.Context())
		var asked []<-chan registry.Answer
		for range 64 {
			asked = append(asked, asking(ctx, c.home, "roots/list"))
			synctest.Wait()
		}
		c.home.Tell("notifications/message", json.RawMessage(`{"too":"much"}`)) // takes the place of ask_1
		if got := said(<-asked[0]); got != unreachable {
			t.Errorf("the oldest question: %s", got)
		}
		big := json.RawMessage(`{"x":"` + strings.Repeat("x", 256<<10) + `"}`)
		c.home.Tell("notifications/message", big)
		if got := said(c.home.Ask(ctx, []registry.Question{{Method: "sampling/createMessage", Params: big}})[0]); got != unreachable {
			t.Errorf("one that is too large: %s", got)
		}
		events := c.post(echoCall)
		if got := strings.Count(events, `"method":"roots/list"`); got != 63 {
			t.Errorf("%d questions were kept, want 63", got)
		}
		if got := strings.Count(events, `"notifications/message"`); got != 1 || !strings.Contains(events, `{"too":"much"}`) {
			t.Errorf("%d notifications were kept, want the last", got)
		}
		stop()
		for _, a := range asked[1:] {
			if got := said(<-a); !strings.Contains(got, "nobody waits") {
				t.Errorf("a question that was given up: %s", got)
			}
		}
	})
}

// TestTellASlowReader: a client that does not read holds up who tells it
// something for a moment, once.
func TestTellASlowReader(t *testing.T) {
	enclose(t, nil, func(t *testing.T, c *inProcess) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			req := httptest.NewRequest(http.MethodGet, "http://localhost/mcp", nil)
			standardHeaders(req, "alice")
			req.Header.Set("Mcp-Session-Id", c.session)
			c.d.ServeHTTP(&stuck{header: http.Header{}}, req)
		}()
		synctest.Wait()
		began := time.Now()
		for range 1000 { // more than is kept
			c.home.Tell("notifications/message", json.RawMessage(`{}`))
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("held up for %v", took)
		}
		<-ended
	})
}

// TestTellAfterTheEnd: a session that has ended is told nothing, and holds up nobody,
// while its client still has to be disconnected from the stream.
func TestTellAfterTheEnd(t *testing.T) {
	enclose(t, nil, func(t *testing.T, c *inProcess) {
		disconnected := make(chan struct{})
		go func() {
			defer close(disconnected)
			req := httptest.NewRequest(http.MethodGet, "http://localhost/mcp", nil)
			standardHeaders(req, "alice")
			req.Header.Set("Mcp-Session-Id", c.session)
			c.d.ServeHTTP(&stuck{header: http.Header{}}, req)
		}()
		synctest.Wait()
		c.home.Tell("notifications/message", json.RawMessage(`{}`)) // the stream waits for its reader
		synctest.Wait()
		req := httptest.NewRequest(http.MethodDelete, "http://localhost/mcp", nil)
		standardHeaders(req, "alice")
		req.Header.Set("Mcp-Session-Id", c.session)
		c.d.ServeHTTP(httptest.NewRecorder(), req)
		select {
		case <-disconnected:
			t.Error("the reader has gone already")
		default:
		}
		c.home.Tell("notifications/message", json.RawMessage(`{}`))
		<-disconnected
	})
}

// TestRecalled: what is given up before the client has heard of it, it never
// hears of.
func TestRecalled(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := open(t, srv, "alice")
	home := h.home(g)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	home.Ask(ctx, []registry.Question{{Method: "roots/list"}})
	if _, body := h.post(echoCall); strings.Contains(body, "ask_1") {
		t.Errorf("the client hears %s", body)
	}
}

// TestAskedInACrowd: every session gets the answers of its own client, however
// they come.
func TestAskedInACrowd(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		h := openAs(t, srv.URL+"/mcp", "alice", "2025-11-25")
		home := h.home(g)
		events := h.events(t.Context())
		wg.Go(func() { h.answerAll(events, i, 20) })
		for n := range 20 {
			wg.Go(func() {
				want := fmt.Sprintf(`{"of":%d,"to":%d}`, i, n)
				got := home.Ask(t.Context(), []registry.Question{{Method: "x", Params: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))}})
				if said(got[0]) != want {
					t.Errorf("got %s, want %s", said(got[0]), want)
				}
			})
		}
	}
	wg.Wait()
}

// answerAll answers n questions with who answers and what the question was.
func (h *far) answerAll(events *bufio.Reader, who, n int) {
	for range n {
		_, data, _ := strings.Cut(event(h.t, events), "data: ")
		var q struct {
			ID     string
			Params struct{ N int }
		}
		if err := json.Unmarshal([]byte(data), &q); err != nil {
			h.t.Errorf("%s: %v", data, err)
			return
		}
		h.status(http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"of":%d,"to":%d}}`, q.ID, who, q.Params.N))
	}
}
