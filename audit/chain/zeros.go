package chain

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
)

// blockBytes is how much of a file is looked at in one go.
const blockBytes = 64 << 10

// ContentEnd returns the offset behind the last byte of f that is not zero.
func ContentEnd(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	for part := make([]byte, blockBytes); err == nil && end > 0; {
		part = part[:min(end, blockBytes)]
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

// RecordsEnd is ContentEnd for a path.
func RecordsEnd(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return ContentEnd(f)
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

// CutZeros cuts the zeros off that the last segment of a chain ends in, when the process of the
// chain has ended, and with them what a power failure left of records that were never
// acknowledged. Zeros in front of the record that HEAD names are damage, which Verify reports.
func CutZeros(dir string) error {
	numbers, err := Segments(dir)
	if err != nil || len(numbers) == 0 {
		return err
	}
	if over, err := Ended(dir, false); err != nil || !over {
		return err
	}
	path := Path(dir, slices.Max(numbers))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end, err := ContentEnd(f)
	if err != nil || end == info.Size() {
		return err
	}
	hole, err := firstZero(f, end)
	if err == nil && hole < end {
		var last uint64
		var head Head
		if last, err = numberBefore(f, hole); err == nil {
			head, err = ReadHead(dir)
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
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, end), blockBytes)
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
