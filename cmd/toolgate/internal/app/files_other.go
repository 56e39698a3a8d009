//go:build !unix

package app

import "io/fs"

// openFiles returns how many files the process may have open. The system has no
// limit that can be read.
func openFiles() int { return 1 << 20 }

// shared returns the permissions that group and others have on a file. The system has
// none that can be read.
func shared(string) fs.FileMode { return 0 }
