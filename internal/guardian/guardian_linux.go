package guardian

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
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
	// GroupFD is the file cgroup.procs of the server's control group, KillFD its cgroup.kill.
	GroupFD = 5
	KillFD  = 6
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
	runtime.LockOSThread() // the server ends with this thread
	o, command, err := Parse(args)
	var l *launch
	if err == nil {
		l, err = o.confine(command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "confining a server:", err)
		return codeRefused
	}
	pid, code, err := l.start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return code
	}
	letGo()
	s := &supervisor{pid: pid, init: o.PIDs, group: o.Group, code: make(chan int, 1), alone: make(chan struct{})}
	go s.reap()
	return s.watch(leash())
}

// confine prepares the guardian, and the launch of its server.
func (o *Order) confine(command []string) (*launch, error) {
	unix.CloseOnExec(LeashFD)
	unix.CloseOnExec(ProgramFD)
	if o.Group {
		unix.CloseOnExec(GroupFD)
		unix.CloseOnExec(KillFD)
	}
	if o.Namespaces {
		if err := mapIDs(); err != nil {
			return nil, err
		}
		if err := o.buildView(); err != nil {
			return nil, err
		}
		if err := dropCapabilities(); err != nil {
			return nil, fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	// The server runs as the same user: it must not read or trace its guardian.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("closing the guardian to other processes: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the reaper of a server's processes: %w", err)
	}
	return o.prepare(command)
}

// dropCapabilities gives up what the calling thread has in its user namespace, and what
// the server would inherit from the thread. The
// bounding set goes too, so that user 0 does not get it back at its next exec.
func dropCapabilities() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: unknown to this kernel
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
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
