package front

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// refuseNew has the kernel drop what opens a connection to l, and reports whether it does: the client
// sends it again after a second, or when l is closed is refused. What belongs to a connection that is being
// opened still arrives.
func refuseNew(l net.Listener) bool {
	open, ok := l.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := open.SyscallConn()
	if err != nil {
		return false
	}
	filter := []unix.SockFilter{ // of a segment, from its TCP header on
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},                   // the flags
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x02, Jt: 0, Jf: 1}, // SYN
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	})
	return err == nil && refused == nil
}
