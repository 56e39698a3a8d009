//go:build unix

package app

import (
	"io/fs"
	"os"
	"syscall"
)

// shared returns the permissions that group and others have on a file or directory,
// symbolic links followed; 0 when it cannot be looked at. The group may read what
// belongs to root: so a service is given a secret that it cannot change.
func shared(path string) fs.FileMode {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	mode := info.Mode().Perm() & 0o077
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 {
		mode &^= 0o050
	}
	return mode
}
