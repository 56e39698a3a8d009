package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// library is a server that logs and has resources.
func library() recorder.Config {
	return recorder.Config{
		Tools:        []recorder.Tool{{Name: "echo"}, {Name: "crash", Does: recorder.Crash}},
		Capabilities: json.RawMessage(`{"tools":{},"logging":{},"resources":{"subscribe":true}}`),
		Answers: map[string]json.RawMessage{
			"logging/setLevel": json.RawMessage(`{}`), "resources/subscribe": json.RawMessage(`{}`),
			"resources/unsubscribe": json.RawMessage(`{}`), "ping": json.RawMessage(`{}`),
		},
	}
}

// overLibrary runs f over stdio and HTTP, with restarts that do not wait.
func overLibrary(t *testing.T, cfg recorder.Config, opts upstream.Options, f func(*testing.T, *recorder.Recorder, *running)) {
	opts.After = func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }
	for _, tr := range transports[:2] {
		t.Run(tr.name, func(t *testing.T) {
			rec, server := tr.start(t, cfg)
			server.Isolation = "session"
			r := start(t, server, opts)
			r.ready()
			f(t, rec, r)
		})
	}
}

// ask sends a request that calls no tool.
func (r *running) ask(whom upstream.Downstream, method, params string) *upstream.Error {
	_, e := r.Ask(context.Background(), upstream.Ask{Method: method, Params: json.RawMessage(params), From: whom})
	return e
}

// said gives the requests on behalf of clients that a server got after the first n
// messages, and how many messages there are now.
func said(rec *recorder.Recorder, n int) ([]string, int) {
	var out []string
	all := rec.Messages()
	for _, m := range all[n:] {
		var msg struct {
			ID     any
			Method string
			Params json.RawMessage
		}
		if json.Unmarshal(m, &msg) != nil || msg.ID == nil {
			continue
		}
		switch msg.Method {
		case "server/discover", "initialize", "ping", "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		default:
			out = append(out, msg.Method+" "+string(msg.Params))
		}
	}
	return out, len(all)
}

const echoed = `tools/call {"name":"echo","arguments":{}}`

// What a session has said that stays with its connection is said again on the
// next one, before anything else, as often as it takes.
func TestSaidAgain(t *testing.T) {
	overLibrary(t, library(), upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, _ := from("me")
		other, _, _ := from("other")
		lose := func() {
			if rec.URL == "" {
				r.do(t.Context(), me, "crash", `{}`)
			} else {
				rec.ForgetSessions()
			}
		}
		for _, say := range []struct{ method, params string }{
			{"logging/setLevel", `{"level":"debug"}`},
			{"resources/subscribe", `{"uri":"a:\u0031", "x":1e2}`},
			{"resources/subscribe", `{"uri":"a:2"}`},
			{"resources/subscribe", `{"uri":"a:3"}`},
			{"resources/unsubscribe", `{"uri":"a:2"}`},
			{"logging/setLevel", `{"level":"error"}`},
		} {
			if e := r.ask(me, say.method, say.params); e != nil {
				t.Fatal(e)
			}
		}
		for range 2 {
			_, n := said(rec, 0)
			lose()
			if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
				t.Fatal(e)
			}
			got, _ := said(rec, n)
			got = slices.DeleteFunc(got, func(s string) bool { return strings.Contains(s, "crash") })
			if i := slices.Index(got, `logging/setLevel {"level":"error"}`); i > 0 {
				got = got[i:] // the call that found out is before it
			}
			want := []string{`logging/setLevel {"level":"error"}`, `resources/subscribe {"uri":"a:\u0031", "x":1e2}`, `resources/subscribe {"uri":"a:3"}`, echoed}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("said on the new connection (-want +got):\n%s", diff)
			}
		}
		_, n := said(rec, 0)
		if e := r.do(t.Context(), other, "echo", `{}`); e != nil {
			t.Fatal(e)
		}
		if got, _ := said(rec, n); !cmp.Equal(got, []string{echoed}) {
			t.Errorf("said for another session: %q", got)
		}
		r.EndSession("me")
		if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
			t.Fatal(e)
		}
		if got, _ := said(rec, n); !cmp.Equal(got, []string{echoed, echoed}) {
			t.Errorf("said after the session ended: %q", got)
		}
	})
}

