package tickets

import (
	"context"
	"iter"
	"net/http"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
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
