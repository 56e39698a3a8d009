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

// retryPending is what an agent is told to wait before it asks again after a
// pending call.
const retryPending = 10 * time.Second

// approve lets a held call on only with a grant, which it spends here, before
// anything is sent. A ticket store that fails refuses the call. One that is
// resumed goes on with its own grant or not at all.
func approve(ctx context.Context, g *Gate, p *passage) *Failure {
	if t := p.in.resumed; t != nil {
		if f := p.onlyFor(*t); f != nil {
			return f
		}
	}
	if p.decision.Effect != policy.Hold {
		return nil
	}
	claim, f := g.claim(ctx, p)
	if f == nil && g.takesTask(p, claim) {
		return g.handle(ctx, p, claim)
	}
	if f == nil && waits(claim) && p.in.resumed == nil {
		claim, f = g.await(ctx, p, claim)
	}
	if f != nil || p.reply != nil {
		return f
	}
	return g.follow(ctx, p, claim)
}

func (g *Gate) claim(ctx context.Context, p *passage) (approval.Claim, *Failure) {
	claim, err := g.opts.Tickets.Claim(context.WithoutCancel(ctx), approval.Held{
		Principal: p.principal, Server: p.tool.Server, Tool: p.tool.Name, Exposed: p.tool.Exposed,
		Fingerprint: p.tool.Fingerprint, Arguments: p.args, Digest: p.digest,
		Revision: p.decision.Revision, Rule: p.decision.Rule, Reason: p.decision.Reason,
		Approval: *p.decision.Approval, DecisionID: p.decisionID, TraceID: p.traceID,
		Transport: p.in.Transport, Era: p.in.Era, Session: p.in.Session,
		Execute: p.decision.Approval.ExecuteOnApprove || g.knowsTasks(p) || slices.Contains(g.settings.Load().Execute, p.tool.Exposed),
	})
	if err != nil {
		g.opts.Log.Error("claiming a ticket", "decision", p.decisionID, "error", err)
		if errors.Is(err, approval.ErrUntold) {
			return claim, p.fail(signal.CodeAuditUnavailable, "what becomes of the call's ticket could not be recorded, so the call was not made")
		}
		return claim, p.fail(signal.CodeInternal, "")
	}
	p.ticket = claim.Ticket
	p.spent = claim.Outcome == approval.Granted
	return claim, nil
}

// follow does what the ticket says. Only Granted goes on down the road.
func (g *Gate) follow(ctx context.Context, p *passage, c approval.Claim) *Failure {
	switch c.Outcome {
	case approval.Granted:
		return g.draw(ctx, p)
	case approval.Pending, approval.InFlight:
		return g.pending(p, c)
	case approval.Replay:
		return g.replay(ctx, p, c.Ticket)
	case approval.Denied:
		return p.fail(signal.CodeApprovalDenied, denial(c.Ticket)).with("ticket", c.Ticket.ID)
	case approval.Expired:
		return p.fail(signal.CodeApprovalExpired, "nobody approved this call in time").with("ticket", c.Ticket.ID).
			remedy("call again with the same arguments to ask anew")
	case approval.Failed:
		return p.fail(signal.CodeToolFailed, "the approved call was made and failed: "+c.Ticket.Note).with("ticket", c.Ticket.ID)
	case approval.Unknown:
		return p.fail(signal.CodeToolFailed, "the approved call was begun and its outcome is unknown; it is not made again").with("ticket", c.Ticket.ID).
			remedy("a person has to find out whether it took effect")
	case approval.TooMany:
		return p.fail(signal.CodeOverloaded, "too many of your calls are waiting for approval").
			remedy("wait until some have been decided")
	}
	return p.fail(signal.CodeInternal, "")
}

func denial(t approval.Ticket) string {
	if t.DecisionReason == "" {
		return "an approver denied this call"
	}
	return "an approver denied this call: " + t.DecisionReason
}

// pending answers with a tool result that says, in words for a model, what is
// waiting and how to go on. It is marked isError so that nobody reads pending
// as done, and because clients check the output schema of successes.
func (g *Gate) pending(p *passage, c approval.Claim) *Failure {
	t := c.Ticket
	state, text := "pending", fmt.Sprintf(
		"This call is waiting for a person with role %s to approve it (ticket %s, rule %s: %s). Nothing has been done yet. "+
			"To go on, call %s again with exactly the same arguments in about %d seconds; other arguments make a new request. The request expires at %s.",
		strings.Join(t.Roles, " or "), t.ID, t.Rule, t.Reason, p.name, int(retryPending.Seconds()), t.Expires.UTC().Format(time.RFC3339))
	if c.Outcome == approval.InFlight {
		state, text = "running", fmt.Sprintf(
			"This call was approved (ticket %s) and is being made now. Call %s again with exactly the same arguments in about %d seconds for its result.",
			t.ID, p.name, int(retryPending.Seconds()))
	}
	view := g.approvalView(p, state, t)
	view["retry_after_ms"] = retryPending.Milliseconds()
	kernel := signal.Skip("approval "+state+": "+t.ID, p.metrics(g, false))
	if f := g.answer(p, outcome{result: textResult(text), kernel: kernel}, view); f != nil {
		return f
	}
	p.reply.RetryAfter = retryPending
	return nil
}

// replay answers with the stored result of the one execution, and says so.
func (g *Gate) replay(ctx context.Context, p *passage, t approval.Ticket) *Failure {
	p.replayed = true
	if t.Result == nil {
		return p.fail(signal.CodeToolFailed, "the approved call was made and its result is not here: "+t.Note).with("ticket", t.ID)
	}
	view := g.approvalView(p, "replayed", t)
	return g.give(ctx, p, t.Result, nil, view)
}

func (g *Gate) approvalView(p *passage, state string, t approval.Ticket) map[string]any {
	view := map[string]any{
		"status": state, "ticket": t.ID, "rule": t.Rule, "reason": t.Reason, "roles": t.Roles,
		"expires_at": t.Expires.UTC().Format(time.RFC3339), "decision_id": p.decisionID,
	}
	if link := g.link(t); link != "" {
		view["approval_url"] = link
	}
	return view
}

func textResult(text string) json.RawMessage {
	return json.RawMessage(`{"content":[{"type":"text","text":` + string(jsonrpc.Quote(text)) + `}],"isError":true}`)
}
