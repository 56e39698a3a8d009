// Package wait waits for a duration, a cancellation or the end of work, and has the context of one call.
package wait

import (
	"context"
	"time"
)

// Signal puts a token into a channel with room for one, unless it holds one.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Beat returns the time until the next whole multiple of d of the clock, more than 0 and at
// most d. Loops that look at something every d wait for the beat, so that all of them wake
// an idle program at once. It is safe for concurrent use.
func Beat(d time.Duration) time.Duration {
	return d - time.Duration(time.Now().UnixNano())%d
}

// For waits for d and reports whether d has passed: false means that ctx ended
// first. With d <= 0 it returns at once, false only if ctx has ended. It is safe for
// concurrent use.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
