package tickets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
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
	*people.Guard
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
		v, err = a.IdentifyAgain(ctx, v)
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
				p, err = a.Identify(ctx, r.Header.Values("Authorization"))
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
	defaultTickets = 100 // in one list
	maxTickets     = 1000
)

// A Ticket is a held call in answers of /v1/approvals. Texts that others wrote are
// in their visible form; arguments is the value, arguments_text what to show.
type Ticket struct {
	ID             string            `json:"id"`
	State          approval.State    `json:"state"`
	Requester      string            `json:"requester"`
	RequesterRoles []string          `json:"requester_roles"`
	Person         string            `json:"requester_person,omitempty"` // who stands behind the requester
	Actors         []string          `json:"requester_actors,omitempty"` // who acts for the requester
	Client         string            `json:"client,omitempty"`
	Tenant         string            `json:"tenant,omitempty"`
	Server         string            `json:"server"`
	Tool           string            `json:"tool"`
	Exposed        string            `json:"exposed"`
	Fingerprint    string            `json:"fingerprint"`
	Digest         string            `json:"digest"`
	Arguments      json.RawMessage   `json:"arguments,omitempty"`
	ArgumentsText  string            `json:"arguments_text"`
	ArgumentBytes  int               `json:"argument_bytes"`
	Revision       string            `json:"policy_revision"`
	Rule           string            `json:"rule"`
	Reason         string            `json:"reason"`
	Roles          []string          `json:"roles"`
	Quorum         int               `json:"quorum"`
	Each           map[string]int    `json:"each,omitempty"` // of quorum, how many with each role; absent = any of roles
	Created        time.Time         `json:"created"`
	Expires        time.Time         `json:"expires"`
	DecisionID     string            `json:"decision_id"`
	TraceID        string            `json:"trace_id"`
	RunsAs         *approval.Account `json:"runs_as,omitempty"`     // absent = as the configuration says
	Unconnected    string            `json:"unconnected,omitempty"` // why the state is needs_connection
	Transport      string            `json:"transport,omitempty"`   // how the call came in
	Era            string            `json:"era,omitempty"`
	Execute        bool              `json:"execute_on_approve"`
	Approvals      int               `json:"approvals"`       // of quorum
	Given          map[string]int    `json:"given,omitempty"` // of each; absent = 0
	DecidedBy      string            `json:"decided_by,omitempty"`
	DecisionReason string            `json:"decision_reason,omitempty"`
	Note           string            `json:"note,omitempty"`
	ToolError      bool              `json:"tool_error,omitempty"` // it is done, and the tool answered with an error
	Attached       int               `json:"attached"`
	MayDecide      bool              `json:"may_decide"`    // whoever asks, as things stand
	MayReconcile   bool              `json:"may_reconcile"` // likewise, once the outcome is unknown
	Votes          []Ballot          `json:"votes,omitempty"`
	History        []Change          `json:"history,omitempty"`

	Tags     map[string]string `json:"tags,omitempty"`     // what the requester claims of the call: nothing vouches for it
	Briefing *Briefing         `json:"briefing,omitempty"` // of one ticket that is asked for
	Result   *Result           `json:"result,omitempty"`   // likewise; absent = there is none, or it was too large to keep
}

