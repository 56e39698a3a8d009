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
// into Signals. A tool's own isError result is a result and passes unchanged. A
// result that is no object, or that breaks an enforced output schema, is
// withheld; the call has happened all the same, and its ticket says so.
func (t *toolCall) normalise(ctx context.Context) *Failure {
	if t.task != nil || len(t.in.Capabilities) > len("{}") {
		if state, id, ok := t.taskOf(t.raw); ok {
			return t.replyBegun(state, id)
		}
	}
	return t.govern(ctx)
}

// govern holds the tool's result to its output schema and to the decision.
func (t *toolCall) govern(ctx context.Context) *Failure {
	if len(t.raw) == 0 || t.raw[0] != '{' {
		return t.withhold(t.fail(signal.CodeOutputInvalid, "the tool's result is no object"))
	}
	var warning *signal.KernelError
	if t.tool.Output != nil && t.tool.OutputMode != "off" {
		var f *Failure
		if warning, f = t.checkOutput(); f != nil {
			return t.withhold(f)
		}
	}
	result := t.raw
	if len(t.decision.Redact) > 0 {
		var err error
		if result, err = redact(result, t.decision.Redact); err != nil {
			t.gate.opts.Log.Error("redacting a result", "decision", t.decisionID, "error", err)
			t.ends(approval.StateFailed, nil, "the result could not be redacted and is withheld")
			return t.fail(signal.CodeInternal, "")
		}
	}
	t.hold.end, t.hold.result = approval.StateDone, result
	return t.replyResult(ctx, result, warning, nil)
}

// withhold ends a call whose result cannot be given.
func (t *toolCall) withhold(f *Failure) *Failure {
	t.ends(approval.StateFailed, nil, f.Reason)
	return f
}

// replyResult replies with a result as Signals, in the configured mode.
func (t *toolCall) replyResult(ctx context.Context, result json.RawMessage, warning *signal.KernelError, view map[string]any) *Failure {
	signals, refs, err := signal.FromToolResult(result, signal.Lineage{
		Origin: t.source(), Tool: t.subject.Exposed, TraceID: t.traceID, ParentID: t.signalID, DecisionID: t.decisionID,
	})
	if err != nil {
		return t.fail(signal.CodeOutputInvalid, "the tool's result cannot be read")
	}
	o := outcome{result: result, refs: refs}
	keeps := t.gate.settings.Load().Results == "signals"
	for _, s := range signals {
		keeps = keeps || s.Kind() == signal.File
	}
	if keeps && t.gate.opts.Artifacts != nil {
		if fault := t.keepArtifacts(ctx, &o, signals); fault != nil && warning == nil {
			warning = fault
		}
	}
	o.kernel = compose(signals, warning, t.metrics())
	if o.kernel.Status == signal.StatusPartial {
		t.gate.opts.Log.Warn("partial result", "server", t.tool.Server, "tool", t.tool.Name, "decision", t.decisionID, "fault", signal.Compose(o.kernel).Log)
	}
	return t.replyShaped(o, view)
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

// checkOutput checks structuredContent against the tool's output schema. In mode
// warn a fault becomes a degraded error beside the signals; a validator that
// fails counts as a fault.
func (t *toolCall) checkOutput() (*signal.KernelError, *Failure) {
	if isError(t.raw) {
		return nil, nil
	}
	reason := "the tool declares an output schema and returned no structuredContent"
	if structured, ok := jsonrpc.Get(t.raw, "structuredContent"); ok {
		faults, err := t.tool.Output.Validate(structured)
		if err == nil && len(faults) == 0 {
			return nil, nil
		}
		reason = "the tool's output could not be validated"
		if err == nil {
			reason = "structuredContent breaks the tool's output schema: " + faults[0].String()
		}
	}
	f := t.fail(signal.CodeOutputInvalid, reason)
	if t.tool.OutputMode == "enforce" {
		return nil, f
	}
	f.Kernel.Severity = signal.Degraded
	return f.Kernel, nil
}

func isError(result json.RawMessage) bool {
	v, ok := jsonrpc.Get(result, "isError")
	return ok && string(v) == "true"
}

// metrics are those of the request so far; a stored result is a cache hit.
func (c *call) metrics() signal.Metrics {
	return signal.Metrics{
		DurationMS: float64(c.gate.opts.Now().Sub(c.start).Microseconds()) / 1000,
		CacheHit:   c.replayed, ModuleRef: c.source(),
	}
}

// outcome is a tool's result with what was made of it.
type outcome struct {
	result json.RawMessage
	refs   []string // into result, one for each signal
	kernel signal.Result
	slim   []signal.Signal // kernel's signals for mode signals, large bodies as artifacts; nil in other modes
	links  []link          // of what was kept as artifacts, for mode signals
}

// replyShaped replies with the result in the configured mode, and with view, if
// any, in its _meta.
func (t *toolCall) replyShaped(o outcome, view map[string]any) *Failure {
	var err error
	shaped := o.result
	switch mode := t.gate.settings.Load().Results; mode {
	case "off":
	case "full":
		shaped, err = setMeta(o.result, metaResult, signal.Full(o.kernel))
	case "signals":
		shaped, err = signalsOnly(o)
	case "compact":
		shaped, err = setMeta(o.result, metaResult, signal.Compact(o.kernel, o.refs))
	default:
		err = fmt.Errorf("shaping a result: mode %q is unknown", mode)
	}
	if err == nil && view != nil {
		var text []byte
		if text, err = json.Marshal(view); err == nil {
			shaped, err = setMeta(shaped, metaApproval, text)
		}
	}
	if err != nil {
		t.gate.opts.Log.Error("shaping a result", "decision", t.decisionID, "error", err)
		return t.fail(signal.CodeOutputInvalid, "the tool's result cannot carry _meta")
	}
	t.replyWith(shaped, o.kernel)
	return nil
}

// replyWith ends a request with its result.
func (c *call) replyWith(result json.RawMessage, kernel signal.Result) {
	c.reply = &Reply{
		Result: result, Kernel: kernel, Ticket: c.ticket.ID, Tool: c.tool,
		DecisionID: c.decisionID, TraceID: c.traceID, Decision: c.decision,
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
