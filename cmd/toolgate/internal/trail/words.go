package trail

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy/approval"
)

// clockSlack is how far the wall clock may have gone back since a ticket was created
// without the trail's word on the ticket being missed.
const clockSlack = 10 * time.Minute

// Words know the last change that the trail has of each ticket that may still be
// decided or spent. It is safe for concurrent use.
type Words struct {
	root    string // of the trail
	durable bool   // a record is on disk before what it records is done

	mu    sync.Mutex // protects the fields below
	since time.Time  // tickets created from then on are known
	watch *audit.Watch
	last  map[string]lastWord
	gaps  bool // some record could not be read
	prune int  // size of last at which the words on expired tickets are dropped
}

type lastWord struct {
	approval.Word
	at      time.Time
	expires time.Time // zero = not recorded
	chain   string    // of its record
	record  uint64    // number of its record
}

// NewWords returns the words of the trail in dir. durable says that a record is on disk before what it
// records is done.
func NewWords(dir string, durable bool) *Words { return &Words{root: dir, durable: durable} }

// Of is approval.Options.LastWord: it reads what the trail has got since it was called
// last, of all processes. A call is sent after the record of its decision is on disk, and in
// the same chain as the change that granted it.
func (w *Words) Of(ctx context.Context, ticket string, created time.Time) (approval.Word, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch == nil || created.Before(w.since) {
		w.since = created
		w.watch = audit.NewWatch(w.root, created.Add(-clockSlack), audit.KindTicket, audit.KindDecision)
		w.last, w.prune = map[string]lastWord{}, 1024
	}
	for r, err := range w.watch.Next(ctx) {
		if errors.Is(err, audit.ErrNoRecord) {
			w.gaps = true // audit verify reports it
			continue
		}
		if err != nil {
			w.watch = nil // what it skipped is read again
			return approval.Word{}, err
		}
		word := w.last[r.Ticket]
		switch c := r.Change; {
		case r.Kind == audit.KindDecision:
			word.Unsent = false
		case c != nil && (c.Seq > word.Seq || c.Seq == word.Seq && r.Time.After(word.at)): // a change that was not made gives its number to another
			word = lastWord{approval.Word{Seq: c.Seq, State: approval.State(c.To), Unsent: w.durable}, r.Time, c.Expires, r.Instance, r.Seq}
		}
		w.last[r.Ticket] = word
	}
	if len(w.last) > w.prune {
		before := time.Now().Add(-clockSlack)
		maps.DeleteFunc(w.last, func(_ string, of lastWord) bool { return !of.expires.IsZero() && of.expires.Before(before) })
		w.prune = max(1024, 2*len(w.last))
	}
	word := w.last[ticket]
	// A later record may have been archived before it was read here, and then this one was too.
	word.Unsent = word.Unsent && !w.gaps && audit.Holds(w.root, word.chain, word.record)
	return word.Word, nil
}
