package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	dirs, err := chainDirs(root)
	if err != nil {
		return nil, fmt.Errorf("reading audit log: %w", err)
	}
	ends := Cursor{}
	for _, d := range dirs {
		dir := filepath.Join(root, d.Name())
		numbers, err := segments(dir)
		if err != nil {
			return nil, fmt.Errorf("reading audit log: %w", err)
		}
		line, _, err := lastLine(dir, numbers)
		if err != nil {
			return nil, fmt.Errorf("reading audit log: %w", err)
		}
		ends[d.Name()] = lineNumber(line)
	}
	return ends, nil
}

// chainDirs gives the directories under root, none where there is no root yet.
func chainDirs(root string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var dirs []os.DirEntry
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e)
		}
	}
	return dirs, err
}

// follower is one Follow.
type follower struct {
	root   string
	after  Cursor
	chains map[string]*followed
}

// followed is one chain.
type followed struct {
	dir    string
	after  uint64    // number of the last record that was yielded
	walk   *walk     // nil = not begun
	asleep time.Time // modification time of the directory when there was nothing left and nobody who writes
	ended  bool      // its close record was yielded
}

func (f *follower) close() {
	for _, c := range f.chains {
		if c.walk != nil {
			c.walk.close()
		}
	}
}

// look yields what is new, and reports whether to go on.
func (f *follower) look(ctx context.Context, yield func(*Record, error) bool) bool {
	dirs, err := chainDirs(f.root)
	if err != nil {
		return yield(nil, fmt.Errorf("following audit log: %w", err))
	}
	for _, d := range dirs {
		c := f.chains[d.Name()]
		if c == nil {
			c = &followed{dir: filepath.Join(f.root, d.Name()), after: f.after[d.Name()]}
			f.chains[d.Name()] = c
		}
		info, err := d.Info()
		if c.ended || err == nil && info.ModTime().Equal(c.asleep) {
			continue
		}
		c.asleep = time.Time{}
		quiet, err := c.look(ctx, yield)
		switch {
		case errors.Is(err, errEnough) || ctx.Err() != nil:
			return false
		case err != nil:
			if !yield(nil, fmt.Errorf("following audit log %s: %w", d.Name(), err)) {
				return false
			}
		case quiet && info != nil:
			c.asleep = info.ModTime()
			c.rest()
		}
	}
	return true
}

// errEnough says that the caller wants no more.
var errEnough = errors.New("enough")

// rest gives back what an idle chain needs not hold.
func (c *followed) rest() {
	if c.walk != nil {
		c.walk.close()
	}
}

// look yields what is new in the chain, and reports whether it is quiet and has
// nothing left. HEAD is read first: it vouches for what was on disk before the
// segments were listed.
func (c *followed) look(ctx context.Context, yield func(*Record, error) bool) (quiet bool, err error) {
	h, _ := readHead(c.dir) // one that is missing or broken vouches for nothing
	numbers, err := segments(c.dir)
	if err != nil || len(numbers) == 0 {
		return false, err
	}
	line, written, err := lastLine(c.dir, numbers)
	if err != nil {
		return false, err
	}
	limit := h.Seq
	if quiet = time.Since(written) > quietAfter; quiet {
		limit = math.MaxUint64
	}
	if number := lineNumber(line); limit <= c.after || number != 0 && number <= c.after && (c.walk == nil || c.walk.segment == numbers[len(numbers)-1]) {
		return quiet, nil
	}
	if c.walk == nil {
		start, err := starting(c.dir, numbers, func(first []byte) bool { return lineNumber(first) <= c.after+1 })
		if err != nil {
			return false, err
		}
		c.walk = &walk{dir: c.dir, segment: start}
	}
	return quiet, c.yield(ctx, limit, yield)
}

// yield yields the records up to limit.
func (c *followed) yield(ctx context.Context, limit uint64, yield func(*Record, error) bool) error {
	for segment := c.walk.segment; ctx.Err() == nil; {
		line, number, err := c.walk.peek()
		if err != nil || line == nil || number > limit {
			return err
		}
		if c.walk.segment != segment {
			// What a segment repeats after a failed write may be other records.
			segment, c.after = c.walk.segment, min(c.after, max(number, 1)-1)
		}
		if number != 0 && number <= c.after {
			c.walk.take()
			continue
		}
		r, err := Parse(line)
		c.walk.take()
		if err == nil {
			c.after, c.ended = r.Seq, r.Kind == KindClose
		}
		if !yield(r, err) {
			return errEnough
		}
	}
	return nil
}
