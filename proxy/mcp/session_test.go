package mcp_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/proxy/mcp"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// clock is a clock that the test moves.
type clock struct {
	mu sync.Mutex // protects the field below
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// keys collects the sessions that ended.
type keys struct {
	mu  sync.Mutex // protects the field below
	all []string
}

func (k *keys) add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, key)
}

func (k *keys) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.all)
}

func TestSessionBelongsToItsPrincipal(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	alice := open(t, srv, "alice")
	bob := &far{t: t, url: alice.url, who: "bob", session: alice.session}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if got := bob.status(method, echoCall); got != http.StatusNotFound {
			t.Errorf("%s by another: status %d, want 404", method, got)
		}
	}
	other := &far{t: t, url: srv.URL + "/mcp/demo", who: "alice", session: alice.session}
	if got := other.status(http.MethodPost, ping); got != http.StatusNotFound {
		t.Errorf("on another road: status %d, want 404", got)
	}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		two := alice.request(method, echoCall)
		two.Header["Mcp-Session-Id"] = []string{alice.session, alice.session}
		if res, _ := alice.do(two); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s with two ids: status %d, want 404", method, res.StatusCode)
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		for _, tc := range []struct {
			versions []string
			want     int
		}{
			{[]string{"2025-11-25", "2025-11-25"}, http.StatusBadRequest},
			{[]string{"1999-01-01"}, http.StatusBadRequest},
			{[]string{"2026-07-28"}, http.StatusMethodNotAllowed},
		} {
			odd := alice.request(method, "")
			odd.Header["Mcp-Protocol-Version"] = tc.versions
			if res, _ := alice.do(odd); res.StatusCode != tc.want {
				t.Errorf("%s in %v: status %d, want %d", method, tc.versions, res.StatusCode, tc.want)
			}
		}
	}
	if g.calls() != 0 {
		t.Errorf("%d calls reached a tool", g.calls())
	}
	if got := alice.status(http.MethodPost, ping); got != http.StatusOK {
		t.Errorf("by its owner: status %d, want 200", got)
	}
}

// TestClientInfo: the road gets what the client says of itself, in sessions and without.
func TestClientInfo(t *testing.T) {
	const info = `{"name":"test","version":"1","title":"A test","big":9007199254740993}`
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	own := func(text string) string { return strings.Replace(text, `{"name":"test","version":"1"}`, info, 1) }
	res, _ := h.post(own(initialize))
	h.session = res.Header.Get("Mcp-Session-Id")
	h.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{}}}`)
	h.session = ""
	modern := h.request(http.MethodPost, own(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"demo__echo","arguments":{},`+modernMeta+`}}`))
	modern.Header.Set("MCP-Protocol-Version", "2026-07-28")
	modern.Header.Set("Mcp-Method", "tools/call")
	modern.Header.Set("Mcp-Name", "demo__echo")
	h.do(modern)
	var got []string
	for _, call := range g.reached {
		got = append(got, string(call.ClientInfo))
	}
	if diff := cmp.Diff([]string{info, info}, got); diff != "" {
		t.Error(diff)
	}
}

