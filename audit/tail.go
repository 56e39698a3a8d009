package audit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/wait"
)

// TailOptions say what Tail yields.
type TailOptions struct {
	Records int           // the last so many records of all chains together
	Follow  bool          // then new records as they arrive, until the context ends
	Poll    time.Duration // between two looks for new ones; 0 = 250 ms
}

// Tail yields lines of the log as they are in the files, without the line feed, the
// oldest first, with the chains under root merged by time. The caller owns each
// line. An error ends the sequence; with TailOptions.Follow the end of ctx ends it
// without an error. Tail needs no running server and checks no hashes.
func Tail(ctx context.Context, root string, opts TailOptions) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		chains, last := map[string]*chain.Position{}, max(0, opts.Records)
		lines, err := newLines(root, chains, last)
		for lines = lines[max(0, len(lines)-last):]; ; lines, err = newLines(root, chains, math.MaxInt) {
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
		}
	}
}

// newLines returns the lines after the positions in chains, by directory, and the last n
// of each chain that chains lacks, ordered by time.
func newLines(root string, chains map[string]*chain.Position, n int) (all [][]byte, err error) {
	err = chain.Each(root, func(dir string) error {
		if chains[dir] == nil {
			numbers, err := chain.Segments(dir)
			if err != nil {
				return err
			}
			if chains[dir], err = chain.LastPosition(dir, numbers, n); err != nil {
				return err
			}
		}
		if chains[dir].AtEnd() {
			return nil
		}
		for line, err := range chains[dir].Lines {
			if err != nil {
				return err
			}
			all = append(all, bytes.Clone(line))
		}
		return nil
	})
	slices.SortStableFunc(all, func(a, b []byte) int { return chain.LineTime(a).Compare(chain.LineTime(b)) })
	return all, err
}
