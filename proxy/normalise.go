package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/signal"
)

// The members of _meta that are ours.
const (
	metaResult   = "io.toolgate/result"
	metaApproval = "io.toolgate/approval"
	metaHidden   = "io.toolgate/hidden" // kinds of characters that were spelled out
)

// normalise holds the tool's result to its output schema and to the decision's
// obligations, and turns it into Signals. A tool's own isError result is a result
// and passes unchanged. A result is withheld when it is not an object or breaks an
// enforced output schema; the call was made, and its ticket says so.
func (t *toolCall) normalise(ctx context.Context) *Failure {
	if t.task != nil || len(t.in.Capabilities) > len("{}") {
		if state, ok := t.taskOf(t.raw); ok {
			return t.replyBegun(state)
		}
	}
	if len(t.raw) == 0 || t.raw[0] != '{' {
		return t.withhold(t.fail(signal.CodeOutputInvalid, "the tool's result is no object"))
	}
	if t.tool.Output != nil && t.tool.OutputMode != "off" {
		if f := t.checkOutput(); f != nil {
			return t.withhold(f)
		}
	}
	result := t.raw
	if len(t.decision.Redact) > 0 {
		var err error
		if result, err = redact(result, t.decision.Redact); err != nil {
			t.ends(approval.StateFailed, nil, "the result could not be redacted and is withheld")
			return t.internal("redacting a result", err)
		}
	}
	if !t.plain {
		if t.unseen = text.HiddenKinds(result); t.unseen != nil && t.tool.EscapeHidden {
			result = jsonrpc.MapStrings(result, text.EscapeHidden)
		}
	}
	if t.hold.granted { // the ticket keeps this result, whatever is added to it
		result = slices.Clip(result)
	}
	t.hold.end, t.hold.result = approval.StateDone, result
	return t.replyResult(ctx, result, nil)
}

// withhold ends a call whose result cannot be given.
func (t *toolCall) withhold(f *Failure) *Failure {
	t.ends(approval.StateFailed, nil, f.Reason)
	return f
}

// outcome is a tool's result with its Signals.
type outcome struct {
	result json.RawMessage
	refs   []string // into result, one for each signal
	kernel signal.Result
	handle bool            // result is a task, whose shape no mode changes
	slim   []signal.Signal // kernel's signals for mode signals, large bodies as artifacts; nil in other modes
	links  []byte          // to what was kept as artifacts, for mode signals: content blocks, each after a comma
}

// noteRunes bounds how much of a tool's error its ticket shows, in characters.
const noteRunes = 200

// replyResult replies with a result as Signals, in the configured mode. It says how
// the call went (seed 002, Result): the tool's own isError is an error that carries
// its one error signal, the first warning next to signals is partial success, and a
// warning alone is failure.
func (t *toolCall) replyResult(ctx context.Context, result json.RawMessage, view map[string]any) *Failure {
	signals, refs, err := signal.FromToolResult(result, signal.Lineage{
		Origin: t.source, Tool: t.subject.Exposed, TraceID: t.traceID, ParentID: t.signalID, DecisionID: t.decisionID, Accepted: true,
	})
	if err != nil {
		return t.fail(signal.CodeOutputInvalid, "the tool's result cannot be read")
	}
	o := outcome{result: result, refs: refs}
	files := slices.ContainsFunc(signals, func(s signal.Signal) bool { return s.Kind() == signal.File })
	if t.gate.opts.Artifacts != nil && (files || t.resultsMode() == "signals") {
		t.keepArtifacts(ctx, &o, signals)
	}
	var failed *signal.KernelError
	if len(signals) == 1 && signals[0].Kind() == signal.Data {
		failed, _ = signal.ErrorOf(signals[0])
	}
	if (files || failed != nil) && t.in.Route == "" && t.tool != nil && bytes.Contains(result, []byte("resource_link")) {
		t.rememberLinks(result) // a link is a FILE, unless an error signal stands for the whole result
	}
	switch m := t.metrics(); {
	case failed != nil:
		o.kernel = signal.Fail(failed, m)
		o.kernel.Signals = signals
		t.hold.note = approval.ToolError + ": " + text.ClipRunes(failed.Message, noteRunes)
	case t.warnings == nil:
		o.kernel = signal.OK(signals, m)
	case len(signals) == 0:
		o.kernel = signal.Fail(t.warnings[0], m)
	default:
		o.kernel = signal.Partial(signals, t.warnings[0], m)
		t.gate.opts.Log.Warn("partial result", "server", t.tool.Server, "tool", t.tool.Name, "decision", t.decisionID, "fault", signal.Compose(o.kernel).Log)
	}
	return t.replyShaped(o, view)
}

