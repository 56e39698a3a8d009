package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

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