// A session that waits to be told of resources gets its connection again
// without asking, and is told of each that it may have changed.
func TestSubscribedAgain(t *testing.T) {
	overLibrary(t, library(), upstream.Options{IdleTTL: 20 * time.Millisecond}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, home := from("me")
		for _, uri := range []string{"a:1", "a:2"} {
			if e := r.ask(me, "resources/subscribe", `{"uri":"`+uri+`"}`); e != nil {
				t.Fatal(e)
			}
		}
		_, n := said(rec, 0)
		if rec.URL == "" {
			if e := r.do(t.Context(), me, "crash", `{}`); e == nil {
				t.Fatal("no crash")
			}
		} else {
			rec.ForgetSessions()
			r.call(map[string]string{"echo": r.fingerprint("echo")}, "echo", `{}`) // the shared connection finds out
		}
		expected := []string{`tell notifications/resources/updated {"uri":"a:1"}`, `tell notifications/resources/updated {"uri":"a:2"}`}
		r.await("told", func() bool { return len(home.read()) >= len(expected) })
		if diff := cmp.Diff(expected, home.read()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		got, _ := said(rec, n)
		for _, want := range []string{`resources/subscribe {"uri":"a:1"}`, `resources/subscribe {"uri":"a:2"}`} {
			if !slices.Contains(got, want) {
				t.Errorf("the server got %q", got)
			}
		}
	})
}

// A server that was away altogether finds its subscribers again.
func TestSubscribedAfterRestart(t *testing.T) {
	rec := recorder.Stdio(t, library())
	cfg := stdioServer(rec)
	cfg.Isolation = "session"
	r := start(t, cfg, upstream.Options{After: func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }})
	r.ready()
	me, _, home := from("me")
	if e := r.ask(me, "resources/subscribe", `{"uri":"a:1"}`); e != nil {
		t.Fatal(e)
	}
	r.do(t.Context(), upstream.Downstream{}, "crash", `{}`) // the shared process
	r.ready()
	r.do(t.Context(), me, "crash", `{}`) // the session's own
	r.await("told", func() bool { return len(home.read()) == 1 })
	if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
		t.Error(e)
	}
}

// An HTTP server that has forgotten its sessions while nobody asked it for
// anything is found out when it no longer knows their streams.
func TestSubscribedAfterSilentRestart(t *testing.T) {
	cfg := library()
	cfg.Sessions = true
	rec := recorder.HTTP(t, cfg)
	server := httpServer(rec)
	server.Isolation = "session"
	r := start(t, server, upstream.Options{After: func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }})
	r.ready()
	me, _, home := from("me")
	if e := r.ask(me, "resources/subscribe", `{"uri":"a:1"}`); e != nil {
		t.Fatal(e)
	}
	r.await("streams", func() bool { return rec.Streams() == 2 })
	rec.ForgetSessions()
	rec.CloseStreams()
	r.await("told", func() bool { return len(home.read()) == 1 })
	if got := strings.Count(string(rec.Bytes()), "resources/subscribe"); got != 2 {
		t.Errorf("subscribed %d times, want twice", got)
	}
}

// What the server refuses is not said again, and one that refuses it the second
// time serves all the same.
func TestRefusedIsNotSaidAgain(t *testing.T) {
	cfg := library()
	delete(cfg.Answers, "resources/subscribe")
	overLibrary(t, cfg, upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, home := from("me")
		wantError(t, r.ask(me, "resources/subscribe", `{"uri":"a:1"}`), upstream.Failed, true)
		wantError(t, r.do(t.Context(), me, "crash", `{}`), upstream.Failed, true)
		_, n := said(rec, 0)
		if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
			t.Fatal(e)
		}
		if got, _ := said(rec, n); !cmp.Equal(got, []string{echoed}) {
			t.Errorf("said %q", got)
		}
		if got := home.read(); len(got) > 0 {
			t.Errorf("home heard %q", got)
		}
	})
}

