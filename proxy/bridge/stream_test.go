package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/bridge"
)

const done = `{"jsonrpc":"2.0","id":1,"result":{"done":true}}`

func note(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/n%d"}`, n)
}

// event is one event of a stream.
func event(id, data string) string { return "id: " + id + "\ndata: " + data + "\n\n" }

// A stream that breaks off is taken up where it was left, as often as it gives
// something, and the request is sent once.
func TestResuming(t *testing.T) {
	broken := func(w http.ResponseWriter) { panic(http.ErrAbortHandler) }
	closed := func(http.ResponseWriter) {}
	for name, cut := range map[string]func(http.ResponseWriter){"broken off": broken, "closed": closed} {
		t.Run(name, func(t *testing.T) {
			e := misbehave(t, map[string]handler{
				"tools/call": func(w http.ResponseWriter, _ *http.Request, _ int) {
					begin(w, "id: a\nretry: 1\ndata:\n\n", event("b", note(1)))
					cut(w)
				},
				http.MethodGet: func(w http.ResponseWriter, r *http.Request, n int) {
					switch r.Header.Get("Last-Event-Id") {
					case "b":
						if n == 1 {
							hangUp(w, r, n)
						}
						begin(w, event("c", note(2)))
						cut(w)
					case "c":
						if n == 3 {
							w.WriteHeader(http.StatusServiceUnavailable)
							return
						}
						begin(w, event("d", done))
					default:
						w.WriteHeader(http.StatusBadRequest)
					}
				},
			})
			c := connect(t, e.URL, nil)
			c.Ask(initialize)
			got := []string{c.Ask(call("1", "x")), c.Receive(), c.Receive()}
			if diff := cmp.Diff([]string{note(1), note(2), done}, got); diff != "" {
				t.Errorf("the client got (-want +got):\n%s", diff)
			}
			var asked []string
			for _, s := range e.requests() {
				if s.verb == http.MethodGet {
					asked = append(asked, s.headers()["Last-Event-Id"]+" in "+s.headers()["Mcp-Session-Id"])
				}
			}
			if diff := cmp.Diff([]string{"b in s1", "b in s1", "c in s1", "c in s1"}, asked); diff != "" {
				t.Errorf("resumed (-want +got):\n%s", diff)
			}
			if n := e.count(http.MethodPost, "tools/call"); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
		})
	}
}

// A stream that cannot be resumed ends in an error that says so much.
func TestResumingInVain(t *testing.T) {
	start := func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, event("a", note(1))) }
	for name, test := range map[string]struct {
		post, get handler
		params    string
		want      int // GETs
	}{
		"unknown":           {start, respond(400, plainJSON, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}`), "", 1},
		"no GET":            {start, respond(405, "", ""), "", 1},
		"always down":       {start, respond(503, "", ""), "", 5},
		"always broken":     {start, hangUp, "", 5},
		"never anything":    {start, func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w) }, "", 5},
		"no ids":            {func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, "data: "+note(1)+"\n\n") }, nil, "", 0},
		"ids taken back":    {func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, event("a", note(1)), "id\n\n") }, nil, "", 0},
		"no resumption":     {start, nil, "," + modernMeta, 0},
		"an id for no head": {func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, event("a\x01b", note(1))) }, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := misbehave(t, map[string]handler{"tools/call": test.post, http.MethodGet: test.get})
			c := connect(t, e.URL, nil)
			if got := c.Ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"` + test.params + `}}`); got != note(1) {
				t.Errorf("heard %s", got)
			}
			f := c.failed(c.Receive(), "1", "TOOL_FAILED")
			if !strings.Contains(f.Error.Message, "whether the request took effect is unknown") || f.Error.Data.RetryEligible {
				t.Errorf("failed with %+v", f)
			}
			// net/http itself repeats a GET whose connection was an old one.
			if n := e.count(http.MethodGet, ""); n < test.want || n > test.want+test.want/5 {
				t.Errorf("%d attempts to resume, want %d", n, test.want)
			}
			if n := e.count(http.MethodPost, "tools/call"); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
		})
	}
}

