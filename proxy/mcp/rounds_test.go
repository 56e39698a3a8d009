package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

const (
	rootsQuestion = `{"method":"roots/list"}`
	askRoots      = `"name":"demo__talk","arguments":{"ask":[` + rootsQuestion + `]}`
	rootsAnswer   = `"inputResponses":{"0":{"roots":[]}}`
)

// stateOf gives the requestState of an answer, "" when it asks nothing.
func stateOf(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	var m struct {
		Result struct{ ResultType, RequestState string }
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil {
		t.Fatalf("%v: %s", err, rec.Body)
	}
	if (m.Result.ResultType == "input_required") != (m.Result.RequestState != "") {
		t.Errorf("a state without questions, or the reverse: %s", rec.Body)
	}
	return m.Result.RequestState
}

// parkedCalls are the calls that have been parked at least once.
func parkedCalls(t *testing.T, d *mcp.Door, who, members string) string {
	t.Helper()
	rec := serve(d, sessionless(who, "/mcp", "tools/call", members))
	state := stateOf(t, rec)
	if state == "" {
		t.Fatalf("nothing was asked: %d %s", rec.Code, rec.Body)
	}
	return state
}

func retried(state, members string) *http.Request {
	return sessionless("alice", "/mcp", "tools/call", members+`,`+rootsAnswer+`,"requestState":"`+state+`"`)
}

// A state is good for one answer, to its own request. After every refusal the
// call that waits is as it was.
func TestRequestState(t *testing.T) {
	clock := &clock{at: time.Now()}
	told := make(chan []registry.Answer, 1)
	for _, tt := range []struct {
		what  string
		retry func(state string) *http.Request
		want  string // in the answer
		after bool   // the state is good for an answer afterwards
	}{
		{"the retry", func(s string) *http.Request { return retried(s, askRoots) }, `"resultType":"complete"`, false},
		{"other spaces and order", func(s string) *http.Request {
			return retried(s, `"arguments":{ "\u0061sk" : [ {"method":"roots/list"} ] }, "name":"demo__talk"`)
		}, `"resultType":"complete"`, false},
		{"the last letter changed", func(s string) *http.Request { return retried(s[:len(s)-1]+string(s[len(s)-1]^1), askRoots) }, "was changed", true},
		{"the first letter changed", func(s string) *http.Request { return retried(string(s[0]^1)+s[1:], askRoots) }, "was changed", true},
		{"cut short", func(s string) *http.Request { return retried(s[:len(s)-4], askRoots) }, "was changed", true},
		{"made longer", func(s string) *http.Request { return retried(s+"AAAA", askRoots) }, "was changed", true},
		{"with a line end inside", func(s string) *http.Request { return retried(s[:9]+`\n`+s[9:], askRoots) }, "was changed", true},
		{"empty", func(string) *http.Request { return retried("", askRoots) }, "was changed", true},
		{"of another door", func(string) *http.Request {
			return retried(mcp.NewNotary().Sign([16]byte{}, 1, time.Now().Add(time.Hour), [32]byte{}), askRoots)
		}, "was changed", true},
		{"another principal", func(s string) *http.Request {
			r := retried(s, askRoots)
			r.Header.Set("Authorization", "Bearer bob-token")
			return r
		}, "another request", true},
		{"another client", func(s string) *http.Request {
			return claiming(t, retried(s, askRoots), `{"name":"other","version":"1"}`)
		}, "another request", true},
		{"other arguments", func(s string) *http.Request {
			return retried(s, `"name":"demo__talk","arguments":{"ask":[`+rootsQuestion+`,`+rootsQuestion+`]}`)
		}, "another request", true},
		{"another tool", func(s string) *http.Request {
			return retried(s, `"name":"demo__echo","arguments":{"ask":[`+rootsQuestion+`]}`)
		}, "another request", true},
		{"another member", func(s string) *http.Request { return retried(s, askRoots+`,"more":1`) }, "another request", true},
		{"another method", func(s string) *http.Request {
			return sessionless("alice", "/mcp", "prompts/get", askRoots+`,`+rootsAnswer+`,"requestState":"`+s+`"`)
		}, "another request", true},
		{"another road", func(s string) *http.Request {
			return sessionless("alice", "/mcp/demo", "tools/call", askRoots+`,`+rootsAnswer+`,"requestState":"`+s+`"`)
		}, "another request", true},
		{"a token that is revoked", func(s string) *http.Request {
			r := retried(s, askRoots)
			r.Header.Set("Authorization", "Bearer gone")
			return r
		}, "UNAUTHENTICATED", true},
		{"too late", func(s string) *http.Request { clock.advance(time.Hour); return retried(s, askRoots) }, "has expired", false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			g := newGate()
			g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
				a := in.Peer.Ask(ctx, []registry.Question{{Key: "0", Method: "roots/list"}})
				told <- a
				return raw(`{"content":[]}`), nil
			}
			d := newDoor(t, g, func(o *mcp.Options) { o.Now = clock.now; library{g}.serve(o) })
			state := parkedCalls(t, d, "alice", askRoots)
			if d.Parked() != 1 {
				t.Errorf("%d calls are parked, want 1", d.Parked())
			}
			rec := serve(d, tt.retry(state))
			if !strings.Contains(rec.Body.String(), tt.want) {
				t.Errorf("%d %s, want %s", rec.Code, rec.Body, tt.want)
			}
			refused := !strings.Contains(tt.want, "complete")
			if refused != (len(g.refusals()) == 1) || g.calls() != 1 {
				t.Errorf("refusals %v, %d calls", g.refusals(), g.calls())
			}
			again := serve(d, retried(state, askRoots))
			if good := strings.Contains(again.Body.String(), `"resultType":"complete"`); good != tt.after {
				t.Errorf("afterwards: %s", again.Body)
			}
			if tt.after || !refused {
				if a := <-told; string(a[0].Result) != `{"roots":[]}` || a[0].Error != nil {
					t.Errorf("the server heard %s %s", a[0].Result, a[0].Error)
				}
			} else if err := d.Close(t.Context()); err != nil || (<-told)[0].Error == nil {
				t.Errorf("closing: %v", err)
			}
		})
	}
}

