package mcp_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// showing is a gate that shows a link in its first call and answers the next
// ones; what the client says comes to said.
func showing(said chan registry.Answer, anew bool) *fakeGate {
	g, first := newGate(), true
	g.behave["talk"] = func(ctx context.Context, g *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		if !first {
			a := in.Peer.Ask(ctx, []registry.Question{{Key: "approval", Method: "roots/list"}})
			return raw(`{"content":[],"second":true,"said":` + string(orNull(a[0].Result)) + `}`), nil
		}
		first = false
		a := in.Peer.Ask(ctx, []registry.Question{{Key: "approval", Method: "elicitation/create", Params: raw(`{"mode":"url"}`), Anew: anew}})
		said <- a[0]
		if a[0].Error != nil {
			return nil, g.fail(signal.CodeCancelled, "gone")
		}
		return raw(`{"content":[],"first":true}`), nil
	}
	return g
}

const clicked = askRoots + `,"inputResponses":{"approval":{"action":"accept"}}`

// What a client was given with a link is good for the call anew when the call is
// gone, with its process or for another reason: where the key is the same, in its
// time, for the same request and where nothing can have been sent.
func TestRequestStateOutlivesItsCall(t *testing.T) {
	key := bytes.Repeat([]byte{7}, mcp.StateKeyBytes)
	for _, tt := range []struct {
		what    string
		anew    bool
		key     []byte
		later   time.Duration
		who     string
		members string
		want    string
	}{
		{"the same request", true, key, 0, "alice", clicked, `"resultType":"input_required"`},
		{"a question of a server", false, key, 0, "alice", clicked, "nothing waits"},
		{"another key", true, bytes.Repeat([]byte{8}, mcp.StateKeyBytes), 0, "alice", clicked, "was changed"},
		{"a key of its own", true, nil, 0, "alice", clicked, "was changed"},
		{"too late", true, key, time.Hour, "alice", clicked, "has expired"},
		{"another principal", true, key, 0, "bob", clicked, "another request"},
		{"other arguments", true, key, 0, "alice", `"name":"demo__talk","arguments":{"ask":[]}`, "another request"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			clock, said := &clock{at: time.Now()}, make(chan registry.Answer, 1)
			g := showing(said, tt.anew)
			before := newDoor(t, g, func(o *mcp.Options) { o.Now, o.StateKey = clock.now, key })
			state := parkedCalls(t, before, "alice", askRoots)
			if err := before.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a := <-said; a.Error == nil {
				t.Errorf("the call that ended heard %s", a.Result)
			}
			clock.advance(tt.later)
			after := newDoor(t, g, func(o *mcp.Options) { o.Now, o.StateKey = clock.now, tt.key })
			rec := serve(after, sessionless(tt.who, "/mcp", "tools/call", tt.members+`,"requestState":"`+state+`"`))
			if !strings.Contains(rec.Body.String(), tt.want) {
				t.Fatalf("%d %s, want %s", rec.Code, rec.Body, tt.want)
			}
			if calls := map[bool]int{true: 2, false: 1}[strings.Contains(tt.want, "resultType")]; g.calls() != calls {
				t.Errorf("%d calls on the road, want %d", g.calls(), calls)
			}
		})
	}
}

// The answers of a client reach its call at whichever replica they arrive; the call is made
// once. Only a state that was signed leads to another replica, and only one that it made.
func TestRequestStateAtAnotherReplica(t *testing.T) {
	key, said := bytes.Repeat([]byte{7}, mcp.StateKeyBytes), make(chan registry.Answer, 1)
	g := showing(said, false)
	var doors [2]*mcp.Door
	var passed []string
	replica := func(n int) func(*mcp.Options) {
		return func(o *mcp.Options) {
			o.StateKey, o.Replica = key, [8]byte{byte(n)}
			o.PassOn = func(w http.ResponseWriter, r *http.Request, body []byte, owner [8]byte) bool {
				passed = append(passed, string(body))
				if owner[0] > 1 {
					return false
				}
				r = r.Clone(r.Context())
				r.Body = io.NopCloser(bytes.NewReader(body))
				doors[owner[0]].ServeHTTP(w, r)
				return true
			}
		}
	}
	for n := range doors {
		doors[n] = newDoor(t, g, replica(n))
	}
	state := parkedCalls(t, doors[0], "alice", askRoots)
	for name, tt := range map[string]struct{ who, state, want string }{
		"changed":           {"alice", string(state[0]^1) + state[1:], "was changed"},
		"another principal": {"bob", state, "another request"}, // as the owner says
		"nobody":            {"gone", state, "UNAUTHENTICATED"},
	} {
		before := len(passed)
		rec := serve(doors[1], sessionless(tt.who, "/mcp", "tools/call", clicked+`,"requestState":"`+tt.state+`"`))
		if !strings.Contains(rec.Body.String(), tt.want) || (len(passed) > before) != (tt.who == "bob") {
			t.Errorf("%s: %d %s, passed on %v", name, rec.Code, rec.Body, passed[before:])
		}
	}
	rec := serve(doors[1], sessionless("alice", "/mcp", "tools/call", clicked+`,"requestState":"`+state+`"`))
	if a := <-said; !strings.Contains(rec.Body.String(), `"first":true`) || string(a.Result) != `{"action":"accept"}` || g.calls() != 1 {
		t.Errorf("%s, said %s %s, %d calls", rec.Body, a.Result, a.Error, g.calls())
	}
	if last := passed[len(passed)-1]; !strings.Contains(last, state) {
		t.Errorf("passed on %s", last)
	}
	third := newDoor(t, g, replica(2))
	state = parkedCalls(t, third, "alice", askRoots)
	rec = serve(doors[0], sessionless("alice", "/mcp", "tools/call", clicked+`,"requestState":"`+state+`"`))
	if !strings.Contains(rec.Body.String(), "nothing waits") {
		t.Errorf("of a replica that is gone: %s", rec.Body)
	}
}

// A client that comes back while its call is there goes on with that one, and
// what it answered is no answer to a question of the call that begins anew.
func TestOneCallWhileItIsThere(t *testing.T) {
	said := make(chan registry.Answer, 1)
	g := showing(said, true)
	d := newDoor(t, g, nil)
	state := parkedCalls(t, d, "alice", askRoots)
	back := func() string {
		return serve(d, sessionless("alice", "/mcp", "tools/call", clicked+`,"requestState":"`+state+`"`)).Body.String()
	}
	if got := back(); !strings.Contains(got, `"first":true`) || g.calls() != 1 {
		t.Errorf("%d calls, %s", g.calls(), got)
	}
	if a := <-said; string(a.Result) != `{"action":"accept"}` {
		t.Errorf("said %s %s", a.Result, a.Error)
	}
	for !strings.Contains(back(), `"resultType":"input_required"`) { // the first call has ended when its answer is read, its place is free soon after
		if g.calls() > 1 {
			t.Fatal("what was clicked answered a question of the call that began anew")
		}
	}
	if g.calls() != 2 {
		t.Errorf("%d calls on the road", g.calls())
	}
}

func TestStateKeyOfAnotherLength(t *testing.T) {
	g := newGate()
	if _, err := mcp.New(mcp.Options{Gate: g, Refuser: g, StateKey: []byte("short")}); err == nil {
		t.Error("a door takes a short key")
	}
}
