package audit

import (
	"io"
	"os"
)

// File is a segment being written. Write appends at the end; Sync returns when
// what was written is on disk; Truncate cuts to a size in bytes and moves the
// end there. A Log calls one method at a time.
type File interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// CreateFile creates the segment path, which must not exist, readable by its
// owner only.
func CreateFile(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

// diskFile is an os.File whose Sync leaves out metadata that no reader needs.
type diskFile struct{ *os.File }

// Sync flushes the data of the file.
func (f diskFile) Sync() error { return dataSync(f.File) }
