package proxy

import (
	"context"
	"maps"
	"slices"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// rejudgeRoad lists the stages that a held call passes again: policy, catalogue
// and identity may have changed since it was judged. Its quota stays spent, and
// is spent once.
var rejudgeRoad = []stage[*toolCall]{
	{"identify", (*toolCall).reidentify},
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

// rejudge walks t down rejudgeRoad. Another principal behind the same credential
// is a refusal.
func (t *toolCall) rejudge(ctx context.Context) *Failure {
	who, source := t.principal, t.source
	t.engine, t.asOf = *t.gate.policy.Load(), t.gate.opts.Now()
	for _, s := range rejudgeRoad {
		t.source.Function = s.name
		if f := s.run(t, ctx); f != nil {
			return f
		}
		if t.principal.Subject != who.Subject || t.principal.Tenant != who.Tenant {
			return t.fail(signal.CodeUnauthenticated, "the credential names somebody else by now")
		}
	}
	t.source = source
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
