package limit_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/limit"
)

// The replicas of one store count together: of a thousand calls that race on three of
// them, exactly as many pass as the window has room for.
func TestUsageOfReplicas(t *testing.T) {
	const calls, room, workers = 1000, 300, 4
	path := filepath.Join(t.TempDir(), "state.db")
	var passed, next atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		replica := limit.NewUsage(openStore(t, path), nil)
		for range workers {
			all.Go(func() {
				for next.Add(1) <= calls {
					err := context.DeadlineExceeded
					for errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, store.ErrOutcome) { // a loaded machine; nothing was counted
						err = spendUpTo(t.Context(), replica, 100*room)
					}
					if err == nil {
						passed.Add(1)
					} else if !errors.Is(err, limit.ErrRefused) {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	if passed.Load() != room {
		t.Errorf("%d calls passed, want %d", passed.Load(), room)
	}
}
