package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// Cursor is a position in the chains of a log: instance → number of the last record
// that was dealt with. Callers may store it as JSON.
type Cursor map[string]uint64

// quietAfter is how long a chain must be unchanged before its writer counts as dead
// and its last records are yielded although HEAD does not name them. It is longer
// than a writer takes to update HEAD.
const quietAfter = 5 * time.Second

// Follow yields the records of every chain under root that come after its position
// in after, then new records as they arrive, until ctx ends; poll is the time between
// two looks at the files, 0 = 250 ms. Records of one chain come in their order;
// between chains there is no order. A record is yielded once HEAD vouches for it,
// up to a second after it was written, so that no record is yielded that a failed
// write then takes back; the last records of a dead process are yielded when its
// chain has been unchanged for 5 s. After a failed write a record may be yielded
// twice.
//
// An error does not end the sequence: it is ErrNoRecord for a line that is skipped,
// or reports files that could not be read, which the next look tries again. No hash
// is checked: Verify does. The caller owns the records; after is read only once,
// before the first look.
func Follow(ctx context.Context, root string, after Cursor, poll time.Duration) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		f := follower{root: root, after: maps.Clone(after), chains: map[string]*followed{}}
		for {
			if !f.look(ctx, yield) || !wait.For(ctx, cmp.Or(poll, 250*time.Millisecond)) {
				return
			}
		}
	}
}

// Ends returns the ends of the chains under root: Follow yields what is recorded
// after them.
func Ends(root string) (Cursor, error) {
	ends := Cursor{}
	err := eachChain(root, func(dir string) error {
		line, _, err := lastLine(dir)
		ends[filepath.Base(dir)] = lineNumber(line)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading audit log: %w", err)
	}
	return ends, nil
}

// follower is one Follow.
type follower struct {
	root   string
	after  Cursor
	chains map[string]*followed // by name
}

// followed is one chain.
type followed struct {
	dir    string
	after  uint64    // number of the last record that was yielded
	at     *position // nil = no record was looked for yet
	asleep time.Time // modification time of the directory when it had no more records and no living writer
	ended  bool      // its close record was yielded
}

// look yields the new records of all chains, and reports whether to continue.
func (f *follower) look(ctx context.Context, yield func(*Record, error) bool) bool {
	err := eachChain(f.root, func(dir string) error {
		name := filepath.Base(dir)
		if f.chains[name] == nil {
			f.chains[name] = &followed{dir: dir, after: f.after[name]}
		}
		err := f.chains[name].look(ctx, yield)
		switch {
		case ctx.Err() != nil || errors.Is(err, errEnough):
			return errEnough
		case err != nil && !yield(nil, fmt.Errorf("following audit log %s: %w", name, err)):
			return errEnough
		}
		return nil
	})
	return err == nil || !errors.Is(err, errEnough) && yield(nil, fmt.Errorf("following audit log: %w", err))
}

// errEnough reports that the caller wants no more records.
var errEnough = errors.New("enough")

// look yields the new records of the chain. A chain that is quiet and has no more
// records is not looked at again until its directory changes.
func (c *followed) look(ctx context.Context, yield func(*Record, error) bool) error {
	info, err := os.Stat(c.dir)
	if err != nil || c.ended || info.ModTime().Equal(c.asleep) {
		return err
	}
	c.asleep = time.Time{}
	// HEAD is read before the segments are listed: it vouches for what was on disk.
	h, _ := readHead(c.dir) // one that is missing or broken vouches for nothing
	numbers, err := segments(c.dir)
	if err != nil || len(numbers) == 0 {
		return err
	}
	last, err := os.Stat(segmentPath(c.dir, numbers[len(numbers)-1]))
	if err != nil {
		return err
	}
	limit, quiet := h.Seq, time.Since(last.ModTime()) > quietAfter
	if quiet {
		limit = math.MaxUint64
	}
	if limit > c.after {
		if err := c.yield(ctx, numbers, limit, yield); err != nil {
			return err
		}
	}
	if quiet {
		c.asleep = info.ModTime()
	}
	return nil
}

// begin finds the segment of the first record that was not yielded; when there is no
// such record, c.at stays nil.
func (c *followed) begin(numbers []int) error {
	line, _, err := lastLine(c.dir)
	if number := lineNumber(line); err != nil || number != 0 && number <= c.after {
		return err
	}
	c.at, err = positionAfter(c.dir, numbers, func(first []byte) bool { return lineNumber(first) <= c.after+1 })
	return err
}

// yield yields the records up to limit.
func (c *followed) yield(ctx context.Context, numbers []int, limit uint64, yield func(*Record, error) bool) error {
	if c.at == nil {
		if err := c.begin(numbers); err != nil || c.at == nil {
			return err
		}
	}
	segment := c.at.number
	for line, err := range c.at.lines {
		number := lineNumber(line)
		if err != nil || number > limit || ctx.Err() != nil {
			return err
		}
		if c.at.number != segment {
			// After a failed write a segment may repeat numbers with other records.
			segment, c.after = c.at.number, min(c.after, max(number, 1)-1)
		}
		if number != 0 && number <= c.after {
			continue
		}
		r, err := Parse(line)
		if err == nil {
			c.after, c.ended = r.Seq, r.Kind == KindClose
		}
		if !yield(r, err) {
			return errEnough
		}
	}
	return nil
}
