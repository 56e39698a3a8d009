package peers_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// process identifies a process, also after its number is used again.
type process struct {
	pid   int
	start string // clock ticks since boot
}

// readStat reads the fields of /proc/pid/stat after the name (proc(5)): state,
// parent and so on. It returns nil if there is no such process.
func readStat(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The name in parentheses may hold anything, parentheses included.
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

func processOf(pid int) process {
	if f := readStat(pid); len(f) > 19 {
		return process{pid, f[19]}
	}
	return process{pid: pid}
}

// alive reports whether the process runs. A zombie does not run.
func (i process) alive() bool {
	f := readStat(i.pid)
	return len(f) > 19 && f[19] == i.start && f[0] != "Z" && f[0] != "X"
}

// descendants returns every process below pid.
func descendants(t testing.TB, pid int) []process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	children := make(map[int][]int)
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil {
			if f := readStat(child); len(f) > 1 {
				parent, _ := strconv.Atoi(f[1])
				children[parent] = append(children[parent], child)
			}
		}
	}
	var out []process
	for queue := slices.Clone(children[pid]); len(queue) > 0; queue = queue[1:] {
		out = append(out, processOf(queue[0]))
		queue = append(queue, children[queue[0]]...)
	}
	return out
}

// commandLine returns the command line of a process.
func commandLine(i process) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(i.pid) + "/cmdline")
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(text), "\x00", " ")
}

// awaitExit waits until none of the processes runs.
func awaitExit(t testing.TB, who []process) {
	t.Helper()
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("processes that still run: %v", left)
		}
	}()
	program.Await(t, "every process exits", func() bool {
		left = nil
		for _, i := range who {
			if i.alive() {
				left = append(left, strconv.Itoa(i.pid)+" "+commandLine(i))
			}
		}
		return len(left) == 0
	})
	left = nil
}

// trackDescendants returns a function that waits until every current descendant of
// pid has exited.
func trackDescendants(t testing.TB, pid int) func() {
	t.Helper()
	who := descendants(t, pid)
	return func() {
		t.Helper()
		awaitExit(t, who)
	}
}
