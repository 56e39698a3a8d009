package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// heartbeat is how often a stream sends a comment to show that it lives.
const heartbeat = 20 * time.Second

// events sends server-sent events to an open page: "changed" for every change
// of a ticket that the visitor may see, which refreshes lists, and "vote-<id>"
// or "state-<id>", which refresh the page of that ticket. Events carry no data:
// the page fetches itself again, and that request is checked like any other. A
// new stream begins with "changed", for what happened before it; a resumed
// stream continues after its last event. The visitor is identified again before
// each line, so that a session that ended gets no more of them.
func (a *approvals) events(w http.ResponseWriter, r *http.Request, v visitor) error {
	after := int64(-1)
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if err := number(&after, 0, math.MaxInt64, "Last-Event-ID is none of ours")(last); err != nil {
			return err
		}
	}
	ctx, stop := a.untilClosed(r.Context())
	changes, wait := feedOf(ctx, a.log, a.feed.Follow(ctx, after)) // from here on nothing is missed
	defer wait()
	defer stop()
	known := func() (err error) {
		v, err = a.visitors.identifyAgain(ctx, v)
		return err
	}
	sendEvents(ctx, w, "event: changed\ndata:\n", changes, known, func(e approval.Event) string { return eventsOf(e, v) })
	return nil
}

// sendEvents sends server-sent events until ctx or the feed ends or the reader goes: first those of start, then
// what text returns for each thing that comes, "" for nothing, and a comment at every heartbeat. Before each
// it asks whether the reader may have it; an error ends the stream.
func sendEvents[T any](ctx context.Context, w http.ResponseWriter, start string, coming <-chan T, may func() error, text func(T) string) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for events := start; ; {
		if events != "" && writeLine(w, out, []byte(events)) != nil {
			return
		}
		said := func() string { return ": still here\n" }
		select {
		case <-ctx.Done():
			return
		case one, ok := <-coming:
			if !ok {
				return
			}
			said = func() string { return text(one) }
		case <-beat.C:
		}
		if may() != nil {
			return
		}
		events = said()
	}
}

// feedOf reads a sequence in a goroutine of its own, and closes the channel at its end. An error ends the
// sequence: a page that was too slow gets one, and asks again. The caller must end ctx and then call
// wait, which returns when the goroutine has ended.
func feedOf[T any](ctx context.Context, log hclog.Logger, from iter.Seq2[T, error]) (to <-chan T, wait func()) {
	ch := make(chan T)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(ch)
		for v, err := range from {
			if err != nil {
				log.Info("a feed has ended", "error", err)
				return
			}
			select {
			case ch <- v:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch, func() { <-done }
}

// eventsOf returns the events of a change for v, "" for none.
func eventsOf(e approval.Event, v visitor) string {
	if !e.Ticket.VisibleTo(v.Principal) {
		return ""
	}
	kind := "state"
	if e.Change.From == e.Change.To {
		kind = "vote"
	}
	return fmt.Sprintf("event: %s-%s\ndata:\n\nid: %d\nevent: changed\ndata:\n", kind, e.Ticket.ID, e.Seq)
}

// A TicketEvent is one line of /v1/approvals/watch: a change and the current state
// of its ticket.
type TicketEvent struct {
	Seq    int64  `json:"seq"`
	Change Change `json:"change"`
	Ticket Ticket `json:"approval"`
}

// watch streams the changes of the tickets that p sees, one per line. It
// identifies p again for every line.
func (a *approvals) watch(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	after := int64(-1)
	if err := readQuery(r.URL, map[string]func(string) error{
		"after": number(&after, 0, math.MaxInt64, "after is the seq of the last line that you have"),
	}); err != nil {
		return err
	}
	ctx, stop := a.untilClosed(r.Context())
	defer stop()
	events := a.feed.Follow(ctx, after) // from here on nothing is missed
	a.stream(w, jsonLines, func(yield func([]byte, error) bool) {
		for e, err := range events {
			if err == nil {
				p, err = a.visitors.identify(ctx, r.Header.Values("Authorization"))
			}
			var line []byte
			if err == nil && e.Ticket.VisibleTo(p) {
				line, err = json.Marshal(TicketEvent{Seq: e.Seq, Change: visibleChange(e.Change), Ticket: view(e.Ticket, p)})
			}
			if (line != nil || err != nil) && !yield(line, err) {
				return
			}
		}
	}, true)
	return nil
}

const (
	tailLines = 10    // when the query does not say
	maxLines  = 10000 // in one request
	// stalled is how long a reader may take no line before it is dropped.
	stalled = 30 * time.Second
)

const jsonLines = "application/jsonl"

// writeLine writes and flushes one line. It fails for a reader that takes
// nothing for the time stalled.
func writeLine(w http.ResponseWriter, out *http.ResponseController, line []byte) error {
	if err := out.SetWriteDeadline(time.Now().Add(stalled)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	return out.Flush()
}
