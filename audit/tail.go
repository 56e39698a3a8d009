package audit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
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
		t := tail{root: root, chains: map[string]*chainReader{}}
		lines, err := t.look(max(0, opts.Records))
		lines = lines[max(0, len(lines)-max(0, opts.Records)):]
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
			lines, err = t.look(math.MaxInt)
		}
	}
}

// tail is one Tail.
type tail struct {
	root   string
	chains map[string]*chainReader // by name
}

// look gives the lines that have arrived since the last look, and the last n of
// each chain that is new, by time. No file stays open.
func (t *tail) look(n int) ([][]byte, error) {
	names, err := chainNames(t.root)
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, name := range names {
		if t.chains[name] == nil {
			dir := filepath.Join(t.root, name)
			numbers, err := segments(dir)
			if err != nil {
				return nil, err
			}
			if t.chains[name], err = readLast(dir, numbers, n); err != nil {
				return nil, err
			}
		}
		lines, err := t.chains[name].rest()
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	slices.SortStableFunc(all, func(a, b []byte) int { return lineTime(a).Compare(lineTime(b)) })
	return all, nil
}

// rest takes every line that there is now, and closes the file.
func (c *chainReader) rest() ([][]byte, error) {
	defer c.close()
	var all [][]byte
	for {
		line, _, err := c.peek()
		if err != nil || line == nil {
			return all, err
		}
		all = append(all, bytes.Clone(line))
		c.take()
	}
}
