package tickets

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

const (
	// listed is how many tickets one page of a list has.
	listed = 25
)

// face is what people see of a ticket first.
type face struct {
	Said           []phrase
	Standing, Left string
	Look           string // the class of Standing in style.css
	Open, Own      bool   // Open: its expiry still matters
	Expires        time.Time
	Seconds        int // to the expiry
}

func (a *Area) face(k approval.Ticket, v people.Visitor) face {
	now := a.Now()
	look := string(k.State)
	if k.ToolFailed() {
		look = string(approval.StateFailed)
	}
	return face{
		Look: look,
		Said: sentence(k), Standing: describeState(k), Expires: k.Expires, Left: timeLeft(now, k.Expires), Seconds: int(k.Expires.Sub(now) / time.Second),
		Open: k.State == approval.StateProposed || k.State == approval.StateApproved || k.State == approval.StateNeedsConnection,
		Own:  k.Principal.Tenant == v.Tenant && v.SameParty(k.Principal),
	}
}

// item is a ticket in a list.
type item struct {
	face
	ID, Digest string
	Created    time.Time
}

// inboxPage is one list of tickets.
type inboxPage struct {
	page.Shell
	View           string          // of lists
	Filter         approval.Filter // what was asked for
	Items, Unclear []item
	Older          string
	DenyPath       string // where several can be denied at once; "" = there are not several
	denials               // what became of that
}

// inbox lists tickets: ?view=mine, those that wait for the visitor, and those
// of unknown outcome that it may settle; team, all that are under way and that
// it may see; history, the others that it may see. The parameters of
// ticketParameters choose among them.
func (a *Area) inbox(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	return a.showInbox(w, r, v, http.StatusOK, denials{})
}

// showInbox is inbox after several were denied.
func (a *Area) showInbox(w http.ResponseWriter, r *http.Request, v people.Visitor, status int, denied denials) error {
	view, f, err := inboxQuery(r.URL, v)
	if err != nil {
		return err
	}
	data := inboxPage{View: view, Filter: f, denials: denied}
	if data.Shell, err = a.Shell(r.Context(), v, "Approvals", page.ApprovalsPath, inboxPath(view, f)); err != nil {
		return err
	}
	found, err := a.Approvals.List(r.Context(), f)
	if err != nil {
		return err
	}
	if len(found) == listed {
		older := f
		older.Before = found[len(found)-1].ID
		data.Older = inboxPath(view, older)
	}
	data.Items = a.items(found, v)
	if view == "mine" && len(data.Items) > 1 {
		data.DenyPath = denyPath + "?" + inboxValues(view, f).Encode()
	}
	if view == "mine" && f.Before == "" {
		f.Awaiting, f.Viewer, f.States = policy.Principal{}, v.Principal, []approval.State{approval.StateUnknown}
		unclear, err := a.Approvals.List(r.Context(), f)
		if err != nil {
			return err
		}
		data.Unclear = a.items(slices.DeleteFunc(unclear, func(k approval.Ticket) bool { return !k.MayDecide(v.Principal) }), v)
	}
	return page.Render(w, page.ScriptCSP, status, inboxView(data))
}

func (a *Area) items(found []approval.Ticket, v people.Visitor) (items []item) {
	for _, k := range found {
		if k.VisibleTo(v.Principal) {
			items = append(items, item{face: a.face(k, v), ID: k.ID, Digest: k.Digest, Created: k.Created})
		}
	}
	return items
}

// inboxQuery reads what a list is asked for.
func inboxQuery(u *url.URL, v people.Visitor) (view string, f approval.Filter, err error) {
	f.Limit = listed
	known := ticketParameters(&f)
	known["view"] = page.String(&view)
	if err := page.ReadQuery(u, known); err != nil {
		return "", f, err
	}
	switch view = cmp.Or(view, "mine"); view {
	case "mine":
		f.Awaiting = v.Principal
	case "team":
		f.Viewer, f.States = v.Principal, []approval.State{approval.StateProposed, approval.StateApproved, approval.StateNeedsConnection, approval.StateDispatching}
	case "history":
		f.Viewer, f.States = v.Principal, []approval.State{approval.StateDenied, approval.StateExpired, approval.StateSuperseded,
			approval.StateDone, approval.StateFailed, approval.StateUnknown}
	default:
		return "", f, page.BadRequest("there is no such list", "mine, team and history are known")
	}
	return view, f, nil
}

