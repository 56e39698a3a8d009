package fleet

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/store"
)

// KnownReplica is a replica of which the store has checkpoints: a state directory, in which
// each process began a chain of the trail.
type KnownReplica struct {
	Name    string    `json:"name"`  // of its trail, the same after each start on the state directory
	Who     string    `json:"who"`   // its last process, as in "process 4711 on web-1"
	State   string    `json:"state"` // live, gone or retired
	Last    time.Time `json:"last"`  // when its newest checkpoint was signed
	Retired time.Time `json:"retired,omitzero"`
	By      string    `json:"retired_by,omitempty"`
	// Chains are the last records of its chains that the store has checkpoints of, by name.
	Chains []audit.Earlier `json:"chains"`
}

// The states of a KnownReplica.
const (
	Live    = "live" // a process of the replica holds a lease, which runs out 30 s after a kill
	Gone    = "gone"
	Retired = "retired"
)

var (
	// ErrNotShared reports a store in a file, which has no replicas.
	ErrNotShared = errors.New("the state is in a file, which no replicas share")
	// ErrLive reports a replica whose lease holds.
	ErrLive = errors.New("the replica is live")
)

// storedNote is a row of checkpoints.
type storedNote struct {
	audit.Earlier
	who, by     string
	at, retired time.Time
	note        []byte
}

func readNotes(ctx context.Context, q store.Querier) ([]storedNote, error) {
	rows, err := store.Select(ctx, q, func(r *storedNote) []any {
		return []any{&r.Instance, &r.Seq, &r.Hash, &r.who, store.Time{To: &r.at}, &r.note, store.Time{To: &r.retired}, &r.by}
	}, "SELECT chain, seq, hash, who, at, note, retired, retired_by FROM checkpoints ORDER BY chain")
	if err != nil {
		return nil, fmt.Errorf("reading the checkpoints of replicas: %w", err)
	}
	return rows, nil
}

// KnownReplicas returns the replicas of which the store has checkpoints, by name. The error
// is ErrNotShared for a store in a file.
func KnownReplicas(ctx context.Context, db *store.DB) (all []KnownReplica, err error) {
	if !db.Shared() {
		return nil, ErrNotShared
	}
	err = db.View(ctx, func(tx *sql.Tx) error {
		all, err = knownReplicas(ctx, db, tx)
		return err
	})
	return all, err
}

func knownReplicas(ctx context.Context, db *store.DB, q store.Querier) ([]KnownReplica, error) {
	notes, err := readNotes(ctx, q)
	if err != nil {
		return nil, err
	}
	alive, err := db.Instances("").Living(ctx, q)
	if err != nil {
		return nil, err
	}
	all := []KnownReplica{}
	for _, n := range notes {
		c, err := notary.Note{Signed: n.note}.Claimed()
		if err != nil {
			continue // audit verify reports it
		}
		i := slices.IndexFunc(all, func(r KnownReplica) bool { return r.Name == c.Trail })
		if i < 0 {
			i, all = len(all), append(all, KnownReplica{Name: c.Trail, State: Retired})
		}
		r := &all[i]
		r.Chains = append(r.Chains, n.Earlier)
		if n.at.After(r.Last) {
			r.Last, r.Who = n.at, n.who
		}
		switch { // it is retired when all of its chains are
		case slices.Contains(alive, n.who):
			r.State = Live
		case r.State == Live:
		case n.retired.IsZero():
			r.State = Gone
		case r.State == Retired && n.retired.After(r.Retired):
			r.Retired, r.By = n.retired, n.by
		}
	}
	slices.SortFunc(all, func(a, b KnownReplica) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Retire notes in the store that a replica is gone for good, and who said so. Its checkpoints
// stay, with the last record of each chain: audit verify names them as retired. The places up
// to which its decisions were shipped go, and so do leases that ran out. It fails closed: the error is
// ErrLive when a process of the replica holds a lease, also since the caller looked.
//
// A process of the replica that was only out of reach takes its chain back with its next
// checkpoint, and one that starts again begins a chain that is not retired.
func Retire(ctx context.Context, db *store.DB, name, by string, now time.Time) (r KnownReplica, err error) {
	if _, err := db.Instances("").Sweep(ctx); err != nil {
		return r, err
	}
	err = db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		all, err := knownReplicas(ctx, db, tx)
		i := slices.IndexFunc(all, func(r KnownReplica) bool { return r.Name == name })
		switch {
		case err != nil:
			return err
		case i < 0:
			return fmt.Errorf("the store has no checkpoint of replica %s", name)
		case all[i].State == Live:
			return ErrLive
		}
		r = all[i]
		r.State, r.Retired, r.By = Retired, now.UTC(), by
		var chains []string
		for _, c := range r.Chains {
			chains = append(chains, c.Instance)
		}
		list, err := forgetPlaces(ctx, tx, chains)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE checkpoints SET retired = ?, retired_by = ? WHERE chain IN (SELECT value FROM json_each(?))", store.Time{To: &now}, by, list)
		return err
	})
	if err != nil {
		return r, fmt.Errorf("retiring replica %s: %w", name, err)
	}
	return r, nil
}

// StoredNotes returns the last checkpoint of each chain of every replica, none for a store
// in a file.
func StoredNotes(ctx context.Context, db *store.DB) (notes []notary.Note, err error) {
	if !db.Shared() {
		return nil, nil
	}
	rows, err := readNotes(ctx, db.Read)
	for _, r := range rows {
		source := fmt.Sprintf("the store's checkpoint of %s at %s", r.who, r.at.Format(time.RFC3339))
		if !r.retired.IsZero() {
			source += fmt.Sprintf(", retired at %s by %s", r.retired.Format(time.RFC3339), r.by)
		}
		notes = append(notes, notary.Note{Source: source, Signed: r.note, Retired: !r.retired.IsZero()})
	}
	return notes, err
}

// ForgetChains removes what the store has about chains that were removed from the trail: the
// last checkpoint, the place up to which decisions were shipped, and the calls in the index.
func ForgetChains(ctx context.Context, db *store.DB, gone []audit.Earlier) error {
	var chains []string
	for _, e := range gone {
		chains = append(chains, e.Instance)
	}
	err := db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		list, err := forgetPlaces(ctx, tx, chains)
		if err == nil && db.Shared() {
			_, err = tx.ExecContext(ctx, "DELETE FROM checkpoints WHERE chain IN (SELECT value FROM json_each(?))", list)
		}
		return err
	})
	if err == nil && db.Shared() {
		err = index.Forget(ctx, db, gone)
	}
	if err != nil {
		return fmt.Errorf("forgetting archived chains: %w", err)
	}
	return nil
}

// forgetPlaces removes the places up to which decisions of chains were shipped. It returns the
// chains as JSON.
func forgetPlaces(ctx context.Context, tx *sql.Tx, chains []string) (string, error) {
	list, err := json.Marshal(chains)
	if err == nil {
		_, err = tx.ExecContext(ctx, "DELETE FROM decision_log_places WHERE chain IN (SELECT value FROM json_each(?))", string(list))
	}
	return string(list), err
}
