package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// submitter is the origin of the Result of a job without a tool.
var submitter = signal.ModuleRef{Tier: 0, Module: "gateway", Function: "submit_job"}

// submit accepts one job (seed 002, protocol bridges):
//
//	media -> identify -> body -> strict JSON -> http_request_to_signal
//	  without a tool                                        -> answer
//	  with a tool  -> signal_to_tool_call -> the road       -> result_to_http_response
//
// The signals of the caller's own requests are published to the caller on the
// bus.
func (h *Handler) submit(w http.ResponseWriter, r *http.Request) {
	in, ok := h.readRequest(w, r, func(_ *intake, f *proxy.Failure) { h.failed(w, f) })
	if !ok {
		return
	}
	defer in.claim.Release()
	raw, _, err := jsonrpc.CheckValue(in.body, in.limits)
	if in.long != nil {
		err = in.long.TooLarge(in.limits.Bytes)
	}
	if in.unauthenticated != nil {
		h.refuseCaller(w, &in.call.Credential, h.recordUnauthenticated(r, in, err == nil && h.wantsTool(in, raw)))
		return
	}
	if err != nil { // the road refuses and records it like any message
		in.setMessage(nil, err)
		h.call(w, in)
		return
	}
	var job signal.JobRequest
	if err := job.UnmarshalJSON(raw); err != nil {
		h.refuseJob(w, r, in, signal.CodeEnvelopeInvalid, err)
		return
	}
	asked, err := signal.HTTPRequestToSignal(job, in.call.TraceID)
	switch {
	case err != nil:
		h.refuseJob(w, r, in, signal.CodeEnvelopeInvalid, err)
	case job.Tool == "":
		h.opts.Bus.Publish(in.call.Principal, asked)
		h.note(w, in, asked)
	default:
		h.submitCall(w, r, in, job, asked)
	}
}

// submitCall passes the tool call of a job to the road. asked is the signal of
// the job, the parent of the call's.
func (h *Handler) submitCall(w http.ResponseWriter, r *http.Request, in *intake, job signal.JobRequest, asked signal.Signal) {
	child, err := signal.ToolCallSignal(job, asked)
	if err == nil {
		err = signal.ValidateSignal(child)
	}
	if err != nil {
		h.refuseJob(w, r, in, signal.CodeEnvelopeInvalid, err)
		return
	}
	want, err := signal.SignalToToolCall(child)
	if err != nil {
		h.refuseJob(w, r, in, signal.CodeSchemaMismatch, err)
		return
	}
	h.opts.Bus.Publish(in.call.Principal, asked)
	h.opts.Bus.Publish(in.call.Principal, child)
	in.call.SignalID, in.call.Tags = child.ID(), job.Tags
	h.setCall(in, want.Name, want.Arguments)
	h.call(w, in)
}

// wantsTool reports whether the job raw of an unauthenticated caller is a call,
// however malformed, and sets the call for the record.
func (h *Handler) wantsTool(in *intake, raw json.RawMessage) bool {
	member, ok := jsonrpc.Get(raw, "tool")
	if !ok {
		return false
	}
	name, _ := jsonrpc.Text(member)
	args, ok := jsonrpc.Get(raw, "args")
	if !ok {
		args = json.RawMessage("{}")
	}
	h.setCall(in, name, args)
	return true
}

// refuseJob answers a malformed job and has it recorded. err may be a kernel
// error, which keeps its code.
func (h *Handler) refuseJob(w http.ResponseWriter, r *http.Request, in *intake, code string, err error) {
	reason := err.Error()
	if kernel, ok := errors.AsType[*signal.KernelError](err); ok {
		code, reason = kernel.Code, kernel.Message
	}
	h.failed(w, h.opts.Refuser.Refuse(r.Context(), &in.call, code, reason))
}

// call passes a call to the road and answers with its outcome. A call continues
// after its caller hangs up: otherwise its effect would be unknown, and an
// approval would be lost.
func (h *Handler) call(w http.ResponseWriter, in *intake) {
	reply, failure := h.govern(in)
	switch {
	case failure != nil:
		h.stepUp(w, &in.call.Credential, failure)
		h.failed(w, failure)
	case reply == nil: // fails closed: the gate has to answer
		h.broken(w, errors.New("the gate gave neither reply nor failure"))
	default:
		h.settle(w, reply)
	}
}

