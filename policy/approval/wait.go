package approval

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// Wait returns nil once the ticket no longer waits for a decision, whoever created it,
// in this process or in another; ctx.Err() when ctx ends before, and ErrNotFound when
// the ticket does not exist. The caller claims again to learn the decision.
func (t *Tickets) Wait(ctx context.Context, id string) error {
	changed, leave := t.waiters.join(id)
	defer leave()
	for {
		k, err := t.one(ctx, t.db.Read, load{}, id)
		if err == nil && k.State == StateProposed && k.deadline <= t.clock.read(t.opts.Now(), 0) {
			err = t.settleOver(ctx) // it expires, which wakes
		}
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("waiting for ticket %q: %w", id, err))
		}
		if k.State != StateProposed {
			return nil
		}
		if err := awaitChange(ctx, changed, t.poll); err != nil {
			return err
		}
	}
}

// Awaited reports whether a call waits in this process, by Wait, for the decision on a ticket. What
// waits in other processes is not known here.
func (t *Tickets) Awaited(id string) bool {
	t.waiters.mu.Lock()
	defer t.waiters.mu.Unlock()
	return len(t.waiters.of[id]) > 0
}

// awaitChange waits for a change in this process, or for as long as a change of another
// process may go unseen. Its error is that of ctx.
func awaitChange(ctx context.Context, changed <-chan struct{}, unseen time.Duration) error {
	poll := time.NewTimer(unseen)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-poll.C:
	}
	return nil
}

// anyTicket is the id with which waiters wait for changes of every ticket.
const anyTicket = ""

// waiters are the channels of those who wait for changes, by the ids of their tickets. A
// change wakes those who wait for its ticket and nobody else, so that the work of waiting
// calls grows with their number and not with its square. The zero value is empty. It is
// safe for concurrent use.
type waiters struct {
	mu sync.Mutex // protects the field below
	of map[string]map[chan struct{}]bool
}

// join returns a channel that has a token after each change of the ticket in this process
// and, with a server, soon after each in another. The caller joins first and looks at
// the ticket then, so that it misses none.
func (w *waiters) join(id string) (changed <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = make(map[string]map[chan struct{}]bool)
	}
	if w.of[id] == nil {
		w.of[id] = make(map[chan struct{}]bool)
	}
	mine := make(chan struct{}, 1)
	w.of[id][mine] = true
	return mine, func() { w.leave(id, mine) }
}

func (w *waiters) leave(id string, mine chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.of[id], mine); len(w.of[id]) == 0 {
		delete(w.of, id)
	}
}

// wake wakes those who wait for changes of these tickets; no ids mean every ticket.
func (w *waiters) wake(ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(ids) == 0 {
		ids = slices.Collect(maps.Keys(w.of))
	}
	for _, id := range append(ids, anyTicket) {
		for c := range w.of[id] {
			wait.Signal(c)
		}
	}
}
