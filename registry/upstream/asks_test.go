package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// diary is a client that writes down what it hears.
type diary struct {
	answer func(ctx context.Context, q upstream.Question) upstream.Answer // nil = an empty result
	told   func()                                                         // called by Tell, may be nil

	mu    sync.Mutex // protects the fields below
	lines []string
}

// Ask implements upstream.Peer.
func (d *diary) Ask(ctx context.Context, round []upstream.Question) []upstream.Answer {
	d.note("ask " + round[0].Method + " " + string(round[0].Params))
	if d.answer == nil {
		return []upstream.Answer{{Result: json.RawMessage(`{}`)}}
	}
	return []upstream.Answer{d.answer(ctx, round[0])}
}

// Tell implements upstream.Peer.
func (d *diary) Tell(method string, params json.RawMessage) {
	d.note("tell " + method + " " + string(params))
	if d.told != nil {
		d.told()
	}
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// read gives what was heard so far.
func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// talker is a server with one tool that talks and one that never answers.
func talker(lines ...string) recorder.Config {
	return recorder.Config{Tools: []recorder.Tool{{Name: "talk", Does: recorder.Talk, Lines: lines}, {Name: "hang", Does: recorder.Hang}}}
}

// overOwn runs f over the transports that can talk, with a connection for
// each session.
func overOwn(t *testing.T, cfg recorder.Config, f func(*testing.T, *recorder.Recorder, *running)) {
	for _, tr := range transports {
		if tr.name == "http" {
			continue // one answer to a request, and no word more
		}
		t.Run(tr.name, func(t *testing.T) {
			rec, server := tr.start(t, cfg)
			server.Isolation = "session"
			r := start(t, server, upstream.Options{})
			r.ready()
			f(t, rec, r)
		})
	}
}

// from is a session with a peer for its request and a home.
func from(session string) (upstream.Downstream, *diary, *diary) {
	peer, home := &diary{}, &diary{}
	return upstream.Downstream{Session: session, Peer: peer, Home: home}, peer, home
}

// do calls a tool for somebody.
func (r *running) do(ctx context.Context, whom upstream.Downstream, tool, arguments string) *upstream.Error {
	_, e := r.Do(ctx, upstream.Call{Tool: tool, Fingerprint: r.fingerprint(tool), Arguments: json.RawMessage(arguments), From: whom})
	return e
}

// A server that may know its clients sees each of them, and of its shared connection
// toolgate; any other server sees toolgate alone.
func TestClientInfo(t *testing.T) {
	const ours, theirs = `"clientInfo":{"name":"toolgate","version":"dev"}`, `"clientInfo":{"name":"agent","version":"3","title":"An agent"}`
	for setting, want := range map[string]string{"toolgate": ours, "client": theirs} {
		for _, tr := range transports {
			t.Run(setting+" "+tr.name, func(t *testing.T) {
				rec, server := tr.start(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
				server.Isolation, server.ClientInfo = "session", setting
				r := start(t, server, upstream.Options{})
				r.ready()
				me, _, _ := from("me")
				me.ClientInfo = json.RawMessage(theirs[len(`"clientInfo":`):])
				if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
					t.Fatal(e)
				}
				var got []string
				for _, m := range rec.Messages() {
					if bytes.Contains(m, []byte(`"initialize"`)) && bytes.Contains(m, []byte(ours)) {
						got = append(got, ours)
					} else if bytes.Contains(m, []byte(`"initialize"`)) && bytes.Contains(m, []byte(theirs)) {
						got = append(got, theirs)
					}
				}
				if !slices.Equal(got, []string{ours, want}) {
					t.Errorf("the server was told %q, want %q", got, []string{ours, want})
				}
			})
		}
	}
}

const (
	note = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":ARGS}}`
	want = `{"jsonrpc":"2.0","id":"q-SEQ","method":"elicitation/create","params":{"message":"?"}}`
)

// What a server says in the course of a request goes to whom the request is
// for, as far as that is certain, and else to the home of its session, and
// never to another session.
func TestWhoHears(t *testing.T) {
	for _, tc := range []struct {
		name   string
		line   string
		busy   bool            // another request of the session is under way
		toHome map[string]bool // :: transport ⇒ home hears it
		heard  string
	}{
		{"told in the course", note, false, nil, `tell notifications/message {"level":"info","data":{"me":1}}`},
		{"asked in the course", want, false, nil, `ask elicitation/create {"message":"?"}`},
		{"told in the course, another under way", note, true, map[string]bool{"stdio": true}, `tell notifications/message {"level":"info","data":{"me":1}}`},
		{"asked in the course, another under way", want, true, map[string]bool{"stdio": true}, `ask elicitation/create {"message":"?"}`},
		{"told apart", "apart " + note, false, nil, `tell notifications/message {"level":"info","data":{"me":1}}`},
		{"told apart, another under way", "apart " + note, true, map[string]bool{"stdio": true, "http stream": true}, `tell notifications/message {"level":"info","data":{"me":1}}`},
		{"asked apart, another under way", "apart " + want, true, map[string]bool{"stdio": true, "http stream": true}, `ask elicitation/create {"message":"?"}`},
		{"a list changed", `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`, false, map[string]bool{"stdio": true, "http stream": true}, `tell notifications/prompts/list_changed `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lines := []string{tc.line, `await "q-SEQ"`}
			if !strings.HasSuffix(tc.line, want) { // a question on the same stream shows that it was heard
				apart := tc.line[:strings.IndexByte(tc.line, '{')]
				lines = slices.Insert(lines, 1, apart+want)
			}
			overOwn(t, talker(lines...), func(t *testing.T, rec *recorder.Recorder, r *running) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				me, peer, home := from("me")
				other, otherPeer, otherHome := from("other")
				hung := make(chan struct{})
				others := []upstream.Downstream{other}
				if tc.busy {
					others = append(others, upstream.Downstream{Session: "me", Peer: otherPeer, Home: home})
				}
				for _, o := range others {
					go func() {
						r.do(ctx, o, "hang", `{}`)
						hung <- struct{}{}
					}()
				}
				r.await("others are under way", func() bool { return len(rec.Calls()) == len(others) })
				if e := r.do(t.Context(), me, "talk", `{"me":1}`); e != nil {
					t.Fatal(e)
				}
				hears, deaf := peer, home
				for name := range tc.toHome {
					if strings.HasSuffix(t.Name(), strings.ReplaceAll(name, " ", "_")) {
						hears, deaf = home, peer
					}
				}
				r.await("it is heard", func() bool { return slices.Contains(hears.read(), tc.heard) })
				if slices.Contains(deaf.read(), tc.heard) {
					t.Error("heard at both places")
				}
				if got := append(otherPeer.read(), otherHome.read()...); len(got) > 0 {
					t.Errorf("others heard %q", got)
				}
				stop()
				for range others {
					<-hung
				}
			})
		})
	}
}

