package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
)

// Calls is the search index of calls. It is no evidence: the records of the trail are. Implementations are
// safe for concurrent use and return the errors of package index.
type Calls interface {
	Search(ctx context.Context, q index.Query) (index.Page, error)
	Call(ctx context.Context, id string) (index.Whole, error)
	Follow(ctx context.Context, q index.Query) iter.Seq2[index.Call, error]
}

// WholeCall is a call as a person may see it.
type WholeCall struct {
	index.Whole
	// Withheld are the members with arguments, or with what tells of them, that the person may not read.
	Withheld []string `json:"withheld,omitempty"`
}

// calls are the pages about calls.
type calls struct {
	*people.Guard
	approvals tickets.Approvals
	index     Calls
	traceURL  string // Options.TraceURL
}

// Routes are the routes and pages of the index of calls.
func (c *calls) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		callsPath:           {http.MethodGet: g.Visit(people.Shows(c.listPage))},
		callsPath + "/{id}": {http.MethodGet: g.Visit(people.Shows(c.page))},
		callEvents:          {http.MethodGet: g.Visit(c.followPage)},
		"/v1/calls":         {http.MethodGet: g.As(c.list)},
		"/v1/calls/{id}":    {http.MethodGet: g.As(page.NoQuery(page.Answers(c.whole)))},
	}
}

var (
	noReader = page.Problem{Status: http.StatusForbidden, Code: "NOT_READER", Detail: "the policy does not let you read arguments, or search in them",
		Hint: "see data.arguments of the policy; leave out argument and text"}
	noCall = page.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "the index has no such call, or it is not yours to see",
		Hint: "the index is no evidence, and some seconds behind: toolgate audit search --id"}
	noIndex = page.Problem{Status: http.StatusServiceUnavailable, Code: "INDEX_STARTING", Detail: "the index of calls is being made",
		Hint: "try again in a few seconds; toolgate audit search reads the trail itself"}
)

// ofIndex returns the refusal for an error of the index.
func ofIndex(err error) error {
	switch {
	case errors.Is(err, index.ErrQuery):
		return page.BadRequest(err.Error(), "")
	case errors.Is(err, index.ErrNotFound):
		return noCall
	case errors.Is(err, index.ErrStarting):
		return noIndex
	}
	return err
}

// narrow restricts q to what p may see. The error is a refusal.
func (c *calls) narrow(ctx context.Context, p policy.Principal, q *index.Query) error {
	switch c.TrailRight(ctx, p) {
	case policy.TrailAll:
		q.Decidable = nil
	case policy.TrailDecides:
		q.Decidable = mayDecide(ctx, c.approvals, p)
	default:
		return people.NotAuditor
	}
	if q.OfArguments() && !c.May(ctx, p, policy.ReadsArguments) {
		return noReader
	}
	return nil
}

// searching restricts q to what p may see, and records the search: first as a reading of the trail, and
// one in arguments also as a reading of these.
func (c *calls) searching(r *http.Request, p policy.Principal, q *index.Query) error {
	act := people.Act{Name: audit.EventTrailRead, Principal: p}
	if what := asked(q); what != "" {
		act.Added = []string{"search " + what}
	}
	refused := c.narrow(r.Context(), p, q)
	if refused != nil {
		act.Reason = page.ProblemOf(refused).Code
	}
	if act.Reason == noReader.Code {
		act.Name = audit.EventArguments
	}
	err := c.Record(r, act)
	if err == nil && refused == nil && q.OfArguments() {
		act.Name = audit.EventArguments
		err = c.Record(r, act)
	}
	if refused != nil {
		return refused
	}
	return err
}

// textsOf are the parameters of q that are texts.
func textsOf(q *index.Query) map[string]*string {
	return map[string]*string{
		"principal": &q.Principal, "person": &q.Person, "server": &q.Server, "tool": &q.Tool, "outcome": &q.Outcome, "rule": &q.Rule, "code": &q.Code,
		"id": &q.ID, "ticket": &q.Ticket, "argument": &q.Argument, "text": &q.Text, "cursor": &q.Cursor,
	}
}

// timesOf are the parameters of q that are times.
func timesOf(q *index.Query) map[string]*time.Time {
	return map[string]*time.Time{"since": &q.Since, "until": &q.Until}
}

// asked says what q asks for, without values of arguments.
func asked(q *index.Query) string {
	var said []string
	for name, value := range textsOf(q) {
		shown := "=" + page.Visible(*value)
		switch {
		case *value == "" || name == "cursor":
			continue
		case name == "argument":
			pointer, _, _ := strings.Cut(*value, "=")
			shown = "=" + page.Visible(pointer)
		case name == "text":
			shown = ""
		}
		said = append(said, name+shown)
	}
	for name, at := range timesOf(q) {
		if !at.IsZero() {
			said = append(said, name+"="+at.UTC().Format(time.RFC3339))
		}
	}
	slices.Sort(said)
	return strings.Join(said, " ")
}

