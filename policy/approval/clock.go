package approval

import (
	"sync"
	"time"
)

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
