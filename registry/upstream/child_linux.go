package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// childWord is the hidden first argument of a supervisor process.
const childWord = "__child"

// leashFD is where a supervisor finds the pipe that ties it to the proxy.
const leashFD = 3

// IsChild reports whether this process was started to supervise a stdio
// server. A program that runs upstreams asks it first of all, with its
// arguments after the program name, and if so exits with ChildMain's code.
func IsChild(args []string) bool {
	return len(args) > 2 && args[0] == childWord && args[1] == "--" && supervised()
}

// command makes the command of a supervisor for path, and the leash: when it
// is closed, by us or by the kernel because we died, the supervisor ends the
// server and every process that the server started.
func command(executable, path string, args []string) (*exec.Cmd, io.Closer, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("opening a pipe: %w", err)
	}
	cmd := exec.Command(executable, append([]string{childWord, "--", path}, args...)...)
	cmd.Env = []string{childGuard + "=1"}
	cmd.ExtraFiles = []*os.File{r}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, w, nil
}

// started drops our copy of what the supervisor now holds.
func started(cmd *exec.Cmd) {
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
}

// ChildMain supervises one stdio server and returns its exit code. It runs in
// a process of its own between the proxy and the server, because a parent
// death signal reaches only a direct child: this process adopts whatever the
// server leaves behind, and when the proxy is gone, however it went, it ends
// them all. args are those that IsChild agreed to.
func ChildMain(args []string) int {
	// The server's death signal is tied to the thread that starts it.
	runtime.LockOSThread()
	_ = os.Unsetenv(childGuard) // fails for no name of ours
	unix.CloseOnExec(leashFD)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "becoming the reaper of a server's processes:", err)
		return 1
	}
	pid, err := syscall.ForkExec(args[2], args[2:], &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting %s: %v\n", args[2], err)
		return 127
	}
	letGo()
	s := &supervisor{pid: pid, code: make(chan int, 1), alone: make(chan struct{})}
	go s.reap()
	return s.watch(leash())
}

// letGo points our stdin and stdout elsewhere, so that the pipes end when the
// server's own copies do.
func letGo() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	for fd := range 2 {
		_ = unix.Dup3(int(null.Fd()), fd, 0) // the server keeps working without
	}
}

// leash gives a channel that is closed when the proxy lets go or dies, or when
// somebody asks this process to end.
func leash() <-chan struct{} {
	held, end := context.WithCancel(context.Background())
	ended, _ := signal.NotifyContext(held, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) // the signals stay ours until the end
	go func() {
		defer end()
		_, _ = io.Copy(io.Discard, os.NewFile(leashFD, "leash")) // any end of it is the end
	}()
	return ended.Done()
}

// supervisor is the state of ChildMain.
type supervisor struct {
	pid   int
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
		code, done = s.await(stdinGrace)
	}
	if !done {
		_ = syscall.Kill(-s.pid, syscall.SIGTERM) // a group that has ended is what we want
		code, _ = s.await(termGrace)
	}
	s.killAll()
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
	all, _ := procfs.AllProcs() // those that it could read
	children := make(map[int][]int)
	for _, p := range all {
		if stat, err := p.Stat(); err == nil {
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	var out []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		out = append(out, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return out
}
