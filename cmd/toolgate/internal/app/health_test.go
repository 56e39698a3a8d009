package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/policy/stop"
)

// awaitRecord records events until a condition holds: each second's checkpoint covers them.
func awaitRecord(t *testing.T, a *App, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		a.state.recordEvent(&audit.Event{Name: audit.EventSignOut})
		if time.Now().After(deadline) {
			t.Fatal("waiting in vain")
		}
	}
}

// An assessment is what status says when a part is broken.
type assessment struct {
	ready    bool
	degraded string
}

var (
	whole  = assessment{ready: true}
	closed = assessment{}
)

func lacking(part string) assessment { return assessment{true, part} }

// shown returns the values of a gauge by its one label.
func shown(t *testing.T, a *App, name string) map[string]float64 {
	t.Helper()
	all, err := a.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range all {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			label := ""
			for _, l := range m.GetLabel() {
				label = l.GetValue()
			}
			values[label] = m.GetGauge().GetValue()
		}
	}
	if len(values) == 0 {
		t.Errorf("%s has no series", name)
	}
	return values
}

// Readiness tells the truth: it ends while the trail cannot be written, while keys cannot be had,
// and while toolgate drains; without the store or signatures toolgate is degraded. The reason and
// the metrics say so, and it comes back.
func TestReadiness(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}}`)
	a, cfg := opened(t, dir)
	wants := func(want assessment, part string) {
		t.Helper()
		a.health.mu.Lock()
		a.health.begun = time.Time{}
		a.health.mu.Unlock()
		s := a.status()
		if got := (assessment{s.Ready, strings.Join(s.Degraded, " ")}); got != want || want != whole && len(s.Warnings) == 0 {
			t.Errorf("%s: %+v with warnings %q, want %+v", part, got, s.Warnings, want)
		}
		for name, value := range shown(t, a, "toolgate_ready") {
			if (value == 1) != (want == whole || name != part) {
				t.Errorf("toolgate_ready{part=%q} is %v while %s is broken", name, value, part)
			}
		}
		if got := shown(t, a, "toolgate_degraded")[""] == 1; got != (want.degraded != "") {
			t.Errorf("toolgate_degraded is %v while %s is broken", got, part)
		}
	}
	for a.state.approvalsClosed() != "" { // until the store is compared with the trail
		runtime.Gosched()
	}
	wants(whole, "")
	trail := filepath.Join(cfg.State, "audit")
	if err := os.Rename(trail, trail+".away"); err != nil {
		t.Fatal(err)
	}
	wants(closed, partTrail)
	if err := os.Rename(trail+".away", trail); err != nil {
		t.Fatal(err)
	}
	wants(whole, "")
	if _, err := a.state.db.Write.ExecContext(t.Context(), "PRAGMA query_only = on"); err != nil {
		t.Fatal(err)
	}
	wants(lacking(partStore), partStore)
	if _, err := a.state.db.Write.ExecContext(t.Context(), "PRAGMA query_only = off"); err != nil {
		t.Fatal(err)
	}
	wants(whole, "")
	moved := func(path, part string, want assessment, broken func() bool) {
		t.Helper()
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		awaitRecord(t, a, broken)
		wants(want, part)
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		awaitRecord(t, a, func() bool { return !broken() })
		wants(whole, "")
	}
	moved(filepath.Join(cfg.Keys, "tickets-1.key"), partOwnKeys, closed, func() bool { return !a.state.keys.Has(keys.Tickets) })
	moved(a.state.trail.Signing().Ledger.Dir, partSigning, lacking(partSigning), func() bool { return a.state.trail.Unsigned() != nil })
	a.health.draining.Store(true)
	wants(closed, partServing)
}

// A part is essential where no call can be served without it.
func TestEssentialParts(t *testing.T) {
	const metered = `package toolgate

import rego.v2

allow contains {"rule": "all"} if true
`
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // with the tools a and b
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&m) != nil || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, map[string]string{
			"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"up","version":"1"}}`,
			"tools/list": `{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"b","inputSchema":{"type":"object"}}]}`,
		}[m.Method])
	}))
	defer up.Close()
	for name, row := range map[string]struct {
		settings, usage, want string
	}{
		"a limit on everything":       {`"limits": {"default": "60/1m"}`, `{}`, "limits"},
		"limits of some tools":        {`"limits": {"default": "off", "rules": [{"tool": "up__a", "rate": "1/1m"}]}`, `{}`, ""},
		"meters of every tool":        {`"limits": {"default": "off"}`, `{"up__a": {"day": {"window": "24h", "hold": 9}}, "up__b": {"day": {"window": "24h", "hold": 9}}}`, "store"},
		"meters of some of the tools": {`"limits": {"default": "off"}`, `{"up__a": {"day": {"window": "24h", "hold": 9}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "policy", "p.rego"), metered)
			write(t, filepath.Join(dir, "policy", "data.json"), `{"usage": `+row.usage+`}`)
			write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {"up": {"url": "`+up.URL+`"}}, "toolgate": {"policy": {"path": "policy"}, `+row.settings+`}}`)
			a, _ := opened(t, dir)
			for len(a.upstreams.Catalogue().Tools("")) < 2 {
				runtime.Gosched()
			}
			var got []string
			for _, part := range []string{partStore, partLimits, partSigning, partUpstreams} {
				if a.health.essential(part) {
					got = append(got, part)
				}
			}
			if strings.Join(got, " ") != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// A part that does not answer is faulty, and does not keep the answer waiting.
func TestReadinessOfADeafPart(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}}`)
	a, _ := opened(t, dir)
	deaf := &trial{done: make(chan struct{}), faults: map[string]string{partTrail: "the trail cannot be written: it does not answer"}}
	a.health.mu.Lock()
	a.health.last = deaf
	a.health.mu.Unlock()
	if s := a.status(); s.Ready || !slices.Contains(s.Warnings, deaf.faults[partTrail]) {
		t.Errorf("got %v with warnings %q", s.Ready, s.Warnings)
	}
}

// A toolgate that cannot read what is stopped elsewhere is degraded: it serves, and says so.
func TestReadinessWithoutStops(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}}`)
	a, _ := opened(t, dir)
	later := time.Duration(0)
	stops, err := stop.Open(t.Context(), stop.Options{DB: a.state.db, Now: func() time.Time { return time.Now().Add(later) }})
	if err != nil {
		t.Fatal(err)
	}
	a.state.stops = stops // nobody follows them
	if s := a.status(); !s.Ready || slices.Contains(s.Degraded, partStops) {
		t.Errorf("got %v, degraded %q", s.Ready, s.Degraded)
	}
	later = time.Minute
	if s := a.status(); !s.Ready || !slices.Contains(s.Degraded, partStops) || !strings.Contains(strings.Join(s.Warnings, "\n"), "could not be read from the store for 1m0s") {
		t.Errorf("got %v, degraded %q with warnings %q", s.Ready, s.Degraded, s.Warnings)
	}
}