// A server that asks to be polled is polled for as long as it does.
func TestPolling(t *testing.T) {
	e := misbehave(t, map[string]handler{
		"tools/call": func(w http.ResponseWriter, _ *http.Request, _ int) { begin(w, "id: a\nretry: 1\ndata:\n\n") },
		http.MethodGet: func(w http.ResponseWriter, _ *http.Request, n int) {
			begin(w)
			if n == 20 {
				begin(w, event("z", done))
			}
		},
	})
	if got := connect(t, e.URL, nil).Ask(call("1", "x")); got != done {
		t.Errorf("the client got %s", got)
	}
}

// What the server says by itself comes on a stream that is opened again when it
// ends, from where it ended.
func TestTheServersOwnMessages(t *testing.T) {
	const question = `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`
	stay := make(chan struct{})
	e := misbehave(t, map[string]handler{http.MethodGet: func(w http.ResponseWriter, r *http.Request, n int) {
		switch n {
		case 1:
			begin(w, "event: ping\ndata: {}\n\n", ": comment\n\n", event("1", note(1)))
			hangUp(w, r, n)
		case 2:
			w.WriteHeader(http.StatusBadGateway)
		case 3:
			begin(w, event("2", question))
		case 4: // it does not know the event any more
			w.WriteHeader(http.StatusBadRequest)
		default:
			begin(w, event("3", note(3)))
			<-r.Context().Done()
			close(stay)
		}
	}})
	c := connect(t, e.URL, nil).open()
	got := []string{c.Receive(), c.Receive(), c.Receive()}
	if diff := cmp.Diff([]string{note(1), question, note(3)}, got); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
	c.Send(`{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`)
	if s := e.await(http.MethodPost, ""); s.method == "" && !strings.Contains(s.body, `"roots":[]`) {
		t.Errorf("answered with %s", s.body)
	}
	if rest, err := c.End(); rest != "" || err != nil {
		t.Errorf("at the end: %q, %v", rest, err)
	}
	<-stay
	var asked []string
	for _, s := range e.requests() {
		if s.verb == http.MethodGet {
			asked = append(asked, s.headers()["Last-Event-Id"])
		}
	}
	if diff := cmp.Diff([]string{"", "1", "1", "2", ""}, asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
}

// Without such a stream all else works, and it is asked for once.
func TestNoStreamOfItsOwn(t *testing.T) {
	for _, status := range []int{401, 404, 405, 501} {
		e := misbehave(t, map[string]handler{http.MethodGet: respond(status, "", "")})
		c := connect(t, e.URL, nil).open()
		e.await(http.MethodGet, "")
		c.Send(initialized) // said twice, asked once
		if got := c.Ask(call("1", "x")); !strings.Contains(got, `"result"`) {
			t.Errorf("%d: %s", status, got)
		}
		if _, err := c.End(); err != nil {
			t.Errorf("%d: ended with %v", status, err)
		}
		if n := e.count(http.MethodGet, ""); n != 1 {
			t.Errorf("%d: asked %d times", status, n)
		}
		if n := e.count(http.MethodDelete, ""); n != 1 {
			t.Errorf("%d: %d DELETE", status, n)
		}
	}
}

// What is read of the endpoint is whole messages, each on one line, with no
// byte changed but line ends.
func FuzzRead(f *testing.F) {
	for _, s := range []string{done, "[" + done + ",\n" + note(1) + "]", "{\r\n\"id\":1,\"error\":{}}", "[]", "1", `{"id":null}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines, ok := bridge.ReadLines([]byte(text))
		if !ok {
			return
		}
		flat := strings.NewReplacer("\r", " ", "\n", " ").Replace(text)
		for _, line := range lines {
			if !json.Valid([]byte(line)) || line[0] != '{' && line[0] != '[' || strings.ContainsAny(line, "\r\n") || !strings.Contains(flat, line) {
				t.Fatalf("%q holds the line %q", text, line)
			}
		}
	})
}

// initialize is finished before anything else goes out; what has no answer
// goes out in its place.
func TestOrder(t *testing.T) {
	release := make(chan struct{})
	hold := func(w http.ResponseWriter, _ *http.Request, _ int) {
		begin(w, ": on its way\n\n")
		<-release
		begin(w, "data: "+done+"\n\n")
	}
	e := misbehave(t, map[string]handler{
		"initialize": func(w http.ResponseWriter, _ *http.Request, _ int) {
			<-release
			answerJSON(w, []byte("0"), `{"protocolVersion":"2025-11-25"}`)
		},
		"tools/call": hold,
	})
	c := connect(t, e.URL, nil)
	for _, line := range []string{initialize, initialized, `{"jsonrpc":"2.0","method":"notifications/a"}`, call("1", "x"),
		`{"jsonrpc":"2.0","method":"notifications/b"}`, `{"jsonrpc":"2.0","method":"notifications/c"}`, `{"jsonrpc":"2.0","id":2,"method":"ping"}`} {
		c.Send(line)
	}
	e.await(http.MethodPost, "initialize")
	if n := len(e.requests()); n != 1 {
		t.Errorf("%d messages went out beside initialize", n)
	}
	release <- struct{}{}
	c.Receive()
	if got := c.Receive(); !strings.Contains(got, `"id":2`) {
		t.Errorf("ping waits for the call: %s", got)
	}
	close(release)
	c.Receive()
	var order []string
	for _, s := range e.requests() {
		if s.verb == http.MethodPost && s.method != "tools/call" { // which has a connection of its own
			order = append(order, s.method)
		}
	}
	want := []string{"initialize", "notifications/initialized", "notifications/a", "notifications/b", "notifications/c", "ping"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// pipes are connections that hold nothing: what was written has been read.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.IPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p <- far
	return near, nil
}

// What has no answer waits until the requests before it are on their way: a
// cancellation must not overtake what it cancels.
func TestOvertaking(t *testing.T) {
	const ahead = 64 << 10 // more than a server reads of a body before its handler does
	arrived := make(chan struct{})
	l := make(pipes)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 1<<20 {
			close(arrived)
			w.WriteHeader(http.StatusAccepted)
			return
		}
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength-ahead)
		select {
		case <-arrived:
			t.Error("the notification was faster than the request before it")
		default:
		}
		_, _ = io.Copy(io.Discard, r.Body)
		<-arrived
		answerJSON(w, []byte("1"), `{}`)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) }) // until the end of the test
	t.Cleanup(func() {
		_ = srv.Close()
		serving.Wait()
	})
	c := connect(t, "http://pipes", nil)
	c.bridge.DialWith(l.dial)
	c.Send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"x":"` + strings.Repeat("x", 4<<20-200) + `"}}}`)
	c.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	c.Send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
	if got := c.Receive(); !strings.Contains(got, `"id":1,"result"`) {
		t.Errorf("answered with %.200s", got)
	}
}

// At the end of input what is in flight is waited for, and then withdrawn.
func TestTheEnd(t *testing.T) {
	release := make(chan struct{})
	e := misbehave(t, map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 2 {
			<-r.Context().Done()
			return
		}
		<-release
		answerJSON(w, []byte("1"), `{}`)
	}})
	c := connect(t, e.URL, nil).open()
	c.Send(call("1", "x"))
	e.await(http.MethodPost, "tools/call")
	c.HangUp()
	close(release)
	if rest, err := c.End(); !strings.Contains(rest, `"id":1,"result"`) || err != nil {
		t.Errorf("at the end: %q, %v", rest, err)
	}
	if last := e.last(); last.verb != http.MethodDelete {
		t.Errorf("the last request is %s %s", last.verb, last.method)
	}

	c = connect(t, e.URL, func(o *bridge.Options) { o.Drain = 20 * time.Millisecond }).open()
	c.Send(call(`"late"`, "x"))
	rest, err := c.End()
	c.failed(strings.TrimSuffix(rest, "\n"), `"late"`, "TOOL_FAILED")
	if err != nil {
		t.Errorf("ended with %v", err)
	}
	if got := e.await(http.MethodPost, "notifications/cancelled").body; !strings.Contains(got, `"requestId":"late"`) {
		t.Errorf("withdrawn by %s", got)
	}
	if n := e.count(http.MethodDelete, ""); n != 2 {
		t.Errorf("%d sessions were ended", n)
	}
}

