package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

func TestMain(m *testing.M) {
	recorder.Main(sandbox.IsGuardian, guardian.Main)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

// patience is how long anything in these tests may take.
const patience = 20 * time.Second

// server configures a recorder under a name, with the defaults of a config.
func server(name string, rec *recorder.Recorder) config.Server {
	out := config.Server{
		Name: name, Type: "stdio", Command: rec.Command, Args: rec.Args, Env: rec.Env, URL: rec.URL,
		Prefix: name + "__", Isolation: "session", MaxSessions: 8, Timeout: patience, Pin: config.PinFirst,
		OutputSchema: "warn", CaseVariants: "refuse",
	}
	if rec.URL != "" {
		out.Type = "http"
	}
	return out
}

// open makes a registry that is closed with the test.
func open(t *testing.T, opts registry.Options) *registry.Registry {
	t.Helper()
	r := registry.New(opts)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), 0)
		defer stop()
		r.Close(ctx)
	})
	return r
}

// apply applies a configuration of servers and waits for them to settle.
func apply(t *testing.T, r *registry.Registry, servers ...config.Server) {
	t.Helper()
	if err := r.Apply(context.Background(), &config.Config{Servers: servers}); err != nil {
		t.Fatal(err)
	}
	r.Settle(context.Background())
}

// names lists what serves on a route.
func names(r *registry.Registry, route string) []string {
	var out []string
	for _, tool := range r.Catalogue().Tools(route) {
		out = append(out, tool.Exposed)
	}
	return out
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waiting in vain: %s", what)
		}
	}
}

// awaitTools waits until exactly these tools serve.
func awaitTools(t *testing.T, r *registry.Registry, want ...string) {
	t.Helper()
	await(t, strings.Join(want, " "), func() bool { return cmp.Equal(want, names(r, "")) })
}

// forward calls a tool by its exposed name.
func forward(r *registry.Registry, exposed, arguments string) (json.RawMessage, *registry.ForwardError) {
	tool, ok := r.Catalogue().Lookup("", exposed)
	if !ok {
		return nil, &registry.ForwardError{Kind: registry.Quarantined}
	}
	return forwardTool(r, tool, arguments)
}

func forwardTool(r *registry.Registry, tool *registry.Tool, arguments string) (json.RawMessage, *registry.ForwardError) {
	result, err := r.Forward(context.Background(), tool, registry.Outgoing{Arguments: json.RawMessage(arguments), From: registry.Downstream{Session: "s"}})
	var refused *registry.ForwardError
	if err != nil && !errors.As(err, &refused) {
		panic(err) // Forward promises that kind of error
	}
	return result, refused
}

// Three upstreams, one that hangs at start and one that crashes: the third
// serves, and its calls go through.
func TestBadNeighbours(t *testing.T) {
	hang := recorder.Stdio(t, recorder.Config{HangAtStart: true})
	crash := recorder.Stdio(t, recorder.Config{CrashAtStart: true})
	good := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	r := open(t, registry.Options{})
	hanging := server("hang", hang)
	hanging.StartWait = 2 * time.Second
	apply(t, r, hanging, server("crash", crash), server("good", good))
	awaitTools(t, r, "good__echo")
	if !r.Settled() {
		t.Error("not settled after two seconds while a server hangs")
	}
	if _, e := forward(r, "good__echo", `{}`); e != nil {
		t.Error(e)
	}
	want := []string{"hang starting", "crash failed", "good ready"}
	await(t, strings.Join(want, ", "), func() bool {
		var states []string
		for _, s := range r.Status() {
			states = append(states, s.Name+" "+s.State)
		}
		return slices.Equal(states, want)
	})
}

// Judged bytes go through Forward as they are, by either route.
func TestForwardBytes(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	r := open(t, registry.Options{})
	apply(t, r, server("a", rec))
	arguments := `{"n":9007199254740993,"x":1e2,"h":"<&>\u0041"}`
	for _, route := range []struct{ route, name string }{{"", "a__echo"}, {"a", "echo"}} {
		tool, ok := r.Catalogue().Lookup(route.route, route.name)
		if !ok {
			t.Fatalf("no tool %s on route %q", route.name, route.route)
		}
		if _, e := forwardTool(r, tool, arguments); e != nil {
			t.Fatal(e)
		}
	}
	for _, call := range rec.Calls() {
		if !strings.Contains(string(call.Raw), `"params":{"name":"echo","arguments":`+arguments+`}}`) {
			t.Errorf("received %s", call.Raw)
		}
	}
	if got := len(rec.Calls()); got != 2 {
		t.Errorf("%d calls arrived, want 2", got)
	}
}

