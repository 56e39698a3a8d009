package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

// start is one start of a server: a registry of its own, on the state of the ones
// before it.
type start struct {
	*registry.Registry
	rec     *recorder.Recorder
	gate    *recorder.Gate
	changes atomic.Int64 // calls of OnChange
}

// startGated starts server "s", which waits at a closed gate.
func startGated(t *testing.T, db *store.DB, cfg recorder.Config, change func(*config.Server, *config.Config)) *start {
	t.Helper()
	s := &start{Registry: open(t, registry.Options{DB: db}), gate: recorder.NewGate(t)}
	cfg.Gate = s.gate.Address
	s.rec = recorder.Stdio(t, cfg)
	one, all := server("s", s.rec), &config.Config{}
	one.StartWait = patience
	if change != nil {
		change(&one, all)
	}
	all.Servers = []config.Server{one}
	s.OnChange(func() { s.changes.Add(1) })
	if err := s.Apply(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	s.changes.Store(0)
	return s
}

// list returns the names that a client is listed. It fails the test when that takes long.
func (s *start) list(t *testing.T, from registry.Downstream) []string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience/2)
	defer stop()
	out := []string{}
	for _, tool := range s.View(ctx, "", from).Tools() {
		out = append(out, tool.Exposed)
	}
	if ctx.Err() != nil {
		t.Fatal("the list waited")
	}
	return out
}

// seenBefore runs a server once, so that the state knows what it lists.
func seenBefore(t *testing.T, db *store.DB, cfg recorder.Config, change func(*config.Server, *config.Config)) {
	t.Helper()
	s := startGated(t, db, cfg, change)
	s.gate.Open()
	await(t, "the server is ready", func() bool { return s.Status()[0].State == "ready" })
	await(t, "its lists are kept", func() bool { return len(cfg.Answers) == 0 || keptLists(t, db) != "" })
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// call calls a tool that a client is listed, in the background.
func (s *start) call(t *testing.T, name string) <-chan *registry.ForwardError {
	t.Helper()
	tool, ok := s.View(t.Context(), "", registry.Downstream{Session: "s"}).Lookup(name)
	if !ok {
		t.Fatalf("%s is not offered", name)
	}
	done := make(chan *registry.ForwardError, 1)
	go func() {
		_, e := forwardTool(s.Registry, tool, `{}`)
		done <- e
	}()
	return done
}

// tools are tools of these names.
func tools(names ...string) recorder.Config {
	var cfg recorder.Config
	for _, name := range names {
		cfg.Tools = append(cfg.Tools, recorder.Tool{Name: name})
	}
	return cfg
}

// A server that was never seen is waited for, by lists and by calls of tools that it may
// have, and not by calls of others.
func TestUnseenIsWaitedFor(t *testing.T) {
	s := startGated(t, database(t, filepath.Join(t.TempDir(), "state.db")), tools("a"), nil)
	listed, looked := make(chan int, 1), make(chan bool, 1)
	go func() { listed <- len(s.View(context.Background(), "", registry.Downstream{}).Tools()) }()
	go func() {
		_, ok := s.View(context.Background(), "", registry.Downstream{}).Lookup("s__a")
		looked <- ok
	}()
	if _, ok := s.View(t.Context(), "", registry.Downstream{}).Lookup("other__a"); ok {
		t.Error("found a tool of no server")
	}
	await(t, "the server starts", func() bool { return s.gate.Held() == 1 })
	select {
	case n := <-listed:
		t.Fatalf("listed %d tools before the server had answered", n)
	case ok := <-looked:
		t.Fatalf("found the tool (%v) before the server had answered", ok)
	default:
	}
	s.gate.Open()
	if n, ok := <-listed, <-looked; n != 1 || !ok {
		t.Errorf("listed %d tools, found it: %v", n, ok)
	}
}

// A server that takes longer than start_wait is missing from the list and announced
// later. One that fails is not waited for.
func TestUnseenIsNotWaitedForLonger(t *testing.T) {
	s := startGated(t, database(t, filepath.Join(t.TempDir(), "state.db")), tools("a"), func(c *config.Server, _ *config.Config) { c.StartWait = 50 * time.Millisecond })
	if got := s.list(t, registry.Downstream{}); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
	s.gate.Open()
	awaitTools(t, s.Registry, "s__a")
	await(t, "an announcement", func() bool { return s.changes.Load() == 1 })

	crash := tools("a")
	crash.CrashAtStart = true
	s = startGated(t, database(t, filepath.Join(t.TempDir(), "state.db")), crash, nil)
	if got := s.list(t, registry.Downstream{}); len(got) != 0 {
		t.Errorf("listed %v of a server that failed", got)
	}
}

// A server that was seen is listed at once, and a call waits for its own list. Nothing is
// announced when that is the same.
func TestSeenIsListedAtOnce(t *testing.T) {
	db, cfg := database(t, filepath.Join(t.TempDir(), "state.db")), tools("b", "a")
	seenBefore(t, db, cfg, nil)
	s := startGated(t, db, cfg, nil)
	if diff := cmp.Diff([]string{"s__b", "s__a"}, s.list(t, registry.Downstream{Session: "s"})); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if got := s.Status()[0]; got.State != "starting" || got.Tools != 2 {
		t.Errorf("%+v", got)
	}
	done := s.call(t, "s__a")
	await(t, "the server starts", func() bool { return s.gate.Held() > 0 })
	select {
	case e := <-done:
		t.Fatalf("the call did not wait: %v", e)
	default:
	}
	s.gate.Open()
	if e := <-done; e != nil {
		t.Error(e)
	}
	methods := strings.Join(s.rec.Methods(), " ")
	if first, _, _ := strings.Cut(methods, "tools/call"); !strings.Contains(first, "tools/list") {
		t.Errorf("called before it listed: %s", methods)
	}
	if n := s.changes.Load(); n != 0 {
		t.Errorf("%d changes were announced", n)
	}
}

// A call that was judged by an earlier list does not reach a server that lists
// otherwise now, and the difference is announced.
func TestSeenAndChanged(t *testing.T) {
	rug := recorder.Config{Tools: []recorder.Tool{{Name: "a", Definition: json.RawMessage(`{"name":"a","description":"changed","inputSchema":{"type":"object"}}`)}}}
	for name, tc := range map[string]struct {
		now  recorder.Config
		kind registry.ErrorKind
		want []string
	}{
		"another definition": {rug, registry.Quarantined, nil},
		"the tool is gone":   {tools("b"), registry.Unavailable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t, filepath.Join(t.TempDir(), "state.db"))
			seenBefore(t, db, tools("a"), nil)
			s := startGated(t, db, tc.now, nil)
			done := s.call(t, "s__a")
			s.gate.Open()
			if e := <-done; e == nil || e.Kind != tc.kind || e.Sent {
				t.Errorf("%+v", e)
			}
			if calls := s.rec.Calls(); len(calls) != 0 {
				t.Errorf("the server received %d calls", len(calls))
			}
			awaitTools(t, s.Registry, tc.want...)
			await(t, "an announcement", func() bool { return s.changes.Load() == 1 })
		})
	}
}