// What comes in the course of a request is heard in the order that it came,
// and all of it before the result.
func TestOrder(t *testing.T) {
	var lines, expected []string
	for i := range 40 {
		lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"big":9007199254740993,"n":%d}}`, i),
			fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progress":%d}}`, i))
		expected = append(expected, fmt.Sprintf(`tell notifications/message {"big":9007199254740993,"n":%d}`, i), fmt.Sprintf(`progress {"progress":%d}`, i))
	}
	lines = append(lines, want, `await "q-SEQ"`, note)
	expected = append(expected, `ask elicitation/create {"message":"?"}`, `tell notifications/message {"level":"info","data":{}}`)
	overOwn(t, talker(lines...), func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, peer, home := from("me")
		_, e := r.Do(t.Context(), upstream.Call{Tool: "talk", Fingerprint: r.fingerprint("talk"), Arguments: json.RawMessage(`{}`), From: me,
			Progress: func(params json.RawMessage) { peer.note("progress " + string(params)) }})
		if e != nil {
			t.Fatal(e)
		}
		if diff := cmp.Diff(expected, peer.read()); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
		if got := home.read(); len(got) > 0 {
			t.Errorf("home heard %q", got)
		}
	})
}

// A question keeps its bytes but for the progress token, and its answer goes
// back under the server's own id as the client gave it.
func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		name, id    string
		params      string
		asked       string
		answer      upstream.Answer
		back        string
		reports     string
		reportsSaid string
	}{
		{name: "result", id: `9007199254740993`, params: `{ "n":9007199254740993,"x":1e2,"s":"<\u0041>" }`, asked: `{ "n":9007199254740993,"x":1e2,"s":"<\u0041>" }`,
			answer: upstream.Answer{Result: json.RawMessage(`{"action":"accept","content":{"n":9007199254740993,"x":1e2,"s":"<\u0041>"}}`)},
			back:   `{"jsonrpc":"2.0","id":9007199254740993,"result":{"action":"accept","content":{"n":9007199254740993,"x":1e2,"s":"<\u0041>"}}}`},
		{name: "error", id: `"\u0061"`, params: `{}`, asked: `{}`, answer: upstream.Answer{Error: json.RawMessage(`{"code":-1,"message":"<no>","data":1e2,"more":[9007199254740993]}`)},
			back: `{"jsonrpc":"2.0","id":"\u0061","error":{"code":-1,"message":"<no>","data":1e2,"more":[9007199254740993]}}`},
		{name: "neither", id: `7`, params: `{}`, asked: `{}`, back: `{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"the client did not answer"}}`},
		{name: "token", id: `7`, params: `{"a":1,"_meta":{"progressToken":1.50,"b":2}}`, asked: `{"a":1,"_meta":{"b":2}}`, answer: upstream.Answer{Result: json.RawMessage(`{}`)},
			back:    `{"jsonrpc":"2.0","id":7,"result":{}}`,
			reports: `{"progress":9007199254740993}`, reportsSaid: `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":9007199254740993,"progressToken":1.50}}`},
		{name: "token alone", id: `7`, params: `{"_meta":{"progressToken":"t"},"a":1}`, asked: `{"a":1}`, answer: upstream.Answer{Result: json.RawMessage(`{}`)},
			back:    `{"jsonrpc":"2.0","id":7,"result":{}}`,
			reports: `{"progress":1}`, reportsSaid: `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"t"}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line := `{"jsonrpc":"2.0","id":` + tc.id + `,"method":"sampling/createMessage","params":` + tc.params + `}`
			overOwn(t, talker(line, "await "+tc.id), func(t *testing.T, rec *recorder.Recorder, r *running) {
				me, peer, _ := from("me")
				peer.answer = func(_ context.Context, q upstream.Question) upstream.Answer {
					if (q.Progress != nil) != (tc.reports != "") {
						t.Errorf("progress wanted: %v", q.Progress != nil)
					} else if q.Progress != nil {
						q.Progress(json.RawMessage(tc.reports))
					}
					return tc.answer
				}
				if e := r.do(t.Context(), me, "talk", `{}`); e != nil {
					t.Fatal(e)
				}
				if diff := cmp.Diff([]string{"ask sampling/createMessage " + tc.asked}, peer.read()); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				var said []string
				for _, m := range rec.Messages() {
					said = append(said, string(m))
				}
				answered, reported := slices.Index(said, tc.back), slices.Index(said, tc.reportsSaid)
				if answered < 0 || tc.reports != "" && (reported < 0 || reported > answered) {
					t.Errorf("the server got %q", said)
				}
			})
		})
	}
}

// Many questions at once are all answered, and too many are refused at once.
func TestManyQuestions(t *testing.T) {
	for _, tc := range []struct{ ask, refused int }{{30, 0}, {80, 16}} {
		t.Run(fmt.Sprint(tc.ask), func(t *testing.T) {
			var lines []string
			for _, say := range []string{`{"jsonrpc":"2.0","id":"q-%d","method":"roots/list"}`, `await "q-%d"`} {
				for i := range tc.ask {
					lines = append(lines, fmt.Sprintf(say, i))
				}
			}
			overOwn(t, talker(lines...), func(t *testing.T, rec *recorder.Recorder, r *running) {
				me, peer, _ := from("me")
				open := make(chan struct{})
				peer.answer = func(context.Context, upstream.Question) upstream.Answer {
					<-open
					return upstream.Answer{Result: json.RawMessage(`{"roots":[]}`)}
				}
				done := make(chan *upstream.Error)
				go func() { done <- r.do(t.Context(), me, "talk", `{}`) }()
				refused := func() int { return strings.Count(string(rec.Bytes()), `too many requests at once`) }
				r.await("all have come", func() bool { return len(peer.read()) == tc.ask-tc.refused && refused() == tc.refused })
				close(open)
				if e := <-done; e != nil {
					t.Fatal(e)
				}
				got := string(rec.Bytes())
				if n := strings.Count(got, `"result":{"roots":[]}`); n != tc.ask-tc.refused {
					t.Errorf("%d answers, want %d", n, tc.ask-tc.refused)
				}
			})
		})
	}
}

// A question ends with what it came from, and an answer that nobody wants is
// not given.
func TestQuestionsEnd(t *testing.T) {
	withdraw := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q-SEQ","reason":"x"}}`
	ping := `{"jsonrpc":"2.0","id":"p-SEQ","method":"ping"}`
	for _, tc := range []struct {
		name     string
		lines    []string
		cancel   bool // the caller gives up while the question is under way
		end      bool // the session ends
		kind     upstream.ErrorKind
		answered bool
	}{
		{name: "the server withdraws it", lines: []string{want, withdraw}},
		{name: "the server withdraws it apart", lines: []string{want, ping, `await "p-SEQ"`, "apart " + withdraw, "apart " + strings.ReplaceAll(ping, "p-SEQ", "r-SEQ"), `await "r-SEQ"`}},
		{name: "the server answers without it", lines: []string{want}, answered: true},
		{name: "the caller gives up", lines: []string{want, `await cancelled`}, cancel: true, kind: upstream.Cancelled, answered: true},
		{name: "the session ends", lines: []string{want, `await "never"`}, end: true, kind: upstream.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			overOwn(t, talker(tc.lines...), func(t *testing.T, rec *recorder.Recorder, r *running) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				me, peer, _ := from("me")
				ended := make(chan struct{})
				peer.answer = func(life context.Context, _ upstream.Question) upstream.Answer {
					defer close(ended)
					if tc.cancel {
						stop()
					}
					if tc.end {
						r.EndSession("me")
					}
					<-life.Done()
					return upstream.Answer{Error: json.RawMessage(`{"code":-1,"message":"too late"}`)}
				}
				e := r.do(ctx, me, "talk", `{}`)
				if tc.kind == 0 && e != nil {
					t.Fatal(e)
				} else if tc.kind != 0 {
					wantError(t, e, tc.kind, true)
				}
				if len(peer.read()) == 0 { // it was withdrawn before it could be put
					return
				}
				<-ended
				if tc.answered {
					r.await("the late answer", func() bool { return strings.Contains(string(rec.Bytes()), "too late") })
				}
				r.Close(context.Background())
				if !tc.answered && strings.Contains(string(rec.Bytes()), "too late") {
					t.Error("an answer went to the server that it does not want")
				}
			})
		})
	}
}