// TestNegotiated: what clients declare is counted, of sessions and without.
func TestNegotiated(t *testing.T) {
	const declared = `{"extensions":{"io.modelcontextprotocol/ui":{},"vendor/x":{},"vendor/y":{}}}`
	srv, d := newServer(t, newGate(), nil)
	h := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	h.post(strings.Replace(initialize, `"capabilities":{}`, `"capabilities":`+declared, 1))
	h.post(initialize)
	modern := h.request(http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{`+strings.Replace(modernMeta, `clientCapabilities":{"roots":{}}`, `clientCapabilities":`+declared, 1)+`}}`)
	modern.Header.Set("MCP-Protocol-Version", "2026-07-28")
	modern.Header.Set("Mcp-Method", "tools/list")
	h.do(modern)
	if diff := cmp.Diff(map[string]float64{"io.modelcontextprotocol/ui": 2, "other": 2}, d.Negotiated()); diff != "" {
		t.Error(diff)
	}
}

// TestSecondInitialize: a session is initialized once. After its end, initialize with its id opens another.
func TestSecondInitialize(t *testing.T) {
	srv, _ := newServer(t, newGate(), nil)
	h := open(t, srv, "alice")
	res, body := h.do(h.request(http.MethodPost, initialize))
	if !strings.Contains(body, "initialized already") || res.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%d, session %q: %s", res.StatusCode, res.Header.Get("Mcp-Session-Id"), body)
	}
	if got := h.status(http.MethodPost, ping); got != http.StatusOK {
		t.Errorf("the session answers with %d, want 200", got)
	}
	h.status(http.MethodDelete, "")
	if res, body = h.do(h.request(http.MethodPost, initialize)); res.Header.Get("Mcp-Session-Id") == "" {
		t.Errorf("no session after the end of the first: %d: %s", res.StatusCode, body)
	}
}

func TestSessionIDsAreRandom(t *testing.T) {
	srv, _ := newServer(t, newGate(), nil)
	seen := map[string]bool{}
	for range 20 {
		id := open(t, srv, "alice").session
		if seen[id] || len(id) < 26 { // 26 base32 characters are 130 bits
			t.Fatalf("session id %q", id)
		}
		seen[id] = true
	}
}

func TestSessionEnds(t *testing.T) {
	c, ended := &clock{at: time.Unix(1e9, 0)}, &keys{}
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) {
		o.Now, o.SessionTTL, o.Ended = c.now, time.Minute, ended.add
	})
	idle, used, deleted := open(t, srv, "alice"), open(t, srv, "alice"), open(t, srv, "alice")
	if got := deleted.status(http.MethodDelete, ""); got != http.StatusNoContent {
		t.Errorf("DELETE: status %d, want 204", got)
	}
	c.advance(40 * time.Second)
	if got := used.status(http.MethodPost, ping); got != http.StatusOK {
		t.Errorf("in time: status %d, want 200", got)
	}
	c.advance(40 * time.Second)
	for name, tt := range map[string]struct {
		session *far
		want    int
	}{"idle": {idle, 404}, "used": {used, 200}, "deleted": {deleted, 404}} {
		if got := tt.session.status(http.MethodPost, ping); got != tt.want {
			t.Errorf("%s: status %d, want %d", name, got, tt.want)
		}
	}
	if ended.count() != 2 {
		t.Errorf("%d sessions were reported as ended, want 2", ended.count())
	}
}

// TestSessionRoom: a principal that opens too many sessions loses its own.
func TestSessionRoom(t *testing.T) {
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.MaxSessions = 3 })
	bob := open(t, srv, "bob")
	first, second := open(t, srv, "alice"), open(t, srv, "alice")
	third := open(t, srv, "alice")
	got := []int{}
	for _, h := range []*far{bob, first, second, third} {
		got = append(got, h.status(http.MethodPost, ping))
	}
	if diff := cmp.Diff([]int{200, 404, 200, 200}, got); diff != "" {
		t.Errorf("who is left (-want +got):\n%s", diff)
	}
}

// Threat H5: the principal with the most sessions gives one up for another principal, also
// when one of the other's has been idle for longer.
func TestSessionsOfAHog(t *testing.T) {
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.MaxSessions = 3 })
	old := open(t, srv, "bob")
	first, second := open(t, srv, "alice"), open(t, srv, "alice")
	bob := open(t, srv, "bob")
	got := []int{}
	for _, h := range []*far{old, first, second, bob} {
		got = append(got, h.status(http.MethodPost, ping))
	}
	if diff := cmp.Diff([]int{200, 404, 200, 200}, got); diff != "" {
		t.Errorf("who is left (-want +got):\n%s", diff)
	}
}

// TestNoRoom: sessions at work are not ended to make room.
func TestNoRoom(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.MaxSessions = 1 })
	alice := open(t, srv, "alice")
	var wg sync.WaitGroup
	wg.Go(func() { alice.post(strings.ReplaceAll(echoCall, "echo", "wait")) })
	<-g.started
	_, body := (&far{t: t, url: alice.url, who: "bob"}).post(initialize)
	if got := refusalOf(t, body, g).Code; got != "OVERLOADED" {
		t.Errorf("answer %s", body)
	}
	close(g.release)
	wg.Wait()
	open(t, srv, "bob")
}

// TestEndWaitsForCalls: a session that is deleted during a call is over after
// the call, whose answer still arrives.
func TestEndWaitsForCalls(t *testing.T) {
	g, ended := newGate(), &keys{}
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.Ended = ended.add })
	h := open(t, srv, "alice")
	answer := make(chan string, 1)
	go func() {
		_, body := h.post(strings.ReplaceAll(echoCall, "echo", "wait"))
		answer <- body
	}()
	<-g.started
	h.status(http.MethodDelete, "")
	if ended.count() != 0 {
		t.Error("the session was reported as over during a call")
	}
	close(g.release)
	if body := <-answer; !strings.Contains(body, `"content"`) {
		t.Errorf("answer %s", body)
	}
	if ended.count() != 1 {
		t.Error("the session was not reported as over")
	}
}

// TestJanitor: sessions end without anybody asking for them.
func TestJanitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := &keys{}
		var over []span.Session
		d, err := mcp.New(mcp.Options{
			Gate: newGate(), Refuser: newGate(), SessionTTL: time.Minute, Ended: ended.add, Session: func(s span.Session) { over = append(over, s) },
		})
		if err != nil {
			t.Fatal(err)
		}
		rec := record(d, "alice", "", initialize)
		if rec.Code != http.StatusOK {
			t.Fatalf("status %d", rec.Code)
		}
		time.Sleep(30 * time.Second)
		if ended.count() != 0 {
			t.Error("a session ended early")
		}
		time.Sleep(time.Minute)
		if ended.count() != 1 {
			t.Error("the idle session is still there")
		}
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if len(over) != 1 || over[0].Duration < time.Minute || over[0].Duration > 90*time.Second || over[0].Transport != "http" || over[0].Protocol == "" {
			t.Errorf("sessions that are over: %+v", over)
		}
	})
}

// TestManySessions runs a hundred clients at a time, each of which must get
// its own answers.
func TestManySessions(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			h := open(t, srv, []string{"alice", "bob"}[i%2])
			for n := range 5 {
				id := fmt.Sprintf(`"%d-%d"`, i, n)
				_, body := h.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"demo__echo","arguments":{"i":` + id + `}}}`)
				want := `"id":` + id + `,"result":{"content":[{"type":"text","text":"{\"i\":\"` + strings.Trim(id, `"`) + `\"}"}]`
				if !strings.Contains(body, want) {
					t.Errorf("client %d: %s", i, body)
				}
			}
			d.ToolsChanged()
			h.status(http.MethodDelete, "")
		})
	}
	wg.Wait()
	if g.calls() != 500 {
		t.Errorf("%d calls reached a tool, want 500", g.calls())
	}
}

// TestClose: a closing door lets calls finish and takes no new ones.
func TestClose(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	h := open(t, srv, "alice")
	answer := make(chan string, 1)
	go func() {
		_, body := h.post(strings.ReplaceAll(echoCall, "echo", "wait"))
		answer <- body
	}()
	<-g.started
	closed := make(chan error, 1)
	go func() { closed <- d.Close(context.Background()) }()
	for h.status(http.MethodPost, ping) != http.StatusServiceUnavailable { // until Close has begun
	}
	close(g.release)
	if body := <-answer; !strings.Contains(body, `"content"`) {
		t.Errorf("answer %s", body)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestCloseInAHurry: calls that outlive the time given are cancelled.
func TestCloseInAHurry(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	h := open(t, srv, "alice")
	done := make(chan struct{})
	go func() {
		h.post(strings.ReplaceAll(echoCall, "echo", "wait"))
		close(done)
	}()
	<-g.started
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Close(ctx); err == nil {
		t.Error("Close does not say that it cancelled a call")
	}
	<-done
}