// FuzzRequestState: a state is read as it was made, or refused.
func FuzzRequestState(f *testing.F) {
	n := mcp.NewNotary()
	until := time.UnixMilli(1_800_000_000_000)
	whole := n.Sign([16]byte{1}, 2, until, [32]byte{3})
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[:9] + "\n" + whole[9:])
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		call, round, at, binding, err := n.Read(text)
		if err != nil {
			if round != 0 || call != [16]byte{} || !at.IsZero() || binding != [32]byte{} {
				t.Error("something is given with a refusal")
			}
			return
		}
		if n.Sign(call, round, at, binding) != text {
			t.Errorf("%q has another spelling", text)
		}
	})
}

// What a client leaves without an answer ends with an error after its time, and
// the state with it. The call itself goes on: nothing else was wrong with it.
func TestParkedExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, answers := newGate(), make(chan []registry.Answer, 1)
		g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
			answers <- in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})
			return raw(`{"content":[]}`), nil
		}
		d := newDoor(t, g, func(o *mcp.Options) { o.AnswerTTL = time.Minute })
		began := time.Now()
		state := parkedCalls(t, d, "alice", askRoots)
		if a := <-answers; time.Since(began) != time.Minute || !strings.Contains(string(a[0].Error), "in time") {
			t.Errorf("after %v: %s", time.Since(began), a[0].Error)
		}
		if rec := serve(d, retried(state, askRoots)); !strings.Contains(rec.Body.String(), "has expired") {
			t.Errorf("a retry: %s", rec.Body)
		}
	})
}

// What came of a call while nobody waited is kept for the retry, as long as the
// state is good: here the server withdraws its question and answers.
func TestResultWaitsForTheRetry(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate()
			g.behave["talk"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
				ctx, stop := context.WithTimeout(ctx, time.Second)
				defer stop()
				in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})
				return raw(`{"content":[],"without":true}`), nil
			}
			ended := &keys{}
			d := newDoor(t, g, func(o *mcp.Options) { o.AnswerTTL, o.Ended = time.Minute, ended.add })
			state := parkedCalls(t, d, "alice", askRoots)
			time.Sleep(2 * time.Second)
			if late {
				time.Sleep(time.Hour)
			}
			rec := serve(d, retried(state, askRoots))
			if got := strings.Contains(rec.Body.String(), `"without":true`); got == late {
				t.Errorf("late %v: %s", late, rec.Body)
			}
			if rec := serve(d, retried(state, askRoots)); strings.Contains(rec.Body.String(), `"without":true`) {
				t.Errorf("twice: %s", rec.Body)
			}
		})
	}
}

