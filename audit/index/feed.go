package index

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
)

// ErrSlow ends a Follow whose reader does not keep up.
var ErrSlow = errors.New("the reader does not keep up with new calls")

const (
	feedRoom = 2 * maxRows // the calls of a second come at once
	oldCall  = time.Hour   // a call from before is not new, whenever it comes into the index
)

// A feed reads what comes into the index, once for all who follow it. It runs while somebody does.
type feed struct {
	mu      sync.Mutex // protects the fields below
	readers map[*subscriber]bool
	stop    context.CancelFunc
	done    chan struct{}
}

type subscriber struct {
	q     Query
	terms []uint64
	since time.Time
	calls chan *entry // closed when the reader is too slow
}

// Follow yields the calls of q that come into the index from now on, until ctx ends; one that lasts
// comes again with its outcome. Since, Until, Cursor and Limit do not count. The error, which ends the
// sequence, is ErrQuery or ErrSlow. The sequence must be used, once.
func (x *Index) Follow(ctx context.Context, q Query) iter.Seq2[Call, error] {
	q.Since, q.Until, q.Cursor, q.Limit = time.Time{}, time.Time{}, "", 0
	err := q.Check()
	s := &subscriber{q: q, terms: q.terms(), since: x.opts.Now().Add(-oldCall), calls: make(chan *entry, feedRoom)}
	x.subscribe(s)
	return func(yield func(Call, error) bool) {
		defer x.unsubscribe(s)
		if err != nil {
			yield(Call{}, err)
			return
		}
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-s.calls:
				if !ok {
					yield(Call{}, ErrSlow)
					return
				}
				if (q.Decidable == nil || q.Decidable(e.Ticket)) && !yield(e.Call, nil) {
					return
				}
			}
		}
	}
}

func (x *Index) subscribe(s *subscriber) {
	f := &x.feed
	ctx, stop := context.WithCancel(context.Background())
	seen, err := x.latest(ctx) // without f.mu, for which the feed may wait while it uses the database
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) > 0 {
		stop()
	} else {
		f.readers, f.stop, f.done = map[*subscriber]bool{}, stop, make(chan struct{})
		go x.runFeed(ctx, f.done, seen, err == nil)
	}
	f.readers[s] = true
}

// unsubscribe waits for the end of the feed after the last reader.
func (x *Index) unsubscribe(s *subscriber) {
	f := &x.feed
	f.mu.Lock()
	delete(f.readers, s)
	var done chan struct{}
	if len(f.readers) == 0 {
		f.stop()
		done = f.done
	}
	f.mu.Unlock()
	if done != nil {
		<-done
	}
}

// latest returns when the last calls came into the index, by owner.
func (x *Index) latest(ctx context.Context) (map[string]int64, error) {
	type row struct {
		owner string
		added int64
	}
	seen := map[string]int64{}
	return seen, x.use(func(db *store.DB) error {
		rows, err := store.Select(ctx, db.Read, func(r *row) []any { return []any{&r.owner, &r.added} }, "SELECT owner, max(added) FROM call_blocks GROUP BY owner")
		for _, r := range rows {
			seen[r.owner] = r.added
		}
		return err
	})
}

// runFeed looks for new calls until ctx ends; known = seen is where to begin.
func (x *Index) runFeed(ctx context.Context, done chan struct{}, seen map[string]int64, known bool) {
	defer close(done)
	for wait.For(ctx, x.opts.Poll) {
		if !known {
			var err error
			seen, err = x.latest(ctx)
			known = err == nil
			continue
		}
		if err := x.use(func(db *store.DB) error { return x.feedNew(ctx, db, seen) }); err != nil && ctx.Err() == nil && !errors.Is(err, ErrStarting) {
			x.opts.Log.Warn("following the index of calls", "error", err)
		}
	}
}

// feedNew gives the calls that came into the index after seen to the readers. It reads in one transaction: a block
// that is merged meanwhile would be empty. After an error, calls may come again.
func (x *Index) feedNew(ctx context.Context, db *store.DB, seen map[string]int64) error {
	type row struct {
		id, added int64
		owner     string
	}
	latest := map[string]int64{}
	err := db.View(ctx, func(tx *sql.Tx) error {
		blocks, err := store.Select(ctx, tx, func(r *row) []any { return []any{&r.id, &r.added, &r.owner} }, "SELECT id, added, owner FROM call_blocks ORDER BY added")
		for _, b := range blocks {
			if b.added <= seen[b.owner] {
				continue
			}
			entries, err := load(ctx, tx, b.id)
			if err != nil {
				return err
			}
			latest[b.owner] = max(latest[b.owner], b.added)
			x.feed.give(slices.DeleteFunc(entries, func(e *entry) bool { return e.added <= seen[b.owner] }))
		}
		return err
	})
	if err == nil {
		maps.Copy(seen, latest)
	}
	return err
}

func (f *feed) give(entries []*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s, open := range f.readers {
		for _, e := range entries {
			if !open || e.Time.Before(s.since) || !s.q.matches(e, s.terms) {
				continue
			}
			select {
			case s.calls <- e:
			default:
				close(s.calls)
				open, f.readers[s] = false, false
			}
		}
	}
}
