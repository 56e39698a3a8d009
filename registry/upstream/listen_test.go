package upstream_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// all offers everything that can be listened to.
const all = `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true}}`

// subscribe sends resources/subscribe, or with off resources/unsubscribe.
func (r *running) subscribe(who upstream.Downstream, uri string, off bool) (string, *upstream.Error) {
	method := "resources/subscribe"
	if off {
		method = "resources/unsubscribe"
	}
	params, _ := json.Marshal(map[string]string{"uri": uri})
	got, e := r.Ask(context.Background(), upstream.Ask{Method: method, Params: params, From: who})
	return string(got), e
}

// soon makes restarts and pauses short.
func soon() upstream.Options {
	return upstream.Options{After: func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }}
}

// The server says on one stream that its lists changed: the tools are listed
// again on every connection, the rest goes to the hook.
func TestListening(t *testing.T) {
	var changed chan string
	opts := func() upstream.Options {
		changed = make(chan string, 16)
		o := soon()
		o.ListChanged = func(method string) { changed <- method }
		return o
	}
	one, two := recorder.StatelessTool{Name: "one"}, recorder.StatelessTool{Name: "two"}
	change := recorder.StatelessTool{Name: "change", Sends: []string{
		"change", "listeners notifications/tools/list_changed {}", "listeners notifications/prompts/list_changed {}", "listeners notifications/resources/list_changed {}"}}
	cfg := recorder.Stateless{Capabilities: json.RawMessage(all), Tools: []recorder.StatelessTool{one, change}, Changed: []recorder.StatelessTool{two, change}}
	overModernWith(t, cfg, opts, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		if _, e := up.send(asClient("s", nil), "one", `{}`); e != nil {
			t.Fatal(e)
		}
		want := []string{`{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`}
		if rec.URL == "" {
			want = append(want, want[0]) // the process of the session
		}
		up.await("it is listened to", func() bool { return slices.Equal(rec.Listeners(), want) })
		if rec.URL == "" {
			if _, e := up.send(asClient("s", nil), "change", `{}`); e != nil {
				t.Fatal(e)
			}
		}
		if _, e := up.call(up.last, "change", `{}`); e != nil {
			t.Fatal(e)
		}
		if got := up.next(); got["two"] == "" || got["one"] != "" {
			t.Errorf("listed %v", got)
		}
		for _, want := range []string{"notifications/prompts/list_changed", "notifications/resources/list_changed"} {
			if got := <-changed; got != want {
				t.Errorf("hook got %s, want %s", got, want)
			}
		}
		if _, e := up.call(up.last, "change", `{}`); e != nil {
			t.Fatal(e)
		}
		got := []string{<-changed, <-changed, <-changed}
		slices.Sort(got) // that the tools are the same as before is found out meanwhile
		if want := []string{"notifications/prompts/list_changed", "notifications/resources/list_changed", "notifications/tools/list_changed"}; !slices.Equal(got, want) {
			t.Errorf("hook got %s", got)
		}
		up.await("the session has the tool too", func() bool {
			_, e := up.send(asClient("s", nil), "two", `{}`)
			return e == nil
		})
	})
}

// A stream that ends is opened again, and what may have changed meanwhile is
// looked after.
func TestListeningAgain(t *testing.T) {
	for _, how := range []string{"end", "tear"} {
		cfg := recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "one"}, {Name: "end", Sends: []string{"change", how}}}, Changed: []recorder.StatelessTool{{Name: "two"}}}
		overModernWith(t, cfg, soon, func(t *testing.T, rec *recorder.Recorder, up *running) {
			up.ready()
			up.await("it is listened to", func() bool { return len(rec.Listeners()) == 1 })
			if _, e := up.call(up.last, "end", `{}`); e != nil {
				t.Fatal(e)
			}
			if got := up.next(); got["two"] == "" {
				t.Errorf("listed %v", got)
			}
		})
	}
}

// Where nobody says that the tools changed, they are listed again when the list
// no longer holds.
func TestFreshness(t *testing.T) {
	refused := json.RawMessage(`{"code":-32601,"message":"no"}`)
	for name, cfg := range map[string]recorder.Stateless{
		"not offered": {Capabilities: json.RawMessage(`{"tools":{},"prompts":{"listChanged":true}}`), TTL: 60_000},
		"refused":     {ListenError: refused, TTL: 60_000},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Tools = []recorder.StatelessTool{{Name: "one"}}
			waits := make(chan time.Duration, 1000)
			opts := func() upstream.Options {
				return upstream.Options{After: func(d time.Duration) <-chan time.Time {
					select {
					case waits <- d:
					default: // nobody counts any more
					}
					return time.After(time.Millisecond)
				}}
			}
			overModernWith(t, cfg, opts, func(t *testing.T, rec *recorder.Recorder, up *running) {
				up.ready()
				up.next()
				for d := range waits {
					if d >= time.Minute && d <= 66*time.Second {
						return
					}
				}
			})
		})
	}
}

// watchedOf gives the resources that streams are open for, sorted.
func watchedOf(t *testing.T, rec *recorder.Recorder) []string {
	t.Helper()
	var got []string
	for _, filter := range rec.Listeners() {
		var f struct{ ResourceSubscriptions []string }
		if err := json.Unmarshal([]byte(filter), &f); err != nil {
			t.Fatal(err)
		}
		got = append(got, f.ResourceSubscriptions...)
	}
	slices.Sort(got)
	return got
}

