package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// ear is the client's end of one stream of notifications.
type ear struct {
	t    *testing.T
	r    *bufio.Reader
	stop context.CancelFunc
	over chan struct{} // closed when the door is done with it
}

// listen opens a stream of who at d and takes its acknowledgement.
func listen(t *testing.T, d *mcp.Door, who, path, filter string) *ear {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	in, out := io.Pipe()
	e := &ear{t: t, r: bufio.NewReader(in), stop: stop, over: make(chan struct{})}
	go func() {
		defer close(e.over)
		d.ServeHTTP(&piped{header: http.Header{}, out: out}, sessionless(who, path, "subscriptions/listen", `"notifications":`+filter).WithContext(ctx))
		_ = out.Close()
	}()
	t.Cleanup(func() { stop(); _ = in.Close() })
	return e
}

// hear gives the data of the next event, "" at the end.
func (e *ear) hear() string {
	for {
		line, err := e.r.ReadString('\n')
		if err != nil {
			return ""
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
		if strings.HasPrefix(line, "{") {
			return strings.TrimSpace(line)
		}
	}
}

// piped is an answer that is read while it is written.
type piped struct {
	header http.Header
	out    *io.PipeWriter
	status int
}

func (p *piped) Header() http.Header              { return p.header }
func (p *piped) WriteHeader(status int)           { p.status = status }
func (p *piped) Write(b []byte) (int, error)      { return p.out.Write(b) }
func (p *piped) FlushError() error                { return nil }
func (p *piped) SetWriteDeadline(time.Time) error { return nil }
func (p *piped) SetReadDeadline(time.Time) error  { return nil }

// shelf is a library that keeps book of subscriptions, by party.
type shelf struct {
	library
	book chan string
}

func (s *shelf) Relay(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	if strings.HasSuffix(in.Message.Method, "subscribe") {
		var params struct{ URI string }
		if err := json.Unmarshal(in.Message.Params, &params); err != nil || in.Session == "" || in.Home == nil {
			return nil, s.fail(signal.CodeEnvelopeInvalid, "for nobody")
		}
		s.book <- strings.TrimPrefix(in.Message.Method, "resources/") + " " + params.URI
	}
	return s.library.Relay(ctx, in)
}

// take gives the next n entries, and whatever else is there.
func (s *shelf) take(n int) string {
	var all []string
	for ; n > 0; n-- {
		all = append(all, <-s.book)
	}
	for len(s.book) > 0 {
		all = append(all, <-s.book)
	}
	return strings.Join(all, ", ")
}

// A resource is subscribed to once for all streams of a party, and until the
// last of them ends; updates go to those that named it.
func TestListenToResources(t *testing.T) {
	g := newGate()
	s := &shelf{library: library{g}, book: make(chan string, 100)}
	d := newDoor(t, g, func(o *mcp.Options) { s.serve(o); o.Relayer = s })
	// a is the last that the first stream gives up: then its part in b has ended.
	one := listen(t, d, "alice", "/mcp/demo", `{"resourceSubscriptions":["b","a"]}`)
	if got := one.hear(); !strings.Contains(got, `"resourceSubscriptions":["b","a"]`) {
		t.Fatal(got)
	}
	two := listen(t, d, "alice", "/mcp/demo", `{"resourceSubscriptions":["b","c"]}`)
	two.hear()
	bob := listen(t, d, "bob", "/mcp/demo", `{"resourceSubscriptions":["a","b","c"]}`)
	bob.hear()
	if got := s.take(6); got != "subscribe b, subscribe a, subscribe c, subscribe a, subscribe b, subscribe c" {
		t.Errorf("subscribed: %s", got)
	}
	tell := func(uri string) {
		serve(d, sessionless("alice", "/mcp/demo", "tools/call", `"name":"talk","arguments":{"home":true,"tell":[{"method":"notifications/resources/updated","params":{"uri":"`+uri+`"}}]}`))
	}
	tell("a")
	if got := one.hear(); !strings.Contains(got, `"uri":"a"`) {
		t.Errorf("of a: %s", got)
	}
	one.stop()
	<-one.over
	if got := s.take(1); got != "unsubscribe a" {
		t.Errorf("after the first: %s", got)
	}
	tell("a")
	tell("b")
	if got := two.hear(); !strings.Contains(got, `"uri":"b"`) {
		t.Errorf("of b: %s", got)
	}
	two.stop()
	<-two.over
	if got := s.take(2); got != "unsubscribe b, unsubscribe c" {
		t.Errorf("after the last: %s", got)
	}
	bob.stop()
	<-bob.over
}

// Changes are told to the streams that want them, whoever's they are, on the
// roads that they are about.
func TestListenToLists(t *testing.T) {
	g := newGate()
	d := newDoor(t, g, func(o *mcp.Options) {
		library{g}.serve(o)
		o.Offers = func(context.Context, string) json.RawMessage {
			return json.RawMessage(`{"prompts":{"listChanged":true},"resources":{}}`)
		}
	})
	all := `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`
	demo, other, prompts := listen(t, d, "alice", "/mcp/demo", all), listen(t, d, "bob", "/mcp/other", all), listen(t, d, "bob", "/mcp", `{"promptsListChanged":true}`)
	for _, e := range []*ear{demo, other} {
		if got := e.hear(); !strings.Contains(got, `{"toolsListChanged":true,"promptsListChanged":true}`) {
			t.Errorf("acknowledged: %s", got)
		}
	}
	prompts.hear()
	d.ListChanged("demo", "notifications/prompts/list_changed")
	d.ListChanged("demo", "notifications/resources/list_changed")
	d.ToolsChanged()
	for e, want := range map[*ear][]string{demo: {"prompts", "tools"}, other: {"tools"}, prompts: {"prompts"}} {
		for _, list := range want {
			if got := e.hear(); !strings.Contains(got, "notifications/"+list+"/list_changed") {
				t.Errorf("got %s, want %s", got, list)
			}
		}
	}
	for _, e := range []*ear{demo, other, prompts} {
		e.stop()
		<-e.over
	}
}

// A door that closes ends its streams with an answer.
func TestListenEndsWithTheDoor(t *testing.T) {
	d := newDoor(t, newGate(), nil)
	e := listen(t, d, "alice", "/mcp", `{}`)
	e.hear()
	closed := make(chan error, 1)
	go func() { closed <- d.Close(context.Background()) }()
	const want = `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":1,` +
		`"io.modelcontextprotocol/serverInfo":{"name":"toolgate","version":"1.2.3"}}}}`
	if got := e.hear(); got != want {
		t.Errorf("got %s", got)
	}
	if got := e.hear(); got != "" {
		t.Errorf("afterwards %s", got)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// revocable is a gate whose tokens may be taken back.
type revocable struct {
	*fakeGate
	mu      sync.Mutex // protects the field below
	revoked bool
}

func (r *revocable) Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.revoked {
		return policy.Principal{}, r.fail(signal.CodeUnauthenticated, "the token was taken back")
	}
	return r.fakeGate.Identify(ctx, c)
}

// A stream ends when its credential is worth nothing any more, and says so.
func TestListenEndsWithItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		gate := &revocable{fakeGate: g}
		d := newDoor(t, g, func(o *mcp.Options) { o.Gate = gate })
		e := listen(t, d, "alice", "/mcp", `{"toolsListChanged":true}`)
		e.hear()
		time.Sleep(time.Minute) // of heartbeats
		gate.mu.Lock()
		gate.revoked = true
		gate.mu.Unlock()
		if got := e.hear(); !strings.Contains(got, "UNAUTHENTICATED") {
			t.Errorf("got %s", got)
		}
		<-e.over
		if !slices.Equal(g.refusals(), []string{signal.CodeUnauthenticated + " subscriptions/listen"}) {
			t.Errorf("recorded %v", g.refusals())
		}
	})
}

