package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

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

// Read yields the records of all chains under root from since on, merged by time,
// and ends at the end; a zero since is from the first. It holds one line of each
// chain that has records at the moment it has come to, and passes over segments
// that end before since.
//
// ErrNoRecord is about a line that is passed over, and does not end the sequence;
// an error about the files, and the end of ctx, do. No hash is checked: Verify
// does. The caller owns the records.
func Read(ctx context.Context, root string, since time.Time) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		waiting, err := sourcesSince(root, since)
		m := merge{waiting: waiting, since: since}
		defer m.close()
		for err == nil {
			var s *source
			if s, err = m.earliest(); err != nil || s == nil {
				break
			}
			if err = ctx.Err(); err != nil {
				break
			}
			r, fault := Parse(s.line)
			s.take()
			if !yield(r, fault) {
				return
			}
		}
		if err != nil {
			yield(nil, fmt.Errorf("reading audit log: %w", err))
		}
	}
}

// source is one chain of a merge.
type source struct {
	*chainReader
	at time.Time // of the next line; before the chain is opened, of its segment's first
}

// sourcesSince gives the chains that have records from since on, each at the
// segment that holds the first of them, by the time with which that begins.
func sourcesSince(root string, since time.Time) ([]*source, error) {
	names, err := chainNames(root)
	if err != nil {
		return nil, err
	}
	var all []*source
	for _, name := range names {
		dir := filepath.Join(root, name)
		numbers, err := segments(dir)
		if err != nil {
			return nil, err
		}
		line, err := lastLine(dir, numbers)
		if err != nil {
			return nil, err
		}
		if line == nil || lineTime(line).Before(since) {
			continue
		}
		c, err := readAfter(dir, numbers, func(first []byte) bool { return !lineTime(first).After(since) })
		if err != nil {
			return nil, err
		}
		first, err := firstLine(dir, c.number)
		if err != nil {
			return nil, err
		}
		all = append(all, &source{c, lineTime(first)})
	}
	slices.SortFunc(all, older)
	return all, nil
}

// older orders by the next line. Of two at one time the older chain comes first.
func older(a, b *source) int {
	return cmp.Or(a.at.Compare(b.at), strings.Compare(a.dir, b.dir))
}

// merge gives the lines of several chains by time. A chain is opened when its
// time has come, so that a long trail of short processes holds few files.
type merge struct {
	waiting, open []*source // by older
	since         time.Time
}

// earliest gives the chain whose next line is the earliest of all, nil at the
// end. The caller takes that line.
func (m *merge) earliest() (*source, error) {
	for next := m.open[:min(1, len(m.open))]; ; next = m.open[len(m.open)-1:] {
		for _, s := range next { // the one that was taken from, or that was opened
			ok, err := s.ahead(m.since)
			if err != nil {
				return nil, err
			}
			if !ok {
				s.close()
				m.open = slices.DeleteFunc(m.open, func(o *source) bool { return o == s })
			}
		}
		slices.SortFunc(m.open, older)
		if len(m.waiting) == 0 || len(m.open) > 0 && m.waiting[0].at.After(m.open[0].at) {
			break
		}
		m.open, m.waiting = append(m.open, m.waiting[0]), m.waiting[1:]
	}
	if len(m.open) == 0 {
		return nil, nil
	}
	return m.open[0], nil
}

func (m *merge) close() {
	for _, s := range m.open {
		s.close()
	}
}

// ahead goes to the next line from since on, and reports whether there is one.
func (s *source) ahead(since time.Time) (bool, error) {
	for {
		line, _, err := s.peek()
		if err != nil || line == nil {
			return false, err
		}
		at := lineTime(line)
		if at.IsZero() || !at.Before(since) { // a line without a time is for the caller to hear of
			if at.After(s.at) {
				s.at = at
			}
			return true, nil
		}
		s.take()
	}
}
