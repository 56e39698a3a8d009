package proxy

import (
	"context"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/signal"
)

// resume makes the call of an approved ticket without its agent. It takes the
// road of every call, and may spend this ticket only.
func (g *Gate) resume(ctx context.Context, ticket approval.Ticket) (*Reply, error) {
	in, err := callOf(ticket)
	if err != nil {
		return nil, err
	}
	reply, f := g.Call(ctx, in)
	if f != nil {
		return nil, f
	}
	return reply, nil
}

// callOf returns the call that a ticket was made for: the stored bytes, and the
// requester to be identified again. It belongs to no session, which may be over.
func callOf(ticket approval.Ticket) (*Call, error) {
	params := append(append([]byte(`{"name":`), jsonrpc.Quote(ticket.Exposed)...), `,"arguments":`...)
	params = append(append(params, ticket.Arguments...), '}')
	m, err := jsonrpc.Decode(jsonrpc.NewRequest(jsonrpc.Quote(ticket.ID), "tools/call", params), jsonrpc.Limits{})
	if err != nil {
		return nil, err
	}
	return &Call{
		Message: m, Credential: identity.Credential{Earlier: &ticket.Principal}, Client: ticket.Principal.Client,
		Transport: ticket.Transport, Era: ticket.Era, TraceID: ticket.TraceID, resumed: &ticket,
	}, nil
}

// onlyFor refuses a resumed call that could not continue with its own ticket:
// otherwise it would ask people for something that no agent has asked for.
func (t *toolCall) onlyFor(ticket approval.Ticket) *Failure {
	reason := "the call needs no approval any more"
	if t.decision.Effect == policy.Hold {
		reason = t.differs(ticket)
	}
	if reason == "" {
		return nil
	}
	return t.fail(signal.CodeApprovalExpired, reason).with("ticket", ticket.ID)
}

// review judges the call of a live ticket by what holds now. The ticket stands
// when the call would be held on the same terms. Otherwise reason says why it is
// to be superseded, "" when that cannot be said at this moment. A review leaves
// no record and costs no quota.
func (g *Gate) review(ctx context.Context, ticket approval.Ticket) (stands bool, reason string) {
	in, err := callOf(ticket)
	if err != nil {
		return false, ""
	}
	t := &toolCall{call: g.newCall(in)}
	t.decisionID, t.principal = ticket.DecisionID, ticket.Principal
	f := t.receive(ctx)
	if f == nil {
		f = t.rejudge(ctx)
	}
	switch {
	case t.otherRole(ticket):
		return false, ""
	case f != nil && f.Kernel.Code == signal.CodeUnauthenticated && !t.mayReturn(ticket):
		return false, "the requester is not known any more"
	case f != nil && t.contradicts(ctx, f):
		return false, "the call would be refused by now: " + f.Reason
	case f != nil:
		return false, ""
	}
	if f = t.onlyFor(ticket); f != nil {
		return false, f.Reason
	}
	return true, ""
}

// otherRole reports whether the ticket is of the local principal of a process
// with another role, who is somebody else.
func (t *toolCall) otherRole(ticket approval.Ticket) bool {
	p := ticket.Principal
	return p.Subject == identity.LocalSubject && p.Until.IsZero() && !slices.Equal(p.Roles, t.principal.Roles)
}

// mayReturn reports whether the requester's token has expired, so that the
// requester may come back with another.
func (t *toolCall) mayReturn(ticket approval.Ticket) bool {
	return !ticket.Principal.Until.IsZero() && !t.asOf.Before(ticket.Principal.Until)
}
