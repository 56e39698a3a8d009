package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
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

// contentEnd returns the offset behind the last byte of f that is not zero.
func contentEnd(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	for part := make([]byte, minAhead); err == nil && end > 0; {
		part = part[:min(end, minAhead)]
		n, failed := f.ReadAt(part, end-int64(len(part)))
		if failed != nil && !errors.Is(failed, io.EOF) { // cut meanwhile
			return 0, failed
		}
		end -= int64(len(part))
		if n = len(bytes.TrimRight(part[:n], "\x00")); n > 0 {
			return end + int64(n), nil
		}
	}
	return end, err
}

// recordsEnd is contentEnd for a path.
func recordsEnd(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return contentEnd(f)
}

// split is splitLine for a segment that may be being written: zeros end its lines, and so does
// half a record, of which a reader may see the second half before the first. In a segment that
// has been left alone, zeros before a line feed are damage, and part of a line.
func (at *position) split(data []byte, atEOF bool) (int, []byte, error) {
	n, line, err := splitLine(data, atEOF)
	if n > 0 {
		data = line
	}
	if bytes.IndexByte(data, 0) >= 0 {
		info, err := os.Stat(segmentPath(at.dir, at.number))
		if err != nil || time.Since(info.ModTime()) <= quietAfter {
			return 0, nil, bufio.ErrFinalToken
		}
	}
	return n, line, err
}

// atEnd reports whether the records of the segment end at the position and it is the last one.
func (at *position) atEnd() bool {
	path := segmentPath(at.dir, at.number)
	info, err := os.Stat(path)
	if _, next := os.Stat(segmentPath(at.dir, at.number+1)); err != nil || !errors.Is(next, fs.ErrNotExist) {
		return false
	}
	return info.Size() == at.offset || info.Size() > at.offset && byteAt(path, at.offset) == 0
}

// byteAt returns a byte of a file, 1 when it cannot be read.
func byteAt(path string, offset int64) byte {
	f, err := os.Open(path)
	if err != nil {
		return 1
	}
	defer f.Close()
	var b [1]byte
	if n, _ := f.ReadAt(b[:], offset); n == 0 {
		return 1
	}
	return b[0]
}

// cutZeros cuts the zeros off that the last segment of a chain ends in, when the process of the
// chain has ended, and with them what a power failure left of records that were never
// acknowledged. Zeros in front of the record that HEAD names are damage, which Verify reports.
func cutZeros(dir string) error {
	numbers, err := segments(dir)
	if err != nil || len(numbers) == 0 {
		return err
	}
	if over, err := ended(dir, false); err != nil || !over {
		return err
	}
	path := segmentPath(dir, slices.Max(numbers))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end, err := contentEnd(f)
	if err != nil || end == info.Size() {
		return err
	}
	hole, err := firstZero(f, end)
	if err == nil && hole < end {
		var last uint64
		var head head
		if last, err = numberBefore(f, hole); err == nil {
			head, err = readHead(dir)
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && head.Seq <= last {
			end, err = hole, nil
		}
	}
	if err != nil {
		return err
	}
	return cmp.Or(f.Truncate(end), f.Sync())
}

// firstZero returns the offset of the first zero in the first end bytes of f, or end.
func firstZero(f *os.File, end int64) (offset int64, err error) {
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, end), minAhead)
	for {
		part, err := r.ReadSlice(0)
		offset += int64(len(part))
		switch {
		case err == nil:
			return offset - 1, nil
		case errors.Is(err, io.EOF):
			return offset, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return 0, err
		}
	}
}

// numberBefore returns the number of the last record that ends in the first end bytes of f, 0
// when there is none.
func numberBefore(f *os.File, end int64) (uint64, error) {
	offset, found, err := linesBefore(f, end, 1)
	if err != nil || found == 0 {
		return 0, err
	}
	line, err := bufio.NewReader(io.NewSectionReader(f, offset, end-offset)).ReadBytes('\n')
	return LineNumber(line), err
}
