package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

// close is the last stage: it settles the request and writes the one outcome
// record, which carries the decision, so that a refusal can be explained. It runs
// detached from the caller, who cannot cancel a record by hanging up.
func (c *call) close(ctx context.Context, f *Failure) (*Reply, *Failure) {
	g := c.gate
	if f != nil {
		c.reply = nil
		g.suggestDelay(f)
	}
	if c.settle != nil {
		c.settle(context.WithoutCancel(ctx))
	}
	o := Observation{Effect: c.decision.Effect, Duration: g.opts.Now().Sub(c.start), Upstream: c.upstream}
	rec := c.fill(&c.entry, !c.recorded) // what was judged is in the decision record, if there is one
	rec.DurationMS, rec.UpstreamMS = float64(o.Duration.Microseconds())/1000, float64(o.Upstream.Microseconds())/1000
	if f != nil {
		rec.Outcome, rec.Code, rec.Error = cmp.Or(outcomes[f.Kernel.Code], categories[f.Kernel.Category], audit.Failed), f.Kernel.Code, f.Reason
		if c.cut { // its caller, who has not cancelled it, is answered all the same
			rec.Outcome, rec.Code = audit.Cancelled, signal.CodeCancelled
		}
	} else {
		rec.Outcome, rec.Stage, rec.Replayed = audit.Allowed, "close", c.replayed
		if e := c.reply.Kernel.Error; e != nil && e.Code == signal.CodeApprovalPending {
			rec.Outcome = audit.Held
		}
		rec.Hidden = c.unseen
		rec.ResultSHA256, rec.ResultBytes = strings.TrimPrefix(digest(c.reply.Result), "sha256:"), len(c.reply.Result)
		rec.ResultTokens = (rec.ResultBytes + 3) / 4
		rec.Signals = c.ids[:0]
		for _, s := range c.reply.Kernel.Signals[:min(len(c.reply.Kernel.Signals), len(c.ids))] {
			rec.Signals = append(rec.Signals, s.ID())
		}
	}
	for _, w := range c.warnings {
		rec.Warnings, o.Warnings = append(rec.Warnings, w.Message), append(o.Warnings, w.Code)
	}
	if f != nil && !c.recorded {
		shorten(rec)
	}
	over := (*Failure)(nil)
	if f != nil && g.opts.Refused != nil {
		over = c.limitRefused(f, rec)
	}
	if over != nil {
		f = over
	} else if err := g.opts.Recorder.Write(audit.KindOutcome, rec); err != nil {
		g.opts.Log.Error("writing the outcome record", "decision", c.decisionID, "error", err)
		c.reply, f = nil, c.unrecorded(f)
	}
	if rec.Method == "" && rec.Tool != "" {
		o.Server, o.Tool = rec.Server, rec.Exposed
	}
	if f != nil {
		o.Code, f.Errors = f.Kernel.Code, c.errorForm()
		if o.Code == signal.CodeRateLimited {
			o.Limit, _ = f.Kernel.Detail["rule"].(string)
		}
		if g.opts.Log.IsDebug() {
			g.logRefusal(f, rec)
		}
	}
	o.Hidden, o.From = c.unseen, c.server
	if c.trace != nil {
		c.endTrace(ctx, f, o.Duration)
		if c.trace.Sampled() {
			o.TraceID = c.traceID
		}
	}
	g.opts.Observe(o)
	if c.shown = g.opts.Bus.Listening(c.principal); c.shown {
		c.publishOutcome(f)
	}
	return c.reply, f
}

// logRefusal logs that a request failed. Of what the caller sent it has the name of the
// tool; a reason can quote arguments, so it has none.
func (g *Gate) logRefusal(f *Failure, rec *audit.Record) {
	rule := cmp.Or(f.Kernel.Detail["rule"], any(rec.Policy.Rule))
	g.opts.Log.Debug("refused", "decision", rec.DecisionID, "code", f.Kernel.Code, "rule", rule, "stage", rec.Stage,
		"method", rec.Method, "server", rec.Server, "tool", rec.Exposed, "subject", rec.Principal.Subject)
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
		return c.fail(signal.CodeAuditUnavailable, "the outcome could not be recorded; the call was not made").remedy(callLater)
	}
	out := c.fail(signal.CodeAuditUnavailable, "the call may have been made, and its outcome could not be recorded; the result is withheld")
	out.Kernel.RetryEligible = false
	return out.remedy("find out whether the call took effect before making it again")
}

