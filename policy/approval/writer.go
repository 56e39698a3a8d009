package approval

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// errMoved means that a ticket was no longer where it had been read.
var errMoved = errors.New("the ticket was changed by somebody else")

// tickEvery is how exactly the store remembers the time for the processes to
// come. What was seen expired is remembered exactly.
const tickEvery = time.Second

// toolgate is who did what no person did.
const toolgate = "toolgate"

// writer is one transaction that holds the store's write lock.
type writer struct {
	ctx   context.Context
	tx    *sql.Tx
	now   int64     // in the store's time
	wall  time.Time // for people
	moved bool      // some ticket changed its state
}

// write runs do in one transaction and wakes the waiters when it has changed a
// state. Once begun it ends one way or the other, whether or not the caller
// goes away meanwhile. An error from do undoes everything.
func (t *Tickets) write(ctx context.Context, do func(*writer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	tx, err := t.db.Write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	w := &writer{ctx: ctx, tx: tx, wall: t.opts.Now()}
	if err = w.tick(&t.clock); err == nil {
		err = do(w)
	}
	if err != nil {
		_ = tx.Rollback() // err says more; a transaction that does not end is undone with its connection
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if w.moved {
		t.broadcast()
	}
	return nil
}

// tick moves the store's time on, expires what is due, so that whatever was
// once seen expired stays so, and forgets the results that no call gets any
// more.
func (w *writer) tick(c *clock) error {
	var seen int64
	if err := w.tx.QueryRowContext(w.ctx, "SELECT seen FROM approval_clock").Scan(&seen); err != nil {
		return err
	}
	w.now = c.read(w.wall, seen)
	if _, err := w.tx.ExecContext(w.ctx, "UPDATE approval_clock SET seen = ? WHERE seen <= ?", w.now, w.now-int64(tickEvery)); err != nil {
		return err
	}
	if _, err := w.tx.ExecContext(w.ctx, "UPDATE approvals SET result = NULL WHERE result IS NOT NULL AND deadline <= ?", w.now); err != nil {
		return err
	}
	due, err := w.query(load{}, "WHERE state IN ('proposed', 'approved') AND deadline <= ?", w.now)
	if err != nil {
		return err
	}
	for _, k := range due {
		reason := "nobody decided in time"
		if k.State == StateApproved {
			reason = "the approved call did not come in time"
		}
		if err := w.move(&k, change{to: StateExpired, reason: reason}); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) query(l load, tail string, args ...any) ([]record, error) {
	return query(w.ctx, w.tx, l, tail, args...)
}

// change is a move of a ticket: where to, who did it and why, and the fields
// that come with the new state.
type change struct {
	to          State
	who, reason string // of the history; who "" = toolgate
	instance    string // who runs it from now on
	result      []byte
	note        string
}

const moveTicket = `UPDATE approvals SET state = ?, instance = ?, result = ?, note = ?, decided_by = ?, decision_reason = ?
 WHERE id = ? AND state = ? AND instance = ? AND (? OR deadline > ?)`

// move is the only way in which a ticket changes its state: one conditional
// update, and its line in the history. errMoved means that k is out of date.
func (w *writer) move(k *record, c change) error {
	if !allowed(k.State, c.to) {
		return fmt.Errorf("moving ticket %s: there is no way from %s to %s", k.ID, k.State, c.to)
	}
	by, why := k.DecidedBy, k.DecisionReason
	if k.State == StateProposed && (c.to == StateApproved || c.to == StateDenied) {
		by, why = c.who, c.reason
	}
	late := c.to != StateDispatching && (c.to != StateApproved || k.State == StateDispatching)
	err := w.one(moveTicket, c.to, c.instance, c.result, c.note, by, why, k.ID, k.State, k.instance, late, w.now)
	if err != nil {
		return err
	}
	if err := w.note(k, c.to, c.who, c.reason); err != nil {
		return err
	}
	k.State, k.instance, k.Result, k.Note, k.DecidedBy, k.DecisionReason = c.to, c.instance, c.result, c.note, by, why
	w.moved = true
	return nil
}

func allowed(from, to State) bool {
	for _, s := range Moves(from) {
		if s == to {
			return true
		}
	}
	return false
}

// one runs a statement that must change exactly one row, else errMoved.
func (w *writer) one(statement string, args ...any) error {
	res, err := w.tx.ExecContext(w.ctx, statement, args...)
	if err != nil {
		return err
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		return err
	case n != 1:
		return errMoved
	}
	return nil
}

// note adds a line to the history of k, which is still in its old state.
func (w *writer) note(k *record, to State, who, reason string) error {
	if who == "" {
		who = toolgate
	}
	return w.one(`INSERT INTO approval_history (ticket, at, who, "from", "to", reason, digest) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		k.ID, w.wall.UnixNano(), who, k.State, to, reason, k.Digest)
}
