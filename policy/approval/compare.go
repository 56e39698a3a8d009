package approval

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
)

var (
	// ErrReplaced: the state file was deleted or replaced while it was in use. Only a
	// new start helps.
	ErrReplaced = errors.New("the state was deleted or replaced while toolgate was using it")
	// ErrDoubt: the store cannot be relied on for this ticket, which is unknown now.
	ErrDoubt = errors.New("the store cannot be relied on for this ticket")
	// ErrComparing: the store is still being compared with the audit trail.
	ErrComparing = errors.New("approvals are closed until the state is compared with the audit trail")
)

const (
	// comparingPatience is how long a call or a vote waits for the comparison.
	comparingPatience = 10 * time.Second
	// compareAgain is the pause after a comparison that failed.
	compareAgain = 5 * time.Second
	// sweepEvery is how often an idle process deletes what is over its retention.
	sweepEvery = time.Minute
)

// clockRow is what the store says about itself.
type clockRow struct {
	seen     int64  // the time that it keeps
	changes  int64  // the highest number of a change that was made
	version  string // the same twice: nothing was changed in between
	name     string
	restored bool
}

func (c *clockRow) fields() []any {
	return []any{&c.seen, &c.changes, &c.version, &c.name, &c.restored}
}

// The statements that read a clockRow. Where changes become visible in another order than
// that of their numbers, only the transactions that have ended say whether there was one.
const (
	selectClock       = "SELECT seen, changes, CAST(changes AS TEXT), store, restored FROM approval_clock"
	selectSharedClock = `SELECT seen, CASE WHEN changes < m.seq THEN m.seq ELSE changes END, CAST(pg_current_snapshot() AS TEXT), store, restored
 FROM approval_clock, (SELECT coalesce(max(seq), 0) AS seq FROM approval_history) m`
)

func clockOf(db *store.DB) string {
	if db.Shared() {
		return selectSharedClock
	}
	return selectClock
}

// prepared runs one query that the store has parsed before.
type prepared struct{ *sql.Stmt }

// QueryContext implements [store.Querier].
func (p prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return p.Stmt.QueryContext(ctx, args...)
}

// readClock reads the row, and refuses a store that is not the one that was opened, or
// that went back.
func (t *Tickets) readClock(ctx context.Context, q store.Querier) (clockRow, error) {
	seen := t.changesSeen.Load() // before the row is read: others may go on meanwhile
	rows, err := store.Select(ctx, q, (*clockRow).fields, clockOf(t.db))
	if err != nil && t.db.InPlace() { // where the file is gone, a new connection fails as well
		return clockRow{}, err
	}
	if len(rows) != 1 || !t.db.InPlace() || t.sealer != nil && rows[0].name != t.sealer.store || rows[0].changes < seen {
		return clockRow{}, fmt.Errorf("%w\nhint: restart toolgate; it compares the state with the audit trail", ErrReplaced)
	}
	c := rows[0]
	for c.changes > seen && !t.changesSeen.CompareAndSwap(seen, c.changes) {
		seen = t.changesSeen.Load()
	}
	return c, nil
}

// Check returns why held calls and votes are refused, nil when they are not.
func (t *Tickets) Check(ctx context.Context) error {
	select {
	case <-t.compared:
	default:
		return t.comparing()
	}
	_, err := t.readClock(ctx, t.clockQuery)
	return err
}

