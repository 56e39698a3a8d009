package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
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

	"github.com/toolgate/toolgate/internal/files"
)

// maxLine bounds a line that is read back, in bytes. No longer line is written.
const maxLine = 64 << 20

// eachChain calls do with the directory of each chain under root, ordered by name,
// until it returns an error. A root that does not exist has no chains. A directory that is
// removed meanwhile is left out.
func eachChain(root string, do func(dir string) error) error {
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

// segments returns the numbers of the segments in dir in ascending order.
func segments(dir string) ([]int, error) {
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

func segmentPath(dir string, number int) string { return filepath.Join(dir, segmentName(number)) }

// wholeLines yields the lines of the file path from offset on, where a line begins,
// without their line feeds; a last line without one is left out. A line is valid until
// the next. A line longer than maxLine is bufio.ErrTooLong. split is splitLine or finds the
// lines as splitLine does.
func wholeLines(path string, offset int64, split bufio.SplitFunc) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f, err := os.Open(path)
		if err == nil {
			defer f.Close()
			_, err = f.Seek(offset, io.SeekStart)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(make([]byte, 16<<10), maxLine)
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

// firstLine returns the first line of a segment, nil when it has none.
func firstLine(dir string, number int) ([]byte, error) {
	for line, err := range wholeLines(segmentPath(dir, number), 0, splitLine) {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return line, err
	}
	return nil, nil
}

// lastLines returns the offset of the last lines of a segment, at most n, and their
// number. It reads backwards, no further than it must.
func lastLines(path string, n int) (offset int64, found int, err error) {
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

// linesBefore is lastLines for the first at bytes of f.
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

// lineTime returns the time of a record without decoding its line; zero when the line
// is not a record. The member comes before every text that a caller can choose.
func lineTime(line []byte) time.Time {
	_, rest, _ := bytes.Cut(line, []byte(`"time":"`))
	text, _, _ := bytes.Cut(rest, []byte{'"'})
	at, _ := time.Parse(time.RFC3339Nano, string(text))
	return at
}

// position is a place in a chain: the offset of a line in a segment.
type position struct {
	dir    string
	number int // of the segment
	offset int64
}

// positionAfter returns the start of the last segment for whose first line before
// returns true, or of the first segment.
func positionAfter(dir string, numbers []int, before func(first []byte) bool) (*position, error) {
	for _, number := range slices.Backward(numbers[1:]) {
		line, err := firstLine(dir, number)
		if err != nil {
			return nil, err
		}
		if line != nil && before(line) {
			return &position{dir: dir, number: number}, nil
		}
	}
	return &position{dir: dir, number: numbers[0]}, nil
}

// lastPosition returns the position before the last n lines of a chain.
func lastPosition(dir string, numbers []int, n int) (*position, error) {
	at := &position{dir: dir}
	for _, number := range slices.Backward(numbers) {
		offset, found, err := lastLines(segmentPath(dir, number), n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		at.number, at.offset = number, offset
		if n -= found; n <= 0 {
			break
		}
	}
	return at, nil
}

// lastLine returns the last line of the chain in dir, nil when it has none, and the
// numbers of its segments.
func lastLine(dir string) ([]byte, []int, error) {
	numbers, err := segments(dir)
	if err != nil {
		return nil, nil, err
	}
	at, err := lastPosition(dir, numbers, 1)
	if err != nil {
		return nil, nil, err
	}
	for line, err := range at.lines {
		return line, numbers, err
	}
	return nil, numbers, nil
}

// lines yields the lines from the position to the present end of the chain, and moves
// the position behind a line when the caller asks for the next. It skips the last lines
// of a segment when the next segment repeats their numbers: a failed write left them
// behind. An error ends the lines.
func (at *position) lines(yield func([]byte, error) bool) {
	for {
		next, bound, err := at.nextSegment()
		if err != nil {
			yield(nil, err)
			return
		}
		for line, err := range wholeLines(segmentPath(at.dir, at.number), at.offset, at.split) {
			if errors.Is(err, fs.ErrNotExist) || err == nil && bound != 0 && LineNumber(line) >= bound {
				break
			}
			if err != nil {
				yield(nil, fmt.Errorf("reading segment %d: %w", at.number, err))
				return
			}
			if !yield(line, nil) {
				return
			}
			at.offset += int64(len(line)) + 1
		}
		if next == 0 {
			return
		}
		at.number, at.offset = next, 0
	}
}

// nextSegment returns the number of the segment after the position's and the number
// of its first record, each 0 when not known.
func (at *position) nextSegment() (next int, bound uint64, err error) {
	numbers, err := segments(at.dir)
	if errors.Is(err, fs.ErrNotExist) { // the chain was archived meanwhile
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	i, _ := slices.BinarySearch(numbers, at.number+1)
	if i == len(numbers) {
		return 0, 0, nil
	}
	line, err := firstLine(at.dir, numbers[i])
	return numbers[i], LineNumber(line), err
}

const headName = "HEAD"

// head is the content of a HEAD file: a record that was on disk at the time.
type head struct {
	V    int       `json:"v"`
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
}

func writeHead(dir string, at link, now time.Time) error {
	data, err := json.Marshal(head{V: formVersion, Seq: at.seq, Hash: hex.EncodeToString(at.hash[:]), Time: now.UTC()})
	if err != nil {
		return err
	}
	return files.Replace(filepath.Join(dir, headName), append(data, '\n'), 0o600)
}

func readHead(dir string) (head, error) {
	var h head
	data, err := os.ReadFile(filepath.Join(dir, headName))
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("reading %s: %w", headName, err)
	}
	if h.V != formVersion || len(h.Hash) != 64 {
		return h, fmt.Errorf("reading %s: not the form of version %d", headName, formVersion)
	}
	return h, nil
}

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
	return f, nil
}

// openSegment creates the next segment.
func (w *writer) openSegment() error {
	path := segmentPath(w.dir, w.number+1)
	f, err := w.opts.OpenFile(path)
	if err != nil {
		return err
	}
	w.number++
	w.file, w.size, w.synced = f, 0, 0
	if err := w.settle(path); err != nil {
		w.giveUp(false)
		return err
	}
	return nil
}

// settle makes the name of a new segment durable and writes the acknowledged lines
// that the last segment could not keep.
func (w *writer) settle(path string) error {
	id, err := identify(path)
	if err != nil {
		return err
	}
	w.id = id
	if err := files.SyncDir(w.dir); err != nil {
		return err
	}
	if len(w.pending) == 0 {
		return nil
	}
	if n, err := w.file.Write(w.pending); err != nil || n < len(w.pending) {
		return cmp.Or(err, io.ErrShortWrite)
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.size = int64(len(w.pending))
	w.flushed()
	return nil
}

// drop closes the segment. Its lines were flushed or do not count, so an error of
// closing is ignored.
func (w *writer) drop() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}

// giveUp ends a segment after a failure. trusted says that a flush can still be
// believed, which is not so after one that failed. Every step is a best effort:
// lines that stay behind were never acknowledged, or the next segment repeats them,
// and a verifier can tell them apart because the next segment chains to the last
// acknowledged record.
func (w *writer) giveUp(trusted bool) {
	keep := w.size
	_ = w.file.Truncate(keep)
	switch {
	case trusted && w.file.Sync() == nil:
		w.flushed()
	case w.opts.Durability == Sync:
		keep = w.synced
		_ = w.file.Truncate(keep)
	}
	w.drop()
	if keep == 0 && os.Remove(segmentPath(w.dir, w.number)) == nil {
		w.number--
	}
}
