package proxy

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

// The members of _meta that are ours.
const (
	metaResult   = "io.toolgate/result"
	metaApproval = "io.toolgate/approval"
)

// normalise checks the result, applies the decision's obligations and turns it
// into Signals. A tool's own isError result is a result: it passes as it came.
// A result that is no object, or that breaks an enforced output schema, is
// withheld; the call has happened all the same, and its ticket says so.
func normalise(ctx context.Context, g *Gate, p *passage) *Failure {
	if len(p.raw) == 0 || p.raw[0] != '{' {
		g.finish(ctx, p, approval.StateFailed, nil, "the tool's result is no object")
		return p.fail(signal.CodeOutputInvalid, "the tool's result is no object")
	}
	if state, id, ok := p.taskOf(p.raw); ok && p.task == nil {
		return g.begun(ctx, p, state, id)
	}
	warning, f := g.checkOutput(p)
	if f != nil {
		g.finish(ctx, p, approval.StateFailed, nil, f.Reason)
		return f
	}
	result, err := redact(p.raw, p.decision.Redact)
	if err != nil {
		g.opts.Log.Error("redacting a result", "decision", p.decisionID, "error", err)
		g.finish(ctx, p, approval.StateFailed, nil, "the result could not be redacted and is withheld")
		return p.fail(signal.CodeInternal, "")
	}
	g.finish(ctx, p, approval.StateDone, result, "")
	return g.give(ctx, p, result, warning, nil)
}

// give answers with the result as Signals, in the configured mode.
func (g *Gate) give(ctx context.Context, p *passage, result json.RawMessage, warning *signal.KernelError, view map[string]any) *Failure {
	signals, refs, err := signal.FromToolResult(result, signal.Lineage{
		Origin: p.source(), Tool: p.subject.Exposed, TraceID: p.traceID, ParentID: p.callID, DecisionID: p.decisionID,
	})
	if err != nil {
		return p.fail(signal.CodeOutputInvalid, "the tool's result cannot be read")
	}
	o := outcome{result: result, refs: refs}
	if fault := g.keep(ctx, p, &o, signals); fault != nil && warning == nil {
		warning = fault
	}
	o.kernel = compose(signals, warning, p.metrics(g, p.replayed))
	if next := signal.Compose(o.kernel); next.Log != nil {
		g.opts.Log.Warn("partial result", "server", p.tool.Server, "tool", p.tool.Name, "decision", p.decisionID, "fault", next.Log)
	}
	return g.answer(p, o, view)
}

// compose says how the call went (seed 002, Result): the tool's own isError is
// an error that carries its one error signal, a warning beside signals is
// partial success, and a warning alone is failure.
func compose(signals []signal.Signal, warning *signal.KernelError, m signal.Metrics) signal.Result {
	if len(signals) == 1 {
		if failed, ok := signal.ErrorOf(signals[0]); ok {
			r := signal.Fail(failed, m)
			r.Signals = signals
			return r
		}
	}
	switch {
	case warning == nil:
		return signal.OK(signals, m)
	case len(signals) == 0:
		return signal.Fail(warning, m)
	}
	return signal.Partial(signals, warning, m)
}

// checkOutput holds structuredContent to the tool's output schema. In mode
// warn the fault becomes a degraded error beside the signals; a validator that
// fails counts as a fault.
func (g *Gate) checkOutput(p *passage) (*signal.KernelError, *Failure) {
	if p.tool.Output == nil || p.tool.OutputMode == "off" || isError(p.raw) {
		return nil, nil
	}
	reason := "the tool declares an output schema and returned no structuredContent"
	if structured, ok := jsonrpc.Get(p.raw, "structuredContent"); ok {
		faults, err := p.tool.Output.Validate(structured)
		if err == nil && len(faults) == 0 {
			return nil, nil
		}
		reason = "the tool's output could not be validated"
		if err == nil {
			reason = "structuredContent breaks the tool's output schema: " + faults[0].String()
		}
	}
	f := p.fail(signal.CodeOutputInvalid, reason)
	if p.tool.OutputMode == "enforce" {
		return nil, f
	}
	f.Kernel.Severity = signal.Degraded
	return f.Kernel, nil
}

func isError(result json.RawMessage) bool {
	v, ok := jsonrpc.Get(result, "isError")
	return ok && string(v) == "true"
}

func (p *passage) metrics(g *Gate, cached bool) signal.Metrics {
	return signal.Metrics{
		DurationMS: float64(g.opts.Now().Sub(p.now).Microseconds()) / 1000,
		CacheHit:   cached, ModuleRef: p.source(),
	}
}

// outcome is a tool's result with what was made of it.
type outcome struct {
	result json.RawMessage
	refs   []string // into result, one for each signal
	kernel signal.Result
	slim   []signal.Signal // kernel's signals for mode signals, large bodies as artifacts; nil in the others
	links  []link          // of what was kept as artifacts, for mode signals
}

// answer makes the reply: the result with our views in its _meta.
func (g *Gate) answer(p *passage, o outcome, view map[string]any) *Failure {
	shaped, err := g.shape(o)
	if err == nil && view != nil {
		var text []byte
		if text, err = json.Marshal(view); err == nil {
			shaped, err = setMeta(shaped, metaApproval, text)
		}
	}
	if err != nil {
		g.opts.Log.Error("shaping a result", "decision", p.decisionID, "error", err)
		return p.fail(signal.CodeOutputInvalid, "the tool's result cannot carry _meta")
	}
	p.reply = &Reply{
		Result: shaped, Kernel: o.kernel, Ticket: p.ticket.ID,
		DecisionID: p.decisionID, TraceID: p.traceID, Tool: p.tool, Decision: p.decision,
	}
	return nil
}

// shape is the four modes in which an agent may get a Result.
func (g *Gate) shape(o outcome) (json.RawMessage, error) {
	switch mode := g.settings.Load().Results; mode {
	case "off":
		return o.result, nil
	case "full":
		return setMeta(o.result, metaResult, signal.Full(o.kernel))
	case "signals":
		return signalsOnly(o)
	case "compact":
		return setMeta(o.result, metaResult, signal.Compact(o.kernel, o.refs))
	default:
		return nil, fmt.Errorf("shaping a result: mode %q is unknown", mode)
	}
}

// signalsOnly replaces the content by the Result as one text block, links to
// what became artifacts behind it, and structuredContent by the Result.
func signalsOnly(o outcome) (json.RawMessage, error) {
	kernel := o.kernel
	if o.slim != nil {
		kernel.Signals = o.slim
	}
	full := signal.Full(kernel)
	content := append([]byte(`[{"type":"text","text":`), jsonrpc.Quote(string(full))...)
	content = append(content, '}')
	for _, l := range o.links {
		content = append(append(content, ','), l.block()...)
	}
	out, err := jsonrpc.Set(o.result, "content", append(content, ']'))
	if err != nil {
		return nil, err
	}
	if out, err = jsonrpc.Set(out, "structuredContent", full); err != nil {
		return nil, err
	}
	return setMeta(out, metaResult, full)
}

// setMeta puts one member into the result's _meta and leaves every other byte.
func setMeta(result json.RawMessage, key string, value json.RawMessage) (json.RawMessage, error) {
	meta, ok := jsonrpc.Get(result, "_meta")
	if !ok {
		meta = json.RawMessage("{}")
	}
	meta, err := jsonrpc.Set(meta, key, value)
	if err != nil {
		return nil, fmt.Errorf("setting _meta: %w", err)
	}
	return jsonrpc.Set(result, "_meta", meta)
}