// A question that waits for its turn when its request ends is answered all the
// same, and stops no clock any longer.
func TestQuestionInQueue(t *testing.T) {
	ping := `{"jsonrpc":"2.0","id":"p-SEQ","method":"ping"}` // its answer shows that what came before was read
	overOwn(t, talker(note, want, ping, `await cancelled`), func(t *testing.T, rec *recorder.Recorder, r *running) {
		ctx, stop := context.WithCancel(t.Context())
		me, peer, _ := from("me")
		slow := make(chan struct{})
		peer.told = func() { <-slow }
		done := make(chan *upstream.Error)
		go func() { done <- r.do(ctx, me, "talk", `{}`) }()
		r.await("told", func() bool { return len(peer.read()) == 1 && strings.Contains(string(rec.Bytes()), `"id":"p-`) })
		stop()
		close(slow)
		wantError(t, <-done, upstream.Cancelled, true)
		r.await("its answer", func() bool { return strings.Contains(string(rec.Bytes()), `"id":"q-`) })
		e := r.timeOut(upstream.Call{Tool: "hang", Fingerprint: r.fingerprint("hang"), From: me})
		wantError(t, e, upstream.Timeout, true)
	})
}

// The time of a call stands still while a person is asked: another call with
// the same deadline, begun later, runs out of it meanwhile.
func TestDeadlineStandsStill(t *testing.T) {
	for name, lines := range map[string][]string{
		"in the course": {want, `await "q-SEQ"`},
		"apart":         {"apart " + want, `await "q-SEQ"`},
	} {
		t.Run(name, func(t *testing.T) {
			overOwn(t, talker(lines...), func(t *testing.T, rec *recorder.Recorder, r *running) {
				me, peer, home := from("me")
				other, _, _ := from("other")
				if e := r.do(t.Context(), other, "talk", `{}`); e != nil { // opens its connection
					t.Fatal(e)
				}
				var short atomic.Int64
				short.Store(int64(100 * time.Millisecond))
				talk := func() *upstream.Error {
					_, e := r.Do(t.Context(), upstream.Call{Tool: "talk", Fingerprint: r.fingerprint("talk"), From: me, Timeout: time.Duration(short.Load())})
					return e
				}
				peer.answer = func(ctx context.Context, _ upstream.Question) upstream.Answer {
					e := r.timeOut(upstream.Call{Tool: "hang", Fingerprint: r.fingerprint("hang"), From: other, Timeout: time.Duration(short.Load())})
					wantError(t, e, upstream.Timeout, true)
					return upstream.Answer{Result: json.RawMessage(`{}`)}
				}
				home.answer = peer.answer
				if e := r.do(t.Context(), me, "talk", `{}`); e != nil {
					t.Fatal(e)
				}
				// A machine that is too slow for the call itself gets more time for it: if the
				// deadline did not stand still, more time would not help.
				e := talk()
				for e != nil && e.Kind == upstream.Timeout && time.Duration(short.Load()) < patience/4 {
					short.Store(2 * short.Load())
					e = talk()
				}
				if e != nil {
					t.Errorf("the call that waited for an answer: %v", e)
				}
				e = r.timeOut(upstream.Call{Tool: "hang", Fingerprint: r.fingerprint("hang"), From: me})
				wantError(t, e, upstream.Timeout, true)
			})
		})
	}
}

