package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
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
// and ends after the last; a zero since starts at the first record. It opens a chain
// when its time has come, so that a long trail of short processes holds few files,
// and skips segments that end before since.
//
// ErrNoRecord reports a line that is skipped, and does not end the sequence; an
// error about the files, and the end of ctx, do. No hash is checked: Verify does.
// The caller owns the records.
func Read(ctx context.Context, root string, since time.Time) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		waiting, err := sourcesSince(root, since)
		defer func() {
			for _, s := range waiting {
				s.close()
			}
		}()
		for err == nil && len(waiting) > 0 {
			s, later := waiting[0], waiting[1:]
			var line []byte
			if line, err = s.nextSince(since); err != nil {
				break
			}
			if line == nil {
				s.close()
				waiting = later
				continue
			}
			if n, _ := slices.BinarySearchFunc(later, s, older); n > 0 { // others come first
				copy(waiting, later[:n])
				waiting[n] = s
				continue
			}
			if err = ctx.Err(); err != nil {
				break
			}
			r, fault := Parse(line)
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

// source is one chain of a Read.
type source struct {
	*chainReader
	at time.Time // of the next line; before the chain is opened, of its segment's first
}

// sourcesSince returns the chains that have records from since on, ordered by the
// time of the first record in the segment that each begins with.
func sourcesSince(root string, since time.Time) ([]*source, error) {
	var all []*source
	err := eachChain(root, func(dir string) error {
		line, numbers, err := lastLine(dir)
		if err != nil || line == nil || lineTime(line).Before(since) {
			return err
		}
		c, err := readAfter(dir, numbers, func(first []byte) bool { return !lineTime(first).After(since) })
		if err != nil {
			return err
		}
		first, err := firstLine(dir, c.number)
		all = append(all, &source{c, lineTime(first)})
		return err
	})
	slices.SortFunc(all, older)
	return all, err
}

// older orders chains by their next line, and those with lines of the same time by
// name.
func older(a, b *source) int {
	return cmp.Or(a.at.Compare(b.at), strings.Compare(a.dir, b.dir))
}

// nextSince returns the next line from since on, nil when there is none. A line
// without a time is returned too: the caller has to report it.
func (s *source) nextSince(since time.Time) ([]byte, error) {
	for {
		line, _, err := s.peek()
		if err != nil || line == nil {
			return nil, err
		}
		at := lineTime(line)
		if at.IsZero() || !at.Before(since) {
			if at.After(s.at) {
				s.at = at
			}
			return line, nil
		}
		s.take()
	}
}
