package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit/chain"
)

// Watch reads the records of one kind of every chain under a root as they are written.
// Other than Follow it does not wait for HEAD to vouch for a record: who must not miss
// a record sees rather one that a failed write then takes back. A Watch is used by one
// goroutine at a time.
type Watch struct {
	root   string
	kinds  []Kind
	since  time.Time
	chains map[string]*watched // by name
}

// watched is one chain. Its position is nil when it is closed, or ended before since.
type watched struct{ at *chain.Position }

// NewWatch returns a Watch of the records of some kinds from since on that name a ticket.
func NewWatch(root string, since time.Time, kinds ...Kind) *Watch {
	return &Watch{root: root, kinds: kinds, since: since, chains: map[string]*watched{}}
}

// may reports whether a line may be a record of w: texts in it can look like one.
func (w *Watch) may(line []byte) bool {
	return bytes.Contains(line, namesTicket) && slices.ContainsFunc(w.kinds, func(k Kind) bool { return bytes.Contains(line, fmt.Appendf(nil, `"kind":%q`, k)) })
}

var namesTicket = []byte(`"ticket":"`)

// Next yields the records that are in the files and that it did not yield before; those
// of one chain in order, some older than since. It ends after the last. ErrNoRecord
// reports a line that is skipped; any other error ends the sequence, and records may
// then be missing. No hash is checked: Verify does. The caller owns the records.
func (w *Watch) Next(ctx context.Context) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		err := chain.Each(w.root, func(dir string) error { return w.read(ctx, dir, yield) })
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, fmt.Errorf("watching audit log: %w", err))
		}
	}
}

// read yields what is new in one chain.
func (w *Watch) read(ctx context.Context, dir string, yield func(*Record, error) bool) (err error) {
	c := w.chains[filepath.Base(dir)]
	if c == nil {
		if c, err = w.begin(dir); err != nil || c == nil {
			return err
		}
		w.chains[filepath.Base(dir)] = c
	}
	if c.at == nil || c.at.AtEnd() {
		return nil
	}
	ended := false
	for line, err := range c.at.Lines {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		ours := w.may(line)
		if !ours && !bytes.Contains(line, closeKind) {
			continue
		}
		r, err := Parse(line)
		ended = err == nil && r.Kind == KindClose
		if ours && (err != nil || r.Ticket != "" && slices.Contains(w.kinds, r.Kind)) && !yield(r, err) {
			return errEnough
		}
	}
	if ended {
		c.at = nil
	}
	return nil
}

var closeKind = fmt.Appendf(nil, `"kind":%q`, KindClose)

// begin finds the place in a chain from which records may be from since on. A chain
// without a segment is nil: its first one may come.
func (w *Watch) begin(dir string) (*watched, error) {
	line, numbers, err := chain.LastLine(dir)
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	if line == nil || !chain.LineTime(line).Before(w.since) {
		at, err := chain.PositionAfter(dir, numbers, func(first []byte) bool { return !chain.LineTime(first).After(w.since) })
		return &watched{at}, err
	}
	at, err := chain.LastPosition(dir, numbers, 0)
	return &watched{at}, err
}
