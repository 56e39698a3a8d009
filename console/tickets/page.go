package tickets

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// ticketPage is what the page of one ticket shows: the ticket for people, and
// what helps to decide.
type ticketPage struct {
	page.Shell
	Ticket
	face
	Effect                []phrase
	WhenRun, Way, Session string

	Table     table
	Earlier   string // the ticket that the table is compared with, "" = none
	EarlierBy string // whose call that was, when it was not the same requester's
	Redefined bool   // the tool's definition is another than it was then

	Raw    page.Text
	RawCut int // bytes of the arguments that Raw leaves out

	WhyNot  string        // why the visitor has nothing to decide
	Refused *page.Problem // why the visitor's form changed nothing
	Typed   string        // the reason that stood in it
}

func (a *Area) ticketPage(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	return a.showTicket(w, r, v, nil)
}

// showTicket shows the page of the ticket that the path names and, where
// refused is set, why the visitor's form changed nothing.
func (a *Area) showTicket(w http.ResponseWriter, r *http.Request, v people.Visitor, refused *page.Problem) error {
	k, err := a.ticketFor(r, v.Principal, r.PathValue("id"))
	if err != nil {
		return err
	}
	data, err := a.describe(r, k, v)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if refused != nil {
		status, data.Refused, data.Typed = refused.Status, refused, r.PostForm.Get("reason")
	}
	return page.Render(w, page.ScriptCSP, status, ticketView(data))
}

func (a *Area) describe(r *http.Request, k approval.Ticket, v people.Visitor) (d ticketPage, err error) {
	ctx := r.Context()
	d = ticketPage{
		face: a.face(k, v), Effect: effect(k), WhenRun: whenRun(k), Way: describeTransport(k), Session: page.Visible(k.Session),
	}
	if d.Ticket, err = a.wholeTicket(r, k, v.Principal); err != nil {
		return d, err
	}
	if d.Shell, err = a.Shell(ctx, v, page.Visible(k.Exposed), page.ApprovalsPath, Path(k.ID)); err != nil {
		return d, err
	}
	own, voted := k.VoteOf(v.Principal)
	d.MayDecide = d.MayDecide && !voted
	d.WhyNot = whyNot(k, v.Principal, own, voted)
	d.Raw, d.RawCut = rawOf(k.Arguments)
	earlier, err := a.earlier(ctx, k, v.Principal)
	if err != nil {
		return d, err
	}
	d.Table = compared(k.Arguments, earlier.Arguments)
	if d.Earlier = earlier.ID; d.Earlier != "" && earlier.Principal.Subject != k.Principal.Subject {
		d.EarlierBy = page.Visible(earlier.Principal.Subject)
	}
	d.Redefined = d.Earlier != "" && earlier.Fingerprint != k.Fingerprint
	return d, nil
}

// earlier returns the last approved call like k that p may see, the zero Ticket
// for none.
func (a *Area) earlier(ctx context.Context, k approval.Ticket, p policy.Principal) (approval.Ticket, error) {
	found, err := a.Archive.Similar(ctx, k.ID)
	if errors.Is(err, approval.ErrNotFound) || err == nil && !found.VisibleTo(p) {
		return approval.Ticket{}, nil
	}
	return found, err
}

// rawOf returns the visible form of the judged bytes and the number of bytes
// that it leaves out at the end.
func rawOf(arguments []byte) (page.Text, int) {
	start := page.Start(string(arguments), page.TextBytes)
	return page.TextOf(page.Visible(start)), len(arguments) - len(start)
}

// describeTransport says how a call arrived.
func describeTransport(k approval.Ticket) string {
	named := map[string]string{"http": "MCP over HTTP", "stdio": "MCP over stdio", "ndjson": "NDJSON", "rest": "REST"}
	s := cmp.Or(named[k.Transport], page.Visible(k.Transport))
	if k.Era != "" {
		s += " (" + page.Visible(k.Era) + ")"
	}
	return s
}

