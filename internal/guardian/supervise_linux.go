package guardian

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A supervisor waits for a server and for what the server leaves behind.
type supervisor struct {
	pid   int
	group bool          // the server has a control group
	init  bool          // we are the first process of a PID namespace
	code  chan int      // the server's exit code
	alone chan struct{} // closed when we have no children left
}

// reap collects every process that ends below us.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			close(s.alone)
			return
		case pid == s.pid && status.Signaled():
			s.code <- 128 + int(status.Signal())
		case pid == s.pid:
			s.code <- status.ExitStatus()
		}
	}
}

// watch waits for the server to end, or makes it end, and clears up after it.
func (s *supervisor) watch(ended <-chan struct{}) int {
	var code int
	done := true
	select {
	case code = <-s.code:
	case <-ended:
		code, done = s.await(StdinGrace)
	}
	if !done {
		_ = syscall.Kill(-s.pid, syscall.SIGTERM) // a group that has ended is what we want
		code, _ = s.await(TermGrace)
	}
	if !s.init { // otherwise the kernel kills what is left when we end (pid_namespaces(7))
		s.killAll()
	}
	return code
}

// await gives the server some time to end.
func (s *supervisor) await(grace time.Duration) (int, bool) {
	select {
	case code := <-s.code:
		return code, true
	case <-time.After(grace):
		return 128 + int(syscall.SIGKILL), false
	}
}

// killAll kills until nothing below us is left: a process may fork between
// two looks, so one look is not enough.
func (s *supervisor) killAll() {
	if s.group {
		_, _ = syscall.Write(KillFD, []byte("1")) // kernels before 5.14 have no such file
	}
	for range 100 {
		_ = syscall.Kill(-s.pid, syscall.SIGKILL) // as above
		for _, pid := range descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // as above
		}
		select {
		case <-s.alone:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// descendants lists every process below root.
func descendants(root int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			parent := parentOf(pid)
			children[parent] = append(children[parent], pid)
		}
	}
	var out []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		out = append(out, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return out
}

// parentOf reads a process's parent from /proc (proc(5), stat), 0 when it has
// gone.
func parentOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may hold anything, parentheses included.
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
