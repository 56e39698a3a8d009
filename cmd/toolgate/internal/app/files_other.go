//go:build !unix

package app

import "io/fs"

// shared returns the permissions that group and others have on a file. The system has
// none that can be read.
func shared(string) fs.FileMode { return 0 }
