package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// Finish waits for the work, cancels it when its context ends, and then waits for five
// seconds at most.
func TestFinish(t *testing.T) {
	for _, tc := range []struct {
		name        string
		ends        time.Duration // of the work, from the beginning
		obeys       bool          // it ends when it is cancelled
		late, whole time.Duration // the context, and Finish
		err         error
	}{
		{"in time", time.Second, false, 2 * time.Second, time.Second, nil},
		{"cancelled", time.Hour, true, 2 * time.Second, 2 * time.Second, context.DeadlineExceeded},
		{"deaf", time.Hour, false, 2 * time.Second, 7 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d wait.Drain
				d.Enter()
				work, cancel := context.WithCancel(t.Context())
				go func() {
					defer d.Leave()
					if tc.obeys {
						wait.For(work, tc.ends)
					} else {
						wait.For(t.Context(), tc.ends)
					}
				}()
				ctx, stop := context.WithTimeout(t.Context(), tc.late)
				defer stop()
				began := time.Now()
				if err := d.Finish(ctx, cancel); !errors.Is(err, tc.err) || time.Since(began) != tc.whole {
					t.Errorf("%v after %v, want %v after %v", err, time.Since(began), tc.err, tc.whole)
				}
				if d.Enter() {
					t.Error("new work enters")
				}
				if cancel(); tc.ends > tc.whole {
					wait.For(t.Context(), tc.ends)
				}
			})
		})
	}
}
