package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Tracer makes the spans of requests. A context holds the span under way. Its methods
// must not block.
//
// A request has one Server span from its first stage to its outcome record, one
// Stage span for each stage, and one Client span for each request to an upstream. A
// held call that is answered as pending has ended; the call that repeats it, or that
// runs once it is approved, has a span of its own, so that no span waits for hours. A
// multi-round call is one request: its span has the time in which its client answers. A
// question of a server is a request below the Client span in whose course it is asked,
// and a call that becomes a task ends with the answer that names the task.
type Tracer interface {
	// Start begins a span and returns the context that has it.
	Start(ctx context.Context, s span.Start) context.Context
	// Carry returns the span of ctx, as another process continues it.
	Carry(ctx context.Context) span.Carrier
	// End ends the span of ctx. It is called once for each Start.
	End(ctx context.Context, e *span.End)
}

// otherMethod stands for a method that the gate does not know, so that callers cannot
// name spans.
const otherMethod = "_OTHER"

// Errors of spans that have no code of their own.
const (
	errorTool   = "tool_error"    // the result says isError
	errorPolicy = "policy_denied" // no fault of a server
	errorPanic  = "panic"
)

// startTrace begins the span of a request, whose trace becomes that of the call. The context
// in params._meta is its parent, else that of the transport (Call.Trace).
func (c *call) startTrace(ctx context.Context) context.Context {
	t := c.gate.opts.Tracer
	ctx = t.Start(ctx, span.Start{Kind: span.Server, Name: c.gate.tracedMethod(c.in.Message, cmp.Or(c.server, c.in.Route)), Parent: metaTrace(c.in.Message), Transport: c.in.Trace, TraceID: c.traceID})
	c.trace = t.Carry(ctx)
	c.traceID = c.trace.TraceID()
	return ctx
}

// metaTrace returns the context in params._meta, nil for none.
func metaTrace(m *jsonrpc.Message) span.Carrier {
	if m == nil {
		return nil
	}
	return span.From(func(name string) string {
		raw, _ := m.Param("_meta", name)
		text, _ := jsonrpc.Text(raw)
		return text
	})
}

// tracedMethod returns the method of a request to server, if it is one that the gate knows.
func (g *Gate) tracedMethod(m *jsonrpc.Message, server string) string {
	if m == nil {
		return otherMethod
	}
	for _, rows := range []map[string]method{methods, lists, questions} {
		if _, ok := rows[m.Method]; ok {
			return m.Method
		}
	}
	if m.Method == "tools/call" || m.Method == "tools/list" || g.extends(server, m.Method) {
		return m.Method
	}
	return otherMethod
}

// endTrace ends the span of a request.
func (c *call) endTrace(ctx context.Context, f *Failure, took time.Duration) {
	who := c.caller()
	e := &span.End{
		Kind: span.Server, Method: c.gate.tracedMethod(c.in.Message, cmp.Or(c.server, c.in.Route)), RequestID: c.id, Protocol: c.in.Era, Transport: c.in.Transport, Server: c.server,
		Subject: who.Subject, Agent: who.Client, DecisionID: c.decisionID, Effect: string(c.decision.Effect), Revision: c.decision.Revision,
		Rule: c.decision.Rule, Ticket: c.ticket.ID, Duration: took, Events: c.events,
	}
	switch {
	case c.method == "" && c.tool != nil:
		e.Tool, e.Known = c.tool.Exposed, true
	case c.method == "":
		e.Tool = c.name
	case c.method == "prompts/get":
		e.Prompt, e.Known = c.name, c.server != ""
	}
	e.Error, e.Code, e.Status = faultOf(c.reply, f)
	c.gate.opts.Tracer.End(ctx, e)
}

// faultOf returns why a request or a stage failed: error.type, the kernel code, and the
// code of the upstream's error object. All are "" for success, and for a call that
// waits for people.
func faultOf(reply *Reply, f *Failure) (kind, code, status string) {
	switch {
	case f != nil && f.Upstream != nil:
		raw, _ := jsonrpc.Get(f.Upstream, "code")
		return string(raw), f.Kernel.Code, string(raw)
	case f != nil && f.Kernel.Category == signal.Policy:
		return errorPolicy, f.Kernel.Code, ""
	case f != nil:
		return f.Kernel.Code, f.Kernel.Code, ""
	case reply == nil || reply.Kernel.Error == nil || reply.Kernel.Error.Code == signal.CodeApprovalPending || !isError(reply.Result):
		return "", "", ""
	}
	return errorTool, "", ""
}

// note adds an event to the span of a call.
func (c *call) note(name, detail string) {
	if c.trace != nil {
		c.events = append(c.events, span.Event{Name: name, At: c.gate.opts.Now(), Detail: detail})
	}
}

// traceStage runs a stage within a span.
func traceStage[R any](ctx context.Context, r R, c *call, s stage[R]) *Failure {
	t, e := c.gate.opts.Tracer, &span.End{Kind: span.Stage, Error: errorPanic}
	ctx = t.Start(ctx, span.Start{Kind: span.Stage, Name: s.name})
	defer func() { t.End(ctx, e) }() // of a panic, too
	f := s.run(r, ctx)
	e.Error = ""
	if f != nil {
		e.Error, e.Code, e.Status = faultOf(c.reply, f)
	}
	return f
}

// outgoing is a request to an upstream within its span.
type outgoing struct {
	gate  *Gate
	ctx   context.Context
	begun time.Time
	end   span.End
}

// startOutgoing begins the span of a request to a server, and returns the context for
// the upstream; tool is "" or the upstream's own name.
func (g *Gate) startOutgoing(ctx context.Context, server, method, tool string) (*outgoing, span.Carrier) {
	o := &outgoing{gate: g, begun: g.opts.Now(), end: span.End{Kind: span.Client, Method: method, Tool: tool, Known: tool != "", Server: server, Error: errorPanic}}
	o.ctx = g.opts.Tracer.Start(ctx, span.Start{Kind: span.Client, Name: method})
	return o, g.opts.Tracer.Carry(o.ctx)
}

// note notes the answer.
func (o *outgoing) note(result json.RawMessage, err error) {
	switch fe := (*registry.ForwardError)(nil); {
	case err == nil && o.end.Tool != "" && isError(result):
		o.end.Error = errorTool
	case err == nil:
		o.end.Error = ""
	case errors.As(err, &fe) && fe.RPC != nil:
		code, _ := jsonrpc.Get(fe.RPC, "code")
		o.end.Error, o.end.Status = string(code), string(code)
	default:
		o.end.Error = forwardError(err).Kind.String()
	}
}

// done ends the span.
func (o *outgoing) done() {
	o.end.Duration = o.gate.opts.Now().Sub(o.begun)
	o.gate.opts.Tracer.End(o.ctx, &o.end)
}
