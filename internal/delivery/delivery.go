// Package delivery sends recorded decisions and notices to services of others, which
// may be slow, away or faulty. The decision log and the notices share its parts:
//
//   - [Client] posts a body and accepts a status of 2xx only. Its errors are fit
//     for people and hold no secret: they never repeat an address beyond host and
//     port, nor what the other side answered.
//   - [Backoff] is the pause after a failed attempt; it respects Retry-After.
//   - [Workers] are the goroutines that send, one for each destination, so that a
//     slow one delays no other.
//
// The caller chooses what is sent next and records the attempts: the decision log
// keeps a cursor in the audit trail, and each notice is a row in the store.
package delivery

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Timeout bounds one attempt.
const Timeout = 10 * time.Second

// Backoff computes the pause between attempts: First after the first failure, twice as
// long after each further one, at most Longest.
type Backoff struct{ First, Longest time.Duration }

// After returns the pause after a number of failures in a row, from 1. Half of the
// pause is random, so that processes that failed together do not retry together.
func (b Backoff) After(failures int) time.Duration {
	d := b.Longest
	if failures < 16 {
		d = min(d, b.First<<max(0, failures-1))
	}
	return d/2 + rand.N(d/2)
}

// Pause returns the pause after a number of failures, of which err is the latest. The
// pause is no shorter than the Retry-After of err, which counts up to Longest.
func (b Backoff) Pause(failures int, err error) time.Duration {
	pause := b.After(failures)
	if e := (*StatusError)(nil); errors.As(err, &e) {
		pause = max(pause, min(e.RetryAfter, b.Longest))
	}
	return pause
}

// Workers are goroutines that run until Stop. The zero Workers run nothing. Start
// and Stop must not be called concurrently.
type Workers struct {
	stop  context.CancelFunc // nil = not running
	tasks sync.WaitGroup
}

// Start runs each task in a goroutine, with a context that Stop cancels.
func (w *Workers) Start(tasks ...func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	for _, task := range tasks {
		w.tasks.Go(func() { task(ctx) })
	}
}

// Stop cancels the tasks, waits until they end, and reports whether any were running.
func (w *Workers) Stop() bool {
	if w.stop == nil {
		return false
	}
	w.stop()
	w.stop = nil
	w.tasks.Wait()
	return true
}
