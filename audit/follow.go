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

// Cursor is how far somebody has come in the chains of a log: instance → number
// of the last record that was dealt with. It is JSON, to be kept.
type Cursor map[string]uint64

// quietAfter is how long a chain must have been still for its writer to be taken
// for dead: HEAD then follows no longer. It is more than a writer takes to note it.
const quietAfter = 5 * time.Second

// Follow yields every record of every chain under root that comes after its place
// in after, then those that arrive, until ctx ends; poll is the time between two
// looks, 0 = 250 ms. Records of one chain come in their order, those of different
// chains in none. A record is yielded when HEAD vouches for it, which is up to a
// second after it was written, so that none is yielded that a failed write then
// takes back; those of a process that died, when its chain has been still for
// 5 s. After a failed write a record may be yielded twice.
//
// An error does not end the sequence: it is ErrNoRecord for a line that is passed
// over, or about files that could not be read, which are tried again at the next look.
// No hash is checked: Verify does. The caller owns the records; after is only
// read, before the first look.
func Follow(ctx context.Context, root string, after Cursor, poll time.Duration) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		f := follower{root: root, after: maps.Clone(after), chains: map[string]*followed{}}
		defer f.close()
		for {
			if !f.look(ctx, yield) || !wait.For(ctx, cmp.Or(poll, 250*time.Millisecond)) {
				return
			}
		}
	}
}

// Ends gives the ends of the chains under root: Follow with it yields what arrives
// from now on.
func Ends(root string) (Cursor, error) {
	names, err := chainNames(root)
	ends := Cursor{}
	for _, name := range names {
		dir := filepath.Join(root, name)
		var numbers []int
		var line []byte
		if numbers, err = segments(dir); err == nil {
			line, err = lastLine(dir, numbers)
		}
		if err != nil {
			break
		}
		ends[name] = lineNumber(line)
	}
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
	after  uint64       // number of the last record that was yielded
	reader *chainReader // nil = not begun
	asleep time.Time    // modification time of the directory when nothing was left and nobody wrote
	ended  bool         // its close record was yielded
}

func (f *follower) close() {
	for _, c := range f.chains {
		c.closeFile()
	}
}

func (c *followed) closeFile() {
	if c.reader != nil {
		c.reader.close()
	}
}

// look yields what is new, and reports whether to go on.
func (f *follower) look(ctx context.Context, yield func(*Record, error) bool) bool {
	names, err := chainNames(f.root)
	if err != nil {
		return yield(nil, fmt.Errorf("following audit log: %w", err))
	}
	for _, name := range names {
		c := f.chains[name]
		if c == nil {
			c = &followed{dir: filepath.Join(f.root, name), after: f.after[name]}
			f.chains[name] = c
		}
		err := c.look(ctx, yield)
		if errors.Is(err, errEnough) || ctx.Err() != nil {
			return false
		}
		if err != nil && !yield(nil, fmt.Errorf("following audit log %s: %w", name, err)) {
			return false
		}
	}
	return true
}

// errEnough says that the caller wants no more.
var errEnough = errors.New("enough")

// look yields what is new in the chain. A chain that is quiet and has nothing
// left is not looked at again until its directory changes.
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
	if err := c.begin(numbers, limit); err != nil {
		return err
	}
	if err := c.yield(ctx, limit, yield); err != nil {
		return err
	}
	if quiet {
		c.asleep = info.ModTime()
		c.closeFile()
	}
	return nil
}

// begin opens the chain once it has a record after those that were yielded, at
// the segment that has the first of them.
func (c *followed) begin(numbers []int, limit uint64) error {
	if c.reader != nil || limit <= c.after {
		return nil
	}
	line, err := lastLine(c.dir, numbers)
	if number := lineNumber(line); err != nil || number != 0 && number <= c.after {
		return err
	}
	c.reader, err = readAfter(c.dir, numbers, func(first []byte) bool { return lineNumber(first) <= c.after+1 })
	return err
}

// yield yields the records up to limit.
func (c *followed) yield(ctx context.Context, limit uint64, yield func(*Record, error) bool) error {
	if c.reader == nil || limit <= c.after {
		return nil
	}
	for segment := c.reader.number; ctx.Err() == nil; {
		line, number, err := c.reader.peek()
		if err != nil || line == nil || number > limit {
			return err
		}
		if c.reader.number != segment {
			// What a segment repeats after a failed write may be other records.
			segment, c.after = c.reader.number, min(c.after, max(number, 1)-1)
		}
		if number != 0 && number <= c.after {
			c.reader.take()
			continue
		}
		r, err := Parse(line)
		c.reader.take()
		if err == nil {
			c.after, c.ended = r.Seq, r.Kind == KindClose
		}
		if !yield(r, err) {
			return errEnough
		}
	}
	return nil
}
