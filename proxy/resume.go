package proxy

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/signal"
)

// callOf is the call that a ticket was made for: the stored bytes, and the
// requester as somebody to identify anew. It belongs to no session, as nobody may
// be there any more.
func callOf(t approval.Ticket) (*Call, error) {
	params, err := jsonrpc.Set(json.RawMessage(`{}`), "name", jsonrpc.Quote(t.Exposed))
	if err == nil {
		params, err = jsonrpc.Set(params, "arguments", t.Arguments)
	}
	if err != nil {
		return nil, err
	}
	text := `{"jsonrpc":"2.0","id":` + string(jsonrpc.Quote(t.ID)) + `,"method":"tools/call","params":` + string(params) + `}`
	m, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{})
	if err != nil {
		return nil, err
	}
	return &Call{
		Message: m, Credential: identity.Credential{Earlier: &t.Principal}, Client: t.Principal.Client,
		Transport: t.Transport, Era: t.Era, TraceID: t.TraceID, resumed: &t,
	}, nil
}

// resume makes the call of an approved ticket without its agent: the road is that
// of every call, and the ticket is the only one that it may spend.
func (g *Gate) resume(ctx context.Context, t approval.Ticket) (*Reply, error) {
	in, err := callOf(t)
	if err != nil {
		return nil, err
	}
	reply, f := g.Call(ctx, in)
	if f != nil {
		return nil, f
	}
	return reply, nil
}

// onlyFor lets a call that is resumed claim nothing but its own ticket: on other
// terms it would ask people for something that no agent has asked for.
func (p *passage) onlyFor(t approval.Ticket) *Failure {
	reason := "the call needs no approval any more"
	if p.decision.Effect == policy.Hold {
		reason = p.differs(t)
	}
	if reason == "" {
		return nil
	}
	return p.fail(signal.CodeApprovalExpired, reason).with("ticket", t.ID)
}

// review judges the call of a live ticket by what holds now. It stands when it
// would be held on the same terms; otherwise reason says why its ticket is to be
// superseded, "" when that cannot be said at this moment. It leaves no record and
// costs no quota.
func (g *Gate) review(ctx context.Context, t approval.Ticket) (stands bool, reason string) {
	in, err := callOf(t)
	if err != nil {
		return false, ""
	}
	p := &passage{in: in, now: g.opts.Now(), decisionID: t.DecisionID, traceID: t.TraceID, principal: t.Principal}
	f := receive(ctx, g, p)
	if f == nil {
		f = g.rejudge(ctx, p)
	}
	switch {
	case p.elsewhere(t):
		return false, ""
	case f != nil && f.Kernel.Code == signal.CodeUnauthenticated && !p.mayReturn(t):
		return false, "the requester is not known any more"
	case f != nil && g.drift(ctx, p, f):
		return false, "the call would be refused by now: " + f.Reason
	case f != nil:
		return false, ""
	}
	f = p.onlyFor(t)
	if f != nil {
		return false, f.Reason
	}
	return true, ""
}

// elsewhere reports whether t is of the local principal of a process that had
// another role: this one's is somebody else.
func (p *passage) elsewhere(t approval.Ticket) bool {
	return t.Principal.Subject == identity.LocalSubject && t.Principal.Until.IsZero() && !slices.Equal(t.Principal.Roles, p.principal.Roles)
}

// mayReturn reports whether the requester of t had a token that has run out, and
// may come back with another.
func (p *passage) mayReturn(t approval.Ticket) bool {
	return !t.Principal.Until.IsZero() && !p.moment.Before(t.Principal.Until)
}