// Rounds that a server asks side by side are put one after the other, each
// under a state of its own; the one before is worth nothing then.
func TestRoundsOneByOne(t *testing.T) {
	g := newGate()
	g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		var wait sync.WaitGroup
		all := make([]string, 2)
		for i := range all {
			wait.Go(func() {
				a := in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})
				all[i] = string(a[0].Result)
			})
		}
		wait.Wait()
		slices.Sort(all)
		return raw(`{"content":[` + strings.Join(all, ",") + `]}`), nil
	}
	d := newDoor(t, g, nil)
	reply := func(state, roots string) *httptest.ResponseRecorder {
		return serve(d, sessionless("alice", "/mcp", "tools/call", askRoots+`,"inputResponses":{"question_1":{"roots":[`+roots+`]}},"requestState":"`+state+`"`))
	}
	first := parkedCalls(t, d, "alice", askRoots)
	rec := reply(first, "1")
	second := stateOf(t, rec)
	if second == "" || second == first {
		t.Fatalf("the second round: %s", rec.Body)
	}
	if rec := reply(first, "1"); !strings.Contains(rec.Body.String(), "has been used") {
		t.Errorf("the first state again: %s", rec.Body)
	}
	if rec := reply(second, "2"); !strings.Contains(rec.Body.String(), `"content":[{"roots":[1]},{"roots":[2]}]`) {
		t.Errorf("the result: %s", rec.Body)
	}
	if g.calls() != 1 {
		t.Errorf("%d calls on the road", g.calls())
	}
}

// A retry is a turn of the call: while it waits the state is used, and when its
// client goes the call is cancelled.
func TestRetryHangsUp(t *testing.T) {
	g, gone := newGate(), make(chan error, 1)
	asked := make(chan struct{})
	g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		in.Peer.Ask(ctx, []registry.Question{{Key: "0", Method: "roots/list"}})
		close(asked)
		<-ctx.Done()
		gone <- ctx.Err()
		return nil, g.fail(signal.CodeCancelled, "cancelled")
	}
	d := newDoor(t, g, nil)
	state := parkedCalls(t, d, "alice", askRoots)
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() { done <- serve(d, retried(state, askRoots).WithContext(ctx)) }()
	<-asked
	if rec := serve(d, retried(state, askRoots)); !strings.Contains(rec.Body.String(), "has been used") {
		t.Errorf("a second retry: %s", rec.Body)
	}
	hangUp()
	<-gone
	if rec := <-done; strings.Contains(rec.Body.String(), "jsonrpc") {
		t.Errorf("a client that had gone was answered: %s", rec.Body)
	}
	if rec := serve(d, retried(state, askRoots)); !strings.Contains(rec.Body.String(), "nothing waits") {
		t.Errorf("a retry afterwards: %s", rec.Body)
	}
}

// Threat H5: so many calls may wait for their clients. One more is answered as overload,
// and its server hears why; one of a principal that has fewer takes the place of another.
func TestParkedAreBounded(t *testing.T) {
	g, answers := newGate(), make(chan []registry.Answer, 10)
	g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		answers <- in.Peer.Ask(ctx, []registry.Question{{Key: "0", Method: "roots/list"}})
		return raw(`{"content":[]}`), nil
	}
	d := newDoor(t, g, func(o *mcp.Options) { o.MaxParked = 3 })
	heard := func() { // the server hears of it
		t.Helper()
		if a := <-answers; a[0].Error == nil {
			t.Errorf("the server heard %s", a[0].Result)
		}
	}
	refused := func(who string) {
		t.Helper()
		rec := serve(d, sessionless(who, "/mcp", "tools/call", askRoots))
		if !strings.Contains(rec.Body.String(), "OVERLOADED") || rec.Code != http.StatusOK {
			t.Errorf("%s: %d %s", who, rec.Code, rec.Body)
		}
		heard()
	}
	parkedCalls(t, d, "alice", askRoots)
	parkedCalls(t, d, "alice", askRoots)
	last := parkedCalls(t, d, "alice", askRoots) // who is alone may have all of them
	refused("alice")
	parkedCalls(t, d, "bob", askRoots) // a call of alice ends for one of bob, who has none
	heard()
	refused("bob")
	refused("alice")
	if rec := serve(d, retried(last, askRoots)); !strings.Contains(rec.Body.String(), "complete") {
		t.Errorf("the last: %s", rec.Body)
	}
	<-answers
	for { // the place is free when the call has ended, which its answer does not wait for
		rec := serve(d, sessionless("bob", "/mcp", "tools/call", askRoots))
		if stateOf(t, rec) != "" {
			break
		}
		<-answers
	}
}