// A Ballot is one vote on a ticket.
type Ballot struct {
	Subject string    `json:"subject"`
	Person  string    `json:"person,omitempty"`
	Approve bool      `json:"approve"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
}

// A Change is one line of the history of a ticket.
type Change struct {
	At     time.Time      `json:"at"`
	Who    string         `json:"who"`
	From   approval.State `json:"from,omitempty"`
	To     approval.State `json:"to"`
	Reason string         `json:"reason,omitempty"`
	Digest string         `json:"digest"`
}

// view returns k as p sees it.
func view(k approval.Ticket, p policy.Principal) Ticket {
	t := Ticket{
		ID: k.ID, State: k.State, Requester: page.Visible(k.Principal.Subject), RequesterRoles: k.Principal.Roles, Person: page.Visible(k.Principal.Person), Actors: page.VisibleAll(k.Principal.Actors),
		Client: page.Visible(k.Principal.Client), Tenant: page.Visible(k.Principal.Tenant),
		Server: page.Visible(k.Server), Tool: page.Visible(k.Tool), Exposed: page.Visible(k.Exposed), Fingerprint: k.Fingerprint, Digest: k.Digest,
		ArgumentsText: argumentsText(k), ArgumentBytes: k.ArgumentBytes,
		Revision: k.Revision, Rule: page.Visible(k.Rule), Reason: page.Visible(k.Reason), Roles: k.Roles, Quorum: k.Quorum, Each: k.Each, Given: k.Given,
		Created: k.Created, Expires: k.Expires, DecisionID: page.Visible(k.DecisionID), TraceID: page.Visible(k.TraceID),
		Unconnected: page.Visible(k.Unconnected), DecidedBy: page.Visible(k.DecidedBy), DecisionReason: page.Visible(k.DecisionReason), Note: page.Visible(k.Note), ToolError: k.ToolFailed(), Attached: k.Attached,
		Transport: k.Transport, Era: k.Era, Execute: k.Execute, Approvals: k.Approvals,
		MayDecide:    k.State == approval.StateProposed && k.MayDecide(p),
		MayReconcile: k.State == approval.StateUnknown && k.MayDecide(p),
	}
	if as := k.RunsAs; as != nil {
		t.RunsAs = &approval.Account{ID: as.ID, Type: as.Type, Issuer: page.Visible(as.Issuer), Account: page.Visible(as.Account), Scopes: page.VisibleAll(as.Scopes), Until: as.Until}
	}
	for name, claim := range k.Tags {
		if t.Tags == nil {
			t.Tags = make(map[string]string)
		}
		t.Tags[page.Visible(name)] = page.Visible(claim)
	}
	if json.Valid(k.Arguments) {
		t.Arguments = k.Arguments
	}
	for _, b := range k.Votes {
		t.Votes = append(t.Votes, Ballot{Subject: page.Visible(b.Subject), Person: page.Visible(b.Person), Approve: b.Approve, Reason: page.Visible(b.Reason), At: b.At})
	}
	for _, c := range k.History {
		t.History = append(t.History, visibleChange(c))
	}
	return t
}

func visibleChange(c approval.Change) Change {
	return Change{At: c.At, Who: page.Visible(c.Who), From: c.From, To: c.To, Reason: page.Visible(c.Reason), Digest: c.Digest}
}

func argumentsText(k approval.Ticket) string {
	if k.Arguments == nil && k.ArgumentBytes > 0 {
		return fmt.Sprintf("(%d bytes, see the ticket)", k.ArgumentBytes)
	}
	return page.Shorten(page.Visible(string(k.Arguments)))
}

func (a *Area) list(r *http.Request, p policy.Principal) (any, error) {
	f := approval.Filter{Viewer: p, Limit: defaultTickets}
	known := ticketParameters(&f)
	known["state"] = func(value string) (err error) {
		f.States, err = states(value)
		return err
	}
	known["awaiting"] = func(value string) error {
		if f.Awaiting = p; value != "me" {
			return page.BadRequest("awaiting is me: what waits for your vote", "")
		}
		return nil
	}
	known["limit"] = page.Number(&f.Limit, 1, maxTickets, fmt.Sprintf("limit is a number from 1 to %d", maxTickets))
	if err := page.ReadQuery(r.URL, known); err != nil {
		return nil, err
	}
	found, err := a.Approvals.List(r.Context(), f)
	if err != nil {
		return nil, err
	}
	tickets := []Ticket{}
	for _, k := range found {
		if k.VisibleTo(p) {
			tickets = append(tickets, view(k, p))
		}
	}
	answer := map[string]any{"approvals": tickets}
	if len(found) == f.Limit {
		answer["next"] = found[len(found)-1].ID // there may be older ones: ?before=
	}
	return answer, nil
}

// states reads one or more, with commas between them; nothing is all.
func states(list string) (found []approval.State, err error) {
	if list == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		if !slices.Contains(approval.States(), approval.State(name)) {
			return nil, page.BadRequest(fmt.Sprintf("%q is no state", page.Visible(name)), "states are "+stateNames())
		}
		found = append(found, approval.State(name))
	}
	return found, nil
}

func stateNames() string {
	var names []string
	for _, s := range approval.States() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (a *Area) show(r *http.Request, p policy.Principal) (any, error) {
	k, err := a.ticketFor(r, p, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return a.wholeTicket(r, k, p)
}

func (a *Area) decide(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	action := r.PathValue("action")
	if action != "approve" && action != "deny" {
		return page.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "a ticket can be approved or denied", Hint: "POST …/approve or …/deny"}
	}
	var body struct {
		Reason string `json:"reason"`
		Digest string `json:"digest"`
	}
	err := page.ReadBody(w, r, &body, "an object with the texts reason and digest", `{"reason": "…", "digest": "sha256:…"}`)
	if err != nil {
		return err
	}
	return a.settle(w, r, p, func(id string) (approval.Ticket, error) {
		return a.Approvals.Decide(r.Context(), approval.Vote{ID: id, Approver: p, Approve: action == "approve", Reason: body.Reason, Digest: body.Digest})
	})
}

// settle answers with the ticket as change leaves it. A ticket that p may not see is
// not changed.
func (a *Area) settle(w http.ResponseWriter, r *http.Request, p policy.Principal, change func(id string) (approval.Ticket, error)) error {
	k, err := a.ticketFor(r, p, r.PathValue("id"))
	if err == nil {
		k, err = change(k.ID)
	}
	if err != nil {
		a.recordVote(r, p, r.PathValue("id"), err)
		return err
	}
	return page.Answer(w, view(k, p))
}

// reconcile records what a person found out about a call of unknown outcome.
func (a *Area) reconcile(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	var body struct {
		Outcome string `json:"outcome"`
		Reason  string `json:"reason"`
	}
	const shape, example = "an object with the texts outcome, done or failed, and reason", `{"outcome": "done", "reason": "…"}`
	if err := page.ReadBody(w, r, &body, shape, example); err != nil {
		return err
	}
	if body.Outcome != string(approval.StateDone) && body.Outcome != string(approval.StateFailed) {
		return page.BadRequest("the body is not "+shape, example)
	}
	return a.settle(w, r, p, func(id string) (approval.Ticket, error) {
		k, err := a.Reconciler.Reconcile(r.Context(), approval.Finding{ID: id, Approver: p, TookEffect: body.Outcome == string(approval.StateDone), Reason: body.Reason})
		if errors.Is(err, approval.ErrReasonRequired) {
			err = page.Problem{Status: http.StatusUnprocessableEntity, Code: "REASON_REQUIRED", Detail: "a finding needs a reason", Hint: "say how you know"}
		}
		return k, err
	})
}

// recordVote records a refused vote or finding on a ticket.
func (a *Area) recordVote(r *http.Request, p policy.Principal, ticket string, err error) {
	if err != nil {
		_ = a.Record(r, people.Act{Name: audit.EventVoteRefused, Principal: p, Ticket: page.Visible(ticket), Reason: page.ProblemOf(err).Code})
	}
}