// Subscriptions of a session are a stream of its own, whose updates reach its
// home and nobody else.
func TestSubscriptions(t *testing.T) {
	update := func(uri string) recorder.StatelessTool {
		return recorder.StatelessTool{Name: uri, Sends: []string{`listeners notifications/resources/updated {"uri":"` + uri + `","big":9007199254740993}`}}
	}
	cfg := recorder.Stateless{Capabilities: json.RawMessage(`{"tools":{},"resources":{"subscribe":true}}`), Tools: []recorder.StatelessTool{update("a"), update("b"), {Name: "end", Sends: []string{"end"}}}}
	overModernWith(t, cfg, soon, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		home := &peer{}
		me := asClient("one", home)
		step := func(uri string, off bool, want ...string) {
			t.Helper()
			if got, e := up.subscribe(me, uri, off); e != nil || got != `{}` {
				t.Fatalf("subscribing to %s: %s %v", uri, got, e)
			}
			up.await("streams for "+strings.Join(want, " "), func() bool { return slices.Equal(watchedOf(t, rec), want) })
		}
		step("a", false, "a")
		step("a", false, "a")
		step("b", false, "a", "b")
		tell := func(uri string) {
			t.Helper()
			if _, e := up.send(me, uri, `{}`); e != nil {
				t.Fatal(e)
			}
		}
		tell("b")
		// Over stdio each stream hears of it, as the recorder tells all.
		up.await("the update", func() bool { return len(home.heard()) > 0 })
		if diff := cmp.Diff(`notifications/resources/updated {"uri":"b","big":9007199254740993}`, home.heard()[0]); diff != "" {
			t.Error(diff)
		}
		if rec.URL != "" && len(rec.Listeners()) != 1 {
			t.Errorf("%d streams over HTTP", len(rec.Listeners()))
		}
		step("a", true, "b")
		tell("end")
		up.await("it listens again", func() bool { return len(rec.Listeners()) == 1 })
		step("b", true)
		step("b", true)
		step("a", false, "a")
		up.EndSession("one")
		up.await("the session is over", func() bool { return rec.URL == "" || len(rec.Listeners()) == 0 })
	})
}

// Who is in nobody's name, and what the server refuses, is not subscribed.
func TestSubscriptionsRefused(t *testing.T) {
	cfg := recorder.Stateless{Capabilities: json.RawMessage(`{"tools":{}}`), ListenError: json.RawMessage(`{"code":-32602,"message":"no such resource"}`)}
	overModernWith(t, cfg, soon, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		_, e := up.subscribe(upstream.Downstream{}, "a", false)
		wantError(t, e, upstream.Unavailable, false)
		_, e = up.subscribe(asClient("one", &peer{}), "a", false)
		wantError(t, e, upstream.Failed, true)
		if string(e.RPC) != string(cfg.ListenError) {
			t.Errorf("got %s", e.RPC)
		}
		if got, e := up.subscribe(asClient("one", &peer{}), "a", true); e != nil || got != `{}` {
			t.Errorf("unsubscribing from nothing: %s %v", got, e)
		}
	})
}

// A server that is another one after a restart is spoken to as that one.
func TestServerOfAnotherEra(t *testing.T) {
	tools := []recorder.Tool{{Name: "echo"}, {Name: "swap"}}
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: tools, Stateless: &recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "echo"}, {Name: "swap", Sends: []string{"swap"}}}}})
	cfg := httpServer(rec)
	cfg.Isolation = "session"
	up := start(t, cfg, soon())
	up.ready()
	for _, tool := range []string{"echo", "swap", "echo", "echo"} {
		if _, e := up.send(asClient("one", nil), tool, `{}`); e != nil {
			t.Fatalf("%s: %v", tool, e)
		}
	}
	if !slices.Contains(rec.Methods(), "initialize") || rec.Sessions() == 0 {
		t.Errorf("methods %q", rec.Methods())
	}
	rec.Upgrade()
	for range 2 {
		if _, e := up.send(asClient("one", nil), "echo", `{}`); e != nil {
			t.Fatal(e)
		}
	}
}

// What a session subscribed to is subscribed to again on its next connection,
// and its client looks after what may have changed in between.
func TestSubscriptionsAfterRestart(t *testing.T) {
	cfg := recorder.Stateless{Capabilities: json.RawMessage(`{"tools":{},"resources":{"subscribe":true}}`), Tools: []recorder.StatelessTool{{Name: "die", Sends: []string{"die"}}}}
	rec := recorder.Stdio(t, recorder.Config{Stateless: &cfg})
	server := stdioServer(rec)
	server.Isolation = "session"
	up := start(t, server, soon())
	up.ready()
	home := &peer{}
	me := asClient("one", home)
	for _, uri := range []string{"a", "b"} {
		if _, e := up.subscribe(me, uri, false); e != nil {
			t.Fatal(e)
		}
	}
	_, e := up.send(me, "die", `{}`)
	wantError(t, e, upstream.Failed, true)
	up.await("it is told", func() bool {
		return slices.Equal(home.heard(), []string{`notifications/resources/updated {"uri":"a"}`, `notifications/resources/updated {"uri":"b"}`})
	})
}
