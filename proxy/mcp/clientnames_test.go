package mcp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
)

// claiming is r from a client that claims another name, a name and version as JSON.
func claiming(t *testing.T, r *http.Request, info string) *http.Request {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	const own = `"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},`
	if info != "" {
		info = `"io.modelcontextprotocol/clientInfo":` + info + ","
	}
	claimed := strings.Replace(string(body), own, info, 1)
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(claimed)), int64(len(claimed))
	return r
}

// groupOf gives the session under which the road sees a call.
func groupOf(t *testing.T, d *mcp.Door, g *fakeGate, r *http.Request) string {
	t.Helper()
	if rec := serve(d, r); !strings.Contains(rec.Body.String(), `"result"`) {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reached[len(g.reached)-1].Session
}

const callEcho = `"name":"demo__echo","arguments":{}`

// The name that a client claims separates the clients of one principal, as the OAuth
// client of its token does. It never joins those of two principals.
func TestClientsOfOnePrincipal(t *testing.T) {
	g := newGate()
	d := newDoor(t, g, nil)
	seen := map[string]string{} // :: group -> who is in it
	for _, tt := range []struct{ who, info, shares string }{
		{"alice", `{"name":"editor","version":"1"}`, ""},
		{"alice", `{"name":"editor","version":"1"}`, `alice {"name":"editor","version":"1"}`},
		{"alice", `{"name":"editor","version":"2"}`, ""},
		{"alice", `{"name":"desktop","version":"1"}`, ""},
		{"alice", ``, ""},
		{"alice", `{}`, "alice "},
		{"alice-app", `{"name":"editor","version":"1"}`, ""},
		{"bob", `{"name":"editor","version":"1"}`, ""},
		{"bob", ``, ""},
	} {
		me := tt.who + " " + tt.info
		key := groupOf(t, d, g, claiming(t, sessionless(tt.who, "/mcp", "tools/call", callEcho), tt.info))
		if seen[key] != tt.shares {
			t.Errorf("%s shares a group with %q, want %q", me, seen[key], tt.shares)
		}
		if seen[key] == "" {
			seen[key] = me
		}
	}
}

// A client that claims a new name with each request gets no more than so many groups:
// others of its principal then share one, and those of other principals are not concerned.
func TestNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ended := newGate(), &keys{}
		d := newDoor(t, g, func(o *mcp.Options) { o.SessionTTL, o.Ended = 10*time.Minute, ended.add })
		call := func(who string, n int) string {
			return groupOf(t, d, g, claiming(t, sessionless(who, "/mcp", "tools/call", callEcho), fmt.Sprintf(`{"name":"c%d","version":"1"}`, n)))
		}
		groups := map[string]bool{}
		first := call("alice", 0)
		for n := range 200 {
			groups[call("alice", n)] = true
		}
		if len(groups) != mcp.MaxNamed+1 || ended.count() != 0 {
			t.Errorf("%d groups, %d ended", len(groups), ended.count())
		}
		if again := call("alice", 0); again != first {
			t.Error("a client lost its group to later names")
		}
		if call("bob", 0) == call("bob", 1) {
			t.Error("names of alice joined clients of bob")
		}
		synctest.Wait()
		time.Sleep(30 * time.Minute)
		if call("alice", 500) == call("alice", 501) {
			t.Error("the places of idle clients did not become free")
		}
	})
}

// A question of a server that belongs to no request is for the client whose connection
// it comes on, whatever its principal's other clients do.
func TestQuestionsReachTheirClient(t *testing.T) {
	g := newGate()
	homes := make(chan registry.Peer, 2)
	g.behave["talk"] = func(_ context.Context, g *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		homes <- in.Home
		<-g.release
		return raw(`{"content":[]}`), nil
	}
	d := newDoor(t, g, nil)
	begin := func(name string) (registry.Peer, chan *httptest.ResponseRecorder) {
		answered := make(chan *httptest.ResponseRecorder, 1)
		req := claiming(t, sessionless("alice", "/mcp", "tools/call", askRoots), `{"name":"`+name+`","version":"1"}`)
		go func() { answered <- serve(d, req) }()
		return <-homes, answered
	}
	home, editor := begin("editor")
	_, desktop := begin("desktop") // its call is the newest
	asked := make(chan []registry.Answer, 1)
	go func() { asked <- home.Ask(context.Background(), []registry.Question{{Key: "0", Method: "roots/list"}}) }()
	select {
	case rec := <-editor:
		if stateOf(t, rec) == "" {
			t.Errorf("not asked: %s", rec.Body)
		}
	case rec := <-desktop:
		t.Errorf("the other client was asked: %s", rec.Body)
	}
	close(g.release)
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-asked
}
