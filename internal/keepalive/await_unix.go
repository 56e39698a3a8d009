//go:build unix

package keepalive

import "syscall"

// await sends the request and waits until an answer begins to arrive. It sends
// nothing, and sets c.quiet to false, on a used connection that the other end has
// closed or sent something on.
//
// All of that happens within one Read of the raw connection, which forgets what
// the poller has reported before and then waits for the next event: Conn.Read
// would try to read an answer before it can be there, for one more system call.
func (c *conn) await() {
	if c.raw == nil {
		c.write()
		return
	}
	if c.poll == nil {
		// The first call for a request sends it. The result says whether there is
		// something to read, or nothing to wait for.
		c.poll = func(fd uintptr) bool {
			if c.sent {
				return true
			}
			if c.used {
				var buf [1]byte
				_, _, e := syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
				c.quiet = e == syscall.EAGAIN || e == syscall.EWOULDBLOCK
			}
			return !c.quiet || !c.write()
		}
	}
	_ = c.raw.Read(c.poll) // whatever ends the waiting is reported by the read that follows
}
