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
