//go:build !unix

package front

// OpenFiles returns how many files the process may have open. The system has no
// limit that can be read.
func OpenFiles() int { return 1 << 20 }
