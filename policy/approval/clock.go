package approval

import (
	"sync"
	"time"
)

// clock is the store's own time, in which deadlines are kept. It never goes
// back: it is at least the wall clock, at least the latest time that any
// process left in the store, and it goes on at the pace of this process's
// monotonic clock when the wall clock steps back. A wall clock that once ran
// ahead thus expires tickets early, and never revives one.
type clock struct {
	mu   sync.Mutex // protects the fields below
	last time.Time  // what the wall clock said at the last reading
	at   int64      // the store's time then, nanoseconds since 1970
}

// read gives the store's time when the wall clock says now and the store has
// seen the time seen.
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