// What is remembered is bounded, and the error says so.
func TestMostSubscriptions(t *testing.T) {
	overLibrary(t, library(), upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, _ := from("me")
		for i := range 256 {
			if e := r.ask(me, "resources/subscribe", fmt.Sprintf(`{"uri":"a:%d"}`, i)); e != nil {
				t.Fatal(e)
			}
		}
		e := r.ask(me, "resources/subscribe", `{"uri":"a:256"}`)
		wantError(t, e, upstream.Unavailable, false)
		if !strings.Contains(e.Error(), "256 resources") {
			t.Errorf("error %v", e)
		}
		for _, ok := range []struct{ method, uri string }{{"resources/subscribe", "a:0"}, {"resources/unsubscribe", "a:0"}, {"resources/subscribe", "a:256"}} {
			if e := r.ask(me, ok.method, `{"uri":"`+ok.uri+`"}`); e != nil {
				t.Errorf("%s %s: %v", ok.method, ok.uri, e)
			}
		}
	})
}

// A request that wants a log level gets it first, where the server has it not
// yet and logs at all.
func TestLevel(t *testing.T) {
	const debug, info = `logging/setLevel {"level":"debug"}`, `logging/setLevel {"level":"info"}`
	for _, tc := range []struct {
		name   string
		levels []string
		logs   bool
		want   []string
	}{
		{"once for all", []string{"debug", "debug"}, true, []string{debug, echoed, echoed}},
		{"each change", []string{"debug", "info", "debug"}, true, []string{debug, echoed, info, echoed, debug, echoed}},
		{"none is any", []string{"debug", "", "debug"}, true, []string{debug, echoed, echoed, echoed}},
		{"a server that does not log", []string{"debug"}, false, []string{echoed}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := library()
			if !tc.logs {
				cfg.Capabilities = nil
			}
			overLibrary(t, cfg, upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
				for _, level := range tc.levels {
					me, _, _ := from("me")
					me.Level = level
					if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
						t.Fatal(e)
					}
				}
				if got, _ := said(rec, 0); !cmp.Equal(tc.want, got) {
					t.Errorf("said %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// A server that will not have a level is not asked again and again, and its
// calls are made.
func TestLevelRefused(t *testing.T) {
	cfg := library()
	delete(cfg.Answers, "logging/setLevel")
	overLibrary(t, cfg, upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, _ := from("me")
		me.Level = "debug"
		for range 2 {
			if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
				t.Fatal(e)
			}
		}
		if got, _ := said(rec, 0); !cmp.Equal(got, []string{`logging/setLevel {"level":"debug"}`, echoed, echoed}) {
			t.Errorf("said %q", got)
		}
	})
}

// What stays with a connection is not said on one that others have too.
func TestNothingStaysWithShared(t *testing.T) {
	rec := recorder.HTTP(t, library())
	r := start(t, httpServer(rec), upstream.Options{})
	r.ready()
	me, _, _ := from("me")
	me.Level = "debug"
	if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
		t.Fatal(e)
	}
	for _, method := range []string{"logging/setLevel", "resources/subscribe", "resources/unsubscribe"} {
		wantError(t, r.ask(me, method, `{"uri":"a","level":"debug"}`), upstream.Unavailable, false)
	}
	if got, _ := said(rec, 0); !cmp.Equal(got, []string{echoed}) {
		t.Errorf("said %q", got)
	}
}

// A notification of the client's goes to the connection that its session has,
// byte for byte, and to no other; what names a request goes nowhere.
func TestNotify(t *testing.T) {
	overLibrary(t, library(), upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, _ := from("me")
		r.Notify("me", "notifications/roots/list_changed", nil)
		if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
			t.Fatal(e)
		}
		const params = `{ "n":9007199254740993,"x":1e2}`
		r.Notify("nobody", "notifications/roots/list_changed", json.RawMessage(params))
		r.Notify("me", "notifications/cancelled", json.RawMessage(`{"requestId":1}`))
		r.Notify("me", "notifications/roots/list_changed", json.RawMessage(params))
		r.await("it arrives", func() bool { return strings.Contains(string(rec.Bytes()), "roots/list_changed") })
		got := string(rec.Bytes())
		if n := strings.Count(got, "roots/list_changed"); n != 1 || !strings.Contains(got, `"params":`+params+`}`) || strings.Contains(got, "cancelled") {
			t.Errorf("the server got %s", got)
		}
		r.EndSession("me")
		r.Notify("me", "notifications/roots/list_changed", nil)
		r.Close(context.Background())
		if n := strings.Count(string(rec.Bytes()), "roots/list_changed"); n != 1 {
			t.Errorf("the notification arrived %d times, want once", n)
		}
	})
}
