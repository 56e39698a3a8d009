//go:build unix

package keepalive

import "syscall"

// await calls write and, when that reports true, waits until an answer begins to
// arrive. It reports false, and does not call write, for a used connection that
// the other end has closed or sent something on.
//
// All of that happens within one Read of the raw connection, which forgets what
// the poller has reported before and then waits for the next event: Conn.Read
// would try to read an answer before it can be there, for one more system call.
func (c *conn) await(write func() bool) bool {
	if c.raw == nil {
		write()
		return true
	}
	quiet, called := true, false
	_ = c.raw.Read(func(fd uintptr) bool {
		if called {
			return true
		}
		if c.used {
			var buf [1]byte
			_, _, e := syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			quiet = e == syscall.EAGAIN || e == syscall.EWOULDBLOCK
		}
		called = quiet
		return !quiet || !write()
	}) // whatever ends the waiting is reported by the read that follows
	return quiet
}
