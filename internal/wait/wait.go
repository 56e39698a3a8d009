// Package wait waits for time to pass, for somebody to lose interest, or for work
// to end.
package wait

import (
	"context"
	"time"
)

// For waits until d has passed, and reports whether it has: false means that ctx
// ended before. Nothing to wait for has passed unless ctx has ended. It is safe for
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
