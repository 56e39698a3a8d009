package app

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
)

// nextChain begins a chain of the trail of cfg next to that of a.
func nextChain(t *testing.T, a *App) *notary.Log {
	t.Helper()
	l, err := trail.Open(a.cfg, a.state.keys, a.state.db, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// verified verifies the trail of a as `audit verify` does, and fails the test unless it is sound.
func verified(t *testing.T, a *App, step string) notary.Report {
	t.Helper()
	public, err := a.state.keys.Publics(keys.Checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	v, err := notary.NewVerifier(public[0])
	if err != nil {
		t.Fatal(err)
	}
	notes, err := fleet.StoredNotes(t.Context(), a.state.db)
	if err != nil {
		t.Fatal(err)
	}
	evidence := notary.Evidence{Keys: []note.Verifier{v}, Ledgers: []notary.Ledger{a.state.trail.Signing().Ledger}, Notes: notes, Replica: true}
	rep, err := evidence.Verify(trail.Dir(a.cfg.State))
	if err != nil || !rep.OK() || rep.Verdicts.Content != notary.OK {
		t.Fatalf("%s: %+v %v, %v", step, rep.Verdicts, rep.All(), err)
	}
	return rep
}

// A chain of which everything is archived leaves the trail, the ledger and the store. The trail
// verifies after each step. A chain whose process lives stays.
func TestArchivedChainsLeaveTheStore(t *testing.T) {
	for name, address := range map[string]string{"SQLite": "", "PostgreSQL": database(t)} {
		t.Run(name, func(t *testing.T) {
			a, cfg := replicaOf(t, address, t.TempDir())
			defer a.state.close()
			db, dir, living := a.state.db, trail.Dir(cfg.State), a.state.trail.Instance()
			past := nextChain(t, a)
			if err := past.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := db.Write.ExecContext(t.Context(), "INSERT INTO decision_log_sinks (sink) VALUES ('file') ON CONFLICT DO NOTHING")
			for _, chain := range []string{past.Instance(), living} {
				_, failed := db.Write.ExecContext(t.Context(), "INSERT INTO decision_log_places (sink, chain, seq) VALUES ('file', ?, 1)", chain)
				err = errors.Join(err, failed)
			}
			if err != nil {
				t.Fatal(err)
			}
			rows := func(table, chain string, want int) {
				t.Helper()
				var n int
				if err := db.Read.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table+" WHERE chain = ?", chain).Scan(&n); err != nil || n != want {
					t.Errorf("%s has %d rows of %s, want %d: %v", table, n, chain, want, err)
				}
			}
			later := time.Now().Add(time.Hour)
			done, err := trail.Archive(nextChain(t, a), verified(t, a, "before"), dir, t.TempDir(), later, "root")
			if err != nil || len(done.Removed) != 1 || done.Removed[0].Instance != past.Instance() {
				t.Fatalf("%+v, %v", done, err)
			}
			if rep := verified(t, a, "before the store forgets"); len(rep.Removed) != 1 || rep.Removed[0] != done.Removed[0] || len(rep.Chains) != 2 {
				t.Errorf("%+v", rep)
			}
			if db.Shared() {
				rows("checkpoints", past.Instance(), 1)
			}
			if err := fleet.ForgetChains(t.Context(), db, done.Removed); err != nil {
				t.Fatal(err)
			}
			rows("decision_log_places", past.Instance(), 0)
			rows("decision_log_places", living, 1)
			if db.Shared() {
				rows("checkpoints", past.Instance(), 0)
				rows("checkpoints", living, 1)
			}
			verified(t, a, "at the end")
		})
	}
}

// Where the checkpoint of the record cannot be signed, no directory is removed. The next
// archiving removes what an interrupted one left, before or after its record.
func TestNothingIsRemovedWithoutCheckpoint(t *testing.T) {
	a, cfg := replicaOf(t, "", t.TempDir())
	defer a.state.close()
	past := nextChain(t, a)
	if err := past.Close(); err != nil {
		t.Fatal(err)
	}
	dir, ledger, later := filepath.Join(trail.Dir(cfg.State), past.Instance()), past.Signing().Ledger.Dir, time.Now().Add(time.Hour)
	rep, own := verified(t, a, "before"), nextChain(t, a)
	if err := os.Rename(ledger, ledger+".away"); err != nil {
		t.Fatal(err)
	}
	done, err := trail.Archive(own, rep, filepath.Dir(dir), t.TempDir(), later, "root")
	if _, gone := os.Stat(dir); err == nil || gone != nil {
		t.Errorf("%+v, %v; the directory: %v", done, err, gone)
	}
	if err := os.Rename(ledger+".away", ledger); err != nil {
		t.Fatal(err)
	}
	moved := nextChain(t, a)
	if err := moved.Close(); err != nil {
		t.Fatal(err)
	}
	signing := moved.Signing()
	if _, err := notary.Archive(filepath.Dir(dir), t.TempDir(), later, later, signing.Ledger.Trail, signing.Signer); err != nil {
		t.Fatal(err)
	}
	rep = verified(t, a, "interrupted")
	if _, err = trail.Archive(nextChain(t, a), rep, filepath.Dir(dir), t.TempDir(), later, "root"); err != nil {
		t.Fatal(err)
	}
	for _, instance := range []string{past.Instance(), moved.Instance()} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), instance)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory of %s: %v", instance, err)
		}
	}
	verified(t, a, "at the end")
}
