package approval

import (
	"context"
	"errors"
	"fmt"
)

// Release returns a grant, with its old expiry. It is only for a call of which it is
// certain that nothing was sent; for anything less certain call Finish with
// StateUnknown. The error is ErrNotDispatching when this instance does not run the
// ticket.
func (t *Tickets) Release(ctx context.Context, id string) error {
	return t.end(ctx, id, change{to: StateApproved, reason: "nothing was sent"})
}

// Finish stores the outcome of a granted call: StateDone with its result, StateFailed
// or StateUnknown with a note. A result above MaxResultBytes is left out and the note
// says so. The error is ErrNotDispatching when this instance does not run the ticket.
// When Finish fails, every later call finds the ticket unknown: it never runs again.
func (t *Tickets) Finish(ctx context.Context, id string, state State, result []byte, note string) error {
	if state != StateDone && state != StateFailed && state != StateUnknown {
		return fmt.Errorf("ending the run of ticket %s: %q is no outcome", id, state)
	}
	if len(result) > MaxResultBytes {
		note = fmt.Sprintf("the result of %d bytes is too large to keep", len(result))
		result = nil
	}
	reason := note
	if reason == "" {
		reason = "the upstream answered"
	}
	return t.end(ctx, id, change{to: state, reason: reason, result: result, note: note})
}

// end ends the run of a ticket. The call is over in any case, so the end of ctx does
// not interrupt it.
func (t *Tickets) end(ctx context.Context, id string, c change) error {
	defer t.setRunning(id, false)
	err := t.write(context.WithoutCancel(ctx), func(w *writer) error {
		k, err := one(w.ctx, w.tx, load{}, id)
		if err != nil {
			return err
		}
		if k.State != StateDispatching || k.instance != t.opts.Instance {
			return ErrNotDispatching
		}
		return w.move(&k, c)
	})
	if errors.Is(err, errMoved) {
		err = ErrNotDispatching
	}
	if err != nil {
		return fmt.Errorf("ending the run of ticket %s: %w", id, err)
	}
	return nil
}