// An initialize that hangs does not hold up the end; what was read behind it is
// told that it was never sent.
func TestTheEndBeforeTheBeginning(t *testing.T) {
	e := misbehave(t, map[string]handler{"initialize": func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }})
	c := connect(t, e.URL, func(o *bridge.Options) { o.Drain = 20 * time.Millisecond })
	c.Send(initialize)
	c.Send(call("1", "x"))
	e.await(http.MethodPost, "initialize")
	rest, err := c.End()
	if err == nil || !errors.Is(err, bridge.ErrUnreachable) || strings.Count(rest, "\n") != 2 {
		t.Fatalf("ended with %v and %s", err, rest)
	}
	lines := strings.Split(rest, "\n")
	slices.Sort(lines)
	c.failed(lines[1], "0", "TOOL_FAILED")
	c.failed(lines[2], "1", "UPSTREAM_UNAVAILABLE")
	if n := e.count(http.MethodPost, "tools/call"); n > 0 {
		t.Errorf("the call was sent %d times", n)
	}
}

// A context that is done ends the bridge, and closes its input.
func TestTheContext(t *testing.T) {
	e := misbehave(t, nil)
	b, err := bridge.New(bridge.Options{URL: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	in, far := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(ctx, in, io.Discard) }()
	if _, err := io.WriteString(far, initialize+"\n"); err != nil {
		t.Fatal(err)
	}
	e.await(http.MethodPost, "initialize")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := io.WriteString(far, "x"); err == nil {
		t.Error("the input is still read")
	}
	if n := e.count(http.MethodDelete, ""); n != 1 {
		t.Errorf("%d sessions were ended", n)
	}
}

// deaf fails each Write.
type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

// A client that does not read any more ends the bridge at once.
func TestNobodyReads(t *testing.T) {
	e := misbehave(t, map[string]handler{"tools/call": func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }})
	b, err := bridge.New(bridge.Options{URL: e.URL, Drain: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	in, far := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(t.Context(), in, deaf{}) }()
	for _, line := range []string{call("1", "x"), `{"jsonrpc":"2.0","id":2,"method":"ping"}`} {
		if _, err := io.WriteString(far, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "nobody reads") {
		t.Errorf("ended with %v", err)
	}
}

// writes keeps each Write apart.
type writes struct {
	text
	each []string
}

// Write implements io.Writer; the bridge calls it once at a time.
func (w *writes) Write(p []byte) (int, error) {
	w.each = append(w.each, string(p))
	return len(p), nil
}

// Many requests side by side: each is answered once, each line is one Write.
func TestSideBySide(t *testing.T) {
	const many = 100
	gate := make(chan struct{})
	e := misbehave(t, map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, n int) {
		if n == many {
			close(gate)
		}
		<-gate // all are there at a time
		id, _ := jsonrpc.Text([]byte(`"` + r.Header.Get("Mcp-Name") + `"`))
		begin(w, "data: "+note(1)+"\n\n", `data: {"jsonrpc":"2.0","id":"`+id+`","result":{}}`+"\n\n")
	}})
	b, err := bridge.New(bridge.Options{URL: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	var in strings.Builder
	want := map[string]int{note(1) + "\n": many}
	for i := range many {
		id := fmt.Sprintf("id%d", i)
		fmt.Fprintf(&in, `{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%q,%s}}`+"\n", id, id, modernMeta)
		want[fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{}}`+"\n", id)] = 1
	}
	var out writes
	if err := b.Serve(t.Context(), strings.NewReader(in.String()), &out); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, line := range out.each {
		got[line]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}
