package app_test

import (
	"bytes"
	"context"
	"runtime"
	"runtime/metrics"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

func TestMemoryIsReleasedWhenIdle(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		app.ReleaseMemory(ctx)
	}()
	defer func() { stop(); <-done }()
	var garbage [64][]byte // in parts: as long as it is in use, the program is not idle
	for i := range garbage {
		garbage[i] = bytes.Repeat([]byte{1}, 1<<20)
	}
	busy := heapKept()
	runtime.KeepAlive(&garbage)
	program.Await(t, "the process to keep less than half of its garbage", func() bool { return heapKept() < busy-32<<20 })
}

// heapKept returns how many bytes of heap the process has of the system.
func heapKept() (n uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		n += s.Value.Uint64()
	}
	return n
}