// On a connection that all share nothing is asked, and nothing told but that
// lists have changed.
func TestSharedIsDeaf(t *testing.T) {
	cfg := talker(note, want, `await "q-SEQ"`, `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/unknown"}`)
	for _, tr := range transports {
		if tr.name == "http" {
			continue
		}
		t.Run(tr.name, func(t *testing.T) {
			rec, server := tr.start(t, cfg)
			changed := make(chan string, 8)
			r := start(t, server, upstream.Options{ListChanged: func(method string) { changed <- method }})
			r.ready()
			me, peer, home := from("me")
			me.Capabilities = json.RawMessage(`{"elicitation":{}}`)
			if e := r.do(t.Context(), me, "talk", `{}`); e != nil {
				t.Fatal(e)
			}
			if got := append(peer.read(), home.read()...); len(got) > 0 {
				t.Errorf("heard %q", got)
			}
			if got := string(rec.Bytes()); !strings.Contains(got, `"code":-32601`) || strings.Contains(got, `"elicitation":{}`) {
				t.Errorf("the server got %s", got)
			}
			if got := <-changed; got != "notifications/resources/list_changed" {
				t.Errorf("told of %s", got)
			}
			if got := r.Status().Dropped; got != 2 {
				t.Errorf("%d dropped, want 2", got)
			}
		})
	}
}

