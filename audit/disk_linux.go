package audit

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData flushes the bytes of f, and its size when that has changed.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// fileID is the identity of a file.
type fileID struct {
	major, minor uint32 // of its device
	inode        uint64
}

// identify returns the identity of the file path. It does not ask for the file's times: Linux
// notes who has read them, and from then on the next write changes them, which the next flush
// has to write too.
func identify(path string) (fileID, error) {
	var x unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO, &x) == nil {
		return fileID{x.Dev_major, x.Dev_minor, x.Ino}, nil
	}
	var s unix.Stat_t // a sandbox may know no statx
	if err := unix.Stat(path, &s); err != nil {
		return fileID{}, os.NewSyscallError("stat", err)
	}
	return fileID{unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino}, nil
}

// is reports whether a and b are one file.
func (a fileID) is(b fileID) bool { return a == b }