// isError reports whether a result is an error of its tool.
func isError(result json.RawMessage) bool {
	v, ok := jsonrpc.Get(result, "isError")
	return ok && string(v) == "true"
}

// checkOutput checks structuredContent against the tool's output schema. In mode
// warn a fault is a warning; a validator that fails counts as a fault.
func (t *toolCall) checkOutput() *Failure {
	known, _, _ := jsonrpc.Unpack(t.raw, true, nil, "isError", "structuredContent")
	if known != nil && string(known[0]) == "true" {
		return nil
	}
	reason := "the tool declares an output schema and returned no structuredContent"
	if known != nil && known[1] != nil {
		switch faults, err := t.tool.Output.ValidateAccepted(known[1]); {
		case err != nil:
			reason = "the tool's output could not be validated"
		case len(faults) == 0:
			return nil
		default:
			reason = "structuredContent breaks the tool's output schema: " + faults[0].String()
		}
	}
	if t.tool.OutputMode == "enforce" {
		return t.fail(signal.CodeOutputInvalid, reason)
	}
	t.warn(signal.CodeOutputInvalid, reason)
	return nil
}

// warn notes a fault that fails no call: a degraded error next to the signals.
func (c *call) warn(code, reason string) {
	w := c.fail(code, reason).Kernel
	w.Severity = signal.Degraded
	c.warnings = append(c.warnings, w)
}

// metrics are those of the request so far; a stored result is a cache hit.
func (c *call) metrics() signal.Metrics {
	return signal.Metrics{
		DurationMS: float64(c.gate.opts.Now().Sub(c.start).Microseconds()) / 1000,
		CacheHit:   c.replayed, ModuleRef: c.source,
	}
}

// replyShaped replies with the result in the configured mode, and with view, if
// any, in its _meta. Mode signals replaces the content by the Result as one text
// block, links to what became artifacts behind it, and structuredContent by the
// Result.
func (t *toolCall) replyShaped(o outcome, view map[string]any) *Failure {
	changes, meta := t.changes[:0], t.added[:0]
	mode := t.resultsMode()
	if o.handle && mode != "off" {
		mode = "compact"
	}
	switch mode {
	case "off":
	case "full":
		meta = append(meta, jsonrpc.Change{Name: metaResult, Value: signal.Full(o.kernel)})
	case "signals":
		kernel := o.kernel
		if o.slim != nil {
			kernel.Signals = o.slim
		}
		full := signal.Full(kernel)
		content := slices.Concat([]byte(`[{"type":"text","text":`), jsonrpc.Quote(string(full)), []byte(`}`), o.links, []byte(`]`))
		changes = append(changes, jsonrpc.Change{Name: "content", Value: content}, jsonrpc.Change{Name: "structuredContent", Value: full})
		meta = append(meta, jsonrpc.Change{Name: metaResult, Value: full})
	default:
		meta = append(meta, jsonrpc.Change{Name: metaResult, Value: signal.Compact(o.kernel, t.decisionID, t.traceID), Checked: true})
	}
	if t.unseen != nil && t.tool.EscapeHidden {
		meta = append(meta, jsonrpc.Change{Name: metaHidden, Value: marshal(t.unseen)})
	}
	if view != nil {
		meta = append(meta, jsonrpc.Change{Name: metaApproval, Value: marshal(view)})
	}
	if len(meta) > 0 {
		changes = append(changes, jsonrpc.Change{Name: "_meta", Members: meta})
	}
	return t.replyWith(o.result, o.kernel, changes...)
}

