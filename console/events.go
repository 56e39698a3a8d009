package console

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/policy/approval"
)

// heartbeat is how often a stream sends a comment to show that it lives, and
// identifies its reader again.
const heartbeat = 20 * time.Second

// events sends server-sent events to an open page: "changed" for every change
// of a ticket that the visitor may see, which refreshes lists, and "vote-<id>"
// or "state-<id>", which refresh the page of that ticket. Events carry no data:
// the page fetches itself again, and that request is checked like any other. A
// new stream begins with "changed", for what happened before it; a resumed
// stream continues after its last event.
func (c *Console) events(w http.ResponseWriter, r *http.Request, v visitor) error {
	after := int64(-1)
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if err := number(&after, 0, math.MaxInt64, "Last-Event-ID is none of ours")(last); err != nil {
			return err
		}
	}
	ctx, stop := c.life(r.Context())
	changes, wait := c.follow(ctx, after)
	defer wait()
	defer stop()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	if err := writeLine(w, out, []byte("event: changed\ndata:\n")); err != nil {
		return nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		text := ": still here\n"
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-changes:
			if !ok {
				return nil
			}
			if text = eventsOf(e, v); text == "" {
				continue
			}
		case <-beat.C:
			var known bool
			if v, known = c.still(ctx, v); !known {
				return nil
			}
		}
		if err := writeLine(w, out, []byte(text)); err != nil {
			return nil
		}
	}
}

// follow reads the feed in a goroutine of its own. The channel is closed when
// the feed ends. The caller must end ctx and then call wait, which returns when
// the goroutine has ended.
func (c *Console) follow(ctx context.Context, after int64) (changes <-chan approval.Event, wait func()) {
	ch := make(chan approval.Event)
	done := make(chan struct{})
	feed := c.opts.Feed.Follow(ctx, after) // from here on nothing is missed
	go func() {
		defer close(done)
		defer close(ch)
		for e, err := range feed {
			if err != nil {
				c.opts.Log.Error("following the tickets", "error", err)
				return
			}
			select {
			case ch <- e:
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
