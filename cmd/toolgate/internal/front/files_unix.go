//go:build unix

package front

import "golang.org/x/sys/unix"

// OpenFiles returns how many files the process may have open.
func OpenFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return leastFiles
	}
	return int(min(limit.Cur, 1<<20)) // Cur may be infinite
}
