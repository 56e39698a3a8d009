package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
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
	case approval.TooMany:
		return t.fail(signal.CodeOverloaded, "too many of your calls are waiting for approval").remedy("wait until some have been decided")
	}
	return t.ended(c.Ticket)
}

// ended refuses a call whose ticket is over without a result.
func (t *toolCall) ended(ticket approval.Ticket) *Failure {
	code, reason, remedy := signal.CodeInternal, "", ""
	switch ticket.State {
	case approval.StateDenied:
		code, reason = signal.CodeApprovalDenied, denial(ticket)
	case approval.StateExpired:
		code, reason, remedy = signal.CodeApprovalExpired, "nobody approved this call in time", askAnew
	case approval.StateSuperseded:
		code, remedy = signal.CodeApprovalExpired, askAnew
		reason = "the request was taken back, because it was withdrawn or its terms have changed; nothing was done"
	case approval.StateFailed:
		code, reason = signal.CodeToolFailed, "the approved call was made and failed: "+ticket.Note
	case approval.StateUnknown:
		code, reason = signal.CodeToolFailed, "the approved call was begun and its outcome is unknown; it is not made again"
		remedy = "a person has to find out whether it took effect"
	}
	return t.fail(code, reason).with("ticket", ticket.ID).remedy(remedy)
}

const askAnew = "call again with the same arguments to ask anew"

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

// rejudgeRoad lists the stages that a held call passes again: policy, catalogue
// and identity may have changed since it was judged. Its quota stays spent, and
// is spent once.
var rejudgeRoad = []stage[*toolCall]{
	{"identify", (*toolCall).identifyAgain},
	{"resolve", (*toolCall).resolve},
	{"decide", (*toolCall).decide},
	{"validate", (*toolCall).validate},
}

// claimAgain judges a call that has waited by what holds now, and claims its
// ticket. The new judgement decides; a ticket that it contradicts is superseded.
func (t *toolCall) claimAgain(ctx context.Context, c approval.Claim) (approval.Claim, *Failure) {
	if f := t.rejudge(ctx); f != nil {
		if t.contradicts(ctx, f) {
			t.gate.supersede(ctx, c.Ticket.ID, "the call would be refused by now: "+f.Reason)
		}
		return c, f
	}
	switch {
	case t.decision.Effect == policy.Hold:
		return t.claim(ctx)
	case c.Outcome == approval.InFlight:
		return c, nil // it runs already, and must not run twice at a time
	case !t.gate.supersede(ctx, c.Ticket.ID, "the call needs no approval any more"):
		// An approver may have denied it: that nobody is asked any more is no approval.
		return c, t.fail(signal.CodeApprovalExpired, "this call was not approved while it waited, and by now needs no approval").
			with("ticket", c.Ticket.ID).remedy("call again with the same arguments")
	}
	t.ticket = approval.Ticket{}
	return approval.Claim{Outcome: approval.Granted}, nil
}

// rejudge walks t down rejudgeRoad.
func (t *toolCall) rejudge(ctx context.Context) *Failure {
	source := t.source
	t.engine, t.asOf = *t.gate.policy.Load(), t.gate.opts.Now()
	f := walk(ctx, t, &t.call, rejudgeRoad)
	if f == nil {
		t.source = source
	}
	return f
}

// identifyAgain identifies the caller anew. Another principal behind the same
// credential is a refusal.
func (t *toolCall) identifyAgain(ctx context.Context) *Failure {
	who := t.principal
	if f := t.reidentify(ctx); f != nil {
		return f
	}
	if t.principal.Subject != who.Subject || t.principal.Tenant != who.Tenant {
		return t.fail(signal.CodeUnauthenticated, "the credential names somebody else by now")
	}
	return nil
}

// supersede ends a live ticket, and reports whether it did.
func (g *Gate) supersede(ctx context.Context, id, reason string) bool {
	if g.opts.Book == nil {
		return false
	}
	err := g.opts.Book.Supersede(context.WithoutCancel(ctx), id, "", reason)
	if err != nil {
		g.opts.Log.Debug("superseding a ticket", "ticket", id, "error", err)
	}
	return err == nil
}

// contradicts reports whether a refusal means that the terms of the call's ticket
// are gone, and not only that something is missing at this moment: an expired
// credential, quota, a policy that fails, a server that starts.
func (t *toolCall) contradicts(ctx context.Context, f *Failure) bool {
	switch f.Kernel.Code {
	case signal.CodePolicyDenied:
		return t.decision.Rule != ruleFailed
	case signal.CodeToolQuarantined, signal.CodeSchemaMismatch, signal.CodeEnvelopeInvalid:
		return true
	case signal.CodeToolNotFound:
		_, exists := t.gate.opts.Upstreams.View(ctx, t.in.Route, registry.Downstream{}).Lookup(t.name)
		return exists // and the policy hides it
	}
	return false
}

// differs says how a ticket differs from the one that the held call t would get
// now; "" when it does not.
func (t *toolCall) differs(ticket approval.Ticket) string {
	roles := slices.Sorted(slices.Values(t.decision.Approval.Roles))
	switch {
	case ticket.Principal.Subject != t.principal.Subject || ticket.Principal.Tenant != t.principal.Tenant || ticket.Digest != t.digest,
		ticket.Server != t.tool.Server || ticket.Tool != t.tool.Name || ticket.Exposed != t.tool.Exposed:
		return "it is about another call"
	case ticket.Fingerprint != t.tool.Fingerprint:
		return "the definition of the tool has changed"
	case ticket.Revision != t.decision.Revision:
		return "the policy has changed"
	case ticket.Quorum != max(1, t.decision.Approval.Quorum) || !maps.Equal(ticket.Each, t.decision.Approval.Each) || !slices.Equal(slices.Sorted(slices.Values(ticket.Roles)), roles):
		return "others have to approve it by now"
	}
	return ""
}