// A call waits no longer than start_wait, and is certainly not sent.
func TestSeenAndSlow(t *testing.T) {
	db, cfg := database(t, filepath.Join(t.TempDir(), "state.db")), tools("a")
	seenBefore(t, db, cfg, nil)
	s := startGated(t, db, cfg, func(c *config.Server, _ *config.Config) { c.StartWait = 50 * time.Millisecond })
	if e := <-s.call(t, "s__a"); e == nil || e.Kind != registry.Unavailable || e.Sent || !strings.Contains(e.Error(), "still starting") {
		t.Errorf("%+v", e)
	}
}

// What a server can do and how it introduces itself is known while it starts.
func TestSeenIntroducesItself(t *testing.T) {
	db, cfg := database(t, filepath.Join(t.TempDir(), "state.db")), tools("a")
	cfg.Capabilities, cfg.Instructions = json.RawMessage(`{"tools":{},"prompts":{}}`), "Do so."
	cfg.Answers = map[string]json.RawMessage{"prompts/list": json.RawMessage(`{"prompts":[]}`)}
	seenBefore(t, db, cfg, nil)
	s := startGated(t, db, cfg, nil)
	if got := string(s.Offered(t.Context(), "s")); got != `{"tools":{},"prompts":{}}` {
		t.Errorf("offered %s", got)
	}
	if got := s.Introductions("s")[0].Instructions; got != "Do so." {
		t.Errorf("introduced with %q", got)
	}
	if offers := s.Offers(t.Context()); len(offers) != 1 {
		t.Errorf("%d servers have lists", len(offers))
	}
	asked := make(chan error, 1)
	go func() {
		_, err := s.Ask(context.Background(), "s", registry.Ask{Method: "prompts/list"})
		asked <- err
	}()
	s.gate.Open()
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// Which definitions of an earlier list serve is decided as it is for the server's own.
func TestWhatIsRecalledIsJudged(t *testing.T) {
	a, b := `{"name":"a","inputSchema":{"type":"object"}}`, `{"name":"b","inputSchema":{"type":"object"}}`
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "a", Definition: json.RawMessage(a)}, {Name: "b", Definition: json.RawMessage(b)}}}
	pinned := func(pin config.Pin) func(*config.Server, *config.Config) {
		return func(c *config.Server, all *config.Config) {
			c.Pin = pin
			all.Lock = &lock.File{Servers: map[string]lock.Server{"s": {Tools: map[string]string{"a": upstream.Fingerprint(json.RawMessage(a))}}}}
		}
	}
	for name, tc := range map[string]struct {
		before, now func(*config.Server, *config.Config)
		waits       bool
		want        []string
	}{
		"the same":          {want: []string{"s__a", "s__b"}},
		"by the lock":       {pinned(config.PinFirst), pinned(config.PinStrict), false, []string{"s__a"}},
		"all, without pins": {pinned(config.PinFirst), pinned(config.PinOff), false, []string{"s__a", "s__b"}},
		"fewer are exposed": {nil, func(c *config.Server, _ *config.Config) { c.Expose = []string{"b"} }, false, []string{"s__b"}},
		"nothing was accepted": {func(c *config.Server, _ *config.Config) { c.Pin = config.PinOff },
			nil, true, nil},
		"another origin": {nil, func(c *config.Server, _ *config.Config) { c.Origin.Command = "other" }, true, nil},
		"other variables": {nil, func(c *config.Server, _ *config.Config) { c.Env["MORE"] = "1" },
			false, []string{"s__a", "s__b"}},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t, filepath.Join(t.TempDir(), "state.db"))
			seenBefore(t, db, cfg, tc.before)
			s := startGated(t, db, cfg, tc.now)
			if tc.waits {
				ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer stop()
				if got := s.View(ctx, "", registry.Downstream{}).Tools(); len(got) != 0 || ctx.Err() == nil {
					t.Errorf("listed %d tools at once", len(got))
				}
				return
			}
			if diff := cmp.Diff(tc.want, s.list(t, registry.Downstream{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What a list of a time without pins has is not taken for an offer, or accepted, before the
// server lists it itself.
func TestWhatIsRecalledIsNoOffer(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	seenBefore(t, db, tools("a"), nil)
	seenBefore(t, db, tools("a", "b"), func(c *config.Server, _ *config.Config) { c.Pin = config.PinOff })
	s := startGated(t, db, tools("a", "b"), nil)
	if diff := cmp.Diff([]string{"s__a"}, s.list(t, registry.Downstream{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if pins, err := s.Pins().List(t.Context()); len(pins) != 1 || err != nil {
		t.Errorf("%d pins, %v", len(pins), err)
	}
}

// A tool that an earlier list does not have is not withdrawn before the server has
// listed its tools itself.
func TestRecalledWithdrawsNothing(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	seenBefore(t, db, tools("a"), nil)
	s := startGated(t, db, tools("a", "b"), func(c *config.Server, _ *config.Config) { c.Isolation = "shared" })
	if s.View(t.Context(), "", registry.Downstream{}).Withdrew("s", "b") {
		t.Error("withdrawn before the server has answered")
	}
}

// A server that was seen and fails is listed as before, and calls fail.
func TestSeenAndFailed(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	seenBefore(t, db, tools("a"), nil)
	crash := tools("a")
	crash.CrashAtStart = true
	s := startGated(t, db, crash, nil)
	if got := s.list(t, registry.Downstream{}); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
	if e := <-s.call(t, "s__a"); e == nil || e.Kind != registry.Unavailable || e.Sent {
		t.Errorf("%+v", e)
	}
	if offers := s.Offers(t.Context()); len(offers) != 0 {
		t.Errorf("%d servers have lists", len(offers))
	}
}

// A client that a server may offer more gets what all see while the server starts, and
// is notified when there is more.
func TestSeenByAnAbleClient(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "a"}, {Name: "ask", Needs: "sampling"}}}
	seenBefore(t, db, cfg, nil)
	s := startGated(t, db, cfg, nil)
	can := client("able", `{"sampling":{}}`)
	if got := s.list(t, can); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
	s.gate.Open()
	await(t, "an announcement", func() bool { return s.changes.Load() > 0 })
	if got := s.list(t, can); len(got) != 2 {
		t.Errorf("listed %v when the server was ready", got)
	}
}

// A server that is restarted stays listed, with what it lists now when it is ready; a call
// waits for that.
func TestRestart(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool, {Name: "b"}}})
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	awaitTools(t, r, "s__a", "s__b")
	judged, _ := r.Catalogue().Lookup("", "s__a")
	rec.SetTools(false, newTool, recorder.Tool{Name: "b"})
	if s, err := r.Restart(t.Context(), "s"); err != nil || s.State != "ready" || s.Quarantined != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	awaitTools(t, r, "s__b")
	if _, e := forwardTool(r, judged, `{}`); e == nil || e.Kind != registry.Quarantined || e.Sent {
		t.Errorf("called: %v", e)
	}
	if _, e := forward(r, "s__b", `{}`); e != nil {
		t.Error(e)
	}
	off := server("off", rec)
	off.Disabled = true
	apply(t, r, off)
	for _, name := range []string{"off", "s", ""} {
		if _, err := r.Restart(t.Context(), name); !errors.Is(err, registry.ErrNoServer) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