// govern passes a call to the gate. After a panic it gives neither reply nor failure.
func (h *Handler) govern(in *intake) (*proxy.Reply, *proxy.Failure) {
	defer h.logPanic()
	return h.opts.Gate.Call(h.calls, &in.call)
}

// logPanic ends a panic of the function that defers it, which then returns zero values.
func (h *Handler) logPanic() {
	if fault := recover(); fault != nil {
		h.opts.Log.Error("panic in the rest door", "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
	}
}

// settle answers a call that was not refused: 200, 202 while it waits for a
// person, and the category's status for a tool's own error.
func (h *Handler) settle(w http.ResponseWriter, reply *proxy.Reply) {
	good, bad := signal.ResultToHTTPResponse(reply.Kernel, reply.RetryAfter)
	if bad != nil {
		e := bad.Extensions.Error
		h.failed(w, &proxy.Failure{Kernel: e, Reason: e.Message, RetryAfter: reply.RetryAfter, DecisionID: reply.DecisionID, TraceID: reply.TraceID})
		return
	}
	good.TraceID, good.DecisionID, good.Ticket = reply.TraceID, reply.DecisionID, reply.Ticket
	h.succeed(w, good)
}

// note answers a job without a tool with the job's own signal.
func (h *Handler) note(w http.ResponseWriter, in *intake, asked signal.Signal) {
	took := max(h.opts.Now().Sub(in.begun), 0)
	good, bad := signal.ResultToHTTPResponse(signal.OK([]signal.Signal{asked}, signal.Metrics{
		DurationMS: float64(took.Microseconds()) / 1000, ModuleRef: submitter,
	}), 0)
	if bad != nil {
		h.broken(w, errors.New("answering a job without a tool"))
		return
	}
	good.TraceID = in.call.TraceID
	h.succeed(w, good)
}

func (h *Handler) succeed(w http.ResponseWriter, good signal.SuccessResponse) {
	body, err := good.MarshalJSON()
	if err != nil {
		h.broken(w, err)
		return
	}
	h.write(w, http.StatusOK, wire.JSONType, body)
}

// rpcPath is the route of /v1/rpc in events.
const rpcPath = "/v1/rpc"

// answer is the answer to one envelope: a result, a refusal, or none.
type answer struct {
	result     json.RawMessage
	failure    *proxy.Failure
	traceID    string
	decisionID string
}

// rpc serves one envelope:
//
//	media -> identify -> body -> validate -> dispatch -> event -> answer
func (h *Handler) rpc(w http.ResponseWriter, r *http.Request) {
	in, ok := h.readRequest(w, r, func(in *intake, f *proxy.Failure) { h.replyFailure(w, in, f) })
	if !ok {
		return
	}
	defer in.claim.Release()
	envelope := h.opts.Envelope
	envelope.Limits = in.limits
	envelope.Limits.Owned = true // nobody else has the body
	m, fault := envelope.Validate(in.body)
	if in.long != nil {
		fault = in.long.TooLarge(in.limits.Bytes)
	}
	in.call.Message, in.call.Fault = m, fault
	if m != nil {
		in.id = m.ID
	} else {
		in.id = fault.ID
	}
	if in.unauthenticated != nil {
		in.unauthenticated = h.recordUnauthenticated(r, in, m != nil && m.Method == "tools/call")
		h.replyFailure(w, in, in.unauthenticated)
		return
	}
	h.reply(w, in, h.dispatch(h.calls, in))
}

// dispatch executes the method of an envelope. Unknown methods are refused and
// recorded, never forwarded. The door has no sessions and refuses initialize. The zero
// answer is that of a panic.
func (h *Handler) dispatch(ctx context.Context, in *intake) answer {
	defer h.logPanic()
	m := in.call.Message
	switch {
	case m == nil: // the road refuses and records a malformed envelope like a call
		_, failure := h.opts.Gate.Call(ctx, &in.call)
		return answer{failure: failure}
	case m.Kind == jsonrpc.Notification && !strings.HasPrefix(m.Method, "notifications/"): // a call that lost its id
		return h.turnDown(ctx, in, signal.CodeEnvelopeInvalid, "method "+m.Method+" is no notification: it needs an id")
	case m.Kind != jsonrpc.Request: // nothing was asked
		return answer{}
	case m.Method == "ping":
		return answer{result: json.RawMessage(`{}`)}
	case m.Method == "tools/list":
		return h.listTools(ctx, in)
	case m.Method == "tools/call":
		return h.callTool(ctx, in)
	}
	return h.turnDown(ctx, in, signal.CodeEnvelopeMethod, "method "+m.Method+" is not served here")
}

// turnDown refuses the envelope and has it recorded.
func (h *Handler) turnDown(ctx context.Context, in *intake, code, reason string) answer {
	return answer{failure: h.opts.Refuser.Refuse(ctx, &in.call, code, reason)}
}

// listTools answers with all tools that are visible to the principal, on one
// page.
func (h *Handler) listTools(ctx context.Context, in *intake) answer {
	if _, ok := in.call.Message.Param("cursor"); ok {
		return h.turnDown(ctx, in, signal.CodeEnvelopeInvalid, "the cursor is none of ours: the list has one page")
	}
	out := []byte(`{"tools":[`)
	for i, t := range h.opts.Gate.List(ctx, &in.call, in.call.Principal) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, t.Listed...)
	}
	return answer{result: append(out, "]}"...)}
}

