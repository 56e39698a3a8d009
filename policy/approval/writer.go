package approval

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

var (
	// errMoved reports that a ticket has changed since it was read.
	errMoved = errors.New("the ticket was changed by somebody else")
	// errLate reports that the time that the store keeps is too old.
	errLate = errors.New("the store's time is late")
	// errUnsure reports that a process may or may not be dead.
	errUnsure = errors.New("whether the process of a ticket lives cannot be determined")
)

const (
	// tickEvery is the precision of the time that the store keeps for later processes.
	// Expired tickets are kept exactly.
	tickEvery = time.Second
	// movesAtOnce is how many tickets one transaction settles or deletes: for each it calls Options.Changed, which takes time, and a transaction must be short.
	movesAtOnce = 64
)

// toolgate makes the changes that no person makes.
const toolgate = "toolgate"

// writer is one transaction. It locks each ticket before it reads what it will change.
type writer struct {
	*sealer
	db      *store.DB
	ctx     context.Context
	tx      *sql.Tx
	seen    int64     // the time that the store keeps
	now     int64     // in the store's time
	wall    time.Time // for people
	changes []Event   // of tickets, in order
}

// write runs do in one transaction, and wakes the waiters when a ticket has changed. It
// completes whether or not ctx ends meanwhile. An error of do or of Options.Changed undoes
// everything. About once a second, tick comes before do.
func (t *Tickets) write(ctx context.Context, do func(*writer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	inTime := func(w *writer) error {
		if w.seen <= w.now-int64(tickEvery) {
			return errLate
		}
		return do(w)
	}
	err := t.transact(ctx, inTime)
	if errors.Is(err, errLate) {
		if err = t.tick(ctx); err == nil {
			err = t.transact(ctx, do)
		}
	}
	return err
}

// transact is write without tick.
func (t *Tickets) transact(ctx context.Context, do func(*writer) error) error {
	var w *writer
	err := t.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		w = &writer{sealer: t.sealer, db: t.db, ctx: ctx, tx: tx, wall: t.opts.Now()}
		clock, err := t.readClock(ctx, tx)
		if err != nil {
			return err
		}
		w.seen, w.now = clock.seen, t.clock.read(w.wall, clock.seen)
		if err = do(w); err == nil {
			err = t.tell(w)
		}
		if err == nil && len(w.changes) > 0 {
			err = t.db.Notify(ctx, tx, store.Tickets, w.changed()...)
		}
		return err
	})
	if err == nil && len(w.changes) > 0 {
		t.waiters.wake(w.changed()...)
	}
	return err
}

// changed returns the ids of the tickets that w has changed.
func (w *writer) changed() (ids []string) {
	for _, e := range w.changes {
		ids = append(ids, e.Ticket.ID)
	}
	return ids
}

// tell calls Options.Changed for each change of w. It comes last, so that after it only
// a lost server or a failing commit can undo a change.
func (t *Tickets) tell(w *writer) error {
	if t.opts.Changed == nil {
		return nil
	}
	for _, e := range w.changes {
		if err := t.opts.Changed(w.ctx, w.tx, e.Ticket, e.Change); err != nil {
			return fmt.Errorf("ticket %s: %w: %w", e.Ticket.ID, ErrUntold, err)
		}
	}
	return nil
}

// keepTime stores the time, and the number of a change that was made: the rows with later ones
// may be deleted.
const keepTime = `UPDATE approval_clock SET seen = ?,
 changes = CASE WHEN changes < (SELECT coalesce(max(seq), 0) FROM approval_history) THEN (SELECT max(seq) FROM approval_history) ELSE changes END`

// tick advances the store's time, deletes what is over its retention, and settles the
// tickets that are over, so that a ticket once seen as expired stays so. One process at a
// time does the first two; the others do not wait.
func (t *Tickets) tick(ctx context.Context) error {
	alone := func(do func(*writer) error) error {
		return t.transact(ctx, func(w *writer) error {
			if held, err := t.db.TryLock(w.ctx, w.tx, "approval_clock"); !held {
				return err
			}
			return do(w)
		})
	}
	if err := alone(func(w *writer) error { return w.one(keepTime, w.now) }); err != nil {
		return err
	}
	_ = alone(func(w *writer) error { return w.sweep(t.opts.Keep) }) // the next one does it
	return t.settleOver(ctx)
}

