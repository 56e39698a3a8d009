package app

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/keys"
)

// awaitRecord records events until a condition holds: each second's checkpoint covers them.
func awaitRecord(t *testing.T, a *App, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		a.recordEvent(&audit.Event{Name: audit.EventSignOut})
		if time.Now().After(deadline) {
			t.Fatal("waiting in vain")
		}
	}
}

// Readiness tells the truth: it ends while the trail or the store cannot be written,
// while keys or signatures cannot be had, and while toolgate drains, with the reason and in the metric, and comes back.
func TestReadiness(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}}`)
	a, cfg := opened(t, dir)
	wants := func(ready bool, part string) {
		t.Helper()
		a.health.mu.Lock()
		a.health.at = time.Time{}
		a.health.mu.Unlock()
		if s := a.status(); s.Ready != ready || !ready && len(s.Warnings) == 0 {
			t.Errorf("%s: ready %v with warnings %q, want %v", part, s.Ready, s.Warnings, ready)
		}
		for name, value := range a.readiness(t.Context()) {
			if (value == 1) != (ready || name != part) {
				t.Errorf("toolgate_ready{part=%q} is %v while %s is broken", name, value, part)
			}
		}
	}
	for a.approvalsClosed() != "" { // until the store is compared with the trail
		runtime.Gosched()
	}
	wants(true, "")
	trail := filepath.Join(cfg.State, "audit")
	if err := os.Rename(trail, trail+".away"); err != nil {
		t.Fatal(err)
	}
	wants(false, partTrail)
	if err := os.Rename(trail+".away", trail); err != nil {
		t.Fatal(err)
	}
	wants(true, "")
	if _, err := a.state.db.Write.ExecContext(t.Context(), "PRAGMA query_only = on"); err != nil {
		t.Fatal(err)
	}
	wants(false, partStore)
	if _, err := a.state.db.Write.ExecContext(t.Context(), "PRAGMA query_only = off"); err != nil {
		t.Fatal(err)
	}
	wants(true, "")
	moved := func(path, part string, broken func() bool) {
		t.Helper()
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		awaitRecord(t, a, broken)
		wants(false, part)
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		awaitRecord(t, a, func() bool { return !broken() })
		wants(true, "")
	}
	moved(filepath.Join(cfg.Keys, "tickets-1.key"), partOwnKeys, func() bool { return !a.state.keys.Has(keys.Tickets) })
	moved(a.state.trail.Signing().Ledger.Dir, partSigning, func() bool { return a.state.trail.Unsigned() != nil })
	a.health.draining.Store(true)
	wants(false, partServing)
}