// whyNot says why p cannot decide on k.
func whyNot(k approval.Ticket, p policy.Principal, own approval.Ballot, voted bool) string {
	mine := "You denied it."
	if own.Approve {
		mine = "You approved it."
	}
	asked := p.SameParty(k.Principal)
	switch {
	case voted && k.State == approval.StateProposed:
		return mine + " It waits for others."
	case voted:
		return mine
	case asked && k.State == approval.StateProposed:
		return "It is your own call: somebody else decides."
	case asked && k.State == approval.StateUnknown:
		return "It was your own call: somebody else reports its outcome."
	}
	return "There is nothing to decide here."
}

// arguments sends the judged bytes, so that readers can compare their digest
// and read values that are too long for the page.
func (a *Area) arguments(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	k, err := a.ticketFor(r, v.Principal, r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+k.ID+`.json"`)
	_, _ = w.Write(k.Arguments) // a reader that went away needs no answer
	return nil
}

// vote takes the form of a ticket's page.
func (a *Area) vote(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	word := r.PostForm.Get("vote")
	if word != "approve" && word != "deny" {
		return page.BadRequest("a vote is approve or deny", "")
	}
	err := a.cast(r, v, r.PathValue("id"), r.PostForm.Get("digest"), approval.Vote{Approve: word == "approve", Reason: r.PostForm.Get("reason")})
	return a.settled(w, r, v, err)
}

// finding takes the form for a call of unknown outcome.
func (a *Area) finding(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	outcome := r.PostForm.Get("outcome")
	if outcome != string(approval.StateDone) && outcome != string(approval.StateFailed) {
		return page.BadRequest("an outcome is done or failed", "")
	}
	_, err := a.Reconciler.Reconcile(r.Context(), approval.Finding{
		ID: r.PathValue("id"), Approver: v.Principal, TookEffect: outcome == string(approval.StateDone), Reason: r.PostForm.Get("reason"),
	})
	a.recordVote(r, v.Principal, r.PathValue("id"), err)
	return a.settled(w, r, v, err)
}

// settled answers a form with the page of its ticket: by a redirect when the
// form changed something, else with the reason. A ticket that v may not see is
// refused like a missing one.
func (a *Area) settled(w http.ResponseWriter, r *http.Request, v people.Visitor, err error) error {
	if err == nil {
		http.Redirect(w, r, Path(r.PathValue("id")), http.StatusSeeOther)
		return nil
	}
	p := page.ProblemOf(err)
	if p.Status == http.StatusInternalServerError {
		return err
	}
	return a.showTicket(w, r, v, &p)
}

// A Briefing is what helps to decide on a held call and is not in its ticket.
type Briefing struct {
	Offered     bool     `json:"offered"`               // the server offers the definition that was judged
	Description string   `json:"description,omitempty"` // of that definition, in the words of the server
	Risk        string   `json:"risk,omitempty"`        // of the server, as configured
	Notice      string   `json:"notice,omitempty"`      // likewise
	Waiting     bool     `json:"waiting"`               // a call waits for the decision in this process; false = of others it is not known
	Budgets     []Budget `json:"budgets,omitempty"`     // while the call may still run
}

// A Budget is what one meter of the policy reads for a held call. A sum of amounts whose decimals are
// known is in whole units of their asset.
type Budget struct {
	Meter  string          `json:"meter"`
	Window string          `json:"window"`
	Adds   string          `json:"adds,omitempty"` // pointer to the argument that is added up, or the name of the fact; "" = calls are counted
	Asset  string          `json:"asset,omitempty"`
	Per    json.RawMessage `json:"per,omitempty"` // array of the values that are counted apart
	Before policy.Reading  `json:"before"`
	With   policy.Reading  `json:"with"` // this call too
}

// A Result is the beginning of what an approved call came to.
type Result struct {
	Text     string `json:"text,omitempty"`     // visible, with real line breaks
	Cut      int    `json:"cut,omitempty"`      // bytes of the whole that Text leaves out at the end
	Withheld bool   `json:"withheld,omitempty"` // the policy does not let the reader read arguments and results of others
}

