package guardian

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// File descriptors of a guardian.
const (
	// LeashFD is the pipe that ties a guardian to toolgate. The guardian ends the
	// server when the pipe's other end is closed.
	LeashFD = 3
	// ProgramFD is the guardian's own executable, where it is not a file on disk.
	ProgramFD = 4
)

// Exit codes of a guardian that did not start its server. All others are the
// server's, or 128 plus the signal that ended it.
const (
	codeRefused  = 125 // a confinement failed
	codeNotFound = 127
)

// Main runs a guardian with the arguments of Order.Args and returns its exit code.
// Messages go to stderr. A confinement that fails ends the guardian before the
// server starts.
func Main(args []string) int {
	runtime.LockOSThread() // the server inherits this thread, and its death signal
	o, command, err := Parse(args)
	switch {
	case err != nil:
	case o.Exec:
		err = o.execLimited(command)
	default:
		err = o.confine()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "confining a server:", err)
		return codeRefused
	}
	if o.Try {
		return 0
	}
	pid, err := o.start(command, os.Args[:len(os.Args)-len(args)])
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting %s: %v\n", command[0], err)
		return codeNotFound
	}
	letGo()
	s := &supervisor{pid: pid, code: make(chan int, 1), alone: make(chan struct{})}
	go s.reap()
	return s.watch(leash())
}

// start starts the server on the calling thread. With limits, a second guardian sets
// them and becomes the server; self is how this program is called as a guardian.
func (o *Order) start(command, self []string) (int, error) {
	path, env := command[0], serverEnv()
	if len(o.Limits) > 0 {
		second := Order{Limits: o.Limits, Exec: true}
		path, command, env = "/proc/self/exe", append(self, second.Args(command)...), os.Environ()
	}
	return syscall.ForkExec(path, command, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
}

// confine prepares the guardian, and the calling thread for the server.
func (o *Order) confine() error {
	unix.CloseOnExec(LeashFD)
	unix.CloseOnExec(ProgramFD)
	if o.Namespaces {
		if err := mapIDs(); err != nil {
			return err
		}
		if err := o.buildView(); err != nil {
			return err
		}
	}
	// The server runs as the same user: it must not read or trace its guardian.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("closing the guardian to other processes: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the reaper of a server's processes: %w", err)
	}
	return o.confineThread()
}

// serverEnv returns the environment without what is the guardian's.
func serverEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return Owns(name)
	})
}

// letGo points stdin and stdout elsewhere, so that the pipes end when the
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

// leash returns a channel that is closed when toolgate lets go or dies, or when a
// signal asks the guardian to end.
func leash() <-chan struct{} {
	ended := make(chan struct{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(LeashFD, "leash")) // an error is an end as well
		close(closed)
	}()
	go func() {
		select {
		case <-signals:
		case <-closed:
		}
		close(ended)
	}()
	return ended
}