// giveBack ends what a held call has of its ticket, and gives back what was taken
// for a call that was certainly not sent: the counted usage and the grant. A call
// that was sent and has no end state is unknown. A store that fails leaves usage
// counted, and the ticket dispatching, which the next start turns into unknown:
// never into a second run. A call whose credential the server refused needs another one.
func (t *toolCall) giveBack(ctx context.Context) {
	log := t.gate.opts.Log
	if !t.sent && t.usage.reserved != nil {
		if err := t.gate.opts.Usage.Return(ctx, t.usage.reserved); err != nil {
			log.Error("giving back what a call would have used", "decision", t.decisionID, "error", err)
		}
	}
	if !t.hold.granted {
		return
	}
	var err error
	tickets, id := t.gate.opts.Tickets, t.ticket.ID
	switch {
	case !t.sent:
		if err = tickets.Release(ctx, id); err == nil && t.hold.refused {
			t.withholdGrant(ctx, refuses(t.credential))
		}
	case t.hold.end == "":
		err = tickets.Finish(ctx, id, approval.StateUnknown, nil, "the call broke off inside toolgate")
	default:
		err = tickets.Finish(ctx, id, t.hold.end, t.hold.result, t.hold.note)
	}
	if err != nil {
		log.Error("settling a ticket", "ticket", id, "state", string(t.hold.end), "error", err)
	}
}

// ends notes the end state of a call that was sent, for its ticket.
func (t *toolCall) ends(s approval.State, result []byte, note string) {
	t.hold.end, t.hold.result, t.hold.note = s, result, note
}

// silent is the Bus without listeners.
type silent struct{}

func (silent) Listening(policy.Principal) bool { return false }

func (silent) Publish(policy.Principal, signal.Signal) {}

// publishOutcome puts what became of a request on the bus, for its principal:
// the signals of its result as the rules of composition let them pass (seed 002),
// a failure as an error signal, a cancellation as the command abort. The cause of
// an internal error is for the log.
func (c *call) publishOutcome(f *Failure) {
	var result signal.Result
	switch {
	case f == nil:
		result = c.reply.Kernel
	case f.Kernel.Code == signal.CodeInternal:
		result = signal.Fail(c.fail(signal.CodeInternal, "").Kernel, c.metrics())
	default:
		result = signal.Fail(f.Kernel, c.metrics())
	}
	next := signal.Compose(result)
	for _, s := range next.Signals {
		c.publish(s, signal.ValidateSignal(s))
	}
	tags := c.tags()
	lineage := []signal.Option{signal.WithTags(tags), signal.WithParent(c.signalID)}
	switch {
	case f != nil && (f.Kernel.Code == signal.CodeCancelled || c.cut):
		c.publish(signal.CreateCommand("abort", c.source, c.source, c.traceID, map[string]any{"reason": f.Reason}, lineage...))
	case next.Stop != nil:
		tags[signal.TagNext] = "escalate"
		if next.Retry {
			tags[signal.TagNext] = "retry"
		}
		c.publish(signal.CreateErrorSignal(next.Stop, c.source, c.traceID, lineage...))
	}
}

// tags are those of a signal about a request that is not part of its result.
func (c *call) tags() map[string]string {
	return map[string]string{signal.TagTool: c.name, signal.TagDecision: c.decisionID}
}

// publish puts one signal on the bus. One that could not be made is logged: the
// bus is telemetry and fails no call.
func (c *call) publish(s signal.Signal, err error) {
	if err != nil {
		c.gate.opts.Log.Error("making a signal for the bus", "decision", c.decisionID, "error", err)
		return
	}
	c.gate.opts.Bus.Publish(c.principal, s)
}

// publishChunk puts the next STREAM signal on the bus.
func (t *toolCall) publishChunk(text string, final bool, params json.RawMessage) {
	body := map[string]any{"chunk": text, "sequence": t.chunks, "final": final}
	if params != nil {
		body["progress"] = params
	}
	t.chunks++
	t.publish(signal.Create(signal.Stream, body, t.source, t.traceID, t.tags(), t.signalID))
}
