package chain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// QuietAfter is how long a chain must be unchanged before its writer counts as dead
// and its last records are yielded although HEAD does not name them. It is longer
// than a writer takes to update HEAD.
const QuietAfter = 5 * time.Second

// Position is a place in a chain: the offset of a line in a segment.
type Position struct {
	Dir    string
	Number int   // of the segment
	Offset int64 // in bytes
}

// PositionAfter returns the start of the last segment for whose first line before
// returns true, or of the first segment. numbers are those of the segments, in ascending order; there
// is at least one.
func PositionAfter(dir string, numbers []int, before func(first []byte) bool) (*Position, error) {
	for _, number := range slices.Backward(numbers[1:]) {
		line, err := FirstLine(dir, number)
		if err != nil {
			return nil, err
		}
		if line != nil && before(line) {
			return &Position{Dir: dir, Number: number}, nil
		}
	}
	return &Position{Dir: dir, Number: numbers[0]}, nil
}

// LastPosition returns the position before the last n lines of a chain, whose segments have the numbers
// in ascending order. A chain without segments has its position at number 0.
func LastPosition(dir string, numbers []int, n int) (*Position, error) {
	at := &Position{Dir: dir}
	for _, number := range slices.Backward(numbers) {
		offset, found, err := LastLines(Path(dir, number), n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		at.Number, at.Offset = number, offset
		if n -= found; n <= 0 {
			break
		}
	}
	return at, nil
}

// LastLine returns the last line of the chain in dir, nil when it has none, and the
// numbers of its segments.
func LastLine(dir string) ([]byte, []int, error) {
	numbers, err := Segments(dir)
	if err != nil {
		return nil, nil, err
	}
	at, err := LastPosition(dir, numbers, 1)
	if err != nil {
		return nil, nil, err
	}
	for line, err := range at.Lines {
		return line, numbers, err
	}
	return nil, numbers, nil
}

// Lines yields the lines from the position to the present end of the chain, and moves
// the position behind a line when the caller asks for the next. It skips the last lines
// of a segment when the next segment repeats their numbers: a failed write left them
// behind. An error ends the lines.
func (at *Position) Lines(yield func([]byte, error) bool) {
	for {
		next, bound, err := at.nextSegment()
		if err != nil {
			yield(nil, err)
			return
		}
		for line, err := range scanLines(Path(at.Dir, at.Number), at.Offset, at.split) {
			if errors.Is(err, fs.ErrNotExist) || err == nil && bound != 0 && LineNumber(line) >= bound {
				break
			}
			if err != nil {
				yield(nil, fmt.Errorf("reading segment %d: %w", at.Number, err))
				return
			}
			if !yield(line, nil) {
				return
			}
			at.Offset += int64(len(line)) + 1
		}
		if next == 0 {
			return
		}
		at.Number, at.Offset = next, 0
	}
}

// nextSegment returns the number of the segment after the position's and the number
// of its first record, each 0 when not known.
func (at *Position) nextSegment() (next int, bound uint64, err error) {
	numbers, err := Segments(at.Dir)
	if errors.Is(err, fs.ErrNotExist) { // the chain was archived meanwhile
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	i, _ := slices.BinarySearch(numbers, at.Number+1)
	if i == len(numbers) {
		return 0, 0, nil
	}
	line, err := FirstLine(at.Dir, numbers[i])
	return numbers[i], LineNumber(line), err
}

// split is splitLine for a segment that may be being written: zeros end its lines, and so does
// half a record, of which a reader may see the second half before the first. In a segment that
// has been left alone, zeros before a line feed are damage, and part of a line.
func (at *Position) split(data []byte, atEOF bool) (int, []byte, error) {
	n, line, err := splitLine(data, atEOF)
	if n > 0 {
		data = line
	}
	if bytes.IndexByte(data, 0) >= 0 {
		info, err := os.Stat(Path(at.Dir, at.Number))
		if err != nil || time.Since(info.ModTime()) <= QuietAfter {
			return 0, nil, bufio.ErrFinalToken
		}
	}
	return n, line, err
}

// AtEnd reports whether the records of the segment end at the position and it is the last one.
func (at *Position) AtEnd() bool {
	path := Path(at.Dir, at.Number)
	info, err := os.Stat(path)
	if _, next := os.Stat(Path(at.Dir, at.Number+1)); err != nil || !errors.Is(next, fs.ErrNotExist) {
		return false
	}
	return info.Size() == at.Offset || info.Size() > at.Offset && byteAt(path, at.Offset) == 0
}
