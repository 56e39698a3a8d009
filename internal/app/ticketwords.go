package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/plural"
	"github.com/toolgate/toolgate/policy/approval"
)

// clockSlack is how far the wall clock may have gone back since a ticket was created
// without the trail's word on the ticket being missed.
const clockSlack = 10 * time.Minute

// ticketWords knows the last change that the trail has of each ticket that may still be
// decided or spent. It is safe for concurrent use.
type ticketWords struct {
	root string // of the trail

	mu    sync.Mutex // protects the fields below
	since time.Time  // tickets created from then on are known
	watch *audit.Watch
	last  map[string]ticketWord
	prune int // size of last at which the words on expired tickets are dropped
}

type ticketWord struct {
	seq     int64
	expires time.Time // zero = not recorded
}

// of is approval.Options.LastWord: it reads what the trail has got since it was called
// last, of all processes.
func (w *ticketWords) of(ctx context.Context, ticket string, created time.Time) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch == nil || created.Before(w.since) {
		w.since = created
		w.watch = audit.NewWatch(w.root, audit.KindTicket, created.Add(-clockSlack))
		w.last, w.prune = map[string]ticketWord{}, 1024
	}
	for r, err := range w.watch.Next(ctx) {
		if errors.Is(err, audit.ErrNoRecord) {
			continue // audit verify reports it
		}
		if err != nil {
			w.watch = nil // what it skipped is read again
			return 0, err
		}
		if c := r.Change; c != nil && c.Seq > w.last[r.Ticket].seq {
			w.last[r.Ticket] = ticketWord{c.Seq, c.Expires}
		}
	}
	if len(w.last) > w.prune {
		w.drop(time.Now().Add(-clockSlack))
	}
	return w.last[ticket].seq, nil
}

// drop forgets tickets that expired before a time.
func (w *ticketWords) drop(before time.Time) {
	for ticket, word := range w.last {
		if !word.expires.IsZero() && word.expires.Before(before) {
			delete(w.last, ticket)
		}
	}
	w.prune = max(1024, 2*len(w.last))
}

// doubts collects why the store could not be relied on, for people.
type doubts struct {
	mu     sync.Mutex // protects the fields below
	newest []string
	count  int
}

// newestDoubts is how many doubts readiness shows.
const newestDoubts = 5

func (d *doubts) add(reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	d.newest = append(d.newest, reason)
	d.newest = d.newest[max(0, len(d.newest)-newestDoubts):]
}

func (d *doubts) warnings() (lines []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if more := d.count - len(d.newest); more > 0 {
		lines = append(lines, "approvals: "+plural.Count(more, "earlier doubt")+" about the state: see the log")
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
	a.state.doubts.add(reason)
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
