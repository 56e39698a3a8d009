package wait

import (
	"context"
	"sync"
	"time"
)

// grace is how long work that was cancelled may take to end.
const grace = 5 * time.Second

// A Drain counts running work and refuses new work once it is closed. The zero
// value is open. It is safe for concurrent use.
type Drain struct {
	mu   sync.Mutex // protects the fields below
	work int
	done chan struct{} // closed when no work is left, nil while the Drain is open
}

// Enter counts one piece of work, and returns false when the Drain is closed.
func (d *Drain) Enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done != nil {
		return false
	}
	d.work++
	return true
}

// Continue counts work that outlives the work that started it. It is never refused,
// so call it before that work leaves.
func (d *Drain) Continue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.work++
}

// Leave ends what Enter or Continue counted.
func (d *Drain) Leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.work--; d.work == 0 && d.done != nil {
		close(d.done)
	}
}

// Close refuses new work. It returns a channel that is closed when the last work
// has left, and whether the Drain was open before.
func (d *Drain) Close() (done <-chan struct{}, was bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was = d.done == nil; was {
		d.done = make(chan struct{})
		if d.work == 0 {
			close(d.done)
		}
	}
	return d.done, was
}

// Finish closes the Drain and waits until its work has left. When ctx ends before, Finish
// calls cancel, waits five seconds more at most, and returns the error of ctx.
func (d *Drain) Finish(ctx context.Context, cancel func()) error {
	done, _ := d.Close()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	cancel()
	select {
	case <-done:
	case <-time.After(grace):
	}
	return ctx.Err()
}
