package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// walk reads the whole lines of a chain one after the other, its segments in
// their order. Lines of a segment that the next one begins again were left behind
// by a failed write, and are passed over. Only one goroutine uses it.
type walk struct {
	dir     string
	segment int   // that is being read
	offset  int64 // in it, of the line that peek gives
	next    int   // the segment after it, 0 = not known to be there
	bound   uint64
	file    *os.File
	in      *bufio.Reader
	line    []byte // that peek gave and take has not taken
}

// peek gives the next line and the number of its record, 0 for a line that is no
// record; nil when there is none now. The line is valid until the next call.
func (w *walk) peek() ([]byte, uint64, error) {
	for {
		switch ok, err := w.open(); {
		case err != nil:
			return nil, 0, err
		case !ok:
			return nil, 0, nil
		}
		whole, err := w.read()
		switch {
		case err != nil:
			return nil, 0, err
		case !whole && w.next == 0:
			// It may have grown between its end and the look for another.
			if err := w.look(); err != nil || w.next == 0 {
				return nil, 0, err
			}
			continue
		case !whole:
			w.turn()
			continue
		}
		number := lineNumber(w.line)
		if w.bound == 0 || number < w.bound {
			return w.line, number, nil
		}
		w.turn()
	}
}

// take goes on behind the line that peek gave.
func (w *walk) take() {
	w.offset += int64(len(w.line)) + 1
	w.line = nil
}

// read makes sure that line is the next whole one, and reports whether there is
// one.
func (w *walk) read() (bool, error) {
	if w.line != nil {
		return true, nil
	}
	line, err := readLine(w.in)
	switch {
	case err == nil:
		w.line = line
		return true, nil
	case errors.Is(err, io.EOF):
		return false, w.seek()
	}
	return false, fmt.Errorf("reading segment %d: %w", w.segment, err)
}

// open makes sure that there is a file to read, the one after it where the
// segment is gone, and reports whether there is one.
func (w *walk) open() (bool, error) {
	if w.file != nil {
		return true, nil
	}
	f, err := os.Open(segmentPath(w.dir, w.segment))
	if errors.Is(err, fs.ErrNotExist) {
		if err := w.look(); err != nil || w.next == 0 {
			return false, err
		}
		w.turn()
		return w.open()
	}
	if err != nil {
		return false, err
	}
	w.file = f
	if w.in == nil {
		w.in = bufio.NewReaderSize(nil, 64<<10)
	}
	if err := w.seek(); err != nil {
		return false, err
	}
	return true, w.look()
}

func (w *walk) seek() error {
	_, err := w.file.Seek(w.offset, io.SeekStart)
	w.in.Reset(w.file)
	return err
}

// look finds the segment after the one that is being read, and with which record
// it begins.
func (w *walk) look() error {
	numbers, err := segments(w.dir)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if n > w.segment {
			line, err := firstLine(segmentPath(w.dir, n))
			w.next, w.bound = n, lineNumber(line)
			return err
		}
	}
	return nil
}

// turn goes to the next segment.
func (w *walk) turn() {
	w.close()
	w.segment, w.offset, w.next, w.bound = w.next, 0, 0, 0
}

// close lets go of the file; peek opens it again where it was.
func (w *walk) close() {
	if w.file != nil {
		_ = w.file.Close() // it was only read
		w.file, w.line = nil, nil
	}
}

func segmentPath(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("%06d.jsonl", number))
}

// firstLine gives the first whole line of a segment, nil when there is none.
func firstLine(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	line, err := readLine(bufio.NewReader(f))
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return line, err
}

// lineNumber reads the number of a record without decoding its line; 0 when the
// line is none of ours.
func lineNumber(line []byte) uint64 {
	rest, ok := bytes.CutPrefix(line, []byte(`{"v":1,"seq":`))
	digits, _, comma := bytes.Cut(rest, []byte{','})
	if !ok || !comma {
		return 0
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// starting gives the last of the segments that begins before or with what wanted
// wants of its first line, the first of them when none does. There is one at
// least.
func starting(dir string, numbers []int, before func(first []byte) bool) (int, error) {
	for i := len(numbers) - 1; i > 0; i-- {
		line, err := firstLine(segmentPath(dir, numbers[i]))
		if err != nil {
			return 0, err
		}
		if line != nil && before(line) {
			return numbers[i], nil
		}
	}
	return numbers[0], nil
}

// lastLine gives the last whole line of a chain, nil when it has none, and when
// its last segment was written to.
func lastLine(dir string, numbers []int) ([]byte, time.Time, error) {
	var written time.Time
	for i := len(numbers) - 1; i >= 0; i-- {
		path := segmentPath(dir, numbers[i])
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, written, err
		}
		if info.ModTime().After(written) {
			written = info.ModTime()
		}
		lines, _, err := lastLines(path, 1)
		if err != nil || len(lines) > 0 {
			return last(lines), written, err
		}
	}
	return nil, written, nil
}

func last(lines [][]byte) []byte {
	if len(lines) == 0 {
		return nil
	}
	return lines[len(lines)-1]
}
