package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// choosy is a server that offers two tools to everybody and others by what a
// client can do, all in one order.
func choosy() recorder.Config {
	return recorder.Config{Sessions: true, Tools: []recorder.Tool{
		{Name: "ask", Needs: "sampling"}, {Name: "a"}, {Name: "roots", Needs: "roots"}, {Name: "b"},
	}}
}

// client is a session that can do some things.
func client(session, can string) registry.Downstream {
	return registry.Downstream{Session: session, Capabilities: json.RawMessage(can)}
}

// seen lists what a view shows, and checks that Lookup agrees.
func seen(t *testing.T, r *registry.Registry, route string, from registry.Downstream) string {
	t.Helper()
	v := r.View(t.Context(), route, from)
	var out []string
	for _, tool := range v.Tools() {
		name := tool.Name
		if route == "" {
			name = tool.Exposed
		}
		out = append(out, name)
		if found, ok := v.Lookup(name); !ok || found.Fingerprint != tool.Fingerprint {
			t.Errorf("%s is listed and not found", name)
		}
	}
	for _, tool := range r.Catalogue().Tools(route) {
		name := tool.Name
		if route == "" {
			name = tool.Exposed
		}
		if _, ok := r.View(t.Context(), route, from).Lookup(name); ok && !slices.Contains(out, name) {
			t.Errorf("%s is found and not listed", name)
		}
	}
	return strings.Join(out, " ")
}

