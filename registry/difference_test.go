package registry_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

func TestFirstDifference(t *testing.T) {
	for _, tt := range []struct{ name, accepted, offered, want string }{
		{"a bound", `{"inputSchema":{"properties":{"amount":{"maximum":10}}}}`, `{"inputSchema":{"properties":{"amount":{"maximum":99}}}}`, "inputSchema.properties.amount.maximum"},
		{"the first in the order of names", `{"b":1,"a":{"z":1,"y":1}}`, `{"b":2,"a":{"z":2,"y":2}}`, "a.y"},
		{"a member is gone", `{"a":1,"b":null}`, `{"a":1}`, "b"},
		{"a member is new", `{"a":1}`, `{"a":1,"annotations":{}}`, "annotations"},
		{"an element", `{"required":["a","b"]}`, `{"required":["a","c"]}`, "required[1]"},
		{"an element less", `{"required":["a","b"]}`, `{"required":["a"]}`, "required[1]"},
		{"another type", `{"a":{"b":1}}`, `{"a":[1]}`, "a"},
		{"a number in another form", `{"a":1}`, `{"a":1.0}`, "a"},
		{"a name that is no word", `{"a":{"x.y \n\u202e":1}}`, `{"a":{"x.y \n\u202e":2}}`, `a["x.y \n\u202e"]`},
		{"a long name", `{"` + strings.Repeat("n", 500) + `":1}`, `{}`, strings.Repeat("n", 128) + "..."},
		{"white space", `{"a":1,"b":2}`, `{"a": 1,"b":2}`, "white space or the order of members"},
		{"order", `{"a":1,"b":2}`, `{"b":2,"a":1}`, "white space or the order of members"},
		{"not JSON", `{"a":1}`, `{`, ""},
		{"nothing kept", ``, `{}`, ""},
	} {
		if got := registry.FirstDifference([]byte(tt.accepted), []byte(tt.offered)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// heard collects the changes that a registry reports.
type heard struct {
	all []registry.Change
	err error
}

func (h *heard) options(o registry.Options) registry.Options {
	o.Changed = func(all []registry.Change) error {
		if h.err == nil {
			h.all = append(h.all, all...)
		}
		return h.err
	}
	return o
}

// A changed definition is reported once: not with the next list, not at the next start, and
// again after a further change. Accepted and new definitions are not reported.
func TestChangeIsReportedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool}})
	var h heard
	var want []registry.Change
	last := oldTool
	begin := func(tools ...recorder.Tool) *registry.Registry {
		t.Helper()
		rec.SetTools(false, tools...)
		r := open(t, h.options(registry.Options{DB: database(t, path)}))
		apply(t, r, server("s", rec))
		await(t, "the server", func() bool { return r.Status()[0].State == "ready" })
		return r
	}
	for i, step := range []struct {
		tool    recorder.Tool
		reports bool
	}{
		{oldTool, false}, {newTool, true}, {newTool, false}, {oldTool, false}, {newTool, true},
		{recorder.Tool{Name: "a", Definition: []byte(`{"name":"a","description":"old","inputSchema":{"type":"object","x":1}}`)}, true},
	} {
		r := begin(step.tool, recorder.Tool{Name: "b"})
		if last = step.tool; step.reports {
			pins, err := r.Pins().List(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, registry.Change{Server: "s", Tool: "a", Accepted: pins[0].Accepted, Offered: pins[0].Offered, Differs: pins[0].Differs})
		}
		if diff := cmp.Diff(want, h.all); diff != "" {
			t.Fatalf("step %d (-want +got):\n%s", i, diff)
		}
		r.Close(context.Background())
	}
	if got := []string{want[0].Differs, want[2].Differs}; !cmp.Equal(got, []string{"description", "inputSchema.x"}) {
		t.Errorf("differences %v", got)
	}
	r := begin(last, recorder.Tool{Name: "b"})
	if err := r.Pins().Judge(context.Background(), registry.Verdict{Server: "s", Tool: "a"}); err != nil {
		t.Fatal(err)
	}
	if len(h.all) != len(want) {
		t.Errorf("accepting reports %v", h.all[len(want):])
	}
}

