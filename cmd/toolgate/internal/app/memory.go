package app

import (
	"context"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
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
// of goroutines that wait, until the program works again. Garbage of the start is left for
// the first idle moment, because to collect it would delay the first answer.
func releaseMemory(ctx context.Context) {
	releaseProgram()
	allocated := []runtimemetrics.Sample{{Name: "/gc/heap/allocs:bytes"}} // since the start of the program
	for seen, released := uint64(0), uint64(0); wait.For(ctx, wait.Beat(idlePeriod)); {
		before := seen
		runtimemetrics.Read(allocated)
		if seen = allocated[0].Value.Uint64(); seen-before < idleBytes && seen-released > releaseWorth {
			debug.FreeOSMemory()
			releaseProgram() // last, because a collection reads pages of the program
			released = seen
		}
	}
}

// limitMemory has Go collect garbage before the process reaches the memory limit of its control
// group, which ends a process that exceeds it. root is the file system of the machine. The
// variable GOMEMLIMIT takes precedence.
func limitMemory(root fs.FS) {
	if most := groupMemory(root); most > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(most / 10 * 9) // the rest is for memory that Go does not count
	}
}

// groupMemory returns the lowest memory limit of the process's control group and of those that it
// is in, in bytes; 0 = none (cgroup v2, memory.max).
func groupMemory(root fs.FS) (most int64) {
	own, _ := fs.ReadFile(root, "proc/self/cgroup")
	_, group, found := strings.Cut("\n"+string(own), "\n0::/")
	if !found {
		return 0
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("sys/fs/cgroup", group); dir != "sys/fs"; dir = path.Dir(dir) {
		text, _ := fs.ReadFile(root, path.Join(dir, "memory.max"))
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && (most == 0 || n < most) {
			most = n // "max" means no limit, and the root group has no such file
		}
	}
	return most
}
