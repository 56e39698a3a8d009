package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
)

// The revisions of MCP that can show a person a page, each in its own way.
const (
	eraAsking   = "2025-11-25" // asks beside a call
	eraRounds   = "2026-07-28" // answers a call with questions, and takes it again with their answers
	modeURL     = "url"
	keyApproval = "approval" // of the question in inputRequests
)

// deliver brings the word of a call that waits to its client, in the form that
// the client has declared. done ends what of it is still under way, and waits for
// that. A passage that has a reply afterwards is not held.
//
//	a client that takes tasks         the ticket as a task, at once
//	url elicitation, 2026-07-28       the link in place of the answer; the call waits for the client to come back
//	url elicitation, 2025-11-25       the link beside the hold
//	any other                         nothing
//
// The link is shown for the call that made the ticket, not for those that find
// it. What the client answers decides nothing and is not looked at.
func (g *Gate) deliver(ctx context.Context, p *passage, t approval.Ticket) (done func()) {
	done = func() {}
	if g.link(t) == "" || t.Attached > 0 || p.in.Peer == nil || !p.declared("elicitation", "url") {
		return done
	}
	switch p.in.Era {
	case eraRounds:
		g.detour(ctx, p, t)
	case eraAsking:
		if g.hold(p) > 0 {
			return g.showBeside(ctx, p, t)
		}
	}
	return done
}

// link is where people decide on t, "" when there is no such place. It carries
// no secret: who follows it has to sign in.
func (g *Gate) link(t approval.Ticket) string {
	base := g.settings.Load().ConsoleURL
	if base == "" {
		return ""
	}
	return base + "/console/approvals/" + t.ID
}

// detour sends the client by way of the link. One that does not come back, or
// cannot be asked, is answered as it would be after the hold: nobody waits for
// its call, so that it must not be made when it is approved meanwhile.
func (g *Gate) detour(ctx context.Context, p *passage, t approval.Ticket) {
	p.detoured = true
	if g.invite(ctx, p, t) {
		return
	}
	// It fails only where no result of ours can be given; then the call is held,
	// and its result kept in the ticket.
	_ = g.pending(p, approval.Claim{Ticket: t, Outcome: approval.Pending})
}

// showBeside shows the link while the call is held. When people have decided by
// the end of the hold the client is told so; a question that is still open then
// is taken back.
func (g *Gate) showBeside(ctx context.Context, p *passage, t approval.Ticket) (done func()) {
	ctx, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer g.survive(p, "showing where to approve")
		g.invite(ctx, p, t)
	}()
	return func() {
		stop()
		<-over
		if p.ticket.ID != t.ID || p.ticket.State != approval.StateProposed {
			p.in.Peer.Tell("notifications/elicitation/complete", json.RawMessage(`{"elicitationId":`+string(jsonrpc.Quote(t.ID))+`}`))
		}
	}
}

// invite shows the client the link and reports whether it answered, which is all
// that its answer says.
func (g *Gate) invite(ctx context.Context, p *passage, t approval.Ticket) bool {
	answers := p.in.Peer.Ask(ctx, []registry.Question{g.invitation(t)})
	return len(answers) == 1 && answers[0].Error == nil
}

// invitation asks a person to open the link.
func (g *Gate) invitation(t approval.Ticket) registry.Question {
	message := fmt.Sprintf("The call of %s waits for a person with role %s (rule %s: %s). The page shows what would be done; approvers decide there.",
		t.Exposed, strings.Join(t.Roles, " or "), t.Rule, t.Reason)
	params := `{"mode":"` + modeURL + `","elicitationId":` + string(jsonrpc.Quote(t.ID)) + `,"url":` + string(jsonrpc.Quote(g.link(t))) +
		`,"message":` + string(jsonrpc.Quote(message)) + `}`
	return registry.Question{Key: keyApproval, Method: "elicitation/create", Params: json.RawMessage(params), Anew: true}
}