// query reads a query of /v1/calls.
func (c *calls) query(u *url.URL) (q index.Query, follow bool, err error) {
	known := map[string]func(string) error{
		"limit":  page.Number(&q.Limit, 1, index.MaxLimit, fmt.Sprintf("limit is a number from 1 to %d", index.MaxLimit)),
		"follow": page.Bool(&follow, "follow is true or false"),
	}
	for name, to := range textsOf(&q) {
		known[name] = page.String(to)
	}
	for name, to := range timesOf(&q) {
		known[name] = c.Moment(to)
	}
	if err = page.ReadQuery(u, known); err == nil {
		err = ofIndex(q.Check())
	}
	return q, follow, err
}

// list answers with a page of calls, or streams those that come.
func (c *calls) list(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	q, follow, err := c.query(r.URL)
	if err == nil {
		err = c.searching(r, p, &q)
	}
	if err != nil {
		return err
	}
	if follow {
		return c.follow(w, r, q)
	}
	found, err := c.index.Search(r.Context(), q)
	if err != nil {
		return ofIndex(err)
	}
	return page.Answer(w, found)
}

// follow sends the calls of q that come as server-sent events, until the reader goes. It identifies
// the reader again for every event.
func (c *calls) follow(w http.ResponseWriter, r *http.Request, q index.Query) error {
	ctx, stop := c.UntilClosed(r.Context())
	calls, wait := page.Feed(ctx, c.Log, c.index.Follow(ctx, q)) // from here on nothing is missed
	defer wait()
	defer stop()
	may := func() error {
		p, err := c.Identify(ctx, r.Header.Values("Authorization"))
		if err != nil {
			return err
		}
		return c.narrow(ctx, p, &q)
	}
	page.SendEvents(ctx, w, ": calls follow; the index is no evidence\n", calls, may, func(k index.Call) string {
		data, _ := json.Marshal(k) // fails for no call
		return fmt.Sprintf("event: call\ndata: %s\n", data)
	})
	return nil
}

// withheld are the members of records that have arguments, or tell of them.
var withheld = []string{"arguments", "arguments_excerpt", "arguments_sha256", "input", "task"}

// whole returns the call that the path names as p may see it. Reading it is recorded, and so is reading its arguments.
func (c *calls) whole(r *http.Request, p policy.Principal) (whole WholeCall, err error) {
	id := r.PathValue("id")
	q := index.Query{ID: id}
	if err := c.searching(r, p, &q); err != nil {
		return whole, err
	}
	if whole.Whole, err = c.index.Call(r.Context(), id); err != nil {
		return whole, ofIndex(err)
	}
	if q.Decidable != nil && (whole.Call.Ticket == "" || !q.Decidable(whole.Call.Ticket)) {
		return WholeCall{}, noCall
	}
	if c.May(r.Context(), p, policy.ReadsArguments) {
		return whole, c.Record(r, people.Act{Name: audit.EventArguments, Principal: p, Added: []string{"call " + page.Visible(id)}, Ticket: page.Visible(whole.Call.Ticket)})
	}
	whole.Withheld = withheld
	for _, record := range []*json.RawMessage{&whole.Decision, &whole.Outcome} {
		*record, err = withoutArguments(*record, err)
	}
	for i := range whole.Changes {
		whole.Changes[i], err = withoutArguments(whole.Changes[i], err)
	}
	return whole, err
}

// withoutArguments returns a record without the members that are withheld, and without the digest of
// arguments in a change: short arguments can be guessed. It fails closed: a record that it cannot read is not returned.
func withoutArguments(record json.RawMessage, failed error) (json.RawMessage, error) {
	if record == nil || failed != nil {
		return nil, failed
	}
	var edits []jsonrpc.Change
	for _, name := range withheld {
		edits = append(edits, jsonrpc.Change{Name: name})
	}
	if _, ok := jsonrpc.Get(record, "change"); ok {
		edits = append(edits, jsonrpc.Change{Name: "change", Members: []jsonrpc.Change{{Name: "digest", Value: json.RawMessage(`""`)}}})
	}
	return jsonrpc.Edit(record, edits...)
}

// mayDecide returns a function that reports whether p may decide on a ticket. It remembers its answers.
func mayDecide(ctx context.Context, held tickets.Approvals, p policy.Principal) func(ticket string) bool {
	may := map[string]bool{}
	return func(ticket string) bool {
		if _, known := may[ticket]; !known {
			k, err := held.Get(ctx, ticket)
			may[ticket] = err == nil && k.MayDecide(p)
		}
		return may[ticket]
	}
}
