package webmedia

import (
	"sync"
	"time"
)

// budget bounds what the images of one day cost, by estimate. It is in memory, so a
// restart of the server begins a new day. It is safe for concurrent use.
type budget struct {
	limit float64 // US dollars; 0 = none

	mu    sync.Mutex // protects the fields below
	day   string     // UTC
	spent float64
}

// rounding is more than sums of estimates are off by, and less than they mean, in US
// dollars.
const rounding = 1e-9

// take reports whether cost is within the limit, and adds it when it is.
func (b *budget) take(cost float64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if day := now.UTC().Format(time.DateOnly); day != b.day {
		b.day, b.spent = day, 0
	}
	if b.limit > 0 && b.spent+cost > b.limit+rounding {
		return false
	}
	b.spent += cost
	return true
}

// giveBack subtracts the cost of an image that the service refused to make.
func (b *budget) giveBack(cost float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.UTC().Format(time.DateOnly) == b.day {
		b.spent = max(0, b.spent-cost)
	}
}