// callTool passes the call to the gate, which makes every decision.
func (h *Handler) callTool(ctx context.Context, in *intake) answer {
	if in.traceparent == "" {
		in.call.TraceID = "" // the envelope's own _meta may continue a trace
	}
	reply, failure := h.opts.Gate.Call(ctx, &in.call)
	if failure != nil || reply == nil {
		return answer{failure: failure}
	}
	return answer{result: reply.Result, traceID: reply.TraceID, decisionID: reply.DecisionID}
}

// reply reports a to the observer and sends it.
func (h *Handler) reply(w http.ResponseWriter, in *intake, a answer) {
	switch {
	case a.failure != nil:
		h.replyFailure(w, in, a.failure)
	case a.result != nil:
		h.observe(in, a, wire.StatusOK, nil)
		h.write(w, http.StatusOK, wire.JSONType, jsonrpc.NewSuccess(in.id, a.result))
	case in.call.Message != nil && in.call.Message.Kind != jsonrpc.Request:
		h.observe(in, a, wire.StatusAccepted, nil)
		h.write(w, http.StatusAccepted, nil, nil)
	default: // fails closed: the gate has to answer
		h.replyFailure(w, in, &proxy.Failure{Kernel: &signal.KernelError{}, Reason: "the gate gave neither reply nor failure"})
	}
}

// replyFailure sends a refusal in dialect canonical with its row's status; a
// failed authentication has the status of HTTP. A failure without a row is a
// fault of toolgate, which the log describes.
func (h *Handler) replyFailure(w http.ResponseWriter, in *intake, f *proxy.Failure) {
	made, err := wire.Answer(wire.Canonical, wire.Failure(*f))
	if err != nil {
		h.opts.Log.Error("answering over rest", "error", err, "reason", f.Reason)
		made = wire.Reply{Error: wire.Internal, HTTP: http.StatusInternalServerError}
	}
	status := wire.StatusError
	if made.Silent {
		status = wire.StatusCancelled
	}
	h.observe(in, answer{traceID: f.TraceID, decisionID: f.DecisionID}, status, made.Error)
	switch {
	case made.Silent:
		h.write(w, made.HTTP, nil, nil)
	case made.HTTP == http.StatusUnauthorized:
		h.refuseCaller(w, &in.call.Credential, f)
	default:
		h.stepUp(w, &in.call.Credential, f)
		retryAfter(w, f.RetryAfter)
		h.write(w, made.HTTP, wire.JSONType, jsonrpc.NewFailureObject(in.id, made.Error))
	}
}

// observe reports the envelope, which was answered with status, to the
// observer.
func (h *Handler) observe(in *intake, a answer, status string, errorObject json.RawMessage) {
	e := wire.Event{
		Time: in.begun.UTC(), TraceID: a.traceID, DecisionID: a.decisionID, Transport: "http", Route: rpcPath, RequestID: jsonrpc.IDText(in.id),
		Status: status, Duration: h.opts.Now().Sub(in.begun), Error: errorObject,
	}
	if in.call.Message != nil {
		e.Method = in.call.Message.Method
	}
	h.opts.Observe(e)
}
