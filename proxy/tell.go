package proxy

import (
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// tell puts what became of a call on the bus, for its principal: the signals
// of its result as the rules of composition let them pass (seed 002), a failure
// as an error signal, a cancellation as the command abort.
func (g *Gate) tell(p *passage, f *Failure) {
	if !g.heard(p) {
		return
	}
	if p.chunks > 0 {
		g.chunk(p, "", true, nil)
	}
	if f != nil {
		g.tellFailure(p, f)
		return
	}
	next := signal.Compose(p.reply.Kernel)
	for _, s := range next.Signals {
		g.opts.Bus.Publish(p.principal, s)
	}
	if next.Stop != nil {
		g.publish(p, func() (signal.Signal, error) { return p.errorSignal(next.Stop) })
	}
}

// heard reports whether somebody listens for the principal of the call.
func (g *Gate) heard(p *passage) bool {
	return g.opts.Bus != nil && p.principal.Valid() && g.opts.Bus.Listening(p.principal)
}

func (g *Gate) tellFailure(p *passage, f *Failure) {
	switch f.Kernel.Code {
	case signal.CodeCancelled:
		g.publish(p, func() (signal.Signal, error) {
			body := map[string]any{"action": "abort", "target": p.source(), "reason": f.Reason}
			return signal.Create(signal.Command, body, p.source(), p.traceID, p.tags(), p.callID)
		})
	case signal.CodeInternal: // its cause is for the log
		g.publish(p, func() (signal.Signal, error) { return p.errorSignal(p.fail(signal.CodeInternal, "").Kernel) })
	default:
		g.publish(p, func() (signal.Signal, error) { return p.errorSignal(f.Kernel) })
	}
}

func (p *passage) errorSignal(e *signal.KernelError) (signal.Signal, error) {
	if err := e.Validate(); err != nil {
		return signal.Signal{}, err
	}
	body := map[string]any{"data": e, "schema": signal.SchemaError}
	return signal.Create(signal.Data, body, p.source(), p.traceID, p.tags(), p.callID)
}

// tags are those of every signal about the call that is not part of its result.
func (p *passage) tags() map[string]string {
	return map[string]string{signal.TagTool: p.name, signal.TagDecision: p.decisionID}
}

// publish puts one signal on the bus. One that cannot be made is logged: the
// bus is telemetry and fails no call.
func (g *Gate) publish(p *passage, create func() (signal.Signal, error)) {
	s, err := create()
	if err != nil {
		g.opts.Log.Error("making a signal for the bus", "decision", p.decisionID, "error", err)
		return
	}
	g.opts.Bus.Publish(p.principal, s)
}

// progress is what forward gives to the upstream: the caller's own receiver,
// and the bus when somebody listens, which gets STREAM signals.
func (g *Gate) progress(p *passage) func(json.RawMessage) {
	onward := p.onward()
	if !g.heard(p) {
		return onward
	}
	return func(params json.RawMessage) {
		text := string(params)
		if raw, ok := jsonrpc.Get(params, "message"); ok {
			if s, ok := jsonrpc.Text(raw); ok {
				text = s
			}
		}
		g.chunk(p, text, false, params)
		if onward != nil {
			onward(params)
		}
	}
}

// chunk puts the next STREAM signal on the bus.
func (g *Gate) chunk(p *passage, text string, final bool, params json.RawMessage) {
	body := map[string]any{"chunk": text, "sequence": p.chunks, "final": final}
	if params != nil {
		body["progress"] = params
	}
	p.chunks++
	g.publish(p, func() (signal.Signal, error) {
		return signal.Create(signal.Stream, body, p.source(), p.traceID, p.tags(), p.callID)
	})
}
