package app

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/approval"
)

// clockSlack is how far the wall clock may have gone back since a ticket was created
// without the trail's word on the ticket being missed.
const clockSlack = 10 * time.Minute

// ticketWords knows the last change that the trail has of each ticket that may still be
// decided or spent. It is safe for concurrent use.
type ticketWords struct {
	root    string // of the trail
	durable bool   // a record is on disk before what it records is done

	mu    sync.Mutex // protects the fields below
	since time.Time  // tickets created from then on are known
	watch *audit.Watch
	last  map[string]ticketWord
	gaps  bool // some record could not be read
	prune int  // size of last at which the words on expired tickets are dropped
}

type ticketWord struct {
	approval.Word
	at      time.Time
	expires time.Time // zero = not recorded
	chain   string    // of its record
	record  uint64    // number of its record
}

// of is approval.Options.LastWord: it reads what the trail has got since it was called
// last, of all processes. A call is sent after the record of its decision is on disk, and in
// the same chain as the change that granted it.
func (w *ticketWords) of(ctx context.Context, ticket string, created time.Time) (approval.Word, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch == nil || created.Before(w.since) {
		w.since = created
		w.watch = audit.NewWatch(w.root, created.Add(-clockSlack), audit.KindTicket, audit.KindDecision)
		w.last, w.prune = map[string]ticketWord{}, 1024
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
			word = ticketWord{approval.Word{Seq: c.Seq, State: approval.State(c.To), Unsent: w.durable}, r.Time, c.Expires, r.Instance, r.Seq}
		}
		w.last[r.Ticket] = word
	}
	if len(w.last) > w.prune {
		before := time.Now().Add(-clockSlack)
		maps.DeleteFunc(w.last, func(_ string, of ticketWord) bool { return !of.expires.IsZero() && of.expires.Before(before) })
		w.prune = max(1024, 2*len(w.last))
	}
	word := w.last[ticket]
	// A later record may have been archived before it was read here, and then this one was too.
	word.Unsent = word.Unsent && !w.gaps && audit.Holds(w.root, word.chain, word.record)
	return word.Word, nil
}

// doubts collects why the store could not be relied on, for people.
type doubts struct {
	mu     sync.Mutex // protects the fields below
	newest []string
	count  int
}

func (d *doubts) warnings() (lines []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if more := d.count - len(d.newest); more > 0 {
		lines = append(lines, "approvals: "+text.Count(more, "earlier doubt")+" about the state: see the log")
	}
	for _, reason := range d.newest {
		lines = append(lines, "approvals: "+reason)
	}
	return lines
}

// doubt is approval.Options.Alarm.
func (a *App) doubt(reason string) {
	a.log.Error("the state cannot be relied on", "reason", reason)
	a.metrics.doubts.Inc()
	d := &a.state.doubts
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	d.newest = append(d.newest, reason)
	d.newest = d.newest[max(0, len(d.newest)-5):]
}

// approvalsClosed returns why held calls and votes are refused, "" when they are not.
func (a *App) approvalsClosed() string {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	err := a.state.tickets.Check(ctx)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, approval.ErrComparing):
		return err.Error()
	}
	return "approvals are closed: " + err.Error()
}