// ticketParameters are the parameters of a query that choose tickets.
func ticketParameters(f *approval.Filter) map[string]func(string) error {
	return map[string]func(string) error{
		"before": page.String(&f.Before), "server": page.String(&f.Server), "tool": page.String(&f.Tool), "principal": page.String(&f.Principal),
		"role": func(value string) error {
			if f.Roles = nil; value != "" {
				f.Roles = []string{value}
			}
			return nil
		},
	}
}

// inboxValues are the parameters of a list.
func inboxValues(view string, f approval.Filter) url.Values {
	query := url.Values{}
	if view == "mine" {
		view = ""
	}
	for name, value := range map[string]string{
		"view": view, "before": f.Before, "server": f.Server, "tool": f.Tool, "principal": f.Principal, "role": strings.Join(f.Roles, ""),
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

func inboxPath(view string, f approval.Filter) string {
	return (&url.URL{Path: page.ApprovalsPath, RawQuery: inboxValues(view, f).Encode()}).String()
}

// to returns the first page of another list of the same choice.
func (d *inboxPage) to(view string) string {
	f := d.Filter
	f.Before = ""
	return inboxPath(view, f)
}

// Path returns the path of the page of a ticket.
func Path(id string) string { return page.ApprovalsPath + "/" + url.PathEscape(id) }

const (
	denyPath = page.ApprovalsPath + "/deny"
	// chosenPrefix begins the names of the fields that choose tickets to deny; the ID of the ticket
	// follows, and the value is the digest of the arguments that the page showed.
	chosenPrefix = "deny."
)

// denials are what became of the form that denies several calls.
type denials struct {
	Refused *page.Problem     // why it denied none
	Typed   string            // the reason that stood in it
	Chosen  map[string]string // ID ⇒ digest
	Denied  int
	Failed  []failedDenial
}

// A failedDenial is a call that was chosen and could not be denied.
type failedDenial struct {
	ID string
	page.Problem
}

// denySeveral takes the form of the inbox that denies several calls for one reason. Each denial is a
// vote of its own, with a record of its own: one that is refused changes nothing of the others.
func (a *Area) denySeveral(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	view, f, err := inboxQuery(r.URL, v)
	if err != nil {
		return err
	}
	d := denials{Typed: strings.TrimSpace(r.PostForm.Get("reason")), Chosen: map[string]string{}}
	var ids []string
	for field, values := range r.PostForm {
		if id, ok := strings.CutPrefix(field, chosenPrefix); ok {
			d.Chosen[id], ids = values[0], append(ids, id)
		}
	}
	slices.Sort(ids)
	switch {
	case len(ids) == 0 || len(ids) > listed:
		d.Refused = &page.Problem{Status: http.StatusUnprocessableEntity, Code: "NONE_CHOSEN", Detail: "choose from one to " + strconv.Itoa(listed) + " calls"}
	case d.Typed == "":
		d.Refused = new(page.ProblemOf(approval.ErrReasonRequired))
	}
	if d.Refused != nil {
		return a.showInbox(w, r, v, d.Refused.Status, d)
	}
	for _, id := range ids {
		err := a.cast(r, v, id, d.Chosen[id], approval.Vote{Reason: d.Typed})
		if err == nil {
			d.Denied++
			continue
		}
		d.Failed = append(d.Failed, failedDenial{ID: page.Visible(id), Problem: a.Problem(r, err)})
	}
	if d.Failed == nil {
		http.Redirect(w, r, inboxPath(view, f), http.StatusSeeOther)
		return nil
	}
	return a.showInbox(w, r, v, d.Failed[0].Status, d)
}

// cast casts the vote of a visitor on the ticket with an ID, for the arguments that a page showed. A
// form without their digest is as stale as one with another. A refused vote is recorded.
func (a *Area) cast(r *http.Request, v people.Visitor, id, digest string, vote approval.Vote) error {
	_, err := a.ticketFor(r, v.Principal, id)
	if err == nil && digest == "" {
		err = approval.ErrStaleDigest
	}
	if err == nil {
		vote.ID, vote.Approver, vote.Digest = id, v.Principal, digest
		_, err = a.Approvals.Decide(r.Context(), vote)
	}
	a.recordVote(r, v.Principal, id, err)
	return err
}

// ticketFor returns a ticket. One that p may not see is refused exactly like a missing one.
func (a *Area) ticketFor(r *http.Request, p policy.Principal, id string) (approval.Ticket, error) {
	k, err := a.Approvals.Get(r.Context(), id)
	if err == nil && !k.VisibleTo(p) {
		err = page.NoTicket
	}
	return k, err
}