// A connection of a session's own tells the server what its client can do,
// byte for byte; the shared one nothing.
func TestCapabilities(t *testing.T) {
	for _, tc := range []struct{ can, want string }{
		{``, `{}`},
		{` { } `, `{}`},
		{`{"roots":{ "listChanged":true},"experimental":{"x/y":{"n":9007199254740993,"x":1e2}},"extensions":{"a/b":{}}}`,
			`{"roots":{ "listChanged":true},"experimental":{"x/y":{"n":9007199254740993,"x":1e2}},"extensions":{"a/b":{}}}`},
	} {
		overOwn(t, talker(), func(t *testing.T, rec *recorder.Recorder, r *running) {
			me, _, _ := from("me")
			if tc.can != "" {
				me.Capabilities = json.RawMessage(tc.can)
			}
			if e := r.do(t.Context(), me, "talk", `{}`); e != nil {
				t.Fatal(e)
			}
			var said []string
			for _, m := range rec.Messages() {
				if s := string(m); strings.Contains(s, `"method":"initialize"`) {
					said = append(said, s)
				}
			}
			if len(said) != 2 || !strings.Contains(said[0], `"capabilities":{},`) || !strings.Contains(said[1], `"capabilities":`+tc.want+`,"clientInfo"`) {
				t.Errorf("initialized with %q", said)
			}
		})
	}
}

