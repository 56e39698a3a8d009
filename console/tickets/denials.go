package tickets

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

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
	_, err := a.ticketFor(r.Context(), id, v.Principal)
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
func (a *Area) ticketFor(ctx context.Context, id string, p policy.Principal) (approval.Ticket, error) {
	k, err := a.Approvals.Get(ctx, id)
	if err == nil && !k.VisibleTo(p) {
		err = page.NoTicket
	}
	return k, err
}
