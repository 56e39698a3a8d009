package audit

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// dataSync flushes data and size; times may stay behind.
func dataSync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
