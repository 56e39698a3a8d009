package proxy

import (
	"context"
	"time"

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

// hold is how long a call waits for people, 0 for not at all.
func (g *Gate) hold(p *passage) time.Duration {
	switch {
	case g.opts.Waiter == nil:
		return 0
	case p.decision.Approval.Hold > 0:
		return p.decision.Approval.Hold
	}
	return g.settings.Load().Hold
}

// wait holds the call for as long as hold says, and tells whether it is worth looking again.
func (g *Gate) wait(ctx context.Context, p *passage, id string) bool {
	hold := g.hold(p)
	if hold <= 0 {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, hold)
	defer stop()
	return g.opts.Waiter.Wait(ctx, id) == nil
}
