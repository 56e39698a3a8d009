package peers_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// A step is a system call with an effect that survives a crash: a write to a file
// of the state directory, a sync, or bytes on a connection. The tests kill toolgate
// right before a chosen step, by tracing it with ptrace. strace counts per thread,
// and a Go program may use any thread for a step.

const (
	// tracedVar makes this binary the tracer of the command in its arguments. Its
	// value is the directory whose files count; stepsVar names the file that
	// receives the steps. A number on stdin arms the tracer: it kills the command
	// before that step, counted from then on, or never for 0.
	tracedVar = "PEERS_TRACED"
	stepsVar  = "PEERS_STEPS"
	// stepsOnlyVar makes this binary the command in its arguments. The tracer stops the
	// command at tracedCalls and at no other system call.
	stepsOnlyVar = "PEERS_STEPS_ONLY"
)

// tracedCalls are the system calls that are steps. Their first argument is the file.
var tracedCalls = map[uint64]string{
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev",
	unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_FTRUNCATE: "ftruncate",
}

// tracer traces one process. Its methods except readOrders run on the one thread
// that may trace.
type tracer struct {
	pid   int
	dir   string
	steps *os.File
	armed atomic.Bool
	left  atomic.Int64 // steps until the kill, when armed; below 1 there is none
}

// runTracer is that tracer. It exits with the command, and kills the command when it
// exits.
func runTracer() {
	runtime.LockOSThread()
	if os.Getenv(stepsOnlyVar) != "" {
		fmt.Fprintln(os.Stderr, "tracing:", runStepsOnly())
		os.Exit(2)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stepsOnlyVar+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	steps, err := os.OpenFile(os.Getenv(stepsVar), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracing:", err)
		os.Exit(2)
	}
	t := &tracer{pid: cmd.Process.Pid, dir: os.Getenv(tracedVar), steps: steps}
	go t.readOrders()
	go func() {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		for range asked {
			_ = unix.Kill(t.pid, unix.SIGTERM) // it may have exited
		}
	}()
	os.Exit(t.trace())
}

// runStepsOnly becomes the command in the arguments, and returns only if that fails. A
// filter (seccomp(2)) has the system calls in tracedCalls stop for the tracer.
func runStepsOnly() error {
	command, err := exec.LookPath(os.Args[1])
	if err != nil {
		return err
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	trace := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE}
	for nr := range tracedCalls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(nr)}, trace)
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return err
	}
	return unix.Exec(command, os.Args[1:], os.Environ())
}

// readOrders reads numbers from stdin.
func (t *tracer) readOrders() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var n int64
		if _, err := fmt.Sscan(in.Text(), &n); err == nil {
			t.left.Store(n)
			t.armed.Store(true)
			fmt.Fprintln(t.steps, "armed")
		}
	}
}

// trace lets the process run from one step to the next until it exits.
func (t *tracer) trace() (code int) {
	const options = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	for ready := false; ; {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 2
		case ws.Exited() && tid == t.pid:
			return ws.ExitStatus()
		case ws.Signaled() && tid == t.pid:
			return 128 + int(ws.Signal())
		case !ws.Stopped():
			continue
		}
		if !ready {
			if ready = unix.PtraceSetOptions(tid, options) == nil; !ready {
				return 2
			}
		}
		deliver := 0
		switch sig := ws.StopSignal(); {
		case ws.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
			t.checkCall(tid)
		case sig == unix.SIGTRAP, sig == unix.SIGSTOP: // another program; a new thread, and its first stop
		default:
			deliver = int(sig)
		}
		_ = unix.PtraceCont(tid, deliver) // the thread may have been killed
	}
}

// syscallInfo is ptrace_syscall_info of the kernel, as it is at a stop of a filter.
type syscallInfo struct {
	_    uint64
	_    [2]uint64
	nr   uint64
	args [6]uint64
}

// checkCall inspects a system call at its entry. At the step to stop at it kills the
// process; the kernel then does not execute the call.
func (t *tracer) checkCall(tid int) {
	if !t.armed.Load() {
		return
	}
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	name, is := tracedCalls[info.nr]
	if errno != 0 || !is {
		return
	}
	what := t.describe(tid, info)
	if what == "" {
		return
	}
	if t.left.Add(-1) != 0 {
		fmt.Fprintln(t.steps, "does", name, what)
		return
	}
	fmt.Fprintln(t.steps, "dies before", name, what)
	_ = unix.Kill(t.pid, unix.SIGKILL) // it is stopped, so it exists
}

// describe names the target of a system call: a file of the state directory, or the
// first bytes on a connection; "" if the call is no step.
func (t *tracer) describe(tid int, info syscallInfo) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.pid, info.args[0]))
	if err != nil {
		return ""
	}
	if strings.HasPrefix(path, "socket:") {
		text := make([]byte, 16)
		_, _ = unix.PtracePeekData(tid, uintptr(info.args[1]), text) // for the failure message only
		return fmt.Sprintf("socket %q", text)
	}
	if in, ok := strings.CutPrefix(path, t.dir+"/"); ok {
		dir, file := filepath.Split(in)
		first, _, _ := strings.Cut(dir, "/") // without the name of the instance
		return filepath.Join(first, file)
	}
	return ""
}

// tracedGate is a toolgate that can be killed before any of its steps.
type tracedGate struct {
	*gate
	steps string
	arms  func(k int)
}

// serveTraced starts toolgate serve under a tracer.
func serveTraced(t testing.TB, dir string) *tracedGate {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	steps := filepath.Join(t.TempDir(), "steps")
	cmd := exec.Command(self, program.Toolgate(t), "serve", "--config", "mcp.json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), tracedVar+"="+filepath.Join(dir, "state"), stepsVar+"="+steps)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	g := &tracedGate{gate: &gate{program.Attach(t, program.Launch(t, cmd), dir)}, steps: steps}
	g.arms = func(k int) {
		if _, err := fmt.Fprintln(in, k); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// arm starts counting steps; toolgate is killed before the k-th.
func (g *tracedGate) arm(t testing.TB, k int) {
	t.Helper()
	g.arms(k)
	program.Await(t, "the tracer counts", func() bool { return len(g.recorded(t)) > 0 })
}

// recorded returns the steps since arm, the line of arm first.
func (g *tracedGate) recorded(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile(g.steps)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")[:strings.Count(string(text), "\n")]
}

// stop kills toolgate if it still runs, and waits until every process has exited.
func (g *tracedGate) stop(t testing.TB) {
	t.Helper()
	gone := trackDescendants(t, g.Cmd.Process.Pid)
	_ = g.Cmd.Process.Kill() // the tracer exits with toolgate
	g.Wait(t)
	gone()
}

// requireTracing skips the test if processes cannot be traced; with CI=true it
// fails.
func requireTracing(t testing.TB) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "true")
	cmd.Env = append(os.Environ(), tracedVar+"=/", stepsVar+"="+os.DevNull)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		parts.Missing(t, "processes cannot be traced here: %v\n%s", err, out)
	}
}
