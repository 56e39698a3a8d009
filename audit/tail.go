package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// TailOptions say what Tail yields.
type TailOptions struct {
	Records int           // the last so many records of all chains together
	Follow  bool          // then those that arrive, until the context ends
	Poll    time.Duration // between two looks for new ones; 0 = 250 ms
}

// Tail yields lines of the log as they stand in the files, without the line
// feed, oldest first, the chains under root merged by time. The caller owns
// each line. An error ends the sequence; with Follow the end of ctx ends it
// without one. It needs no running server and checks no hashes.
func Tail(ctx context.Context, root string, opts TailOptions) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		t := tail{root: root, offsets: map[string]int64{}}
		lines, err := t.last(opts.Records)
		for {
			if err != nil {
				yield(nil, fmt.Errorf("reading audit log: %w", err))
				return
			}
			for _, l := range lines {
				if !yield(l, nil) {
					return
				}
			}
			if !opts.Follow || !wait.For(ctx, cmp.Or(opts.Poll, 250*time.Millisecond)) {
				return
			}
			lines, err = t.fresh()
		}
	}
}

// ErrNoRecord is returned for a line that is no record.
var ErrNoRecord = errors.New("the line is no record")

// Parse decodes one line. It checks no hash: Verify does. The error is ErrNoRecord.
func Parse(line []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("reading audit record: %w: %w", ErrNoRecord, err)
	}
	return r, nil
}

// tail remembers how far each segment has been read.
type tail struct {
	root    string
	offsets map[string]int64
}

// chains gives the segment paths of every chain, in order.
func (t *tail) chains() ([][]string, error) {
	dirs, err := os.ReadDir(t.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no process has written yet
	}
	if err != nil {
		return nil, err
	}
	var all [][]string
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		dir := filepath.Join(t.root, d.Name())
		numbers, err := segments(dir)
		if err != nil {
			return nil, err
		}
		var paths []string
		for _, n := range numbers {
			paths = append(paths, filepath.Join(dir, fmt.Sprintf("%06d.jsonl", n)))
		}
		all = append(all, paths)
	}
	return all, nil
}

// last gives the last n lines of all chains and sets every offset to the end.
func (t *tail) last(n int) ([][]byte, error) {
	chains, err := t.chains()
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, paths := range chains {
		found := 0
		for _, path := range slices.Backward(paths) {
			lines, end, err := lastLines(path, n-found)
			if err != nil {
				return nil, err
			}
			t.offsets[path] = end
			found += len(lines)
			all = append(all, lines...)
		}
	}
	sortLines(all)
	return all[max(0, len(all)-n):], nil
}

// fresh gives the whole lines that have arrived since the last look.
func (t *tail) fresh() ([][]byte, error) {
	chains, err := t.chains()
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, path := range slices.Concat(chains...) {
		data, err := readFrom(path, t.offsets[path])
		if err != nil {
			return nil, err
		}
		whole := data[:bytes.LastIndexByte(data, '\n')+1]
		t.offsets[path] += int64(len(whole))
		all = append(all, splitLines(whole)...)
	}
	sortLines(all)
	return all, nil
}

func splitLines(whole []byte) [][]byte {
	if len(whole) == 0 {
		return nil
	}
	return bytes.Split(whole[:len(whole)-1], []byte{'\n'})
}

// sortLines orders by time; lines of one chain keep their order.
func sortLines(lines [][]byte) {
	slices.SortStableFunc(lines, func(a, b []byte) int { return lineTime(a).Compare(lineTime(b)) })
}

// lineTime reads the time of a line without decoding it; the member stands
// before anything that a caller can choose.
func lineTime(line []byte) time.Time {
	_, rest, _ := bytes.Cut(line, []byte(`"time":"`))
	text, _, _ := bytes.Cut(rest, []byte{'"'})
	at, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return time.Time{}
	}
	return at
}

func readFrom(path string, offset int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// lastLines gives the last n whole lines of a file and where the last of them
// ends. It reads backwards, as far as it must.
func lastLines(path string, n int) ([][]byte, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	size, data := at, []byte(nil)
	for at > 0 && bytes.Count(data, []byte{'\n'}) <= max(n, 0) {
		step := min(at, int64(max(64<<10, len(data))))
		part := make([]byte, step, step+int64(len(data)))
		at -= step
		if _, err := f.ReadAt(part, at); err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		data = append(part, data...)
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	end := size - int64(len(data)-whole)
	lines := splitLines(data[:whole])
	return lines[max(0, len(lines)-max(n, 0)):], end, nil
}
