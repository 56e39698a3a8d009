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
	"regexp"
	"slices"
	"strconv"
	"time"
)

// maxLine bounds a line that is read back, in bytes. No longer line is written.
const maxLine = 64 << 20

var segmentName = regexp.MustCompile(`^([0-9]{6,9})\.jsonl$`)

// eachChain calls do with the directory of each chain under root, ordered by name,
// until it returns an error. A root that does not exist has no chains.
func eachChain(root string, do func(dir string) error) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() && err == nil {
			err = do(filepath.Join(root, e.Name()))
		}
	}
	return err
}

// segments returns the numbers of the segments in dir in ascending order.
func segments(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		if m := segmentName.FindStringSubmatch(e.Name()); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func segmentPath(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("%06d.jsonl", number))
}

// segment reads the whole lines of one file, front to back. It is not safe for
// concurrent use.
type segment struct {
	file   *os.File
	lines  *bufio.Scanner // nil = not begun, or at the end
	offset int64          // of the next line
}

// openSegment opens a segment in dir at offset, where a line begins.
func openSegment(dir string, number int, offset int64) (*segment, error) {
	f, err := os.Open(segmentPath(dir, number))
	if err != nil {
		return nil, err
	}
	return &segment{file: f, offset: offset}, nil
}

// scan starts reading at offset.
func (s *segment) scan() error {
	s.lines = bufio.NewScanner(s.file)
	s.lines.Buffer(make([]byte, 16<<10), maxLine)
	s.lines.Split(splitLine)
	_, err := s.file.Seek(s.offset, io.SeekStart)
	return err
}

// splitLine is a bufio.SplitFunc that returns only lines that end with a line feed.
func splitLine(data []byte, _ bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

// next returns the next line without its line feed, valid until the next call. After
// io.EOF, a file that has grown has more lines. A line longer than maxLine is
// bufio.ErrTooLong.
func (s *segment) next() ([]byte, error) {
	if s.lines == nil {
		if err := s.scan(); err != nil {
			return nil, err
		}
	}
	if s.lines.Scan() {
		line := s.lines.Bytes()
		s.offset += int64(len(line)) + 1
		return line, nil
	}
	if err := s.lines.Err(); err != nil {
		return nil, err
	}
	s.lines = nil
	return nil, io.EOF
}

func (s *segment) close() { _ = s.file.Close() } // it was only read

// firstLine returns the first line of a segment, nil when it has none.
func firstLine(dir string, number int) ([]byte, error) {
	s, err := openSegment(dir, number, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.close()
	line, err := s.next()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return line, err
}

// lastLines returns the offset of the last lines of a segment, at most n, and their
// number. It reads backwards, no further than it must.
func lastLines(path string, n int) (offset int64, found int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
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

// lineNumber returns the number of a record without decoding its line; 0 when the line
// is not a record.
func lineNumber(line []byte) uint64 {
	rest, ok := bytes.CutPrefix(line, []byte(`{"v":1,"seq":`))
	digits, _, comma := bytes.Cut(rest, []byte{','})
	if !ok || !comma {
		return 0
	}
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}

// lineTime returns the time of a record without decoding its line; zero when the line
// is not a record. The member comes before every text that a caller can choose.
func lineTime(line []byte) time.Time {
	_, rest, _ := bytes.Cut(line, []byte(`"time":"`))
	text, _, _ := bytes.Cut(rest, []byte{'"'})
	at, _ := time.Parse(time.RFC3339Nano, string(text))
	return at
}
