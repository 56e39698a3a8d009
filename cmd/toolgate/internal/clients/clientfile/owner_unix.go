//go:build unix

package clientfile

import (
	"os"
	"syscall"
)

// keepOwner gives a file the owner and the group of another. It fails when the process
// may not, because the owner's program could not read the file then.
func keepOwner(of, to string) error {
	was, err := os.Stat(of)
	if err != nil {
		return err
	}
	now, err := os.Stat(to)
	if err != nil {
		return err
	}
	a, known := was.Sys().(*syscall.Stat_t)
	b, ok := now.Sys().(*syscall.Stat_t)
	if !known || !ok || a.Uid == b.Uid && a.Gid == b.Gid {
		return nil
	}
	return os.Chown(to, int(a.Uid), int(a.Gid))
}
