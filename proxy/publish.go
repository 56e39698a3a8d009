package proxy

import (
	"cmp"
	"encoding/json"

	"github.com/toolgate/toolgate/signal"
)

// publishOutcome puts what became of a request on the bus, for its principal:
// the signals of its result as the rules of composition let them pass (seed 002),
// a failure as an error signal, a cancellation as the command abort.
func (g *Gate) publishOutcome(r request, f *Failure) {
	c := r.base()
	if t, ok := r.(*toolCall); ok && t.chunks > 0 {
		t.publishChunk("", true, nil)
	}
	var result signal.Result
	if f == nil {
		result = c.reply.Kernel
	} else {
		result = signal.Fail(public(c, f), c.metrics())
	}
	abort := f != nil && f.Kernel.Code == signal.CodeCancelled
	next := signal.Compose(result)
	for _, s := range next.Signals {
		c.publish(s, signal.ValidateSignal(s))
	}
	switch {
	case abort:
		c.publish(signal.CreateCommand("abort", c.source(), c.source(), c.traceID, map[string]any{"reason": f.Reason}, c.tags(""), c.parent()))
	case next.Stop != nil && next.Retry:
		c.publish(signal.CreateErrorSignal(next.Stop, c.source(), c.traceID, c.tags("retry"), c.parent()))
	case next.Stop != nil:
		c.publish(signal.CreateErrorSignal(next.Stop, c.source(), c.traceID, c.tags("escalate"), c.parent()))
	}
}

// public returns the error of a failure; the cause of an internal one is for the
// log.
func public(c *call, f *Failure) *signal.KernelError {
	if f.Kernel.Code == signal.CodeInternal {
		return c.fail(signal.CodeInternal, "").Kernel
	}
	return f.Kernel
}

// parent makes the call the parent of a signal.
func (c *call) parent() signal.Option { return signal.WithParent(c.signalID) }

// tags are those of a signal about a request that is not part of its result.
func (c *call) tags(next string) signal.Option {
	tags := map[string]string{signal.TagTool: c.name, signal.TagDecision: c.decisionID}
	if next != "" {
		tags[signal.TagNext] = next
	}
	return signal.WithTags(tags)
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

// progress receives the upstream's progress, for the caller and, as STREAM
// signals, for the bus when somebody listens.
func (t *toolCall) progress() func(json.RawMessage) {
	client := t.in.Progress
	if t.hold.reports > 0 {
		client = t.growing(client)
	}
	if !t.heard() {
		return client
	}
	return func(params json.RawMessage) {
		t.publishChunk(cmp.Or(textMember(params, "message"), string(params)), false, params)
		if client != nil {
			client(params)
		}
	}
}

// publishChunk puts the next STREAM signal on the bus.
func (t *toolCall) publishChunk(text string, final bool, params json.RawMessage) {
	body := map[string]any{"chunk": text, "sequence": t.chunks, "final": final}
	if params != nil {
		body["progress"] = params
	}
	t.chunks++
	tags := map[string]string{signal.TagTool: t.name, signal.TagDecision: t.decisionID}
	t.publish(signal.Create(signal.Stream, body, t.source(), t.traceID, tags, t.signalID))
}
