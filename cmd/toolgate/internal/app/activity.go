package app

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/wait"
)

// countedFor is how long counts are kept, one for each minute.
const countedFor = 24 * time.Hour

// An activity counts the calls of this process by verdict, for the chart of the overview. It is safe for
// concurrent use.
type activity struct {
	allowed, held, denied atomic.Int64 // calls

	mu     sync.Mutex // protects counts
	counts []count    // by minute, the oldest first
}

// A count is how many calls were closed up to a time.
type count struct {
	at    time.Time
	calls console.Bucket
}

// run takes a count every minute until ctx ends.
func (a *activity) run(ctx context.Context) {
	for more := true; more; more = wait.For(ctx, wait.Beat(time.Minute)) {
		now := time.Now()
		a.mu.Lock()
		a.counts = append(a.counts, count{now, a.sum()})
		for len(a.counts) > 0 && now.Sub(a.counts[0].at) > countedFor+time.Minute {
			a.counts = a.counts[1:]
		}
		a.mu.Unlock()
	}
}

// sum returns all calls so far.
func (a *activity) sum() console.Bucket {
	return console.Bucket{Allowed: int(a.allowed.Load()), Held: int(a.held.Load()), Denied: int(a.denied.Load())}
}

// since returns the calls since a time in buckets of equal length, as far as they were counted; of the
// zero time all calls, in one bucket.
func (a *activity) since(_ context.Context, at time.Time, buckets int) ([]console.Bucket, error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.sum()
	if at.IsZero() {
		return []console.Bucket{last}, nil
	}
	all := make([]console.Bucket, buckets)
	width := now.Sub(at) / time.Duration(buckets)
	counts := append(a.counts[:len(a.counts):len(a.counts)], count{now, last})
	for i := range all {
		all[i].From = at.Add(time.Duration(i) * width)
	}
	for i, c := range counts[1:] {
		if b := int(c.at.Sub(at) / width); b >= 0 && c.at.After(at) {
			b, was := min(b, buckets-1), counts[i].calls
			all[b].Allowed, all[b].Held, all[b].Denied = all[b].Allowed+c.calls.Allowed-was.Allowed, all[b].Held+c.calls.Held-was.Held, all[b].Denied+c.calls.Denied-was.Denied
		}
	}
	return all, nil
}