// ready waits until the store is compared with the trail.
func (t *Tickets) ready(ctx context.Context) error {
	timeout := time.NewTimer(comparingPatience)
	defer timeout.Stop()
	select {
	case <-t.compared:
		return nil
	case <-t.failed:
		select {
		case <-t.compared: // at another attempt
			return nil
		default:
			return t.comparing()
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return ErrComparing
	}
}

// comparing returns why the comparison failed, or that it goes on.
func (t *Tickets) comparing() error {
	if fault := t.compareErr.Load(); fault != nil {
		return *fault
	}
	return ErrComparing
}

// keep compares the store with the trail, and then deletes what is over its retention,
// until ctx ends. A comparison that fails is tried again: a server that is away comes back.
func (t *Tickets) keep(ctx context.Context) {
	for err := t.compare(ctx); err != nil; err = t.compare(ctx) {
		err = fmt.Errorf("comparing the state with the audit trail: %w", err)
		if t.compareErr.Swap(&err) == nil {
			close(t.failed)
			t.opts.Alarm(err.Error())
		}
		if !wait.For(ctx, compareAgain) {
			return
		}
	}
	close(t.compared)
	for wait.For(ctx, sweepEvery) {
		_ = t.tick(ctx) // Check reports a store that fails
	}
}

// compare moves the live tickets that the store cannot be relied on for to unknown. It
// fails when the trail or the store cannot be read: then no call is granted.
func (t *Tickets) compare(ctx context.Context) error {
	now, err := t.readClock(ctx, t.clockQuery)
	if err != nil {
		return err
	}
	behind, err := t.behind(now)
	if err != nil {
		return err
	}
	live, err := t.query(ctx, t.db.Read, load{}, "WHERE state IN ('proposed', 'approved', 'dispatching') ORDER BY created")
	if err != nil {
		return err
	}
	if len(live) > 0 { // the trail is read from the oldest on, while nobody waits for the store
		if _, err := t.lastWord(ctx, &live[0]); err != nil {
			return err
		}
	}
	if behind != "" {
		t.opts.Alarm("the state is older than the audit trail, or was restored: " + behind)
	}
	for _, k := range live {
		if err := t.write(ctx, func(w *writer) error { return t.compareOne(w, k.ID, behind) }); err != nil {
			return err
		}
	}
	return t.write(ctx, func(w *writer) error {
		_, err := w.tx.ExecContext(w.ctx, "UPDATE approval_clock SET restored = 0 WHERE restored = 1")
		return err
	})
}

// behind returns how it is known that the whole store is older than what was granted,
// "" when it is not.
func (t *Tickets) behind(now clockRow) (string, error) {
	if now.restored {
		return "it was restored from a backup", nil
	}
	granted, err := t.sealer.dir.Count(t.grants())
	if granted <= now.changes { // also after an error
		return "", err
	}
	return fmt.Sprintf("it ends with change %d, and change %d granted a call", now.changes, granted), nil
}

// grants names the number, in the key directory, of the last change that granted a call.
func (t *Tickets) grants() string { return "grants-" + t.sealer.store }

// compareOne moves one ticket to unknown when the store cannot be relied on for it.
func (t *Tickets) compareOne(w *writer, id, behind string) error {
	k, err := t.lock(w, load{}, id)
	if errors.Is(err, ErrNotFound) || err == nil && !k.live() && k.doubt == "" {
		return nil
	}
	if err != nil {
		return err
	}
	trusted, err := t.trust(w, &k)
	if err == nil && trusted && behind != "" && k.State != StateProposed {
		k.doubt = behind
		err = t.distrust(w, &k)
	}
	return err
}

// underGrant are the states in which the call of a ticket is approved and may not have been sent.
var underGrant = []State{StateApproved, StateNeedsConnection, StateDispatching}

// trust reports whether the store can be relied on for k: toolgate wrote the row and its
// votes, and the audit trail has no later change of the ticket. A live ticket that it cannot be
// relied on for becomes unknown. trust fails closed: when the trail cannot be read, that
// is an error.
//
// With a file, a change that only the trail has was never committed, and the trail has every
// call that was sent since. With a server, one trail proves neither: the change may have been
// committed in a database that was restored to an earlier time since, and another replica,
// which has a trail of its own, may have run the call in between. The ticket is unknown there.
func (t *Tickets) trust(w *writer, k *Ticket) (bool, error) {
	if k.doubt == "" && k.live() {
		var err error
		if _, k.doubt, err = t.ballots(w.ctx, w.tx, k.ID); err != nil {
			return false, err
		}
	}
	if k.doubt == "" {
		last, err := t.lastWord(w.ctx, k)
		switch {
		case err != nil:
			return false, err
		case last.Seq <= k.version:
		case last.Unsent && !t.db.Shared() && k.granted() && k.State != last.State && slices.Contains(underGrant, last.State):
			return true, w.note(k, last.State, "", "the grant was recorded and not stored: nothing was sent")
		case last.Unsent && !t.db.Shared() && k.State == StateProposed && (last.State == StateProposed || last.State == StateApproved):
			return true, w.note(k, StateProposed, "", "a decision was recorded and not stored: it does not count")
		default:
			k.doubt = fmt.Sprintf("it ends with change %d, and the audit trail has change %d", k.version, last.Seq)
		}
	}
	if k.doubt == "" {
		return true, nil
	}
	return false, t.distrust(w, k)
}

// lastWord returns the last change of k in the trail.
func (t *Tickets) lastWord(ctx context.Context, k *Ticket) (Word, error) {
	if t.opts.LastWord == nil {
		return Word{}, nil
	}
	return t.opts.LastWord(ctx, k.ID, k.Created)
}

// distrust moves a live ticket to unknown because of k.doubt.
func (t *Tickets) distrust(w *writer, k *Ticket) error {
	t.opts.Alarm(fmt.Sprintf("ticket %s: the store cannot be relied on: %s", k.ID, k.doubt))
	k.withhold()
	if k.State != StateUnknown {
		return nil
	}
	k.runner, k.resultDigest, k.Unconnected = "", "", ""
	err := w.one("UPDATE approvals SET state = ?, unconnected = '', instance = '', result = NULL, result_digest = '', note = ? WHERE id = ? AND state = ?", k.State, k.Note, k.ID, column{&k.stored})
	if err != nil {
		return err
	}
	return w.note(k, k.stored, "", k.Note)
}
