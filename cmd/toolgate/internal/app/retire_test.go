package app

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/store"
)

// publish stores a checkpoint, which a signs.
func publish(t *testing.T, db *store.DB, a *App, c notary.Checkpoint) error {
	t.Helper()
	raw, err := hex.DecodeString(c.Hash)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("toolgate/audit/%s/%s\n%d\n%s\ntime %s\n", c.Trail, c.Instance, c.Seq, base64.StdEncoding.EncodeToString(raw), c.Time.UTC().Format(time.RFC3339))
	signed, err := note.Sign(&note.Note{Text: text}, a.state.trail.Signing().Signer)
	if err != nil {
		return err
	}
	return fleet.AnchoredInStore(db)[0].Anchor.Publish(t.Context(), c, signed)
}

// gone stores a checkpoint of a chain of a replica whose process has ended, and the place up
// to which its decisions were shipped.
func gone(t *testing.T, db *store.DB, a *App, chain string, seq uint64) notary.Checkpoint {
	t.Helper()
	c := notary.Checkpoint{Trail: "other", Instance: chain, Seq: seq, Hash: strings.Repeat("ab", 32), Time: time.Unix(int64(seq), 0)}
	err := publish(t, db, a, c)
	if err == nil {
		_, err = db.Write.ExecContext(t.Context(), "UPDATE checkpoints SET who = 'process 1 on web-3' WHERE chain = ?", chain)
	}
	if err == nil {
		_, err = db.Write.ExecContext(t.Context(), "INSERT INTO decision_log_sinks (sink) VALUES ('file') ON CONFLICT DO NOTHING")
	}
	if err == nil {
		_, err = db.Write.ExecContext(t.Context(), "INSERT INTO decision_log_places (sink, chain, seq) VALUES ('file', ?, 1)", chain)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A replica that is gone is retired with the last record of each of its chains. One whose lease
// holds is not. A chain that continues is not retired.
func TestRetiredReplica(t *testing.T) {
	a, cfg := replicaOf(t, database(t), t.TempDir())
	defer a.state.close()
	db := a.state.db
	c := gone(t, db, a, "chn_1", 7)
	gone(t, db, a, "chn_2", 9)
	state := func(want string) fleet.KnownReplica {
		t.Helper()
		all, err := fleet.KnownReplicas(t.Context(), db)
		i := slices.IndexFunc(all, func(r fleet.KnownReplica) bool { return r.Name == "other" })
		if err != nil || i < 0 || all[i].State != want || len(all[i].Chains) != 2 {
			t.Fatalf("replicas %+v, %v; want one that is %s", all, err, want)
		}
		return all[i]
	}
	lease := func(seen string) {
		t.Helper()
		if _, err := db.Write.ExecContext(t.Context(), "INSERT INTO instances (id, who, seen) VALUES ('ins_other', 'process 1 on web-3', "+seen+") ON CONFLICT (id) DO UPDATE SET seen = excluded.seen"); err != nil {
			t.Fatal(err)
		}
	}
	count := func(query string) (n int) {
		t.Helper()
		if err := db.Read.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	lease("9000000000000000000")
	state(fleet.Live)
	if _, err := fleet.Retire(t.Context(), db, "other", "root", time.Now()); !errors.Is(err, fleet.ErrLive) {
		t.Errorf("a live replica: %v", err)
	}
	state(fleet.Live)
	if _, err := db.Write.ExecContext(t.Context(), "DELETE FROM instances WHERE id = 'ins_other'"); err != nil {
		t.Fatal(err)
	}
	state(fleet.Gone)
	if _, err := fleet.Retire(t.Context(), db, "nobody", "root", time.Now()); err == nil || !strings.Contains(err.Error(), "no checkpoint of replica nobody") {
		t.Errorf("an unknown replica: %v", err)
	}
	retired, err := fleet.Retire(t.Context(), db, "other", "root", time.Now())
	if err != nil || retired.Chains[1] != (audit.Earlier{Instance: "chn_2", Seq: 9, Hash: c.Hash}) || retired.Who != "process 1 on web-3" {
		t.Errorf("retired %+v, %v", retired, err)
	}
	if r := state(fleet.Retired); r.By != "root" || r.Retired.IsZero() {
		t.Errorf("retired by %q at %s", r.By, r.Retired)
	}
	if n := count("SELECT count(*) FROM decision_log_places WHERE chain LIKE 'chn_%'"); n != 0 {
		t.Errorf("%d places of its decisions are left", n)
	}
	notes, err := fleet.StoredNotes(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := notary.Evidence{Notes: notes, Ledgers: []notary.Ledger{a.state.trail.Signing().Ledger}, Replica: true}.Verify(trail.Dir(cfg.State))
	if err != nil || len(rep.Retired) != 2 || len(rep.Elsewhere) != 0 || !rep.OK() || !strings.HasSuffix(rep.Retired[0].Source, " by root") {
		t.Errorf("verified %+v, %v", rep, err)
	}
	c.Seq++
	if err := publish(t, db, a, c); err != nil {
		t.Fatal(err)
	}
	state(fleet.Live) // this process has stored it
	if n := count("SELECT count(*) FROM checkpoints WHERE retired > 0 AND chain = 'chn_1'"); n != 0 {
		t.Error("a chain that continues is retired")
	}
}

// A store in a file has no replicas.
func TestNoReplicasOfAFile(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := fleet.KnownReplicas(t.Context(), db); !errors.Is(err, fleet.ErrNotShared) {
		t.Errorf("replicas of a file: %v", err)
	}
}
