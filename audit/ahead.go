package audit

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
)

// A segment that is being written under Sync ends in zeros: a flush is cheaper when the file
// already has the bytes that a record replaces, because its size and its blocks stay as they
// are. Closing the segment cuts the zeros off. After a process was killed, the next start cuts
// its zeros off.
//
// No record contains a zero byte. After a power failure some bytes of records that were never
// acknowledged may be on disk and others not, so that zeros stand among them.

// As much of a segment is written ahead as it has records, within these bounds in bytes.
const (
	minAhead = 64 << 10
	maxAhead = 1 << 20
	spare    = 16 << 20 // of the disk, that zeros never take
)

var zeros [maxAhead]byte

// aheadFile is a File that ends in zeros until it is closed.
type aheadFile struct {
	*os.File
	end    int64 // of what was written; zeros follow
	length int64 // of the file, at least as it was last set
	full   bool  // the disk has no room for zeros
}

// createAhead creates the segment path as CreateFile does, to be written ahead in zeros.
func createAhead(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &aheadFile{File: f}, nil
}

// Write writes p in the place of zeros.
func (f *aheadFile) Write(p []byte) (int, error) {
	if f.end+int64(len(p)) > f.length && !f.full {
		f.extend()
	}
	n, err := f.WriteAt(p, f.end)
	f.end += int64(n)
	f.length = max(f.length, f.end)
	return n, err
}

// extend adds zeros; the flush of what is written in their place flushes them too. On a disk
// without room there are none: records and HEAD need the room.
func (f *aheadFile) extend() {
	if free, _, err := freeSpace(filepath.Dir(f.Name())); err != nil || free < spare {
		f.full = true
		return
	}
	n, err := f.WriteAt(zeros[:min(max(f.end, minAhead), maxAhead)], f.length)
	f.length += int64(n)
	f.full = err != nil && f.Truncate(f.end) == nil
}

// Sync flushes what was written, and what is needed to read it.
func (f *aheadFile) Sync() error { return syncData(f.File) }

// Truncate cuts the file to size bytes.
func (f *aheadFile) Truncate(size int64) error {
	if err := f.File.Truncate(size); err != nil {
		return err
	}
	f.end, f.length = size, size
	return nil
}

// Close cuts the zeros off and closes the file.
func (f *aheadFile) Close() (err error) {
	if f.length > f.end {
		err = cmp.Or(f.Truncate(f.end), f.Sync())
	}
	return errors.Join(err, f.File.Close())
}
