package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

// retryPending is the wait that agents are told after a pending call.
const retryPending = 10 * time.Second

// hold is what a held call has to do with its ticket.
type hold struct {
	granted bool           // this call spent the ticket's grant
	end     approval.State // the end state of a ticket whose grant was spent, "" until it is known
	result  []byte         // stored with the end state
	note    string         // likewise
	visited bool           // the client went by way of the approval page
	reports int            // progress reported to the client while the call waited
}

// approve lets a held call continue only with a grant, which it spends here,
// before anything is sent. A ticket store that fails refuses the call. A resumed
// call continues with its own grant or not at all.
func (t *toolCall) approve(ctx context.Context) *Failure {
	if own := t.in.resumed; own != nil {
		if f := t.onlyFor(*own); f != nil {
			return f
		}
	}
	if t.decision.Effect != policy.Hold {
		return nil
	}
	claim, f := t.claim(ctx)
	if f == nil && t.takesTask(claim) {
		return t.replyTask(claim)
	}
	if f == nil && waits(claim) && t.in.resumed == nil {
		claim, f = t.await(ctx, claim)
	}
	if f != nil || t.reply != nil {
		return f
	}
	return t.follow(ctx, claim)
}

// claim finds or makes the ticket of the call, and spends its grant if it has one.
func (t *toolCall) claim(ctx context.Context) (approval.Claim, *Failure) {
	g := t.gate
	claim, err := g.opts.Tickets.Claim(context.WithoutCancel(ctx), approval.Held{
		Principal: t.principal, Server: t.tool.Server, Tool: t.tool.Name, Exposed: t.tool.Exposed,
		Fingerprint: t.tool.Fingerprint, Arguments: t.body, Digest: t.digest,
		Revision: t.decision.Revision, Rule: t.decision.Rule, Reason: t.decision.Reason,
		Approval: *t.decision.Approval, DecisionID: t.decisionID, TraceID: t.traceID,
		Transport: t.in.Transport, Era: t.in.Era, Session: t.in.Session,
		Execute: t.decision.Approval.ExecuteOnApprove || t.knowsTasks() || slices.Contains(g.settings.Load().Execute, t.tool.Exposed),
	})
	if err != nil {
		g.opts.Log.Error("claiming a ticket", "decision", t.decisionID, "error", err)
		if errors.Is(err, approval.ErrUntold) {
			return claim, t.fail(signal.CodeAuditUnavailable, "what becomes of the call's ticket could not be recorded, so the call was not made")
		}
		return claim, t.fail(signal.CodeInternal, "")
	}
	t.ticket = claim.Ticket
	if t.hold.granted = claim.Outcome == approval.Granted; t.hold.granted {
		t.settle = t.giveBack
	}
	return claim, nil
}

// follow does what the ticket says. Only Granted continues down the road.
func (t *toolCall) follow(ctx context.Context, c approval.Claim) *Failure {
	switch c.Outcome {
	case approval.Granted:
		return t.chargeHeld(ctx)
	case approval.Pending, approval.InFlight:
		return t.pending(c)
	case approval.Replay:
		return t.replyStored(ctx, c.Ticket)
	}
	return t.ended(c.Outcome, c.Ticket)
}

// ended refuses a call whose ticket is over, or that gets none.
func (t *toolCall) ended(outcome approval.ClaimOutcome, ticket approval.Ticket) *Failure {
	switch outcome {
	case approval.Denied:
		return t.fail(signal.CodeApprovalDenied, denial(ticket)).with("ticket", ticket.ID)
	case approval.Expired:
		return t.fail(signal.CodeApprovalExpired, "nobody approved this call in time").with("ticket", ticket.ID).
			remedy("call again with the same arguments to ask anew")
	case approval.Failed:
		return t.fail(signal.CodeToolFailed, "the approved call was made and failed: "+ticket.Note).with("ticket", ticket.ID)
	case approval.Unknown:
		return t.fail(signal.CodeToolFailed, "the approved call was begun and its outcome is unknown; it is not made again").with("ticket", ticket.ID).
			remedy("a person has to find out whether it took effect")
	case approval.TooMany:
		return t.fail(signal.CodeOverloaded, "too many of your calls are waiting for approval").
			remedy("wait until some have been decided")
	}
	return t.fail(signal.CodeInternal, "")
}

func denial(t approval.Ticket) string {
	if t.DecisionReason == "" {
		return "an approver denied this call"
	}
	return "an approver denied this call: " + t.DecisionReason
}

// pending replies with a tool result that tells a model what is waiting and how
// to continue. isError keeps readers from taking pending for done, and clients
// check the output schema of successes only.
func (t *toolCall) pending(c approval.Claim) *Failure {
	ticket := c.Ticket
	state, text := "pending", fmt.Sprintf(
		"This call is waiting for a person with role %s to approve it (ticket %s, rule %s: %s). Nothing has been done yet. "+
			"To go on, call %s again with exactly the same arguments in about %d seconds; other arguments make a new request. The request expires at %s.",
		strings.Join(ticket.Roles, " or "), ticket.ID, ticket.Rule, ticket.Reason, t.name, int(retryPending.Seconds()), ticket.Expires.UTC().Format(time.RFC3339))
	if c.Outcome == approval.InFlight {
		state, text = "running", fmt.Sprintf(
			"This call was approved (ticket %s) and is being made now. Call %s again with exactly the same arguments in about %d seconds for its result.",
			ticket.ID, t.name, int(retryPending.Seconds()))
	}
	view := t.approvalView(state, ticket)
	view["retry_after_ms"] = retryPending.Milliseconds()
	if f := t.replyShaped(outcome{result: textResult(text), kernel: t.undecided(ticket, state, text)}, view); f != nil {
		return f
	}
	t.reply.RetryAfter = retryPending
	return nil
}

// undecided is the Result of a call that waits for its approval, or for its
// execution.
func (t *toolCall) undecided(ticket approval.Ticket, state, text string) signal.Result {
	f := t.fail(signal.CodeApprovalPending, text).with("ticket", ticket.ID).with("state", state).with("rule", ticket.Rule)
	return signal.Fail(f.with("expires_at", ticket.Expires.UTC().Format(time.RFC3339)).Kernel, t.metrics())
}

// replyStored replies with the stored result of the ticket's one execution, and
// says so.
func (t *toolCall) replyStored(ctx context.Context, ticket approval.Ticket) *Failure {
	t.replayed = true
	if ticket.Result == nil {
		return t.fail(signal.CodeToolFailed, "the approved call was made and its result is not here: "+ticket.Note).with("ticket", ticket.ID)
	}
	return t.replyResult(ctx, ticket.Result, nil, t.approvalView("replayed", ticket))
}

// approvalView is the member io.toolgate/approval of a result's _meta.
func (c *call) approvalView(state string, t approval.Ticket) map[string]any {
	view := map[string]any{
		"status": state, "ticket": t.ID, "rule": t.Rule, "reason": t.Reason, "roles": t.Roles,
		"expires_at": t.Expires.UTC().Format(time.RFC3339), "decision_id": c.decisionID,
	}
	if link := c.gate.approvalPage(t); link != "" {
		view["approval_url"] = link
	}
	return view
}

func textResult(text string) json.RawMessage {
	return json.RawMessage(`{"content":[{"type":"text","text":` + string(jsonrpc.Quote(text)) + `}],"isError":true}`)
}