// Many changes of one list are reported as a hundred, the last of which counts the rest.
func TestManyChanges(t *testing.T) {
	tools := func(version string) (all []recorder.Tool) {
		for i := range 130 {
			name := fmt.Sprintf("t%03d", i)
			all = append(all, recorder.Tool{Name: name, Definition: fmt.Appendf(nil, `{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, version)})
		}
		return all
	}
	rec := recorder.HTTP(t, recorder.Config{Tools: tools("old")})
	var h heard
	r := open(t, h.options(registry.Options{}))
	apply(t, r, server("s", rec))
	await(t, "tools", func() bool { return len(r.Catalogue().Tools("")) == 130 })
	await(t, "stream", func() bool { return rec.Streams() > 0 })
	rec.SetTools(true, tools("new")...)
	await(t, "quarantine", func() bool { return len(r.Catalogue().Quarantined()) == 130 })
	if len(h.all) != 100 || h.all[98].Count != 0 || h.all[99].Count != 31 {
		t.Errorf("%d changes, the last %+v", len(h.all), h.all[len(h.all)-1])
	}
}

// A change that cannot be recorded keeps every tool of the server out, and is reported when
// it can be.
func TestChangeIsRecordedFirst(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool, {Name: "b"}}})
	var h heard
	r := open(t, h.options(registry.Options{}))
	apply(t, r, server("s", rec))
	awaitTools(t, r, "s__a", "s__b")
	await(t, "stream", func() bool { return rec.Streams() > 0 })
	h.err = errors.New("the trail is full")
	rec.SetTools(true, newTool, recorder.Tool{Name: "b"})
	await(t, "quarantine", func() bool { return len(r.Catalogue().Quarantined()) == 2 })
	if got := r.Catalogue().Quarantined()[1].Refusal(); strings.Contains(got, "full") || !strings.Contains(got, "can read") {
		t.Errorf("agents read %q", got)
	}
}

// What differs from the lock is reported once too. The first member that differs is known
// when the locked definition has been listed here.
func TestChangeFromLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool}})
	probe := open(t, registry.Options{})
	apply(t, probe, server("s", rec))
	awaitTools(t, probe, "s__a")
	prints, err := probe.Fingerprints(context.Background(), "s")
	if err != nil {
		t.Fatal(err)
	}
	cfg := server("s", rec)
	cfg.Pin = config.PinStrict
	held := &lock.File{Version: 1, Servers: map[string]lock.Server{"s": {Origin: cfg.Origin, Tools: prints.Tools}}}
	for _, tt := range []struct {
		name, state string
		tools       []recorder.Tool
		reports     int
		reason      string
	}{
		{"never listed", filepath.Join(t.TempDir(), "new.db"), []recorder.Tool{newTool}, 1, "its definition differs from the one in toolgate.lock.json\nhint: "},
		{"locked", path, []recorder.Tool{oldTool}, 0, ""},
		{"changed", path, []recorder.Tool{newTool}, 1, "its definition differs from the one in toolgate.lock.json; it differs first in description\nhint: "},
		{"the same again", path, []recorder.Tool{newTool}, 0, "its definition differs from the one in toolgate.lock.json; it differs first in description\nhint: "},
		{"new", path, []recorder.Tool{{Name: "z"}}, 0, "it is not in toolgate.lock.json\nhint: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec.SetTools(false, tt.tools...)
			var h heard
			r := open(t, h.options(registry.Options{DB: database(t, tt.state)}))
			if err := r.Apply(context.Background(), &config.Config{Servers: []config.Server{cfg}, Lock: held}); err != nil {
				t.Fatal(err)
			}
			await(t, "the server", func() bool { return r.Status()[0].State == "ready" })
			reason := ""
			for _, q := range r.Catalogue().Quarantined() {
				if reason = q.Quarantine; !strings.HasPrefix(q.Refusal(), "the tool is withheld until an operator accepts its ") || strings.Contains(q.Refusal(), "\n") {
					t.Errorf("agents read %q", q.Refusal())
				}
			}
			if len(h.all) != tt.reports || !strings.HasPrefix(reason, tt.reason) || reason != "" && tt.reason == "" {
				t.Errorf("reported %+v, quarantined because %q", h.all, reason)
			}
			r.Close(context.Background())
		})
	}
}