// wholeTicket returns k as p sees it, with its briefing and its result. Reading the result of
// somebody else's call is recorded first.
func (a *Area) wholeTicket(r *http.Request, k approval.Ticket, p policy.Principal) (t Ticket, err error) {
	t = view(k, p)
	if a.Brief != nil {
		b, err := a.Brief(r.Context(), k)
		if err != nil {
			return t, err
		}
		t.Briefing = new(b.shown())
	}
	switch {
	case k.Result == nil:
		return t, nil
	case p.Subject != k.Principal.Subject && !a.May(r.Context(), p, policy.ReadsArguments):
		t.Result = &Result{Withheld: true}
		return t, nil
	case p.Subject != k.Principal.Subject:
		err = a.Record(r, people.Act{Name: audit.EventArguments, Principal: p, Added: []string{"call " + page.Visible(k.DecisionID)}, Ticket: page.Visible(k.ID)})
	}
	t.Result = new(resultOf(k.Result))
	return t, err
}

// shown returns b with its texts in their visible form.
func (b Briefing) shown() Briefing {
	b.Description, b.Risk, b.Notice = page.VisibleLines(b.Description), page.Visible(b.Risk), page.VisibleLines(b.Notice)
	for i := range b.Budgets {
		one := &b.Budgets[i]
		one.Meter, one.Adds, one.Asset = page.Visible(one.Meter), page.Visible(one.Adds), page.Visible(one.Asset)
	}
	return b
}

const (
	// resultBytes and resultLines bound what is shown of a result.
	resultBytes = 4 << 10
	resultLines = 40
)

// resultOf returns the beginning of a stored result: the texts of its content blocks, with the type
// and size of a block without text. A result without content is returned as stored.
func resultOf(stored json.RawMessage) (r Result) {
	var said []string
	if content, _ := jsonrpc.Get(stored, "content"); len(content) > 0 && content[0] == '[' {
		for block := range jsonrpc.Elements(content) {
			words, ok := jsonrpc.TextAt(block, "text")
			if !ok {
				kind, _ := jsonrpc.TextAt(block, "type")
				words = fmt.Sprintf("(%s, %s)", cmp.Or(kind, "something"), text.Count(len(block), "byte"))
			}
			said = append(said, words)
		}
	}
	whole := cmp.Or(strings.Join(said, "\n"), string(stored))
	lines := strings.SplitAfterN(page.Start(whole, resultBytes), "\n", resultLines+1)
	start := strings.Join(lines[:min(len(lines), resultLines)], "")
	return Result{Text: page.VisibleLines(start), Cut: len(whole) - len(start)}
}

// String says in words what b reads.
func (b Budget) String() string {
	return b.Meter + page.Prefixed(" of ", b.apart()) + " in " + b.Window + ": " + b.used(b.Before) + " before this call, " + b.used(b.With) + " with it"
}

// used says what a budget reads, in words.
func (b *Budget) used(r policy.Reading) string {
	calls := text.Count(int(r.Calls), "call")
	if b.Adds == "" {
		return calls
	}
	return r.Sum.String() + page.Prefixed(" ", b.Asset) + " in " + calls
}

// apart names the values that a budget counts apart, "" for none.
func (b *Budget) apart() string {
	var values []json.RawMessage
	_ = json.Unmarshal(b.Per, &values) // a budget of all calls together has no values
	var said []string
	for _, v := range values {
		said = append(said, page.Visible(unquote(string(v))))
	}
	return strings.Join(said, ", ")
}

// startOf returns the beginning of a long text, and a short text whole.
func startOf(s string) string {
	start, _, _ := strings.Cut(s, "\n")
	if utf8.RuneCountInString(s) > foldRunes || start != s && strings.Count(s, "\n") > 3 {
		return text.Clip(start, foldRunes, "")
	}
	return s
}
