package guardian

import "golang.org/x/sys/unix"

// newFilter returns the seccomp filter (seccomp(2)). It refuses what a server
// has no use for and what reaches beyond it: the resource limits of another process
// (prlimit64), input put into a terminal (TIOCSTI), key rings. Calls of another
// architecture fail with ENOSYS: their numbers would pass by the filter.
func newFilter() *unix.SockFprog {
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
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
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
