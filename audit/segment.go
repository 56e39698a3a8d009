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

// chainReader reads the lines of a chain in order, segment by segment. It skips the
// last lines of a segment when the next segment repeats their numbers: a failed
// write left them behind. It is not safe for concurrent use.
type chainReader struct {
	dir    string
	number int    // of the segment that is being read
	offset int64  // in that segment, of the line that peek returns
	next   int    // number of the following segment, 0 = not known
	bound  uint64 // number of the first record in the following segment, 0 = not known
	open   *segment
	line   []byte // returned by peek and not yet taken
}

// readAfter returns a reader that begins with the last segment for whose first line
// before returns true, or with the first segment.
func readAfter(dir string, numbers []int, before func(first []byte) bool) (*chainReader, error) {
	for i := len(numbers) - 1; i > 0; i-- {
		line, err := firstLine(dir, numbers[i])
		if err != nil {
			return nil, err
		}
		if line != nil && before(line) {
			return &chainReader{dir: dir, number: numbers[i]}, nil
		}
	}
	return &chainReader{dir: dir, number: numbers[0]}, nil
}

// readLast returns a reader of the last n lines of a chain.
func readLast(dir string, numbers []int, n int) (*chainReader, error) {
	c := &chainReader{dir: dir}
	for _, number := range slices.Backward(numbers) {
		offset, found, err := lastLines(segmentPath(dir, number), n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c.number, c.offset = number, offset
		if n -= found; n <= 0 {
			break
		}
	}
	return c, nil
}

// lastLine returns the last line of the chain in dir, nil when it has none, and the
// numbers of its segments.
func lastLine(dir string) ([]byte, []int, error) {
	numbers, err := segments(dir)
	if err != nil {
		return nil, nil, err
	}
	c, err := readLast(dir, numbers, 1)
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	line, _, err := c.peek()
	return line, numbers, err
}

// peek returns the next line and the number of its record, 0 when the line is not a
// record; nil when there is no further line now. The line is valid until take or
// close.
func (c *chainReader) peek() ([]byte, uint64, error) {
	for {
		switch ended, err := c.read(); {
		case err != nil:
			return nil, 0, fmt.Errorf("reading segment %d: %w", c.number, err)
		case !ended:
			number := lineNumber(c.line)
			if c.bound == 0 || number < c.bound {
				return c.line, number, nil
			}
			c.turn()
		case c.next != 0:
			c.turn()
		default:
			// The segment may have grown since its end was read.
			if err := c.look(); err != nil || c.next == 0 {
				return nil, 0, err
			}
		}
	}
}

// read reads the next line into c.line, and reports whether the segment has ended
// instead or no longer exists.
func (c *chainReader) read() (ended bool, err error) {
	if c.line != nil {
		return false, nil
	}
	if c.open == nil {
		c.open, err = openSegment(c.dir, c.number, c.offset)
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		if err == nil {
			err = c.look()
		}
		if err != nil {
			return false, err
		}
	}
	c.line, err = c.open.next()
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// take moves past the line that peek returned.
func (c *chainReader) take() { c.line, c.offset = nil, c.open.offset }

// look finds the segment after the one that is being read, and the number of its
// first record.
func (c *chainReader) look() error {
	numbers, err := segments(c.dir)
	if err != nil {
		return err
	}
	i, _ := slices.BinarySearch(numbers, c.number+1)
	if i == len(numbers) {
		return nil
	}
	line, err := firstLine(c.dir, numbers[i])
	c.next, c.bound = numbers[i], lineNumber(line)
	return err
}

// turn moves to the next segment.
func (c *chainReader) turn() {
	c.close()
	c.number, c.offset, c.next, c.bound = c.next, 0, 0, 0
}

// close closes the file; peek opens it again at the same line.
func (c *chainReader) close() {
	if c.open != nil {
		c.open.close()
		c.open, c.line = nil, nil
	}
}
