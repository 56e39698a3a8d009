package chain

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxLine bounds a line that is read back, in bytes. No longer line is written.
const maxLine = 64 << 20

// Each calls do with the directory of each chain under root, ordered by name,
// until it returns an error. A root that does not exist has no chains. A directory that is
// removed meanwhile is left out.
func Each(root string, do func(dir string) error) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() && err == nil {
			dir := filepath.Join(root, e.Name())
			if err = do(dir); errors.Is(err, fs.ErrNotExist) && !exists(dir) {
				err = nil
			}
		}
	}
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Segments returns the numbers of the segments in dir in ascending order.
func Segments(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimSuffix(e.Name(), ".jsonl"))
		if err == nil && n >= 0 && e.Name() == segmentName(n) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// segmentName returns the file name of a segment.
func segmentName(number int) string { return fmt.Sprintf("%06d.jsonl", number) }

// Path returns the path of a segment.
func Path(dir string, number int) string { return filepath.Join(dir, segmentName(number)) }

// Lines yields the lines of the file path from offset on, where a line begins,
// without their line feeds; a last line without one is left out. A line is valid until
// the next. A line longer than 64 MiB is bufio.ErrTooLong.
func Lines(path string, offset int64) iter.Seq2[[]byte, error] {
	return scanLines(path, offset, splitLine)
}

// scanLines is Lines for a split that finds the lines as splitLine does.
func scanLines(path string, offset int64, split bufio.SplitFunc) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f, err := os.Open(path)
		if err == nil {
			defer f.Close()
			_, err = f.Seek(offset, io.SeekStart)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(make([]byte, 64<<10), maxLine)
		lines.Split(split)
		for err == nil && lines.Scan() {
			if !yield(lines.Bytes(), nil) {
				return
			}
		}
		if err = cmp.Or(err, lines.Err()); err != nil {
			yield(nil, err)
		}
	}
}

// splitLine is a bufio.SplitFunc that returns only lines that end with a line feed.
func splitLine(data []byte, _ bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

// FirstLine returns the first line of a segment, nil when it has none.
func FirstLine(dir string, number int) ([]byte, error) {
	for line, err := range Lines(Path(dir, number), 0) {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return line, err
	}
	return nil, nil
}

// LastLines returns the offset of the last lines of a segment, at most n, and their
// number. It reads backwards, no further than it must.
func LastLines(path string, n int) (offset int64, found int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	return linesBefore(f, end, n)
}

// linesBefore is LastLines for the first at bytes of f.
func linesBefore(f *os.File, at int64, n int) (offset int64, found int, err error) {
	for part := make([]byte, 64<<10); at > 0; {
		part = part[:min(at, int64(len(part)))]
		at -= int64(len(part))
		if _, err := f.ReadAt(part, at); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := len(part); ; found++ {
			if i = bytes.LastIndexByte(part[:i], '\n'); i < 0 {
				break
			}
			if found == n {
				return at + int64(i) + 1, n, nil
			}
		}
	}
	return 0, found, nil
}

// LineNumber returns the number of a record without decoding its line; 0 when the line
// is not a record.
func LineNumber(line []byte) uint64 {
	rest, ok := bytes.CutPrefix(line, []byte(`{"v":1,"seq":`))
	digits, _, comma := bytes.Cut(rest, []byte{','})
	if !ok || !comma {
		return 0
	}
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}

// LineTime returns the time of a record without decoding its line; zero when the line
// is not a record. The member comes before every text that a caller can choose.
func LineTime(line []byte) time.Time {
	_, rest, _ := bytes.Cut(line, []byte(`"time":"`))
	text, _, _ := bytes.Cut(rest, []byte{'"'})
	at, _ := time.Parse(time.RFC3339Nano, string(text))
	return at
}
