package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

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
	if f == nil && waits(claim) {
		t.note(span.EventHeld, string(claim.Ticket.State))
	}
	// A caller that asked for a task gets one in every state of the ticket.
	if f == nil && claim.Ticket.ID != "" && (t.task != nil || waits(claim)) && t.knowsTasks() {
		return t.replyTask(claim)
	}
	if f == nil && waits(claim) && t.in.resumed == nil {
		if claim, f = t.await(ctx, claim); f != nil || !waits(claim) {
			t.note(span.EventDecided, string(claim.Ticket.State))
		}
	}
	if f != nil {
		return f
	}
	switch claim.Outcome {
	case approval.Granted: // only this continues down the road
		return t.chargeHeld(ctx)
	case approval.Pending, approval.InFlight:
		return t.pending(claim)
	case approval.Unconnected:
		return t.disconnected(claim.Ticket)
	case approval.Replay:
		return t.replyStored(ctx, claim.Ticket)
	case approval.TooMany:
		t.crowded = true
		return t.fail(signal.CodeOverloaded, "too many of your calls are waiting for approval").remedy("wait until some have been decided")
	}
	return t.ended(claim.Ticket)
}

// holding is what a held call has to do with its ticket.
type holding struct {
	granted bool           // this call spent the ticket's grant
	end     approval.State // the end state of a ticket whose grant was spent, "" until it is known
	result  []byte         // stored with the end state
	note    string         // likewise
	refused bool           // the server refused the credential that the call was made with
	visited bool           // the client went by way of the approval page
	reports int            // progress reported to the client while the call waited
}

// claim finds or makes the ticket of the call, and spends its grant if it has one.
func (t *toolCall) claim(ctx context.Context) (approval.Claim, *Failure) {
	claim, err := t.gate.opts.Tickets.Claim(context.WithoutCancel(ctx), t.held())
	if err != nil {
		switch {
		case store.Away(err):
			return claim, t.away(err)
		case errors.Is(err, approval.ErrComparing):
			return claim, t.fail(signal.CodeStoreUnavailable, approval.ErrComparing.Error()).after(retryUsed).remedy(callLater)
		case errors.Is(err, approval.ErrReplaced):
			return claim, t.fail(signal.CodeStoreUnavailable, "approvals are closed until a restart: "+approval.ErrReplaced.Error()).remedy("tell whoever operates toolgate")
		case errors.Is(err, approval.ErrUntold):
			return claim, t.fail(signal.CodeAuditUnavailable, "what becomes of the call's ticket could not be recorded, so the call was not made")
		}
		return claim, t.internal("claiming a ticket", err)
	}
	t.ticket = &claim.Ticket
	if t.hold.granted = claim.Outcome == approval.Granted; t.hold.granted {
		t.settle = t.giveBack
	}
	return claim, nil
}

// away refuses a call that needs the state while the server of the state is away. What a
// commit of unknown outcome has spent stays spent, for the server may have it.
func (c *call) away(err error) *Failure {
	reason, then := "the state of toolgate cannot be reached, so the call was not made", "call again a little later"
	if errors.Is(err, store.ErrOutcome) {
		reason = "the call was not made; whether its approval or usage was spent is unknown, because the state of toolgate was lost meanwhile"
		then = "call again a little later: a call whose approval was spent is refused, and a person can settle its ticket"
	}
	return c.fail(signal.CodeStoreUnavailable, reason).after(retryUsed).remedy(then)
}

// held is the call as its ticket binds it.
func (t *toolCall) held() approval.Held {
	return approval.Held{
		Principal: t.principal, Server: t.tool.Server, Tool: t.tool.Name, Exposed: t.tool.Exposed,
		Fingerprint: t.tool.Fingerprint, Arguments: t.body, Digest: t.digest,
		Revision: t.decision.Revision, Rule: t.decision.Rule, Reason: t.decision.Reason,
		RunsAs: runsAs(t.credential), Approval: *t.decision.Approval, DecisionID: t.decisionID, TraceID: t.traceID,
		Transport: t.in.Transport, Era: t.in.Era, Session: t.in.Session, Tags: t.in.Tags,
		Execute: t.decision.Approval.ExecuteOnApprove || t.knowsTasks() || slices.Contains(t.gate.settings.Load().Execute, t.tool.Exposed),
	}
}

