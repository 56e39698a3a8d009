package ndjson_test

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/ndjson"
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
		w := ndjson.NewWorkers()
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
		if !w.Drain(time.Second, func() {}) {
			t.Error("the goroutines do not end")
		}
	})
}

// However much is at work at once, at most 64 goroutines are kept.
func TestWorkersBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := ndjson.NewWorkers()
		before, release := runtime.NumGoroutine(), make(chan struct{})
		for range 1000 {
			w.Go(func() { <-release })
		}
		close(release)
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 64 {
			t.Errorf("%d goroutines are kept", n)
		}
		w.Drain(time.Second, func() {})
	})
}

// Work that does not end is cancelled.
func TestWorkersDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := ndjson.NewWorkers(), make(chan struct{})
		w.Go(func() { <-stop })
		if !w.Drain(time.Minute, func() { close(stop) }) {
			t.Error("it was not cancelled")
		}
	})
}

// Serve returns when the line that is being handled has been handled, and handles no
// other.
func TestServeAwaitsLine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, far := io.Pipe()
	defer func() { _ = far.Close() }()
	var handled []string
	go func() { _, _ = io.WriteString(far, "a\nb\n") }() // ends when in is closed
	err := ndjson.Serve(ctx, in, ndjson.NewSink(io.Discard), 4, func(line []byte) {
		cancel()
		for range 1000 {
			runtime.Gosched()
		}
		handled = append(handled, string(line)) // a race unless Serve waits
	})
	if got := strings.Join(handled, " "); got != "a" || err != nil {
		t.Errorf("handled %q, %v", got, err)
	}
}