// A door that closes does not wait for answers.
func TestCloseEndsParked(t *testing.T) {
	g, answers := newGate(), make(chan []registry.Answer, 1)
	g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		answers <- in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})
		return raw(`{"content":[]}`), nil
	}
	d := newDoor(t, g, nil)
	parkedCalls(t, d, "alice", askRoots)
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if a := <-answers; !strings.Contains(string(a[0].Error), "shutting down") {
		t.Errorf("the server heard %s %s", a[0].Result, a[0].Error)
	}
}

// In the course of requests that the protocol does not name nothing is asked.
func TestOnlySomeMethodsAsk(t *testing.T) {
	g := newGate()
	lib := &askingLibrary{library: library{g}, heard: make(chan []registry.Answer, 8)}
	d := newDoor(t, g, func(o *mcp.Options) { lib.serve(o); o.Relayer = lib })
	for method, members := range map[string]string{"completion/complete": "", "resources/list": "", "tasks/get": `"taskId":"t"`, "vendor/thing": ""} {
		rec := serve(d, sessionless("alice", "/mcp/demo", method, members))
		if !strings.Contains(rec.Body.String(), "complete") || (<-lib.heard)[0].Error == nil {
			t.Errorf("%s: %s", method, rec.Body)
		}
	}
	for method, members := range map[string]string{"resources/read": `"uri":"a"`, "prompts/get": `"name":"p"`} {
		if rec := serve(d, sessionless("alice", "/mcp/demo", method, members)); stateOf(t, rec) == "" {
			t.Errorf("%s: %s", method, rec.Body)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// askingLibrary asks in the course of all that it serves.
type askingLibrary struct {
	library
	heard chan []registry.Answer
}

func (l *askingLibrary) Relay(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	l.heard <- in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})
	return l.library.Relay(ctx, in)
}

func (l *askingLibrary) Enumerate(ctx context.Context, in *proxy.Call, who policy.Principal) (json.RawMessage, *proxy.Failure) {
	l.heard <- in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})
	return l.library.Enumerate(ctx, in, who)
}

// A question that belongs to no request is put in the course of the newest one
// that can be answered with questions. Its result does not wait for the answer:
// the retry brings the one and gets the other.
func TestQuestionsOfNoRequest(t *testing.T) {
	for _, brings := range []string{"", "," + rootsAnswer} {
		testQuestionOfNoRequest(t, brings)
	}
}

func testQuestionOfNoRequest(t *testing.T, brings string) {
	g := newGate()
	home, answers := make(chan registry.Peer, 1), make(chan []registry.Answer, 1)
	g.behave["talk"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		home <- in.Home
		<-g.release
		return raw(`{"content":["of the call"]}`), nil
	}
	d := newDoor(t, g, nil)
	rec := make(chan *httptest.ResponseRecorder, 1)
	go func() { rec <- serve(d, sessionless("alice", "/mcp", "tools/call", askRoots)) }()
	peer := <-home
	go func() {
		answers <- peer.Ask(context.Background(), []registry.Question{{Key: "0", Method: "roots/list"}})
	}()
	asked := <-rec
	state := stateOf(t, asked)
	if state == "" || !strings.Contains(asked.Body.String(), `"0":{"method":"roots/list","params":{}}`) {
		t.Fatalf("asked: %s", asked.Body)
	}
	g.release <- struct{}{}
	for { // until the result is there
		rec := serve(d, sessionless("alice", "/mcp", "tools/call", askRoots+brings+`,"requestState":"`+state+`"`))
		if strings.Contains(rec.Body.String(), "of the call") {
			break
		}
	}
	if a := <-answers; (a[0].Error == nil) != (brings != "") {
		t.Errorf("with %q the server heard %s %s", brings, a[0].Result, a[0].Error)
	}
	if a := peer.Ask(context.Background(), []registry.Question{{Method: "roots/list"}}); !strings.Contains(string(a[0].Error), "own requests only") {
		t.Errorf("with no request under way: %s", a[0].Error)
	}
}

// FuzzCanonical: spelling does not matter, meaning does.
func FuzzCanonical(f *testing.F) {
	f.Add([]byte(`{"b":[1,{"c":"\u0061"}],"a":null}`))
	f.Add([]byte(`"x"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		value, _, err := jsonrpc.CheckValue(data, jsonrpc.Limits{})
		if err != nil {
			return
		}
		once := mcp.Canonical(value)
		var a, b any
		if json.Unmarshal(value, &a) != nil {
			return
		}
		spelt, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(spelt, &b); err != nil {
			t.Fatal(err)
		}
		if !strings.ContainsAny(string(data), "0123456789") && mcp.Canonical(spelt) != once {
			t.Errorf("%s and %s differ: %s, %s", data, spelt, once, mcp.Canonical(spelt))
		}
	})
}