// pollRate is how often a call that repeats a held one costs no quota: a little more
// often than pending answers suggest.
const pollRate = "1/9s"

// repeats reports whether a held call costs no quota: it comes back for its ticket no
// sooner than it was told, or the ticket is approved and the call spends its grant, or would. An
// error of the store means no.
func (t *toolCall) repeats(ctx context.Context) bool {
	if t.gate.opts.Repeats == nil || t.decision.Approval == nil {
		return false
	}
	ticket, err := t.gate.opts.Repeats.Repeated(ctx, t.held())
	if err != nil {
		return false
	}
	return ticket.State == approval.StateApproved || ticket.State == approval.StateNeedsConnection ||
		t.gate.polls.Spend(t.start, t.principal, t.subject, &policy.Limit{Rate: pollRate, Key: ticket.ID}) == nil
}

// ended refuses a call whose ticket is over without a result.
func (t *toolCall) ended(ticket approval.Ticket) *Failure {
	code, text, remedy := hold.Ended(ticket, t.name)
	return t.fail(code, text).with("ticket", ticket.ID).remedy(remedy)
}

// pending replies with a tool result that tells a model what is waiting and how
// to continue. isError keeps readers from taking pending for done, and clients
// check the output schema of successes only.
func (t *toolCall) pending(c approval.Claim) *Failure {
	ticket := c.Ticket
	text := "This call is waiting for a person with role {roles} to approve it (ticket {ticket}, rule {rule}: {reason}). Nothing has been done yet. " +
		"To continue, {again} in about {soon} seconds; other arguments make a new request. The request expires at {expires}."
	if c.Outcome == approval.InFlight {
		text = "This call was approved (ticket {ticket}) and is being made now. {Again} in about {soon} seconds for its result."
	}
	text = hold.Fill(text, ticket, t.name)
	f := t.replyShaped(outcome{result: textResult(text), kernel: t.undecided(ticket, text)}, t.describe(ticket))
	if f == nil {
		t.reply.RetryAfter = hold.RetryAfter
	}
	return f
}

// undecided is the Result of a call that waits for its approval, or for its
// execution.
func (t *toolCall) undecided(ticket approval.Ticket, text string) signal.Result {
	f := t.fail(signal.CodeApprovalPending, text).with("ticket", ticket.ID).with("state", hold.State(ticket)).with("rule", ticket.Rule)
	return signal.Fail(f.with("expires_at", ticket.Expires.UTC().Format(time.RFC3339)).Kernel, t.metrics())
}

// replyStored replies with the stored result of the ticket's one execution, and
// says so.
func (t *toolCall) replyStored(ctx context.Context, ticket approval.Ticket) *Failure {
	t.replayed = true
	if ticket.Result == nil {
		return t.fail(signal.CodeToolFailed, "the approved call was made and its result is not here: "+ticket.Note).with("ticket", ticket.ID)
	}
	return t.replyResult(ctx, ticket.Result, hold.Describe(ticket, "replayed", t.decisionID, t.gate.console()))
}

func textResult(text string) json.RawMessage {
	return json.RawMessage(`{"content":[{"type":"text","text":` + string(jsonrpc.Quote(text)) + `}],"isError":true}`)
}

// rejudgeRoad lists the stages that a held call passes again: policy, catalogue
// and identity may have changed since it was judged. Its quota stays spent, and
// is spent once.
var rejudgeRoad = []stage[*toolCall]{
	{"identify", (*toolCall).identify},
	{"resolve", (*toolCall).resolve},
	{"decide", (*toolCall).decide},
	{"validate", (*toolCall).validate},
}

