package guardian

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resources are the limits that an Order can name.
var resources = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC,
}

// confineThread confines the calling thread, which must be locked. Processes that it
// starts inherit the confinement; other threads of the guardian stay as they are.
func (o *Order) confineThread() error {
	if o.Namespaces {
		if err := dropCapabilities(); err != nil {
			return fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	if !o.Filter && !o.Scopes && !o.Files {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if o.Scopes || o.Files {
		if err := o.enterDomain(); err != nil {
			return fmt.Errorf("entering a landlock domain: %w", err)
		}
	}
	if o.Filter {
		if err := installFilter(); err != nil {
			return fmt.Errorf("installing the seccomp filter: %w", err)
		}
	}
	return nil
}

// dropCapabilities gives up what the guardian has in its user namespace. The
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

// installFilter installs the seccomp filter (seccomp(2)). It refuses what a server
// has no use for and what reaches beyond it: the resource limits of another process
// (prlimit64), input put into a terminal (TIOCSTI), key rings. Calls of another
// architecture fail with ENOSYS: their numbers would pass by the filter.
func installFilter() error {
	filter := []unix.SockFilter{
		load(4), // the architecture
		jump(unix.BPF_JEQ, arch, 1, 0),
		refuse(unix.ENOSYS),
		load(0), // the number
		jump(unix.BPF_JGE, foreign, 0, 1),
		refuse(unix.ENOSYS),
	}
	for _, nr := range []uint32{unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL} {
		filter = append(filter, jump(unix.BPF_JEQ, nr, 0, 1), refuse(unix.ENOSYS))
	}
	filter = append(filter,
		jump(unix.BPF_JEQ, unix.SYS_PRLIMIT64, 0, 3),
		load(16), // the process; 0 is the caller
		jump(unix.BPF_JEQ, 0, 4, 0),
		refuse(unix.EPERM),
		jump(unix.BPF_JEQ, unix.SYS_IOCTL, 0, 2),
		load(24), // the request
		jump(unix.BPF_JEQ, unix.TIOCSTI, 1, 0),
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		refuse(unix.EPERM),
	)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	runtime.KeepAlive(filter)
	return err
}

// load loads the 32 bits at an offset of struct seccomp_data.
func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jump skips as many instructions as yes or no says.
func jump(condition uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | condition | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

// refuse ends the filter: the call fails with errno.
func refuse(errno unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// execLimited sets the resource limits of o, soft and hard, and becomes the command. The
// guardian itself cannot have them: it needs more than some of them leave.
func (o *Order) execLimited(command []string) error {
	for name, most := range o.Limits {
		var own unix.Rlimit
		err := unix.Getrlimit(resources[name], &own)
		if err == nil {
			most = min(most, own.Max)
			err = unix.Setrlimit(resources[name], &unix.Rlimit{Cur: most, Max: most})
		}
		if err != nil {
			return fmt.Errorf("setting the limit %s to %d: %w", name, most, err)
		}
	}
	if err := unix.Exec(command[0], command, serverEnv()); err != nil {
		return fmt.Errorf("starting %s: %w", command[0], err)
	}
	return nil
}
