//go:build !linux

package audit

import "os"

// syncData flushes f.
func syncData(f *os.File) error { return f.Sync() }

// fileID is the identity of a file.
type fileID struct{ info os.FileInfo }

// identify returns the identity of the file path.
func identify(path string) (fileID, error) {
	info, err := os.Stat(path)
	return fileID{info}, err
}

// is reports whether a and b are one file.
func (a fileID) is(b fileID) bool { return os.SameFile(a.info, b.info) }