// claimAgain judges a call that has waited by what holds now, and claims its
// ticket. The new judgement decides; a ticket that it contradicts is superseded.
func (t *toolCall) claimAgain(ctx context.Context, c approval.Claim) (approval.Claim, *Failure) {
	if f := t.rejudge(ctx); f != nil {
		if t.contradicts(ctx, f, c.Ticket) {
			t.gate.supersede(ctx, c.Ticket.ID, "the call would be refused by now: "+f.Reason)
		}
		return c, f
	}
	if f := t.connect(ctx); f != nil { // while it waited, its connection may have ended
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
	t.ticket = &noTicket
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
// are gone, or its tool is, and not only that something is missing at this moment: an expired
// credential, quota, a policy that fails, a server that starts.
func (t *toolCall) contradicts(ctx context.Context, f *Failure, ticket approval.Ticket) bool {
	switch f.Kernel.Code {
	case signal.CodePolicyDenied:
		return t.decision.Rule != ruleFailed
	case signal.CodeToolQuarantined, signal.CodeSchemaMismatch, signal.CodeEnvelopeInvalid:
		return true
	case signal.CodeToolNotFound:
		view := t.gate.opts.Upstreams.View(ctx, t.in.Route, registry.Downstream{})
		_, exists := view.Bound(t.name, ticket.Fingerprint)
		return exists || view.Withdrew(ticket.Server, ticket.Tool) // one that exists is hidden by the policy
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

const (
	// reportEvery is how often a client that wants progress is notified that its call
	// still waits.
	reportEvery = 10 * time.Second
	// lookEvery is the pause before a call that found nothing new looks again, for
	// example for the result of an identical call that runs.
	lookEvery = 500 * time.Millisecond
)

// await notifies the client of a call that waits for a person, or for an
// identical call that runs, holds the call for a while, and judges it again when
// something may have changed.
func (t *toolCall) await(ctx context.Context, c approval.Claim) (approval.Claim, *Failure) {
	if c.Outcome == approval.Pending {
		done := t.notifyClient(ctx, c.Ticket)
		defer done()
	}
	if t.reply != nil {
		return c, nil
	}
	limit := t.holdTime()
	if limit <= 0 {
		return c, nil
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for waits(c) {
		if c.Outcome == approval.Pending && !t.waitForDecision(ctx, c.Ticket) {
			return c, nil
		}
		before := c
		var f *Failure
		if c, f = t.claimAgain(ctx, c); f != nil {
			return c, f
		}
		if c.Outcome == before.Outcome && c.Ticket.ID == before.Ticket.ID && !wait.For(ctx, lookEvery) {
			return c, nil
		}
	}
	return c, nil
}

// waits reports whether a claim may have another answer later.
func waits(c approval.Claim) bool {
	return c.Outcome == approval.Pending || c.Outcome == approval.InFlight
}

// waitForDecision holds the call until people have decided, and reports false when ctx
// ends first. The steps of the progress that it reports are small, so that the tool's
// own progress is larger.
func (t *toolCall) waitForDecision(ctx context.Context, ticket approval.Ticket) bool {
	for {
		if t.in.Progress != nil {
			t.hold.reports++
			text := hold.Fill("waiting for a person with role {roles} to approve this call (ticket {ticket})", ticket, t.name)
			t.in.Progress(fmt.Appendf(nil, `{"progress":%g,"message":%s}`, t.hold.progress(), jsonrpc.Quote(text)))
		}
		step, stop := context.WithTimeout(ctx, reportEvery)
		err := t.gate.opts.Waiter.Wait(step, ticket.ID)
		late := step.Err() != nil
		stop()
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case !late:
			t.gate.opts.Log.Error("waiting for a decision", "ticket", ticket.ID, "error", err)
			return false
		}
	}
}

// progress is the progress that was reported to the client while its call waited.
func (h *holding) progress() float64 { return float64(h.reports) / 1000 }

// The revisions of MCP that can show a person a page, each in its own way.
const (
	eraAsking   = "2025-11-25" // asks in addition to the call
	eraRounds   = "2026-07-28" // answers a call with questions, and takes it again with their answers
	keyApproval = "approval"   // of the question in inputRequests
)

// notifyClient shows a call's client where its ticket is decided, in the form
// that the client has declared. The returned function ends a notification that
// is still open, and waits for that. A call with a reply afterwards is not held.
//
//	a client that takes tasks         the ticket as a task, at once
//	url elicitation, 2026-07-28       the link in place of the answer; the call waits for the client to come back
//	url elicitation, 2025-11-25       the link in addition to the hold
//	any other                         nothing
//
// The link is shown for the call that made the ticket, not for those that find
// it. The client's answer decides nothing and is not read.
func (t *toolCall) notifyClient(ctx context.Context, ticket approval.Ticket) (done func()) {
	p := page{key: keyApproval, id: ticket.ID, url: t.gate.console().Approval(ticket)}
	shows := p.url != "" && ticket.Attached == 0 && t.in.showsPages()
	if shows {
		p.message = hold.Fill("The call of {tool} waits for a person with role {roles} (rule {rule}: {reason}). The page shows what would be done; approvers decide there.", ticket, t.name)
	}
	switch {
	case shows && t.in.Era == eraRounds:
		// For a client that does not come back, or cannot be asked, the call is answered
		// as pending: it must not be made if it is approved later, because nobody waits
		// for it. That fails only where no result of ours can be given; then the call is
		// held, and its result kept in the ticket.
		if t.hold.visited = true; t.showPage(ctx, p) == "" {
			_ = t.pending(approval.Claim{Ticket: ticket, Outcome: approval.Pending})
		}
	case shows && t.in.Era == eraAsking && t.holdTime() > 0:
		done := t.showLink(ctx, p, func(string) {})
		return func() { done(t.ticket.ID != ticket.ID || t.ticket.State != approval.StateProposed) }
	}
	return func() {}
}

// page is what a client is asked to show a person (MCP, elicitation of mode url).
type page struct {
	key          string // of the question in inputRequests
	id           string
	url, message string
}

// The capability of clients that show pages, and the answer of a person who goes there.
const elicits, accepted = "elicitation", "accept"

// params returns p as params of elicitation/create.
func (p page) params() json.RawMessage {
	return marshal(map[string]string{"mode": "url", "elicitationId": p.id, "url": p.url, "message": p.message})
}

// showsPages reports whether the client of a request can show a person a page.
func (in *Call) showsPages() bool { return in.Peer != nil && offers(in.Capabilities, elicits, "url") }

// showLink shows p while the request waits, and calls answered with what showPage returns. The
// function that it returns ends that: a question that is still open is withdrawn; where what p is
// for is over by then, the client is notified.
func (c *call) showLink(ctx context.Context, p page, answered func(action string)) (done func(over bool)) {
	ctx, stop := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		defer survive(c.gate.opts.Log.With("decision", c.decisionID), "showing a page")
		answered(c.showPage(ctx, p))
	}()
	return func(over bool) {
		stop()
		<-shown
		if over {
			c.in.Peer.Tell("notifications/elicitation/complete", marshal(map[string]string{"elicitationId": p.id}))
		}
	}
}

// showPage asks the client to open p and returns the action of its answer: accept, decline, cancel,
// or some other text; "" = it did not answer.
func (c *call) showPage(ctx context.Context, p page) string {
	answers := c.in.Peer.Ask(ctx, []registry.Question{{Key: p.key, Method: elicitation, Params: p.params(), Anew: true}})
	if len(answers) != 1 || answers[0].Error != nil {
		return ""
	}
	return cmp.Or(textMember(answers[0].Result, "action"), "none")
}

// defaultHold is how long a held call waits when neither policy, settings nor
// client profile says: less than the 60 s after which many clients give up.
const defaultHold = 45 * time.Second

// minHoldAfterPage is the least hold for a client that comes back from the
// approval page: a decision made there must be seen.
const minHoldAfterPage = 100 * time.Millisecond

// holdTime is how long a held call waits for people, 0 for not at all: the
// policy's hold takes precedence over the settings', then the client profile's;
// never longer than the client tolerates.
func (t *toolCall) holdTime() time.Duration {
	if t.gate.opts.Waiter == nil {
		return 0
	}
	hold := t.patience(t.decision.Approval.Hold)
	if t.hold.visited {
		hold = max(hold, minHoldAfterPage)
	}
	return hold
}

// patience is how long the caller's client waits for a person: own takes precedence over the
// settings, nil = it says nothing.
func (c *call) patience(own *time.Duration) time.Duration {
	s := c.gate.settings.Load()
	profile := s.profile(c.principal.Client, c.in.Transport)
	hold := defaultHold
	if said := cmp.Or(own, s.Hold, profile.Hold); said != nil {
		hold = *said
	}
	if profile.Longest != nil {
		hold = min(hold, *profile.Longest)
	}
	return hold
}
