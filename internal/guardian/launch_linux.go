package guardian

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resources are the limits that an Order can name.
var resources = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC,
}

// A launch is how a child of the guardian confines itself and becomes the server: system
// calls, prepared by the guardian and made by the child in their order. The guardian itself
// makes none of them. If one of its threads were in the server's Landlock domain, the server
// could stop and kill it.
type launch struct {
	calls  []call
	held   []any      // what the arguments of calls point to
	report [2]int     // a pipe that the exec closes
	failed [2]uintptr // the index of the call that failed, and its error
}

// A call is one system call.
type call struct {
	doing  string // as a gerund, for messages
	number uintptr
	args   [3]uintptr
}

// prepare returns the launch of a server's command. Without a command, for Try, the child
// exits with 0 when it has confined itself.
func (o *Order) prepare(command []string) (*launch, error) {
	l := new(launch)
	l.call("making a process group", unix.SYS_SETPGID)
	l.call("tying the server to its guardian", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	l.call("finding the guardian", unix.SYS_KILL, uintptr(os.Getpid()), 0) // it may have ended before the call above
	if o.Group {
		self := []byte("0")
		l.held = append(l.held, self)
		l.call("entering the control group", unix.SYS_WRITE, GroupFD, uintptr(unsafe.Pointer(&self[0])), 1)
	}
	for name, most := range o.Limits {
		var own unix.Rlimit
		if err := unix.Getrlimit(resources[name], &own); err != nil {
			return nil, fmt.Errorf("reading the limit %s: %w", name, err)
		}
		most = min(most, own.Max)
		value := &unix.Rlimit{Cur: most, Max: most}
		l.held = append(l.held, value)
		l.call(fmt.Sprintf("setting the limit %s to %d", name, most), unix.SYS_SETRLIMIT, uintptr(resources[name]), uintptr(unsafe.Pointer(value)))
	}
	if o.Filter || o.Scopes || o.Files {
		l.call("setting no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
	}
	if o.Scopes || o.Files {
		ruleset, err := o.newDomain()
		if err != nil {
			return nil, fmt.Errorf("making a landlock domain: %w", err)
		}
		l.held = append(l.held, ruleset)
		l.call("entering a landlock domain", unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd())
	}
	if o.Filter {
		filter := newFilter()
		l.held = append(l.held, filter)
		l.call("installing the seccomp filter", unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(filter)))
	}
	if err := l.end(command); err != nil {
		return nil, err
	}
	if err := unix.Pipe2(l.report[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("opening a pipe: %w", err)
	}
	return l, nil
}

// call adds a call.
func (l *launch) call(doing string, number uintptr, args ...uintptr) {
	c := call{doing: doing, number: number}
	copy(c.args[:], args)
	l.calls = append(l.calls, c)
}

// end adds the last call: the exec of the command or, without one, the child's exit.
func (l *launch) end(command []string) error {
	if len(command) == 0 {
		l.call("", unix.SYS_EXIT_GROUP)
		return nil
	}
	argv, err := syscall.SlicePtrFromStrings(command)
	if err != nil {
		return err
	}
	env, err := syscall.SlicePtrFromStrings(serverEnv())
	if err != nil {
		return err
	}
	l.held = append(l.held, argv, env)
	l.call("starting "+command[0], unix.SYS_EXECVE, uintptr(unsafe.Pointer(argv[0])), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])))
	return nil
}

// start forks the child and waits for its last call. The server ends with the calling
// thread. The exit code is that of a guardian whose server does not start.
func (l *launch) start() (pid, code int, err error) {
	pid, errno := l.fork()
	runtime.KeepAlive(l)
	_ = unix.Close(l.report[1]) // the child has its own
	report := os.NewFile(uintptr(l.report[0]), "report")
	defer report.Close()
	if errno != 0 {
		return 0, codeRefused, fmt.Errorf("starting a process: %w", errno)
	}
	n, _ := report.Read(unsafe.Slice((*byte)(unsafe.Pointer(&l.failed)), unsafe.Sizeof(l.failed))) // nothing is read = the last call was made
	if n == 0 {
		return pid, 0, nil
	}
	code = codeRefused
	if int(l.failed[0]) == len(l.calls)-1 {
		code = codeNotFound
	}
	return 0, code, fmt.Errorf("%s: %w", l.calls[l.failed[0]].doing, syscall.Errno(l.failed[1]))
}

// fork starts the child, which makes the calls and does not return. The child has a copy of
// the memory but this thread alone. So it must not allocate, grow its stack, or meet Go's
// scheduler, and makes raw system calls only.
//
//go:norace
//go:nosplit
//go:noinline
func (l *launch) fork() (int, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return int(pid), errno
	}
	for i := range l.calls {
		c := &l.calls[i]
		if _, _, errno = syscall.RawSyscall6(c.number, c.args[0], c.args[1], c.args[2], 0, 0, 0); errno != 0 {
			l.failed[0], l.failed[1] = uintptr(i), uintptr(errno)
			break
		}
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(l.report[1]), uintptr(unsafe.Pointer(&l.failed)), unsafe.Sizeof(l.failed))
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, codeRefused, 0, 0)
	}
}

// serverEnv returns the environment without what is the guardian's.
func serverEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return Owns(name)
	})
}
