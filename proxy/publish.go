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
	if !c.heard() {
		return
	}
	if t, ok := r.(*toolCall); ok && t.chunks > 0 {
		t.publishChunk("", true, nil)
	}
	if f != nil {
		c.publishFailure(f)
		return
	}
	next := signal.Compose(c.reply.Kernel)
	for _, s := range next.Signals {
		g.opts.Bus.Publish(c.principal, s)
	}
	if next.Stop != nil {
		c.publishError(next.Stop)
	}
}

// heard reports whether somebody listens for the principal of the request.
func (c *call) heard() bool {
	bus := c.gate.opts.Bus
	return bus != nil && c.principal.Valid() && bus.Listening(c.principal)
}

func (c *call) publishFailure(f *Failure) {
	switch f.Kernel.Code {
	case signal.CodeCancelled:
		body := map[string]any{"action": "abort", "target": c.source(), "reason": f.Reason}
		c.publish(signal.Create(signal.Command, body, c.source(), c.traceID, c.tags(), c.signalID))
	case signal.CodeInternal: // its cause is for the log
		c.publishError(c.fail(signal.CodeInternal, "").Kernel)
	default:
		c.publishError(f.Kernel)
	}
}

func (c *call) publishError(e *signal.KernelError) {
	body := map[string]any{"data": e, "schema": signal.SchemaError}
	s, err := signal.Create(signal.Data, body, c.source(), c.traceID, c.tags(), c.signalID)
	c.publish(s, cmp.Or(e.Validate(), err))
}

// tags are those of every signal about a request that is not part of its result.
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

// progress receives the upstream's progress, for the caller and, as STREAM
// signals, for the bus when somebody listens.
func (t *toolCall) progress() func(json.RawMessage) {
	client := t.toolProgress()
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
	t.publish(signal.Create(signal.Stream, body, t.source(), t.traceID, t.tags(), t.signalID))
}
