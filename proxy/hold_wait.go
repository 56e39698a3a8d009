package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
)

const (
	// reportEvery is how often a client that wants progress hears that its call
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
		if c.Outcome == before.Outcome && c.Ticket.ID == before.Ticket.ID && !pause(ctx) {
			return c, nil
		}
	}
	return c, nil
}

// pause waits for lookEvery, and reports false when ctx ends first.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(lookEvery):
		return true
	}
}

// waits reports whether a claim may have another answer later.
func waits(c approval.Claim) bool {
	return c.Outcome == approval.Pending || c.Outcome == approval.InFlight
}

// waitForDecision holds the call until people have decided, and reports false
// when ctx ends first.
func (t *toolCall) waitForDecision(ctx context.Context, ticket approval.Ticket) bool {
	for {
		t.reportWaiting(ticket)
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

// reportWaiting reports progress for a call that waits. The steps are small, so
// that the tool's own progress is larger.
func (t *toolCall) reportWaiting(ticket approval.Ticket) {
	if t.in.Progress == nil {
		return
	}
	t.hold.reports++
	text := fmt.Sprintf("waiting for a person with role %s to approve this call (ticket %s)", strings.Join(ticket.Roles, " or "), ticket.ID)
	t.in.Progress(json.RawMessage(fmt.Sprintf(`{"progress":%g,"message":%s}`, t.hold.progress(), jsonrpc.Quote(text))))
}

// progress is what the client has heard while its call waited.
func (h *hold) progress() float64 { return float64(h.reports) / 1000 }

// growing drops the tool's progress that is not beyond what the client has heard
// while its call waited: progress only grows (MCP, basic/utilities/progress).
func (t *toolCall) growing(client func(json.RawMessage)) func(json.RawMessage) {
	return func(params json.RawMessage) {
		raw, _ := jsonrpc.Get(params, "progress")
		if n, err := strconv.ParseFloat(string(raw), 64); err == nil && n <= t.hold.progress() {
			return
		}
		client(params)
	}
}

// The revisions of MCP that can show a person a page, each in its own way.
const (
	eraAsking   = "2025-11-25" // asks in addition to the call
	eraRounds   = "2026-07-28" // answers a call with questions, and takes it again with their answers
	modeURL     = "url"
	keyApproval = "approval" // of the question in inputRequests
)

// notifyClient shows a call's client where its ticket is decided, in the form
// that the client has declared. The returned function ends a notification that
// is still open, and waits for that. A call with a reply afterwards is not held.
//
//	a client that takes tasks         the ticket as a task, at once
//	url elicitation, 2026-07-28       the link in place of the answer; the call waits for the client to come back
//	url elicitation, 2025-11-25       the link beside the hold
//	any other                         nothing
//
// The link is shown for the call that made the ticket, not for those that find
// it. The client's answer decides nothing and is not read.
func (t *toolCall) notifyClient(ctx context.Context, ticket approval.Ticket) (done func()) {
	done = func() {}
	if t.gate.approvalPage(ticket) == "" || ticket.Attached > 0 || t.in.Peer == nil || !t.declared("elicitation", "url") {
		return done
	}
	switch t.in.Era {
	case eraRounds:
		t.redirect(ctx, ticket)
	case eraAsking:
		if t.holdTime() > 0 {
			return t.showLink(ctx, ticket)
		}
	}
	return done
}

// approvalPage is where people decide on a ticket, "" when there is no such
// page. It carries no secret: whoever follows it has to sign in.
func (g *Gate) approvalPage(t approval.Ticket) string {
	base := g.settings.Load().ConsoleURL
	if base == "" {
		return ""
	}
	return base + "/console/approvals/" + t.ID
}

// redirect sends the client to the page before its call is held. For a client
// that does not come back, or cannot be asked, the call is answered as pending:
// it must not be made if it is approved later, because nobody waits for it.
func (t *toolCall) redirect(ctx context.Context, ticket approval.Ticket) {
	t.hold.visited = true
	if t.showPage(ctx, ticket) {
		return
	}
	// It fails only where no result of ours can be given; then the call is held,
	// and its result kept in the ticket.
	_ = t.pending(approval.Claim{Ticket: ticket, Outcome: approval.Pending})
}

// showLink shows the link while the call is held. A question that is still open
// when the hold ends is withdrawn; if people have decided by then, the client is
// notified.
func (t *toolCall) showLink(ctx context.Context, ticket approval.Ticket) (done func()) {
	ctx, stop := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		defer t.survive("showing where to approve")
		t.showPage(ctx, ticket)
	}()
	return func() {
		stop()
		<-shown
		if now := t.ticket; now.ID != ticket.ID || now.State != approval.StateProposed {
			t.in.Peer.Tell("notifications/elicitation/complete", json.RawMessage(`{"elicitationId":`+string(jsonrpc.Quote(ticket.ID))+`}`))
		}
	}
}

// showPage asks the client to open the page, and reports whether it answered:
// its answer says nothing else.
func (t *toolCall) showPage(ctx context.Context, ticket approval.Ticket) bool {
	message := fmt.Sprintf("The call of %s waits for a person with role %s (rule %s: %s). The page shows what would be done; approvers decide there.",
		ticket.Exposed, strings.Join(ticket.Roles, " or "), ticket.Rule, ticket.Reason)
	params := `{"mode":"` + modeURL + `","elicitationId":` + string(jsonrpc.Quote(ticket.ID)) + `,"url":` + string(jsonrpc.Quote(t.gate.approvalPage(ticket))) +
		`,"message":` + string(jsonrpc.Quote(message)) + `}`
	answers := t.in.Peer.Ask(ctx, []registry.Question{{Key: keyApproval, Method: "elicitation/create", Params: json.RawMessage(params), Anew: true}})
	return len(answers) == 1 && answers[0].Error == nil
}

// defaultHold is how long a held call waits when neither policy, settings nor
// client profile says: less than the 60 s after which many clients give up.
const defaultHold = 45 * time.Second

// ClientProfile says how long one kind of client waits for a decision.
type ClientProfile struct {
	// Name is what the client calls itself, without its version and without
	// regard to case; a trailing "*" matches any rest, "" every client.
	Name      string
	Transport string         // of the call, "" = any; see Call
	Hold      *time.Duration // nil = the default
	Longest   *time.Duration // upper bound, whatever else says; nil = none
}

// matches reports whether the profile is that of a caller; client is name/version.
func (p ClientProfile) matches(client, transport string) bool {
	if p.Transport != "" && p.Transport != transport {
		return false
	}
	name, prefix := strings.CutSuffix(p.Name, "*")
	if len(client) < len(name) || !strings.EqualFold(client[:len(name)], name) {
		return false
	}
	rest := client[len(name):]
	// mcp-remote appends itself to the name of the client that it connects.
	return prefix || p.Name == "" || rest == "" || rest[0] == '/' || strings.HasPrefix(rest, " (via ")
}

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
	s := t.gate.settings.Load()
	var profile ClientProfile
	for _, p := range s.Clients {
		if p.matches(t.principal.Client, t.in.Transport) {
			profile = p
			break
		}
	}
	hold := defaultHold
	if said := cmp.Or(t.decision.Approval.Hold, s.Hold, profile.Hold); said != nil {
		hold = *said
	}
	if profile.Longest != nil {
		hold = min(hold, *profile.Longest)
	}
	if t.hold.visited {
		hold = max(hold, minHoldAfterPage)
	}
	return hold
}
