package tickets

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"net/http"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// Approvals are the held calls. Implementations are safe for concurrent use and
// return the errors of package approval.
type Approvals interface {
	List(ctx context.Context, f approval.Filter) ([]approval.Ticket, error)
	Get(ctx context.Context, id string) (approval.Ticket, error)
	Decide(ctx context.Context, v approval.Vote) (approval.Ticket, error)
}

// A Reconciler records what a person found out about a call of unknown outcome.
// Implementations are safe for concurrent use and return the errors of package
// approval.
type Reconciler interface {
	Reconcile(ctx context.Context, f approval.Finding) (approval.Ticket, error)
}

// A Feed yields every change of a ticket with a number above after, or from the
// moment of the call when after is negative, until ctx ends. Implementations
// are safe for concurrent use.
type Feed interface {
	Follow(ctx context.Context, after int64) iter.Seq2[approval.Event, error]
}

// An Archive finds the last approved call of the tool of ticket id, or returns
// approval.ErrNotFound. Implementations are safe for concurrent use.
type Archive interface {
	Similar(ctx context.Context, id string) (approval.Ticket, error)
}

// An Area is the pages and answers about held calls. Every field but Brief is required.
type Area struct {
	*people.Site
	Guard      *people.Guard // identifies readers of streams again
	Approvals  Approvals
	Reconciler Reconciler
	Feed       Feed
	Archive    Archive
	// Brief returns what else is known of a held call; nil = nothing is.
	Brief func(ctx context.Context, k approval.Ticket) (Briefing, error)
}

// Routes are the routes of held calls.
func (a *Area) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		page.ApprovalsPath:                     {http.MethodGet: g.Visit(a.inbox)},
		denyPath:                               {http.MethodPost: g.Submit(a.denySeveral)},
		page.ApprovalsPath + "/{id}":           {http.MethodGet: g.Visit(a.ticketPage)},
		page.ApprovalsPath + "/{id}/arguments": {http.MethodGet: g.Visit(a.arguments)},
		page.ApprovalsPath + "/{id}/vote":      {http.MethodPost: g.Submit(a.vote)},
		page.ApprovalsPath + "/{id}/reconcile": {http.MethodPost: g.Submit(a.finding)},
		"/console/events":                      {http.MethodGet: g.Visit(a.events)},
		"/v1/approvals":                        {http.MethodGet: g.As(page.Answers(a.list))},
		"/v1/approvals/{id}":                   {http.MethodGet: g.As(page.Answers(a.show))},
		"/v1/approvals/{id}/{action}":          {http.MethodPost: g.As(a.decide)},
		"/v1/approvals/watch":                  {http.MethodGet: g.As(a.watch)},
		"/v1/approvals/{id}/reconcile":         {http.MethodPost: g.As(a.reconcile)},
	}
}

// events sends server-sent events to an open page: "changed" for every change
// of a ticket that the visitor may see, which refreshes lists, and "vote-<id>"
// or "state-<id>", which refresh the page of that ticket. Events carry no data:
// the page fetches itself again, and that request is checked like any other. A
// new stream begins with "changed", for what happened before it; a resumed
// stream continues after its last event. The visitor is identified again before
// each line, so that a session that ended gets no more of them.
func (a *Area) events(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	after := int64(-1)
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if err := page.Number(&after, 0, math.MaxInt64, "Last-Event-ID is none of ours")(last); err != nil {
			return err
		}
	}
	ctx, stop := a.UntilClosed(r.Context())
	changes, wait := page.Feed(ctx, a.Log, a.Feed.Follow(ctx, after)) // from here on nothing is missed
	defer wait()
	defer stop()
	known := func() (err error) {
		v, err = a.Guard.IdentifyAgain(ctx, v)
		return err
	}
	page.SendEvents(ctx, w, "event: changed\ndata:\n", changes, known, func(e approval.Event) string { return eventsOf(e, v) })
	return nil
}

// eventsOf returns the events of a change for v, "" for none.
func eventsOf(e approval.Event, v people.Visitor) string {
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
func (a *Area) watch(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	after := int64(-1)
	if err := page.ReadQuery(r.URL, map[string]func(string) error{
		"after": page.Number(&after, 0, math.MaxInt64, "after is the seq of the last line that you have"),
	}); err != nil {
		return err
	}
	ctx, stop := a.UntilClosed(r.Context())
	defer stop()
	events := a.Feed.Follow(ctx, after) // from here on nothing is missed
	page.Stream(a.Log, w, page.JSONLines, func(yield func([]byte, error) bool) {
		for e, err := range events {
			if err == nil {
				p, err = a.Guard.Identify(ctx, r.Header.Values("Authorization"))
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
