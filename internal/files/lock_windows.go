package files

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// farByte is the upper half of the offset of the byte that is locked. Windows
// enforces locks, so the byte lies where no file has content.
const farByte = 0x7fffffff

// lock locks one byte of f.
func lock(f *os.File, exclusive, wait bool) error {
	var how uint32
	if exclusive {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	if !wait {
		how |= windows.LOCKFILE_FAIL_IMMEDIATELY
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{OffsetHigh: farByte})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrHeld
	}
	return err
}