// marshal encodes texts, numbers and JSON of our own making.
func marshal(v any) json.RawMessage {
	text, _ := json.Marshal(v)
	return text
}

// replyOK ends a request with a result that carries no signals.
func (c *call) replyOK(result json.RawMessage) *Failure {
	return c.replyWith(result, signal.OK(nil, c.metrics()))
}

// replyWith ends a request with its result, to which it makes changes.
func (c *call) replyWith(result json.RawMessage, kernel signal.Result, changes ...jsonrpc.Change) *Failure {
	if len(changes) > 0 {
		var err error
		if result, err = jsonrpc.Append(result, changes...); err != nil {
			return c.fail(signal.CodeOutputInvalid, "the result cannot be edited: "+err.Error())
		}
	}
	c.reply = &Reply{
		Result: slices.Clip(result), Kernel: kernel, Ticket: c.ticket.ID, Tool: c.tool,
		DecisionID: c.decisionID, TraceID: c.traceID, Decision: c.decision,
	}
	return nil
}

// codeNotKept is the error of a partial result whose bytes could not be stored:
// the call has been made, and the rest of its result is still useful.
const codeNotKept = "T4_ARTIFACT_NOT_KEPT"

// keepArtifacts puts the inline bytes behind FILE signals into the artifact
// store, for the principal of the call. With Results signals it also takes out of
// the signals what is larger than Inline. A store that fails is a warning; what it
// could not keep stays where it was.
func (t *toolCall) keepArtifacts(ctx context.Context, o *outcome, signals []signal.Signal) {
	set, mode := t.gate.settings.Load(), t.resultsMode()
	if mode == "off" && t.in.Transport != "rest" && t.in.Transport != "ndjson" { // these carry signals in every mode
		return
	}
	var ids []string
	var fault *signal.KernelError
	for i, s := range signals {
		file, slims := s.Kind() == signal.File, mode == "signals"
		var data []byte
		var media string
		var keep bool
		if file {
			data, media, keep = signal.InlineFile(o.result, o.refs[i])
		} else if slims {
			data, media = payload(s)
			keep = len(data) > set.Inline
		}
		if keep {
			a, err := t.gate.opts.Artifacts.Put(context.WithoutCancel(ctx), t.principal, media, data)
			if err == nil && !slices.Contains(ids, a.ID) {
				ids, o.links = append(ids, a.ID), append(o.links, resourceLink(set.ArtifactURL, a)...)
			}
			slim := s
			if err == nil && !file {
				slim, err = signal.CreateFile(a.ID, a.Type, "", s.Origin(), s.TraceID(), signal.WithTags(s.Tags()), signal.WithParent(s.ParentID()), signal.WithSize(a.Size))
			}
			if err == nil {
				s = slim
			} else {
				t.gate.opts.Log.Error("keeping an artifact", "decision", t.decisionID, "error", err)
				fault, _ = signal.CreateError(codeNotKept, signal.Resource, signal.Degraded, // a valid code
					"a part of the result could not be kept as an artifact", t.source, false, nil, nil)
			}
		}
		if slims {
			o.slim = append(o.slim, s)
		}
	}
	if fault != nil {
		t.warnings = append(t.warnings, fault)
	}
}

// payload returns what a TEXT or DATA signal carries. Errors stay whole: nobody
// should need a second request to read why.
func payload(s signal.Signal) (data []byte, media string) {
	_, failed := signal.ErrorOf(s)
	switch {
	case failed:
	case s.Kind() == signal.Text:
		text, _ := s.Body()["text"].(string)
		return []byte(text), "text/plain; charset=utf-8"
	case s.Kind() == signal.Data:
		return marshal(s.Body()["data"]), "application/json"
	}
	return nil, ""
}

// resourceLink is the content block for an artifact (MCP server/tools, "Resource
// Links"), after a comma.
func resourceLink(base string, a artifact.Artifact) []byte {
	return fmt.Appendf(nil, `,{"type":"resource_link","uri":%s,"name":%s,"mimeType":%s,"size":%d}`,
		jsonrpc.Quote(base+"/v1/artifacts/"+a.ID), jsonrpc.Quote(a.ID), jsonrpc.Quote(a.Type), a.Size)
}
