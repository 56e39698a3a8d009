package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

// ownTicket gives a ticket of the principal's own, whole. One that is another's
// and one that never was give the same answer.
func (g *Gate) ownTicket(ctx context.Context, p *passage, id string) (approval.Ticket, *Failure) {
	t, err := g.opts.Book.Get(ctx, id)
	switch {
	case errors.Is(err, approval.ErrNotFound):
	case err != nil:
		g.opts.Log.Error("reading a ticket", "decision", p.decisionID, "error", err)
		return t, p.fail(signal.CodeInternal, "")
	case owns(p.principal, t):
		return t, nil
	}
	return approval.Ticket{}, p.fail(signal.CodeNotFound, "you have no such ticket")
}

// owns reports whether p asked for t.
func owns(p policy.Principal, t approval.Ticket) bool {
	return p.Valid() && p.Subject == t.Principal.Subject && p.Tenant == t.Principal.Tenant
}

// stored gives the result of a call that was made, as the identical call would
// get it now: whoever may not see the tool any more, or not call it so, gets what
// such a call would get. The passage itself stays what it is.
func (g *Gate) stored(ctx context.Context, p *passage, t approval.Ticket) (*Reply, *Failure) {
	in := *p.in
	in.Route = "" // where the tool has the name that the ticket has
	q := *p
	q.in, q.method, q.reply, q.ticket = &in, method{}, nil, t
	q.name, q.args, q.digest = t.Exposed, t.Arguments, t.Digest
	f := g.see(ctx, &q, g.lookup(ctx, &q))
	if f == nil {
		f = decide(ctx, g, &q)
	}
	if f != nil {
		p.decision, p.asked = q.decision, q.asked // that refused it
		return nil, f
	}
	result, err := redact(t.Result, q.decision.Redact)
	if err != nil && t.Result != nil {
		g.opts.Log.Error("redacting a stored result", "ticket", t.ID, "error", err)
		return nil, p.fail(signal.CodeInternal, "")
	}
	t.Result = result
	f = g.replay(ctx, &q, t)
	return q.reply, f
}

// words are the states of a ticket as agents read them; a state that is not
// listed is its own word.
var words = map[approval.State]string{approval.StateProposed: "pending", approval.StateDispatching: "running"}

// describe is what an agent may know of its ticket, as data.
func (g *Gate) describe(p *passage, t approval.Ticket) map[string]any {
	word := words[t.State]
	if word == "" {
		word = string(t.State)
	}
	view := g.approvalView(p, word, t)
	view["tool"] = t.Exposed
	if t.State == approval.StateProposed || t.State == approval.StateApproved || t.State == approval.StateDispatching {
		view["retry_after_ms"] = retryPending.Milliseconds()
	} else {
		delete(view, "approval_url")
	}
	return view
}

// says is the same in words for a model.
func says(t approval.Ticket) string {
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
