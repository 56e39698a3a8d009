package proxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// changing is upstreams whose catalogue changes.
type changing struct {
	upstreams
	now *registry.Catalogue
}

func (c *changing) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return c.now.View(route)
}

const byRole = `package toolgate

import rego.v1

visible if {
	some r in input.principal.roles
	data.roles[r].tools[input.tool.exposed]
}

decision := {"effect": "allow", "rule": "R", "reason": "r"} if visible
`

// loadPolicy loads Rego with data.roles, each role with its tools.
func loadPolicy(t testing.TB, text string, roles map[string][]string) *rego.Engine {
	t.Helper()
	rights := map[string]any{}
	for role, tools := range roles {
		granted := map[string]bool{}
		for _, tool := range tools {
			granted[tool] = true
		}
		rights[role] = map[string]any{"tools": granted}
	}
	data, err := json.Marshal(map[string]any{"roles": rights})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"p.rego": []byte(text), "data.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := rego.Load(t.Context(), rego.Options{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// tools returns n tools of the server web, those in held back quarantined.
func tools(n int, content string, held ...int) []*registry.Tool {
	out := make([]*registry.Tool, n)
	for i := range out {
		name := fmt.Sprintf("t%d", i)
		definition := json.RawMessage(fmt.Sprintf(`{"name":%q,"description":%q}`, name, content))
		out[i] = &registry.Tool{Server: "web", Name: name, Exposed: "web__" + name, Definition: definition, Listed: definition,
			Fingerprint: "sha256:" + name + content, OutputMode: "warn", Input: mustSchema(`{}`)}
		if slices.Contains(held, i) {
			out[i].Quarantine = "changed"
		}
	}
	return out
}

// described is what a list says, for people to compare.
func described(listed []*registry.Tool) []string {
	out := []string{}
	for _, t := range listed {
		out = append(out, t.Exposed+" "+string(t.Definition))
	}
	return out
}

// A kept list is the list that would be made anew, also after the policy, the
// catalogue, a definition or a quarantine has changed, and after all of them.
func TestKeptListIsTheListMadeAnew(t *testing.T) {
	b := newBench(t)
	catalogue := func(all []*registry.Tool) *registry.Catalogue { return registry.NewCatalogue([]string{"web"}, all...) }
	web := &changing{upstreams: upstreams{bench: b}, now: catalogue(tools(6, "v1"))}
	open := func(p proxy.Policy) *proxy.Gate {
		g, err := proxy.New(proxy.Options{Identifier: b, Policy: p, Limiter: b, Tickets: b, Recorder: b, Upstreams: web})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	some := map[string][]string{"r": {"web__t0", "web__t1", "web__t3"}, "s": {"web__t2"}, "x": {"web__t9"}}
	now := loadPolicy(t, byRole, some)
	kept := open(now)
	people := []policy.Principal{
		{Subject: "ann", Roles: []string{"r"}}, {Subject: "bob", Roles: []string{"r"}}, {Subject: "cat", Roles: []string{"s", "r"}}, {Subject: "dan", Roles: []string{"x"}},
	}
	for _, step := range []struct {
		name   string
		change func()
	}{
		{"nothing", func() {}},
		{"the policy", func() {
			now = loadPolicy(t, byRole, map[string][]string{"r": {"web__t1"}, "s": {"web__t5"}})
			kept.SetPolicy(now)
		}},
		{"a quarantine", func() { web.now = catalogue(tools(6, "v1", 1)) }},
		{"a pin", func() { web.now = catalogue(tools(6, "v1")) }},
		{"definitions", func() { web.now = catalogue(tools(6, "v2")) }},
		{"more tools", func() { web.now = catalogue(tools(10, "v2")) }},
		{"policy and catalogue", func() {
			now, web.now = loadPolicy(t, byRole, some), catalogue(tools(2, "v3"))
			kept.SetPolicy(now)
		}},
	} {
		step.change()
		for range 3 {
			for _, who := range people {
				for _, route := range []string{"", "web"} {
					in := &proxy.Call{Route: route, Transport: "http"}
					got, want := kept.List(t.Context(), in, who), open(now).List(t.Context(), in, who)
					if diff := cmp.Diff(described(want), described(got)); diff != "" {
						t.Fatalf("after %s, %s on %q (-anew +kept):\n%s", step.name, who.Subject, route, diff)
					}
				}
			}
		}
	}
}

// Principals who see the same of a route share a list and its pages; others do not.
func TestSameListIsShared(t *testing.T) {
	b := newBench(t, tools(4, "v1")...)
	b.SetPolicy(loadPolicy(t, byRole, map[string][]string{"r": {"web__t0"}, "s": {"web__t0"}, "x": {"web__t1"}, "y": {"web__t0", "web__t1"}}))
	listing := func(route, role string) *proxy.Listing {
		return b.Listing(t.Context(), &proxy.Call{Route: route}, policy.Principal{Subject: "of " + role, Roles: []string{role}})
	}
	ann := listing("", "r")
	for _, other := range []struct {
		route, role string
		shared      bool
	}{{"", "r", true}, {"", "s", true}, {"", "x", false}, {"", "y", false}, {"web", "r", false}, {"", "nobody", false}} {
		if got := listing(other.route, other.role) == ann; got != other.shared {
			t.Errorf("role %s on route %q: shared %v, want %v", other.role, other.route, got, other.shared)
		}
	}
	builds := 0
	build := func() []byte { builds++; return []byte{byte(builds)} }
	for range 3 {
		if got := ann.Page("a", build); !bytes.Equal(got, []byte{1}) {
			t.Errorf("page %v, want the first one", got)
		}
	}
	if ann.Page("b", build); builds != 2 {
		t.Errorf("%d builds, want 2", builds)
	}
}

// A list that many rights sets share is counted once, and is kept as long as one of
// them is.
func TestSharedListIsCountedOnce(t *testing.T) {
	b := granting(t, 4)
	builds := 0
	for n := range 100 {
		l := b.Listing(t.Context(), &proxy.Call{}, policy.Principal{Subject: "ann", Roles: []string{"r", fmt.Sprint(n)}})
		l.Page("a", func() []byte { builds++; return make([]byte, 20<<20) })
	}
	if kept := b.KeptListBytes(); builds != 1 || kept < 20<<20 || kept > 21<<20 {
		t.Errorf("%d builds and %d bytes kept, want one page of 20 MiB", builds, kept)
	}
}

// Kept lists and pages are bounded by bytes; a page beyond the bound is built each
// time.
func TestKeptListsAreBounded(t *testing.T) {
	b := newBench(t, tools(100, "v1")...)
	roles := map[string][]string{"r": {"web__t0"}}
	for n := range 100 {
		roles[fmt.Sprint(n)] = []string{fmt.Sprintf("web__t%d", n)}
	}
	b.SetPolicy(loadPolicy(t, byRole, roles))
	for n := range 100 {
		l := b.Listing(t.Context(), &proxy.Call{}, policy.Principal{Subject: "ann", Roles: []string{fmt.Sprint(n)}})
		if got := len(l.Page("a", func() []byte { return make([]byte, 1<<20) })); got != 1<<20 {
			t.Fatalf("a page of %d bytes", got)
		}
		if kept := b.KeptListBytes(); kept > proxy.MaxListingBytes {
			t.Fatalf("%d bytes kept after %d lists, want at most %d", kept, n+1, proxy.MaxListingBytes)
		}
	}
	builds := 0
	for range 2 {
		l := b.Listing(t.Context(), &proxy.Call{}, policy.Principal{Subject: "ann", Roles: []string{"r"}})
		l.Page("huge", func() []byte { builds++; return make([]byte, proxy.MaxListingBytes+1) })
	}
	if builds != 2 || b.KeptListBytes() > proxy.MaxListingBytes {
		t.Errorf("%d builds and %d bytes kept, want 2 and a kept page of none", builds, b.KeptListBytes())
	}
}

// granting returns a gate with n tools, all of which role r sees.
func granting(t testing.TB, n int) *bench {
	all := tools(n, "v1")
	granted := make([]string, n)
	for i, tool := range all {
		granted[i] = tool.Exposed
	}
	b := newBench(t, all...)
	b.SetPolicy(loadPolicy(t, byRole, map[string][]string{"r": granted}))
	return b
}

// What a kept list costs does not depend on the number of tools.
func TestKeptListAllocations(t *testing.T) {
	for _, n := range []int{10, 1_000} {
		b := granting(t, n)
		list := func() { b.Listing(t.Context(), &proxy.Call{}, b.who) }
		list()
		if got := testing.AllocsPerRun(100, list); got != 4 {
			t.Errorf("%v allocations for a kept list of %d tools, want 4", got, n)
		}
	}
}

// BenchmarkListing is a list of so many tools: made for rights that nobody had
// before, and kept.
func BenchmarkListing(b *testing.B) {
	for _, n := range []int{10, 100, 1_000, 10_000} {
		g, fresh := granting(b, n), 0
		for _, kept := range []bool{false, true} {
			b.Run(fmt.Sprintf("tools=%d/kept=%v", n, kept), func(b *testing.B) {
				b.ReportAllocs()
				g.List(b.Context(), &proxy.Call{}, g.who)
				for b.Loop() {
					who := g.who
					if !kept {
						fresh++
						who.Roles = []string{"r", fmt.Sprint(fresh)}
					}
					if got := len(g.List(b.Context(), &proxy.Call{}, who)); got != n {
						b.Fatalf("%d tools, want %d", got, n)
					}
				}
			})
		}
	}
}
