package proxy

import (
	"context"

	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

// closeRequest is the last stage: it settles r and writes the one outcome
// record. It runs detached from the caller, who cannot cancel a record by
// hanging up.
func closeRequest(ctx context.Context, r request, f *Failure) (*Reply, *Failure) {
	c, g := r.base(), r.base().gate
	if f != nil {
		c.reply = nil
	}
	r.settle(ctx)
	now := g.opts.Now()
	rec := outcomeRecord(r, f, now)
	if err := g.opts.Recorder.Outcome(context.WithoutCancel(ctx), rec); err != nil {
		g.opts.Log.Error("writing the outcome record", "decision", c.decisionID, "error", err)
		c.reply, f = nil, c.unrecorded(f)
	}
	o := Observation{Effect: c.decision.Effect, Duration: now.Sub(c.start)}
	if rec.Method == "" && rec.Tool != "" {
		o.Server, o.Tool = rec.Server, rec.Exposed
	}
	if f != nil {
		o.Code = f.Kernel.Code
	}
	g.opts.Observe(o)
	g.publishOutcome(r, f)
	return c.reply, f
}

// unrecorded is the failure of a request whose outcome could not be recorded. A
// call that may have been made must not look like one to retry.
func (c *call) unrecorded(f *Failure) *Failure {
	if f != nil && f.Kernel.Code == signal.CodeAuditUnavailable {
		return f
	}
	if !c.sent {
		return c.fail(signal.CodeAuditUnavailable, "the outcome could not be recorded; the call was not made")
	}
	out := c.fail(signal.CodeAuditUnavailable, "the call may have been made, and its outcome could not be recorded; the result is withheld")
	out.Kernel.RetryEligible = false
	return out.remedy("find out whether the call took effect before making it again")
}

// settle gives back what was taken for a call that was not sent. The outcome of
// one that panicked after that is unknown.
func (t *toolCall) settle(ctx context.Context) {
	switch {
	case !t.sent:
		t.release(ctx)
	case t.panicked:
		t.finish(ctx, approval.StateUnknown, nil, "the call broke off inside toolgate")
	}
}

// release gives back what was taken for a call that was certainly not sent: the
// counted usage and the grant. A store that fails leaves the ticket dispatching,
// which the next start turns into unknown: never into a second run.
func (t *toolCall) release(ctx context.Context) {
	t.returnUsage(ctx)
	if !t.hold.granted || t.hold.settled {
		return
	}
	t.hold.settled = true
	if err := t.gate.opts.Tickets.Release(context.WithoutCancel(ctx), t.hold.ticket.ID); err != nil {
		t.gate.opts.Log.Error("giving a grant back", "ticket", t.hold.ticket.ID, "error", err)
	}
}

// finish moves a ticket whose grant was spent to its end state; see release for
// a store that fails.
func (t *toolCall) finish(ctx context.Context, s approval.State, result []byte, note string) {
	if !t.hold.granted || t.hold.settled {
		return
	}
	t.hold.settled = true
	if err := t.gate.opts.Tickets.Finish(context.WithoutCancel(ctx), t.hold.ticket.ID, s, result, note); err != nil {
		t.gate.opts.Log.Error("finishing a ticket", "ticket", t.hold.ticket.ID, "state", string(s), "error", err)
	}
}
