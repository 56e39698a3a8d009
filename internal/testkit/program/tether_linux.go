package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Tether ends cmd with the process that starts it, however that ends. Call it
// before Start; it takes the place of other SysProcAttr.
func Tether(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// TetherSelf ends this process by TERM when the process that started it ends.
func TetherSelf() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0) }

// Guard calls run, the tests of a program, and returns its exit code. When
// processes that the tests started outlive them by more than 10 seconds, Guard
// prints their command lines, kills them and returns 1.
func Guard(run func() int) int {
	if err := adoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := run()
	for _, p := range survivors(10 * time.Second) {
		fmt.Fprintf(os.Stderr, "FAIL: the tests left a process behind: %s\n", p)
		_ = syscall.Kill(p.id, syscall.SIGKILL) // it may have ended
		code = max(code, 1)
	}
	return code
}

// adoptOrphans makes this process the parent of all descendants whose parents
// end.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// child is a process that this one started or adopted.
type child struct {
	id      int
	command string
}

func (c child) String() string { return fmt.Sprintf("%d: %s", c.id, c.command) }

// survivors returns the children that have not ended after a time.
func survivors(grace time.Duration) []child {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(grace)
	for {
		found := children()
		if len(found) == 0 || time.Now().After(end) {
			return found
		}
		<-tick.C
	}
}

// children lists the processes whose parent is this one, except those that have
// ended and wait to be reaped.
func children() (found []child) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is sound
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		rest := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // proc_pid_stat(5): state, ppid, …
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || rest[0] == "Z" || rest[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline")) // as above
		found = append(found, child{id, strings.ReplaceAll(string(line), "\x00", " ")})
	}
	return found
}
