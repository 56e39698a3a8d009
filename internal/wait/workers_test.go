package wait_test

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// goroutine returns the name of the goroutine that calls it.
func goroutine() string {
	head := make([]byte, 64)
	name, _, _ := bytes.Cut(head[:runtime.Stack(head, false)], []byte(" ["))
	return string(name)
}

// A goroutine that has done its work does the next; while it is at work, another does.
func TestWorkersKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wait.NewWorkers()
		var first, second, beside string
		w.Go(func() { first = goroutine() })
		synctest.Wait()
		release := make(chan struct{})
		w.Go(func() { second = goroutine(); <-release })
		w.Go(func() { beside = goroutine() })
		synctest.Wait()
		if first != second || beside == second || beside == "" {
			t.Errorf("the work was done by %s, %s and %s", first, second, beside)
		}
		close(release)
		w.Finish().Wait() // synctest reports a goroutine that does not end
	})
}

// However much is at work at once, at most 64 goroutines are kept.
func TestWorkersBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wait.NewWorkers()
		release := make(chan struct{})
		for range 1000 {
			w.Go(func() { <-release })
		}
		close(release)
		synctest.Wait()
		if n := running(); n != 64 {
			t.Errorf("%d goroutines are kept", n)
		}
		w.Finish().Wait()
	})
}

// A goroutine that finds no work for a second ends.
func TestWorkersRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wait.NewWorkers()
		w.Go(func() {})
		time.Sleep(999 * time.Millisecond) // of the bubble's clock
		synctest.Wait()
		if n := running(); n != 1 {
			t.Errorf("%d goroutines are kept at first", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := running(); n != 0 {
			t.Errorf("%d goroutines are kept", n)
		}
		w.Finish().Wait()
	})
}

// running returns how many goroutines Workers have. runtime.NumGoroutine also counts
// those of the runtime, and those that have returned and are not gone yet.
func running() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("(*Workers).run("))
}
