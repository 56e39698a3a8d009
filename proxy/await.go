package proxy

import (
	"context"

	"github.com/toolgate/toolgate/policy/approval"
)

// await does what can be done for a call that waits for a person: it brings the
// word of it to the client, holds the call for a while, and claims again when the
// ticket has been decided meanwhile.
func (g *Gate) await(ctx context.Context, p *passage, c approval.Claim) (approval.Claim, *Failure) {
	told := g.deliver(ctx, p, c.Ticket)
	defer told()
	if p.reply != nil || !g.wait(ctx, p, c.Ticket.ID) {
		return c, nil
	}
	return g.claim(ctx, p)
}

// wait holds the call for as long as the policy or the settings say, and tells
// whether it is worth looking again.
func (g *Gate) wait(ctx context.Context, p *passage, id string) bool {
	hold := g.settings.Load().Hold
	if p.decision.Approval.Hold > 0 {
		hold = p.decision.Approval.Hold
	}
	if hold <= 0 || g.opts.Waiter == nil {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, hold)
	defer stop()
	return g.opts.Waiter.Wait(ctx, id) == nil
}