// One principal has so many streams, whatever its clients can do.
func TestListensAreBounded(t *testing.T) {
	d := newDoor(t, newGate(), func(o *mcp.Options) { o.MaxListens = 2 })
	one, two := listen(t, d, "alice", "/mcp", `{}`), listen(t, d, "alice", "/mcp/demo", `{}`)
	one.hear()
	two.hear()
	if rec := serve(d, sessionless("alice", "/mcp", "subscriptions/listen", `"notifications":{}`)); !strings.Contains(rec.Body.String(), "OVERLOADED") {
		t.Errorf("a third: %s", rec.Body)
	}
	bob := listen(t, d, "bob", "/mcp", `{}`)
	bob.hear()
	one.stop()
	<-one.over
	next := listen(t, d, "alice", "/mcp", `{}`)
	for !strings.Contains(next.hear(), "acknowledged") { // the place is free soon after the connection has ended
		<-next.over
		next = listen(t, d, "alice", "/mcp", `{}`)
	}
	for _, e := range []*ear{two, bob, next} {
		e.stop()
		<-e.over
	}
}

// A client that goes cancels its request, and is answered nothing.
func TestDisconnectCancels(t *testing.T) {
	for _, members := range []string{`"name":"demo__wait"`, `"name":"demo__wait","_meta":{"x":1}`} {
		g := newGate()
		srv, _ := newServer(t, g, nil)
		ctx, hangUp := context.WithCancel(t.Context())
		members, _, _ = strings.Cut(members, `,"_meta"`)
		req := sessionless("alice", "/mcp", "tools/call", members).WithContext(ctx)
		out, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/mcp", req.Body)
		if err != nil {
			t.Fatal(err)
		}
		out.Header = req.Header
		go func() {
			<-g.started
			hangUp()
		}()
		if res, err := http.DefaultClient.Do(out); err == nil {
			_ = res.Body.Close()
			t.Errorf("answered %d", res.StatusCode)
		}
	}
}

