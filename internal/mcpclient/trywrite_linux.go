package mcpclient

import (
	"io"
	"syscall"
)

// tryWriter returns a function that writes to a pipe without waiting: a line of at most
// PIPE_BUF bytes whole or not at all (pipe(7)). Package os has made the pipe non-blocking. It
// returns nil for any other writer.
func tryWriter(w io.Writer) func(line []byte) (int, error) {
	file, ok := w.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil
	}
	return func(line []byte) (n int, err error) {
		closed := raw.Write(func(fd uintptr) bool {
			n, err = syscall.Write(int(fd), line)
			return true // without waiting
		})
		if closed != nil {
			return 0, closed
		}
		return n, err
	}
}