// A server that was ready and is down keeps its tools; calls say that it is
// not there, and that nothing was sent. One that never came up has none.
func TestDownKeepsTools(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	never := server("never", rec)
	r := open(t, registry.Options{})
	apply(t, r, server("a", rec))
	awaitTools(t, r, "a__echo")
	rec.Stop()
	for range 3 {
		if _, e := forward(r, "a__echo", `{}`); e == nil || e.Kind != registry.Unavailable || e.Sent {
			t.Errorf("call to a server that is down: %v", e)
		}
	}
	await(t, "failure", func() bool { return r.Status()[0].State == "failed" })
	if diff := cmp.Diff([]string{"a__echo"}, names(r, "")); diff != "" {
		t.Error(diff)
	}
	apply(t, r, server("a", rec), never)
	await(t, "failure", func() bool { return r.Status()[1].State == "failed" })
	if diff := cmp.Diff([]string{"a__echo"}, names(r, "")); diff != "" {
		t.Error(diff)
	}
}

// A reload keeps what is unchanged, applies what is only named or judged
// otherwise, and stops what is gone.
func TestReload(t *testing.T) {
	one := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	two := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: 300 * time.Millisecond}}})
	r := open(t, registry.Options{})
	apply(t, r, server("one", one), server("two", two))
	awaitTools(t, r, "one__echo", "two__late")
	starts := len(one.Starts()) // at first sight it was also asked what it has for a client that can do everything

	late, _ := r.Catalogue().Lookup("", "two__late")
	done := make(chan *registry.ForwardError)
	go func() {
		_, e := forwardTool(r, late, `{}`)
		done <- e
	}()
	await(t, "call arrives", func() bool { return len(two.Calls()) == 1 })
	changed := server("one", one)
	changed.Prefix, changed.Risk = "", "high"
	apply(t, r, changed)
	if diff := cmp.Diff([]string{"echo"}, names(r, "")); diff != "" {
		t.Error(diff)
	}
	if e := <-done; e != nil {
		t.Errorf("the call under way when its server was removed: %v", e)
	}
	if _, e := forwardTool(r, late, `{}`); e == nil || e.Kind != registry.Unavailable || e.Sent {
		t.Errorf("a call to a removed server: %v", e)
	}
	if got := len(one.Starts()); got != starts {
		t.Errorf("the unchanged server was started %d times", got-starts+1)
	}
	tool, _ := r.Catalogue().Lookup("", "echo")
	if tool.Risk != "high" {
		t.Errorf("risk %q, want high", tool.Risk)
	}
	changed.Env = map[string]string{"NEW": "1"}
	for k, v := range one.Env {
		changed.Env[k] = v
	}
	apply(t, r, changed)
	await(t, "restart", func() bool { return len(one.Starts()) == starts+1 })
	awaitTools(t, r, "echo")
	off := changed
	off.Disabled = true
	apply(t, r, off)
	if got := r.Status()[0].State; got != "disabled" || r.Catalogue().HasServer("one") {
		t.Errorf("state %s, want disabled", got)
	}
	if err := r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(context.Background(), &config.Config{}); !errors.Is(err, registry.ErrClosed) {
		t.Errorf("apply after close: %v", err)
	}
}

// The catalogue follows the upstream's list, listeners are told, and a call
// that was judged against an older definition is not made.
func TestChange(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "a"}}})
	r := open(t, registry.Options{})
	told := make(chan struct{}, 16)
	r.OnChange(func() { told <- struct{}{} })
	cfg := server("s", rec)
	cfg.Pin = config.PinOff
	apply(t, r, cfg)
	before, _ := r.Catalogue().Lookup("", "s__a")
	await(t, "stream", func() bool { return rec.Streams() > 0 })
	rec.SetTools(true, recorder.Tool{Name: "a", Definition: json.RawMessage(`{"name":"a","title":"new","inputSchema":{"type":"object"}}`)}, recorder.Tool{Name: "b"})
	awaitTools(t, r, "s__a", "s__b")
	await(t, "listeners are told", func() bool { return len(told) >= 2 })
	if _, e := forwardTool(r, before, `{}`); e == nil || e.Kind != registry.Quarantined || e.Sent {
		t.Errorf("call against the old definition: %v", e)
	}
	if _, e := forward(r, "s__a", `{}`); e != nil {
		t.Errorf("call against the new definition: %v", e)
	}
	if got := len(rec.Calls()); got != 1 {
		t.Errorf("%d calls arrived, want 1", got)
	}
}

// The connections of a downstream session end with it.
func TestEndSession(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "echo"}}})
	r := open(t, registry.Options{})
	apply(t, r, server("a", rec))
	if _, e := forward(r, "a__echo", `{}`); e != nil {
		t.Fatal(e)
	}
	if got := rec.Sessions(); got != 2 {
		t.Errorf("%d connections, want the shared one and one of the session", got)
	}
	r.EndSession("s")
	await(t, "connection ends", func() bool { return rec.Sessions() == 1 })
}
