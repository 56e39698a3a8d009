package audit

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"time"
)

// Read yields the records of all chains under root from since on, merged by time,
// and ends at the end; a zero since is from the first. It holds one line of each
// chain that has records at the moment it has come to, and passes over segments
// that end before since.
//
// ErrNoRecord is about a line that is passed over, and does not end the sequence;
// an error about the files, and the end of ctx, do. No hash is checked: Verify does. The
// caller owns the records.
func Read(ctx context.Context, root string, since time.Time) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		waiting, err := chainsSince(root, since)
		m := merge{waiting: waiting, since: since}
		defer m.close()
		for err == nil {
			if err = m.ready(); err != nil || len(m.open) == 0 {
				break
			}
			if err = ctx.Err(); err != nil {
				break
			}
			r, fault := Parse(m.open[0].line)
			if err = m.next(); !yield(r, fault) {
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
	walk
	at time.Time // of the line that is next, before it is opened of its first
}

// chainsSince gives the chains that have records from since on, each at the
// segment that holds the first of them, by the time with which that begins.
func chainsSince(root string, since time.Time) ([]*source, error) {
	dirs, err := chainDirs(root)
	if err != nil {
		return nil, err
	}
	var all []*source
	for _, d := range dirs {
		dir := filepath.Join(root, d.Name())
		numbers, err := segments(dir)
		if err != nil {
			return nil, err
		}
		line, _, err := lastLine(dir, numbers)
		if err != nil {
			return nil, err
		}
		if line == nil || lineTime(line).Before(since) {
			continue
		}
		start, err := starting(dir, numbers, func(first []byte) bool { return !lineTime(first).After(since) })
		if err != nil {
			return nil, err
		}
		first, err := firstLine(segmentPath(dir, start))
		if err != nil {
			return nil, err
		}
		all = append(all, &source{walk: walk{dir: dir, segment: start}, at: lineTime(first)})
	}
	slices.SortStableFunc(all, func(a, b *source) int { return a.at.Compare(b.at) })
	return all, nil
}

// merge gives the lines of several chains by time. A chain is opened when its
// time has come, so that a long trail of short processes holds few files.
type merge struct {
	waiting []*source // by time
	open    sources   // the earliest first
	since   time.Time
}

func (m *merge) close() {
	for _, s := range m.open {
		s.close()
	}
}

// ready makes sure that the earliest line of all is that of the first open chain.
func (m *merge) ready() error {
	for len(m.waiting) > 0 && (len(m.open) == 0 || !m.waiting[0].at.After(m.open[0].at)) {
		s := m.waiting[0]
		m.waiting = m.waiting[1:]
		ok, err := s.ahead(m.since)
		if err != nil {
			s.close()
			return err
		}
		if ok {
			heap.Push(&m.open, s)
		}
	}
	return nil
}

// next takes the earliest line.
func (m *merge) next() error {
	s := m.open[0]
	s.take()
	ok, err := s.ahead(m.since)
	if !ok {
		heap.Pop(&m.open)
		s.close()
		return err
	}
	heap.Fix(&m.open, 0)
	return nil
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
			s.at = maxTime(s.at, at)
			return true, nil
		}
		s.take()
	}
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// sources is a heap by time.
type sources []*source

// Len implements heap.Interface.
func (s sources) Len() int { return len(s) }

// Less implements heap.Interface. Of two at one time the older chain goes first.
func (s sources) Less(i, j int) bool {
	if !s[i].at.Equal(s[j].at) {
		return s[i].at.Before(s[j].at)
	}
	return s[i].dir < s[j].dir
}

// Swap implements heap.Interface.
func (s sources) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

// Push implements heap.Interface.
func (s *sources) Push(x any) { *s = append(*s, x.(*source)) }

// Pop implements heap.Interface.
func (s *sources) Pop() any {
	old := *s
	x := old[len(old)-1]
	*s = old[:len(old)-1]
	return x
}