// settleOver settles the tickets that are over, except those that others are changing.
func (t *Tickets) settleOver(ctx context.Context) error {
	for more := true; more; {
		err := t.transact(ctx, func(w *writer) error {
			over, err := t.over(w.ctx, w.tx, w.now)
			if err != nil && !errors.Is(err, errUnsure) {
				return err
			}
			for _, k := range over[:min(len(over), movesAtOnce)] {
				free, err := t.db.TryLock(w.ctx, w.tx, k.ID)
				if err == nil && free {
					_, err = t.locked(w, load{}, k.ID)
				}
				if err != nil && !errors.Is(err, ErrNotFound) {
					return err
				}
			}
			more = len(over) > movesAtOnce && len(w.changes) > 0
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lock locks a ticket until the end of w, and reads it. One that is over is settled before.
func (t *Tickets) lock(w *writer, l load, id string) (Ticket, error) {
	if err := t.db.Lock(w.ctx, w.tx, id); err != nil {
		return Ticket{}, err
	}
	return t.locked(w, l, id)
}

// locked reads a ticket that w has locked, and settles it when it is over.
func (t *Tickets) locked(w *writer, l load, id string) (Ticket, error) {
	k, err := t.one(w.ctx, w.tx, l, id)
	if err != nil {
		return k, err
	}
	over, err := t.isOver(w.ctx, &k, w.now)
	if err == nil && over {
		err = t.settle(w, &k)
	}
	if errors.Is(err, errUnsure) {
		err = nil
	}
	return k, err
}

// ended are the tickets that are past their retention.
const ended = `SELECT id FROM approvals INDEXED BY approvals_ended
 WHERE state IN ('denied', 'expired', 'superseded', 'done', 'failed') AND deadline <= ? ORDER BY deadline LIMIT ?`

// sweep deletes the results that no call can get, and tickets that have been over for longer
// than they are kept, with all that belongs to them: some at once, for a transaction must be
// short.
func (w *writer) sweep(keep time.Duration) error {
	if _, err := w.tx.ExecContext(w.ctx, "UPDATE approvals SET result = NULL WHERE result IS NOT NULL AND deadline <= ?", w.now); err != nil {
		return err
	}
	old, err := store.Select(w.ctx, w.tx, func(id *string) []any { return []any{id} }, ended, w.now-int64(keep), movesAtOnce)
	if err != nil || len(old) == 0 {
		return err
	}
	for _, statement := range []string{
		"DELETE FROM notices WHERE ticket IN (SELECT value FROM json_each(?))", "DELETE FROM approval_votes WHERE ticket IN (SELECT value FROM json_each(?))",
		"DELETE FROM approval_history WHERE ticket IN (SELECT value FROM json_each(?))", "DELETE FROM approvals WHERE id IN (SELECT value FROM json_each(?))",
	} {
		if _, err := w.tx.ExecContext(w.ctx, statement, jsonList(old)); err != nil {
			return err
		}
	}
	return nil
}

// change is a move of a ticket: the new state, who makes the move and why, and the
// fields that come with the new state.
type change struct {
	to          State
	who, reason string // of the history; who "" = toolgate
	instance    string // the process that runs it from now on
	result      []byte
	note        string
}

const moveTicket = `UPDATE approvals SET state = ?, unconnected = ?, instance = ?, result = ?, result_digest = ?, note = ?, decided_by = ?, decision_reason = ?
 WHERE id = ? AND state = ? AND instance = ? AND (? = 1 OR deadline > ?)`

// move is the only way to change the state of a ticket: one conditional update, and a
// line in the history. errMoved reports that k is out of date.
func (w *writer) move(k *Ticket, c change) error {
	from := k.State
	if !slices.Contains(moves[from], c.to) {
		return fmt.Errorf("moving ticket %s: there is no way from %s to %s", k.ID, from, c.to)
	}
	by, why := k.DecidedBy, k.DecisionReason
	if from == StateProposed && (c.to == StateApproved || c.to == StateDenied) {
		by, why = c.who, c.reason
	}
	late := c.to != StateDispatching && (c.to != StateApproved || from == StateDispatching)
	stored, unconnected := "", ""
	if c.to == StateNeedsConnection {
		unconnected = c.reason
	}
	if c.result != nil {
		stored = digest(c.result)
	}
	err := w.one(moveTicket, column{&c.to}, unconnected, c.instance, c.result, stored, c.note, by, why, k.ID, column{&from}, k.runner, late, w.now)
	if err != nil {
		return err
	}
	k.resultDigest, k.Unconnected = stored, unconnected
	k.State, k.runner, k.Result, k.Note, k.DecidedBy, k.DecisionReason = c.to, c.instance, c.result, c.note, by, why
	return w.note(k, from, c.who, c.reason)
}

// one executes a statement that must change exactly one row; otherwise it returns
// errMoved.
func (w *writer) one(statement string, args ...any) error {
	res, err := w.tx.ExecContext(w.ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n != 1 {
		return cmp.Or(err, errMoved)
	}
	return nil
}

// The next number of a change. That of a server is given before the change is visible, and
// after the transaction has written something: see follower.inOrder.
const (
	nextChange = "UPDATE approval_clock SET changes = changes + 1 RETURNING changes"
	nextShared = "SELECT nextval('approval_changes')"
)

// note numbers a change of k, which already has its new state, authenticates the row, and
// adds a line to the history and to the changes of the transaction.
func (w *writer) note(k *Ticket, from State, who, reason string) error {
	who = cmp.Or(who, toolgate)
	c := Change{At: w.wall.UTC(), Who: who, From: from, To: k.State, Reason: reason, Digest: k.Digest}
	next := nextChange
	if w.db.Shared() {
		next = nextShared
	}
	err := w.tx.QueryRowContext(w.ctx, next).Scan(&c.Seq)
	if err != nil {
		return err
	}
	k.version = c.Seq
	if err := w.sealTicket(k); err != nil {
		return err
	}
	if err := w.one(`INSERT INTO approval_history (seq, ticket, at, who, "from", "to", reason, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		c.Seq, k.ID, store.Time{To: &c.At}, who, from, k.State, reason, k.Digest); err != nil {
		return err
	}
	e := Event{Seq: c.Seq, Ticket: *k, Change: c}
	e.Ticket.Arguments, e.Ticket.Result = nil, nil
	w.changes = append(w.changes, e)
	return nil
}

// clock is the store's own time, which deadlines use. It never goes back: it is at
// least the wall clock and at least the latest time that any process left in the
// store, and it follows this process's monotonic clock when the wall clock steps
// back. A wall clock that once ran ahead thus expires tickets early, and never revives
// one.
type clock struct {
	mu   sync.Mutex // protects the fields below
	last time.Time  // wall clock at the last reading
	at   int64      // the store's time at the last reading, nanoseconds since 1970
}

// read returns the store's time when the wall clock reads now and the latest time in
// the store is seen.
func (c *clock) read(now time.Time, seen int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := max(now.UnixNano(), seen)
	if !c.last.IsZero() {
		at = max(at, c.at+max(0, int64(now.Sub(c.last))))
	}
	c.last, c.at = now, at
	return at
}
