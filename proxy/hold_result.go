package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

// ownTicket returns a ticket of the principal's own, whole. Another principal's
// ticket and one that never was get the same answer.
func (c *call) ownTicket(ctx context.Context, id string) (approval.Ticket, *Failure) {
	t, err := c.gate.opts.Book.Get(ctx, id)
	switch {
	case errors.Is(err, approval.ErrNotFound):
	case err != nil:
		return t, c.internal("reading a ticket", err)
	case c.principal.Valid() && c.principal.Subject == t.Principal.Subject && c.principal.Tenant == t.Principal.Tenant:
		return t, nil
	}
	return approval.Ticket{}, c.fail(signal.CodeNotFound, "you have no such ticket")
}

// storedResult returns the result of a ticket's call as the identical call would
// get it now: a principal who may no longer see the tool, or call it so, gets
// the refusal of such a call.
func (c *call) storedResult(ctx context.Context, ticket approval.Ticket) (*Reply, *Failure) {
	t := c.callFor(ticket)
	f := t.resolve(ctx)
	if f == nil {
		f = t.decide(ctx)
	}
	if f != nil {
		c.decision, c.asked = t.decision, t.asked // that refused it
		return nil, f
	}
	result, err := redact(ticket.Result, t.decision.Redact)
	if err != nil && ticket.Result != nil {
		return nil, c.internal("redacting a stored result", err)
	}
	ticket.Result = result
	f = t.replyStored(ctx, ticket)
	return t.reply, f
}

// callFor returns the tool call of a ticket, in the course of the request c. It
// has its own copy of everything, and is never closed.
func (c *call) callFor(ticket approval.Ticket) *toolCall {
	t := &toolCall{call: *c}
	in := *c.in
	in.Route = "" // where the tool has the name that the ticket has
	t.in, t.method, t.ticket, t.tool, t.reply = &in, "", ticket, nil, nil
	t.name, t.body, t.digest = ticket.Exposed, ticket.Arguments, ticket.Digest
	return t
}

// ticketWords are the states of a ticket as agents read them; a state that is
// not listed is its own word.
var ticketWords = map[approval.State]string{approval.StateProposed: "pending", approval.StateDispatching: "running"}

// describeTicket is what an agent may know of its ticket, as data.
func (c *call) describeTicket(t approval.Ticket) map[string]any {
	view := c.approvalView(cmp.Or(ticketWords[t.State], string(t.State)), t)
	view["tool"] = t.Exposed
	if underWay(t) {
		view["retry_after_ms"] = retryPending.Milliseconds()
	} else {
		delete(view, "approval_url")
	}
	return view
}

// ticketText is the same in words for a model.
func ticketText(t approval.Ticket) string {
	head := fmt.Sprintf("Ticket %s, your call of %s: ", t.ID, t.Exposed)
	again := fmt.Sprintf("call %s again with exactly the same arguments", t.Exposed)
	switch t.State {
	case approval.StateProposed:
		next := "When it is approved, " + again + " and it is made."
		if t.Execute {
			next = "It is made as soon as it is approved."
		}
		return head + fmt.Sprintf("waiting for a person with role %s to approve it (rule %s: %s). Nothing has been done yet. %s The request expires at %s.",
			strings.Join(t.Roles, " or "), t.Rule, t.Reason, next, t.Expires.UTC().Format(time.RFC3339))
	case approval.StateApproved:
		if t.Execute {
			return head + "approved, and about to be made. Ask again in a moment for its result."
		}
		return head + "approved. To have it made, " + again + " before " + t.Expires.UTC().Format(time.RFC3339) + "."
	case approval.StateDispatching:
		return head + "approved, and being made now. Ask again in a moment for its result."
	case approval.StateDenied:
		return head + denial(t) + ". Nothing was done."
	case approval.StateExpired:
		return head + "nobody approved it in time. Nothing was done. To ask anew, " + again + "."
	case approval.StateSuperseded:
		return head + "taken back, because it was withdrawn or its terms have changed. Nothing was done. To ask anew, " + again + "."
	case approval.StateFailed:
		return head + "approved and made, and it failed: " + t.Note
	case approval.StateDone:
		return head + "approved and made. Ask for this ticket to have the result."
	}
	return head + "approved and begun, and its outcome is not known. It is not made again; a person has to find out whether it took effect."
}
