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
		g.suggestDelay(f)
	}
	r.settle(ctx)
	now := g.opts.Now()
	rec := c.outcomeRecord(f, now)
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
	if c.heard() {
		g.publishOutcome(r, f)
	}
	return c.reply, f
}

// suggestDelay gives a transient failure that a retry may fix the configured delay
// (seed 002, error_to_problem_details). Wrong input has to be corrected instead.
func (g *Gate) suggestDelay(f *Failure) {
	if k := f.Kernel; f.RetryAfter == 0 && k.RetryEligible && k.Severity == signal.Transient && k.Category != signal.Input {
		f.RetryAfter = g.settings.Load().RetryAfter
	}
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

// heard reports whether somebody listens for the principal of the request.
func (c *call) heard() bool {
	bus := c.gate.opts.Bus
	return bus != nil && c.principal.Valid() && bus.Listening(c.principal)
}

// settle ends what a held call has of its ticket, and gives back what was taken
// for a call that was certainly not sent: the counted usage and the grant. A call
// that was sent and has no end state is unknown. A store that fails leaves the
// ticket dispatching, which the next start turns into unknown: never into a
// second run.
func (t *toolCall) settle(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if !t.sent {
		t.returnUsage(ctx)
	}
	if !t.hold.granted {
		return
	}
	var err error
	tickets, id := t.gate.opts.Tickets, t.ticket.ID
	switch {
	case !t.sent:
		err = tickets.Release(ctx, id)
	case t.hold.end == "":
		err = tickets.Finish(ctx, id, approval.StateUnknown, nil, "the call broke off inside toolgate")
	default:
		err = tickets.Finish(ctx, id, t.hold.end, t.hold.result, t.hold.note)
	}
	if err != nil {
		t.gate.opts.Log.Error("settling a ticket", "ticket", id, "state", string(t.hold.end), "error", err)
	}
}

// ends notes the end state of a call that was sent, for its ticket.
func (t *toolCall) ends(s approval.State, result []byte, note string) {
	t.hold.end, t.hold.result, t.hold.note = s, result, note
}