// What a server asks as soon as it is initialized reaches the home of the
// session that the connection was opened for, before its first request.
func TestGreeting(t *testing.T) {
	cfg := talker()
	cfg.OnInitialized = []string{`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`, `await 1`, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`}
	overOwn(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, home := from("me")
		me.Capabilities = json.RawMessage(`{"roots":{}}`)
		r.Profile(t.Context(), me) // opens the connection, without a request of the session's
		r.await("greeting", func() bool { return len(home.read()) == 2 })
		if got := home.read(); got[0] != "ask roots/list " {
			t.Errorf("home heard %q", got)
		}
	})
}

// With many sessions and many calls of each at once nobody hears what is
// another's: over HTTP no other call's, over stdio no other session's.
func TestManyHear(t *testing.T) {
	const sessions, calls = 6, 8
	question := `{"jsonrpc":"2.0","id":"q-SEQ","method":"sampling/createMessage","params":ARGS}`
	overOwn(t, talker(note, question, `await "q-SEQ"`, note), func(t *testing.T, rec *recorder.Recorder, r *running) {
		precise := rec.URL != ""
		var all sync.WaitGroup
		for i := range sessions {
			home := &diary{}
			var peers [calls]*diary
			var own sync.WaitGroup
			for j := range calls {
				peers[j] = &diary{}
				whom := upstream.Downstream{Session: fmt.Sprint(i), Peer: peers[j], Home: home}
				own.Go(func() {
					if e := r.do(t.Context(), whom, "talk", fmt.Sprintf(`{"me":"%d.%d"}`, i, j)); e != nil {
						t.Error(e)
					}
				})
			}
			all.Go(func() {
				own.Wait()
				r.await("all is heard", func() bool {
					n := len(home.read())
					for _, p := range peers {
						n += len(p.read())
					}
					return n == 3*calls
				})
				for j, p := range peers {
					for _, line := range p.read() {
						if !strings.Contains(line, fmt.Sprintf(`{"me":"%d.`, i)) || precise && !strings.Contains(line, fmt.Sprintf(`{"me":"%d.%d"}`, i, j)) {
							t.Errorf("call %d.%d heard %s", i, j, line)
						}
					}
				}
				for _, line := range home.read() {
					if precise || !strings.Contains(line, fmt.Sprintf(`{"me":"%d.`, i)) {
						t.Errorf("session %d heard %s", i, line)
					}
				}
			})
		}
		all.Wait()
	})
}