// A party ends when it was idle for long enough: not while it listens or while
// a call of it waits for answers. Its key is the principal's, the road's and the
// capabilities' own, and another one never waits for it.
func TestPartyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ended := newGate(), &keys{}
		d := newDoor(t, g, func(o *mcp.Options) {
			o.SessionTTL, o.AnswerTTL, o.Heartbeat, o.Ended = 10*time.Minute, 25*time.Minute, 24*time.Hour, ended.add
		})
		seen := func() string { g.mu.Lock(); defer g.mu.Unlock(); return g.reached[len(g.reached)-1].Session }
		echo := `"name":"demo__echo","arguments":{}`
		serve(d, sessionless("alice", "/mcp", "tools/call", echo))
		alice := seen()
		serve(d, sessionless("bob", "/mcp", "tools/call", echo))
		bob := seen()
		serve(d, sessionless("alice", "/mcp", "tools/call", echo))
		if again := seen(); again != alice || bob == alice || !strings.HasPrefix(alice, "prn_") {
			t.Errorf("keys %s, %s, %s", alice, bob, again)
		}
		e := listen(t, d, "bob", "/mcp", `{}`)
		e.hear()
		parkedCalls(t, d, "alice", askRoots)
		time.Sleep(20 * time.Minute)
		if got := ended.count(); got != 0 {
			t.Errorf("%d ended at work", got)
		}
		time.Sleep(20 * time.Minute)
		if got := ended.count(); got != 1 || ended.all[0] != alice {
			t.Errorf("ended %v, want %s", ended.all, alice)
		}
		e.stop()
		<-e.over
		time.Sleep(20 * time.Minute)
		if got := ended.count(); got != 2 || ended.all[1] != bob {
			t.Errorf("ended %v, want %s too", ended.all, bob)
		}
		serve(d, sessionless("alice", "/mcp", "tools/call", echo))
		if err := d.Close(t.Context()); err != nil || ended.count() != 3 || ended.all[2] != alice {
			t.Errorf("closing: %v, %v", err, ended.all)
		}
	})
}

// When there are too many parties the idle one of the same principal goes
// first; when all are at work, one more is refused.
func TestPartiesAreBounded(t *testing.T) {
	g, ended := newGate(), &keys{}
	d := newDoor(t, g, func(o *mcp.Options) { o.MaxSessions, o.Ended = 2, ended.add })
	serve(d, sessionless("bob", "/mcp", "tools/list", ""))
	serve(d, sessionless("alice", "/mcp", "tools/list", ""))
	for stop := time.Now().Add(10 * time.Second); d.Idle() < 2 && time.Now().Before(stop); { // an answer comes before its work has ended
		runtime.Gosched()
	}
	serve(d, sessionless("alice", "/mcp/demo", "tools/list", ""))
	if ended.count() != 1 {
		t.Fatalf("%d ended", ended.count())
	}
	mine := listen(t, d, "alice", "/mcp/demo", `{}`)
	mine.hear()
	his := listen(t, d, "bob", "/mcp", `{}`)
	his.hear()
	if got := ended.count(); got != 1 {
		t.Errorf("%d ended: bob's was not kept", got)
	}
	rec := serve(d, sessionless("alice", "/mcp", "tools/list", ""))
	if !strings.Contains(rec.Body.String(), "OVERLOADED") || !slices.Contains(g.refusals(), signal.CodeOverloaded+" tools/list") {
		t.Errorf("a third party: %s", rec.Body)
	}
	for _, e := range []*ear{mine, his} {
		e.stop()
		<-e.over
	}
}

// An update of a part is one of the whole.
func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		uri, own string
		want     bool
	}{
		{"file:///a", "file:///a", true}, {"file:///a/b", "file:///a", true}, {"file:///a/b", "file:///a/", true}, {"file:///a#x", "file:///a", true},
		{"file:///ab", "file:///a", false}, {"file:///", "file:///a", false}, {"x", "", false}, {"", "", true},
	} {
		if got := mcp.Within(tt.uri, tt.own); got != tt.want {
			t.Errorf("%q within %q: %v", tt.uri, tt.own, got)
		}
	}
}