// A client sees what its connections offer, in the order of their servers.
func TestView(t *testing.T) {
	one, two := recorder.HTTP(t, choosy()), recorder.HTTP(t, choosy())
	shared := server("two", two)
	shared.Isolation = "shared"
	r := open(t, registry.Options{})
	apply(t, r, server("one", one), shared)
	for _, tc := range []struct{ name, route, session, can, want string }{
		{"nothing said", "one", "s1", ``, "a b"},
		{"nothing", "one", "s1", `{ }`, "a b"},
		{"nobody", "one", "", `{"sampling":{}}`, "a b"},
		{"one thing", "one", "s2", `{"sampling":{}}`, "ask a b"},
		{"two things", "one", "s3", `{"sampling":{},"roots":{}}`, "ask a roots b"},
		{"something else", "one", "s4", `{"elicitation":{}}`, "a b"},
		{"a server that all share", "two", "s2", `{"sampling":{}}`, "a b"},
		{"all servers", "", "s2", `{"sampling":{}}`, "one__ask one__a one__b two__a two__b"},
		{"all servers, nothing", "", "s5", `{}`, "one__a one__b two__a two__b"},
		{"no such server", "three", "s2", `{"sampling":{}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := seen(t, r, tc.route, client(tc.session, tc.can)); got != tc.want {
				t.Errorf("seen: %s\nwant: %s", got, tc.want)
			}
		})
	}
}

// A tool that only some connections list is called by their sessions, and is
// judged as all are.
func TestViewIsCalled(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	can, cannot := client("can", `{"sampling":{}}`), client("cannot", `{}`)
	tool, ok := r.View(t.Context(), "", can).Lookup("s__ask") // before anybody listed it
	if !ok {
		t.Fatal("the tool is not found")
	}
	if _, err := r.Forward(t.Context(), tool, registry.Outgoing{From: can}); err != nil {
		t.Errorf("called by who sees it: %v", err)
	}
	if _, err := r.Forward(t.Context(), tool, registry.Outgoing{From: cannot}); err == nil {
		t.Error("called by who does not see it")
	}
	if _, ok := r.View(t.Context(), "", cannot).Lookup("s__ask"); ok {
		t.Error("found by who cannot")
	}
	if got := len(rec.Calls()); got != 1 {
		t.Errorf("%d calls arrived, want 1", got)
	}
	pins, err := r.Pins().List(t.Context())
	if err != nil || len(pins) != 4 { // that for clients with roots, too
		t.Errorf("pins %v, error %v", pins, err)
	}
}

// Only the first client of its kind needs a connection to see the tools, and
// it is the one for its calls.
func TestViewOpensOnce(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	var all sync.WaitGroup
	for _, session := range []string{"a", "b", "c", "d", "e"} {
		all.Go(func() {
			if got := len(r.View(t.Context(), "", client(session, `{"sampling":{}}`)).Tools()); got != 3 {
				t.Errorf("%d tools, want 3", got)
			}
		})
	}
	all.Wait()
	if got := rec.Sessions(); got != 2 {
		t.Errorf("%d connections, want the shared one and one more", got)
	}
	if got := len(r.View(t.Context(), "", client("f", `{}`)).Tools()); got != 2 || rec.Sessions() != 2 {
		t.Errorf("%d tools for a client that can do nothing, and %d connections", got, rec.Sessions())
	}
}

// A lock has the tools that only some clients see, also after the server has listed again.
func TestFingerprintsOfVariants(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	serving := func() int { return len(r.Catalogue().Tools("s")) }
	await(t, "the first list", func() bool { return serving() == 4 && rec.Streams() > 0 })
	rec.SetTools(true, choosy().Tools...)
	await(t, "another list", func() bool { return serving() == 2 })
	got, err := r.Fingerprints(t.Context(), "s")
	if err != nil || len(got.Tools) != 4 || got.Tools["ask"] == "" || got.Tools["roots"] == "" {
		t.Errorf("fingerprints %v, error %v", got, err)
	}
}

// What the server changes, the views follow, and whoever looks is told.
func TestViewFollows(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	cfg := server("s", rec)
	cfg.Pin = config.PinOff
	apply(t, r, cfg)
	told := make(chan struct{}, 64)
	r.OnChange(func() { told <- struct{}{} })
	can := client("can", `{"sampling":{}}`)
	if got := seen(t, r, "s", can); got != "ask a b" {
		t.Fatalf("seen: %s", got)
	}
	if len(told) > 0 {
		t.Error("everybody was told of a tool that nobody misses")
	}
	await(t, "streams", func() bool { return rec.Streams() == 2 })
	rec.SetTools(true, recorder.Tool{Name: "a"}, recorder.Tool{Name: "c", Needs: "sampling"}, recorder.Tool{Name: "d", Needs: "roots"}, recorder.Tool{Name: "b"})
	await(t, "told", func() bool { return len(told) > 0 })
	await(t, "the new tools", func() bool { return seen(t, r, "s", can) == "a c b" })
	if got := seen(t, r, "s", client("other", `{"roots":{}}`)); got != "a d b" {
		t.Errorf("seen: %s", got)
	}
	if got := seen(t, r, "s", client("third", `{}`)); got != "a b" {
		t.Errorf("seen: %s", got)
	}
}

// A server that is down keeps the tools of every client, and a call says that
// it is not there.
func TestViewOfServerThatIsDown(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	can := client("can", `{"sampling":{}}`)
	if got := seen(t, r, "s", can); got != "ask a b" {
		t.Fatalf("seen: %s", got)
	}
	rec.Stop()
	forward(r, "s__a", `{}`) // finds it out
	await(t, "failure", func() bool { return r.Status()[0].State == "failed" })
	for _, from := range []registry.Downstream{can, client("other", `{"sampling":{}}`)} {
		if got := seen(t, r, "s", from); got != "ask a b" {
			t.Errorf("seen: %s", got)
		}
	}
	tool, _ := r.View(t.Context(), "s", can).Lookup("ask")
	_, err := r.Forward(t.Context(), tool, registry.Outgoing{From: can})
	var refused *registry.ForwardError
	if !errors.As(err, &refused) || refused.Kind != registry.Unavailable {
		t.Errorf("a call: %v", err)
	}
}

// A client whose connection cannot be had sees what all see.
func TestViewWithoutConnection(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	await(t, "the server is listed", func() bool { _, ok := r.Catalogue().Lookup("s", "a"); return ok })
	rec.Stop()
	if got := seen(t, r, "s", client("second", `{"sampling":{}}`)); got != "a b" {
		t.Errorf("seen: %s", got)
	}
}

// A client whose connection waits for one that is busy sees what all see.
func TestViewWithoutRoom(t *testing.T) {
	parts.Long(t, "waits for a busy connection")
	offered := choosy()
	offered.Tools = append([]recorder.Tool{{Name: "hang", Does: recorder.Hang}}, offered.Tools...)
	rec := recorder.HTTP(t, offered)
	r := open(t, registry.Options{})
	cfg := server("s", rec)
	cfg.MaxSessions = 1
	apply(t, r, cfg)
	await(t, "the server is listed", func() bool { _, ok := r.Catalogue().Lookup("s", "hang"); return ok })
	busy, end := context.WithCancel(t.Context())
	var first sync.WaitGroup
	defer first.Wait()
	defer end()
	first.Go(func() {
		hang, _ := r.Catalogue().Lookup("s", "hang")
		_, _ = r.Forward(busy, hang, registry.Outgoing{From: client("first", `{}`)})
	})
	await(t, "the call of the first arrives", func() bool { return len(rec.Calls()) == 1 })
	v := r.View(t.Context(), "s", client("second", `{"sampling":{}}`))
	if got := len(v.Tools()); got != 3 {
		t.Errorf("%d tools, want hang, a and b", got)
	}
}

// A tool that some clients see never takes the name of one that all see.
func TestViewTakesNoName(t *testing.T) {
	first := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "x_t", Needs: "sampling"}}})
	second := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "t"}}})
	a, b := server("a", first), server("b", second)
	a.Prefix, b.Prefix = "", "x_"
	r := open(t, registry.Options{})
	apply(t, r, a, b)
	can := client("can", `{"sampling":{}}`)
	if got := seen(t, r, "", can); got != "x_t" {
		t.Errorf("seen: %s", got)
	}
	tool, _ := r.View(t.Context(), "", can).Lookup("x_t")
	if tool == nil || tool.Server != "b" {
		t.Errorf("x_t is %+v", tool)
	}
}

// A view of the catalogue alone is that of a client that can do nothing.
func TestCatalogueView(t *testing.T) {
	rec := recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	seen(t, r, "", client("can", `{"sampling":{}}`))
	v := r.Catalogue().View("")
	if _, ok := v.Lookup("s__ask"); ok || len(v.Tools()) != 2 {
		t.Errorf("%d tools, want 2", len(v.Tools()))
	}
	if _, ok := v.Lookup("s__a"); !ok {
		t.Error("s__a is not found")
	}
}

// What changes of lists that are not in the catalogue is handed on.
func TestListChanged(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{OnInitialized: []string{`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`}, Tools: []recorder.Tool{{Name: "a"}}})
	r := open(t, registry.Options{})
	told := make(chan string, 8) // connections that ask for the first list announce it too
	r.OnListChanged(func(server, method string) { told <- server + " " + method })
	apply(t, r, server("s", rec))
	if got := <-told; got != "s notifications/prompts/list_changed" {
		t.Errorf("told of %s", got)
	}
}

// The real thing: server-everything offers 13 tools to a client that can do
// nothing, and more to others.
func TestViewOfEverything(t *testing.T) {
	node, script := parts.Need(t, "node"), npm.File(t, "@modelcontextprotocol/server-everything/dist/index.js")
	r := open(t, registry.Options{})
	apply(t, r, config.Server{Name: "e", Type: "stdio", Command: node, Args: []string{script, "stdio"}, Prefix: "e__", Timeout: patience, Pin: config.PinFirst, MaxSessions: 8})
	await(t, "the server", func() bool { return len(r.Catalogue().Tools("e")) == 13 })
	for _, tc := range []struct {
		can  string
		want []string
	}{
		{`{}`, nil},
		{`{"sampling":{}}`, []string{"trigger-sampling-request"}},
		{`{"roots":{"listChanged":true}}`, []string{"get-roots-list"}},
		{`{"elicitation":{}}`, []string{"trigger-elicitation-request"}},
	} {
		from := client("s"+tc.can, tc.can)
		from.Home = rootless{}
		await(t, tc.can, func() bool { return len(r.View(context.Background(), "e", from).Tools()) == 13+len(tc.want) })
		var more []string
		for _, tool := range r.View(t.Context(), "e", from).Tools() {
			if _, all := r.Catalogue().View("e").Lookup(tool.Name); !all {
				more = append(more, tool.Name)
			}
		}
		if diff := cmp.Diff(tc.want, more); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.can, diff)
		}
	}
}

// rootless is a client without roots.
type rootless struct{}

func (rootless) Ask(_ context.Context, round []registry.Question) []registry.Answer {
	return slices.Repeat([]registry.Answer{{Result: json.RawMessage(`{"roots":[]}`)}}, len(round))
}

func (rootless) Tell(string, json.RawMessage) {}

// end is a client's end that is told for whom it is.
type end struct {
	mu    sync.Mutex // protects names
	names map[string]bool
}

func (e *end) Ask(context.Context, []registry.Question) []registry.Answer { return nil }
func (e *end) Tell(string, json.RawMessage)                               {}

func (e *end) For(server string) registry.Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names[server] = true
	return e
}

// Each server's connection gets an end that knows the server.
func TestViewNamesServers(t *testing.T) {
	one, two := recorder.HTTP(t, choosy()), recorder.HTTP(t, choosy())
	r := open(t, registry.Options{})
	apply(t, r, server("one", one), server("two", two))
	home := &end{names: map[string]bool{}}
	from := client("s1", `{"sampling":{}}`)
	from.Home = home
	r.View(t.Context(), "", from).Tools()
	if diff := cmp.Diff(map[string]bool{"one": true, "two": true}, home.names); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
}

// A tool is withdrawn when its server has listed its tools without it, and not before.
// One that only some clients are shown is not: the next connection may list it again.
func TestWithdrew(t *testing.T) {
	for isolation, unheard := range map[string]bool{config.IsolationSession: false, config.IsolationShared: true} {
		rec := recorder.HTTP(t, choosy())
		r := open(t, registry.Options{})
		cfg := server("s", rec)
		cfg.Isolation = isolation
		want := func(tool string, want bool) {
			t.Helper()
			if got := r.View(t.Context(), "", registry.Downstream{}).Withdrew("s", tool); got != want {
				t.Errorf("%s: withdrew %s: %v", isolation, tool, got)
			}
		}
		want("a", false) // there is no such server
		apply(t, r, cfg)
		if isolation == config.IsolationSession {
			seen(t, r, "s", client("can", `{"sampling":{}}`))
			want("ask", false)
		}
		want("a", false)
		want("b", false)
		want("x", unheard) // a process before this one may have known it
		rec.SetTools(true, recorder.Tool{Name: "b"})
		await(t, "the new list", func() bool { return len(names(r, "s")) == 1 })
		want("a", true)
		want("b", false)
		rec.Stop()
		forward(r, "s__b", `{}`) // finds it out
		await(t, "failure", func() bool { return r.Status()[0].State == "failed" })
		want("a", true)
		want("b", false)
	}
	r := open(t, registry.Options{})
	apply(t, r, config.Server{Name: "s", Type: "http", URL: "http://127.0.0.1:1", Isolation: config.IsolationShared, Timeout: patience})
	if r.View(t.Context(), "", registry.Downstream{}).Withdrew("s", "a") {
		t.Error("a server that never listed anything withdrew a tool")
	}
}
