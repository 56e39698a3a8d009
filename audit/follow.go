package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/wait"
)

// Cursor is a position in the chains of a log: instance → number of the last record
// that was dealt with. Callers may store it as JSON.
type Cursor map[string]uint64

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
		f := NewFollower(root, after)
		for {
			for line, err := range f.Next(ctx) {
				var r *Record
				if err == nil {
					r, err = Parse(line)
				}
				if !yield(r, err) {
					return
				}
			}
			if !wait.For(ctx, cmp.Or(poll, 250*time.Millisecond)) {
				return
			}
		}
	}
}

// Ends returns the ends of the chains under root: Follow yields what is recorded
// after them.
func Ends(root string) (Cursor, error) {
	ends := Cursor{}
	err := chain.Each(root, func(dir string) error {
		line, _, err := chain.LastLine(dir)
		ends[filepath.Base(dir)] = chain.LineNumber(line)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading audit log: %w", err)
	}
	return ends, nil
}

// Begins returns the numbers of the oldest records of the chains under root: those before them
// were archived.
func Begins(root string) (Cursor, error) {
	begins := Cursor{}
	err := chain.Each(root, func(dir string) error {
		numbers, err := chain.Segments(dir)
		if err != nil || len(numbers) == 0 {
			return err
		}
		line, err := chain.FirstLine(dir, numbers[0])
		begins[filepath.Base(dir)] = chain.LineNumber(line)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading audit log: %w", err)
	}
	return begins, nil
}

// A Follower yields lines as Follow yields records, one look at a time. It is used by one
// goroutine at a time; Unread may be called by any.
type Follower struct {
	root  string
	after Cursor

	mu     sync.Mutex           // protects the fields below; Next holds it
	chains map[string]*followed // by name
	chain  string               // of the line that Next yields
}

// NewFollower returns a Follower of the records after a position. It reads after only now.
func NewFollower(root string, after Cursor) *Follower {
	return &Follower{root: root, after: maps.Clone(after), chains: map[string]*followed{}}
}

// Next yields the lines that HEAD vouches for and that were not yielded before, without their
// line feeds, and ends after the last. A line is valid until the next; one that is no record is
// yielded too. An error reports files that could not be read, which the next look tries again. No
// hash is checked: Verify does.
func (f *Follower) Next(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.look(ctx, yield)
	}
}

// Chain returns the name of the chain of the line that Next yields now.
func (f *Follower) Chain() string { return f.chain }

// Unread reports whether there are records that Next has not yielded, or is yielding.
func (f *Follower) Unread() bool {
	if !f.mu.TryLock() {
		return true
	}
	defer f.mu.Unlock()
	for _, c := range f.chains {
		if c.unread() {
			return true
		}
	}
	return false
}

// followed is one chain.
type followed struct {
	dir    string
	after  uint64          // number of the last record that was yielded
	at     *chain.Position // nil = no record was looked for yet
	asleep time.Time       // modification time of the directory when it had no more records and no living writer
	ended  bool            // its close record was yielded
}

// look yields the new records of all chains, and reports whether to continue.
func (f *Follower) look(ctx context.Context, yield func([]byte, error) bool) bool {
	err := chain.Each(f.root, func(dir string) error {
		name := filepath.Base(dir)
		f.chain = name
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

// unread reports whether the chain has records after the last that was yielded.
func (c *followed) unread() bool {
	if c.ended || c.at != nil && c.at.AtEnd() {
		return false
	}
	if info, err := os.Stat(c.dir); err != nil || info.ModTime().Equal(c.asleep) {
		return false
	}
	line, _, err := chain.LastLine(c.dir) // half a line may follow it
	return err == nil && chain.LineNumber(line) > c.after
}

// isClose reports whether a line is a close record. The member comes before every text that a
// caller can choose.
func isClose(line []byte) bool {
	i := bytes.Index(line, []byte(`"kind":`))
	return i >= 0 && bytes.HasPrefix(line[i:], closeKind)
}

// look yields the new records of the chain. A chain that is quiet and has no more
// records is not looked at again until its directory changes.
func (c *followed) look(ctx context.Context, yield func([]byte, error) bool) error {
	if c.ended {
		return nil
	}
	info, err := os.Stat(c.dir)
	if err != nil || info.ModTime().Equal(c.asleep) {
		return err
	}
	c.asleep = time.Time{}
	// HEAD is read before the segments are listed: it vouches for what was on disk.
	h, _ := chain.ReadHead(c.dir) // one that is missing or broken vouches for nothing
	numbers, err := chain.Segments(c.dir)
	if err != nil || len(numbers) == 0 {
		return err
	}
	last, err := os.Stat(chain.Path(c.dir, numbers[len(numbers)-1]))
	if err != nil {
		return err
	}
	limit, quiet := h.Seq, time.Since(last.ModTime()) > chain.QuietAfter
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
	line, _, err := chain.LastLine(c.dir)
	if number := chain.LineNumber(line); err != nil || number != 0 && number <= c.after {
		return err
	}
	c.at, err = chain.PositionAfter(c.dir, numbers, func(first []byte) bool { return chain.LineNumber(first) <= c.after+1 })
	return err
}

// yield yields the records up to limit.
func (c *followed) yield(ctx context.Context, numbers []int, limit uint64, yield func([]byte, error) bool) error {
	if c.at == nil {
		if err := c.begin(numbers); err != nil || c.at == nil {
			return err
		}
	}
	segment := c.at.Number
	for line, err := range c.at.Lines {
		number := chain.LineNumber(line)
		if err != nil || number > limit || ctx.Err() != nil {
			return err
		}
		if c.at.Number != segment {
			// After a failed write a segment may repeat numbers with other records.
			segment, c.after = c.at.Number, min(c.after, max(number, 1)-1)
		}
		if number != 0 && number <= c.after {
			continue
		}
		if number != 0 {
			c.after, c.ended = number, isClose(line)
		}
		if !yield(line, nil) {
			return errEnough
		}
	}
	return nil
}
