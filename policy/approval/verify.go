package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
)

// Word is what the audit trail says last of a ticket.
type Word struct {
	Seq   int64 // of the change
	State State // after it
	// Unsent: the trail shows that no call of the ticket was sent after the change.
	Unsent bool
}

// Verify compares the tickets in db with the trail and returns where they contradict
// each other. words returns the last word on each ticket, and the time of the oldest
// record that the trail still has. With dir, the MACs are checked as well; nil = they
// are not. A running toolgate may change both meanwhile. Replicas that share a server have
// their own trails, so changes that this trail lacks are no contradiction there.
func Verify(ctx context.Context, db *store.DB, dir *keys.Dir, words func() (map[string]Word, time.Time, error)) (faults []string, tickets int, err error) {
	v := verifier{s: &sealer{dir: dir, old: map[string]keys.Key{}}, db: db}
	if err := db.Read.QueryRowContext(ctx, "SELECT store FROM approval_clock").Scan(&v.s.store); err != nil {
		return nil, 0, fmt.Errorf("verifying the state: %w", err)
	}
	rows, err := v.rows(ctx, dir != nil)
	if err != nil {
		return nil, 0, fmt.Errorf("verifying the state: %w", err)
	}
	said, oldest, err := words() // read after the rows: a record precedes its change
	if err != nil {
		return nil, 0, fmt.Errorf("verifying the state: %w", err)
	}
	for id, row := range rows {
		if word, ok := said[id]; ok || !row.created.Before(oldest) {
			if err := v.compare(ctx, id, row, word); err != nil {
				return nil, 0, err
			}
		}
	}
	for id, word := range said { // a crash before the commit loses a proposed ticket, on which nobody has decided
		if _, ok := rows[id]; !ok && slices.Contains([]State{StateApproved, StateDispatching, StateUnknown}, word.State) {
			if err := v.compare(ctx, id, row{}, word); err != nil {
				return nil, 0, err
			}
		}
	}
	slices.Sort(v.faults)
	return v.faults, len(rows), nil
}

type verifier struct {
	s      *sealer
	db     *store.DB
	faults []string
}

// row is what Verify compares of a ticket.
type row struct {
	state   State
	version int64
	created time.Time
}

// rows reads every ticket. With authenticate it reports those that are not authentic.
func (v *verifier) rows(ctx context.Context, authenticate bool) (map[string]row, error) {
	all, last := map[string]row{}, ""
	for {
		page, err := v.s.query(ctx, v.db.Read, load{}, "WHERE seq > coalesce((SELECT seq FROM approvals WHERE id = ?), 0) ORDER BY seq LIMIT ?", last, maxLimit)
		if len(page) == 0 {
			return all, err
		}
		for _, k := range page {
			// Rows from before there were MACs have no version.
			if authenticate && k.doubt != "" && (k.version > 0 || k.mac != "") {
				v.faults = append(v.faults, fmt.Sprintf("ticket %s: %s", k.ID, k.doubt))
			}
			all[k.ID] = row{k.stored, k.version, k.Created}
			last = k.ID
		}
	}
}

// compare reports a contradiction, after another look at the row: it may have changed
// while the trail was read.
func (v *verifier) compare(ctx context.Context, id string, have row, word Word) error {
	if have.version == word.Seq && have.state == word.State {
		return nil
	}
	if v.db.Path() == "" && have.version > word.Seq { // another replica made the change, and has it in its own trail
		return nil
	}
	k, err := v.s.one(ctx, v.db.Read, load{}, id)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	switch {
	case err == nil && k.stored == word.State && (k.version == word.Seq || k.version == 0):
	case err == nil && have.version > 0 && k.version > have.version: // it changed while the trail was read
	case word.Seq == 0 && err == nil:
		v.faults = append(v.faults, fmt.Sprintf("ticket %s is %s in the state, and the trail has no record of it", id, k.stored))
	case err != nil:
		v.faults = append(v.faults, fmt.Sprintf("ticket %s is %s by the trail (change %d), and is not in the state", id, word.State, word.Seq))
	default:
		v.faults = append(v.faults, fmt.Sprintf("ticket %s is %s in the state (change %d), and %s by the trail (change %d)", id, k.stored, k.version, word.State, word.Seq))
	}
	return nil
}
