package proxy

import (
	"encoding/json"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Call is one request as a door received it. The door fills in what it knows; the
// road judges.
type Call struct {
	// Message is the decoded request; nil, with Fault set, when the decoder refused
	// the bytes.
	Message *jsonrpc.Message
	// Fault is why there is no Message.
	Fault *jsonrpc.Fault
	// Credential is what the caller showed; the road turns it into a principal.
	Credential identity.Credential
	// Principal is whom the door has identified by Credential for this request,
	// with Gate.Identify; the zero value has the road identify it.
	Principal policy.Principal
	// Client is the name/version that the client gave of itself, unverified.
	Client string
	// Route is "" for the aggregated catalogue, else the one server that the
	// call came in for.
	Route string
	// Session keys the downstream session, "" when the door has none.
	Session string
	// Transport is http, stdio, ndjson or rest.
	Transport string
	// Era is the MCP revision that the caller speaks, "" outside MCP.
	Era string
	// SignalID is the id of the Signal that asks for the call, "" = the road
	// makes one. It is the parent of every Signal that comes of the call.
	SignalID string
	// TraceID continues a trace, "" = that of params._meta.traceparent, or a
	// new one.
	TraceID string
	// Progress receives params of notifications/progress for this call without
	// a progressToken member; nil means none is wanted. It is called from one
	// goroutine at a time and never after Call has returned.
	Progress func(params json.RawMessage)
	// Later receives the progress of the task that the call became, after Call has
	// returned and for as long as the task lives; nil means none is wanted.
	Later func(params json.RawMessage)
	// Capabilities are those that the client declared, an object; nil = none. Level
	// is the least severe log message that it wants, "" = not said.
	Capabilities json.RawMessage
	Level        string
	// resumed is the approved ticket whose call this is, nil for the calls of doors.
	resumed *approval.Ticket
	// Peer receives the questions and notifications of a server in the course of the
	// call, Home those that belong to no call of the session. Nil = nobody.
	Peer, Home registry.Peer
}

// Reply is the answer to a call that was not refused.
type Reply struct {
	// Result is the tools/call result to send, already carrying the kernel
	// Result in its _meta as the configured mode wants it.
	Result json.RawMessage
	// Kernel is the same outcome as Signals.
	Kernel signal.Result
	// Ticket is the id of the approval ticket that the reply speaks of, or "".
	Ticket string
	// RetryAfter is the wait before asking again is worthwhile; more than 0 only
	// while the ticket is undecided or its call runs.
	RetryAfter time.Duration
	// DecisionID and TraceID name the call in the audit trail.
	DecisionID, TraceID string
	// Tool is what was called.
	Tool *registry.Tool
	// Decision is what let the call pass, or held it.
	Decision policy.Decision
}

// Failure is a refused or failed call. proxy/wire turns it into an answer; the
// fields are those of wire.Failure, in that order, so that one converts to the
// other.
type Failure struct {
	Kernel     *signal.KernelError
	RetryAfter time.Duration   // 0 when there is nothing to wait for
	Reason     string          // for the agent, one sentence
	Remedy     string          // what would make it pass, "" when nothing does
	DecisionID string          // in the audit trail
	TraceID    string          //
	Upstream   json.RawMessage // the error object as the upstream sent it, or nil
	Plain      bool            // of a request that calls no tool: there is no tool's result to say it in
}

// Error says what went wrong in one line.
func (f *Failure) Error() string { return f.Kernel.Error() }

// Unwrap gives the kernel error.
func (f *Failure) Unwrap() error { return f.Kernel }

// fail makes the failure for a kernel code, with the category, severity and
// retry rule that the code has everywhere. An unknown code fails as
// INTERNAL_ERROR.
func (c *call) fail(code, reason string) *Failure {
	message := reason
	if message == "" {
		message = code
	}
	kernel, err := signal.ErrorFor(code, message, c.source, nil, nil)
	if err != nil {
		kernel, _ = signal.ErrorFor(signal.CodeInternal, err.Error(), c.source, nil, nil)
	}
	return &Failure{Kernel: kernel, Reason: reason, DecisionID: c.decisionID, TraceID: c.traceID, Plain: c.method != ""}
}

// internal logs an error of a part of ours, and makes the failure that tells the
// caller its ids only.
func (c *call) internal(doing string, err error) *Failure {
	c.gate.opts.Log.Error(doing, "decision", c.decisionID, "tool", c.name, "ticket", c.ticket.ID, "error", err)
	return c.fail(signal.CodeInternal, "")
}

// wrap makes the failure of a lower tier's error, which stays its cause. The error
// has the category, severity and retry rule of code.
func (c *call) wrap(code string, inner *signal.KernelError, reason string) *Failure {
	f := c.fail(code, reason)
	if outer, err := signal.WrapError(code, inner, c.source, f.Kernel.Message); err == nil {
		f.Kernel = outer
	}
	return f
}

// because adds the cause to a failure whose severity is not that of its cause.
func (f *Failure) because(cause *signal.KernelError) *Failure {
	f.Kernel.Cause = cause
	return f
}

// with adds a fact to the error's detail; an empty text adds nothing.
func (f *Failure) with(key string, value any) *Failure {
	if value == "" {
		return f
	}
	if f.Kernel.Detail == nil {
		f.Kernel.Detail = map[string]any{}
	}
	f.Kernel.Detail[key] = value
	return f
}

// after sets the time until which a retry is pointless.
func (f *Failure) after(wait time.Duration) *Failure {
	f.RetryAfter = wait
	return f
}

// remedy says what would make the call pass.
func (f *Failure) remedy(text string) *Failure {
	f.Remedy = text
	return f
}
