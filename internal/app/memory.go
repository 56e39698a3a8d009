package app

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// Memory is released when the program has allocated more than releaseWorth bytes since the
// last release, and fewer than idleBytes within the last idlePeriod.
const (
	idlePeriod   = time.Second
	idleBytes    = 256 << 10
	releaseWorth = 8 << 20
)

// releaseMemory returns memory to the system until ctx ends: at once the pages of the
// program that only the start needs, and whenever the program becomes idle garbage too.
// The collector alone keeps garbage of several times the live heap, and the grown stacks
// of goroutines that wait, until the program works again. What the start has left is
// released once more at the first idle moment, because a part was still in use when Open
// released it.
func releaseMemory(ctx context.Context) {
	releaseProgram()
	for seen, released := uint64(0), uint64(0); wait.For(ctx, wait.Beat(idlePeriod)); {
		before := seen
		if seen = allocated(); seen-before < idleBytes && seen-released > releaseWorth {
			release()
			released = seen
		}
	}
}

// release collects garbage, and returns it and the pages of the program to the system.
func release() {
	debug.FreeOSMemory()
	releaseProgram() // last, because a collection reads pages of the program
}

// allocated returns how many bytes the program has allocated since its start.
func allocated() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}
