package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit/chain"
)

// ErrNoRecord reports a line that is not a record.
var ErrNoRecord = errors.New("the line is no record")

// Parse decodes one line. It checks no hash: Verify does. The error is ErrNoRecord.
func Parse(line []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("reading audit record: %w: %w", ErrNoRecord, err)
	}
	return r, nil
}

// Read yields the records of all chains under root from since on, merged by time,
// and ends after the last; a zero since starts at the first record. See Lines.
//
// ErrNoRecord reports a line that is skipped, and does not end the sequence; an
// error about the files, and the end of ctx, do. No hash is checked: Verify does.
// The caller owns the records.
func Read(ctx context.Context, root string, since time.Time) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for line, err := range Lines(ctx, root, since) {
			if err != nil {
				yield(nil, err)
				return
			}
			if r, fault := Parse(line); !yield(r, fault) {
				return
			}
		}
	}
}

// Lines yields the lines of all chains under root from since on, merged by time, without
// their line feeds. It opens a chain when its time has come, so that a long trail of
// short processes holds few files, and skips segments that end before since. A line is
// valid until the next. An error, or the end of ctx, ends the sequence.
func Lines(ctx context.Context, root string, since time.Time) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		waiting, err := sourcesSince(root, since)
		defer func() {
			for _, s := range waiting {
				s.close()
			}
		}()
		for err == nil && len(waiting) > 0 {
			s, later := waiting[0], waiting[1:]
			if s.line != nil {
				if err = ctx.Err(); err != nil {
					break
				}
				if !yield(s.line, nil) {
					return
				}
				s.line = nil
			}
			switch err = s.advance(since); {
			case err != nil:
			case s.line == nil:
				waiting = later
			default:
				n, _ := slices.BinarySearchFunc(later, s, older) // others come first
				copy(waiting, later[:n])
				waiting[n] = s
			}
		}
		if err != nil {
			yield(nil, fmt.Errorf("reading audit log: %w", err))
		}
	}
}

// ErrGone reports a record that is not in the trail at hand.
var ErrGone = errors.New("the record is not in this trail")

// LineAt returns the line of the record with a number in a chain under root, without its line
// feed. It reads the record's segment up to there. The error is ErrGone when it is not there.
func LineAt(root, instance string, number uint64) ([]byte, error) {
	if instance != filepath.Base(instance) {
		return nil, ErrGone
	}
	dir := filepath.Join(root, instance)
	numbers, err := chain.Segments(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(numbers) == 0 {
		return nil, ErrGone
	}
	var at *chain.Position
	if err == nil {
		at, err = chain.PositionAfter(dir, numbers, func(first []byte) bool { return chain.LineNumber(first) <= number })
	}
	if err != nil {
		return nil, fmt.Errorf("reading audit log: %w", err)
	}
	for line, err := range at.Lines {
		switch n := chain.LineNumber(line); {
		case err != nil:
			return nil, fmt.Errorf("reading audit log: %w", err)
		case n == number:
			return bytes.Clone(line), nil
		case n > number:
			return nil, ErrGone
		}
	}
	return nil, ErrGone
}

// source is one chain of Lines.
type source struct {
	*chain.Position
	line  []byte                       // the next, nil = not known
	at    time.Time                    // of line; before the chain is opened, of its segment's first
	next  func() ([]byte, error, bool) // nil = not opened
	close func()
}

// sourcesSince returns the chains that have records from since on, ordered by the
// time of the first record in the segment that each begins with.
func sourcesSince(root string, since time.Time) ([]*source, error) {
	var all []*source
	err := chain.Each(root, func(dir string) error {
		line, numbers, err := chain.LastLine(dir)
		if err != nil || line == nil || chain.LineTime(line).Before(since) {
			return err
		}
		at, err := chain.PositionAfter(dir, numbers, func(first []byte) bool { return !chain.LineTime(first).After(since) })
		if err != nil {
			return err
		}
		first, err := chain.FirstLine(dir, at.Number)
		all = append(all, &source{Position: at, at: chain.LineTime(first), close: func() {}})
		return err
	})
	slices.SortFunc(all, older)
	return all, err
}

// older orders chains by their next line, and those with lines of the same time by
// name.
func older(a, b *source) int {
	return cmp.Or(a.at.Compare(b.at), strings.Compare(a.Dir, b.Dir))
}

// advance finds the next line from since on; there may be none. A line without a time
// counts too: the caller has to report it.
func (s *source) advance(since time.Time) error {
	if s.next == nil {
		s.next, s.close = iter.Pull2(s.Lines)
	}
	for {
		line, err, ok := s.next()
		if err != nil || !ok {
			return err
		}
		at := chain.LineTime(line)
		if at.IsZero() || !at.Before(since) {
			if s.line = line; at.After(s.at) {
				s.at = at
			}
			return nil
		}
	}
}

// Holds reports whether the trail under root still has a record, and with it all later ones of
// its chain: archiving removes the oldest first.
func Holds(root, instance string, seq uint64) bool {
	dir := filepath.Join(root, instance)
	numbers, err := chain.Segments(dir)
	if err != nil || len(numbers) == 0 {
		return false
	}
	line, err := chain.FirstLine(dir, numbers[0])
	first := chain.LineNumber(line)
	return err == nil && first > 0 && first <= seq
}
