package proxy

import (
	"context"
	"slices"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// again is what a call passes once more when time has passed since it was judged:
// policy, catalogue and identity may be others by now. The quota that it has spent
// stays spent, and is spent once.
var again = []stage{
	{"identify", identify},
	{"resolve", resolve},
	{"decide", decide},
	{"validate", validate},
}

// lookAgain judges a call that has waited by what holds now, and claims its
// ticket. What the call comes to is what the new judgement says; a ticket whose
// terms are gone is superseded.
func (g *Gate) lookAgain(ctx context.Context, p *passage, c approval.Claim) (approval.Claim, *Failure) {
	if f := g.rejudge(ctx, p); f != nil {
		if g.drift(ctx, p, f) {
			g.supersede(ctx, c.Ticket.ID, "the call would be refused by now: "+f.Reason)
		}
		return c, f
	}
	switch {
	case p.decision.Effect == policy.Hold:
		return g.claim(ctx, p)
	case c.Outcome == approval.InFlight:
		return c, nil // it runs already, and must not run beside itself
	case !g.supersede(ctx, c.Ticket.ID, "the call needs no approval any more"):
		// Somebody may have said no: that nobody is asked any more makes it no yes.
		return c, p.fail(signal.CodeApprovalExpired, "this call was not approved while it waited, and by now needs no approval").
			with("ticket", c.Ticket.ID).remedy("call again with the same arguments")
	}
	p.ticket = approval.Ticket{}
	return approval.Claim{Outcome: approval.Granted}, nil
}

// rejudge takes p through the stages of again.
func (g *Gate) rejudge(ctx context.Context, p *passage) *Failure {
	who, stage := p.principal, p.stage
	p.engine, p.moment = *g.policy.Load(), g.opts.Now()
	for _, s := range again {
		p.stage = s.name
		if f := s.run(ctx, g, p); f != nil {
			return f
		}
		if p.principal.Subject != who.Subject || p.principal.Tenant != who.Tenant {
			return p.fail(signal.CodeUnauthenticated, "the credential names somebody else by now")
		}
	}
	p.stage = stage
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

// drift reports whether a refusal means that the terms of a ticket are gone, not
// just that something could not be had at this moment: a credential that must be
// renewed, quota, a policy that fails, a server that starts.
func (g *Gate) drift(ctx context.Context, p *passage, f *Failure) bool {
	switch f.Kernel.Code {
	case signal.CodePolicyDenied:
		return p.decision.Rule != ruleFailed
	case signal.CodeToolQuarantined, signal.CodeSchemaMismatch, signal.CodeEnvelopeInvalid:
		return true
	case signal.CodeToolNotFound:
		_, there := g.opts.Upstreams.View(ctx, p.in.Route, registry.Downstream{}).Lookup(p.name)
		return there // and the policy hides it
	}
	return false
}

// differs says in what a ticket differs from what would be asked about the call
// of p, which is held, now; "" when in nothing.
func (p *passage) differs(t approval.Ticket) string {
	roles := slices.Sorted(slices.Values(p.decision.Approval.Roles))
	switch {
	case t.Principal.Subject != p.principal.Subject || t.Principal.Tenant != p.principal.Tenant || t.Digest != p.digest,
		t.Server != p.tool.Server || t.Tool != p.tool.Name || t.Exposed != p.tool.Exposed:
		return "it is about another call"
	case t.Fingerprint != p.tool.Fingerprint:
		return "the definition of the tool has changed"
	case t.Revision != p.decision.Revision:
		return "the policy has changed"
	case t.Quorum != max(1, p.decision.Approval.Quorum) || !slices.Equal(slices.Sorted(slices.Values(t.Roles)), roles):
		return "others have to approve it by now"
	}
	return ""
}
