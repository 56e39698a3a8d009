package rest

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// submitter is who the Result of a job without a tool comes from.
var submitter = signal.ModuleRef{Tier: 0, Module: "gateway", Function: "submit_job"}

// submit takes one job (seed 002, protocol bridges):
//
//	media -> identify -> body -> strict JSON -> http_request_to_signal
//	  without a tool                                        -> answer
//	  with a tool  -> signal_to_tool_call -> the road       -> result_to_http_response
//
// Everything that the caller's own requests made is published to it on the
// bus.
func (h *Handler) submit(w http.ResponseWriter, r *http.Request) {
	in, ok := h.readRequest(w, r)
	if !ok {
		return
	}
	raw, _, err := jsonrpc.CheckValue(in.body, in.limits)
	if in.unauthenticated != nil {
		h.refuseCaller(w, r, h.recordUnauthenticated(r, in, err == nil && in.wantsTool(raw)))
		return
	}
	if err != nil { // the road refuses and records it as it does any message
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
		h.opts.Bus.Publish(in.who, asked)
		h.note(w, in, asked)
	default:
		h.submitCall(w, r, in, job, asked)
	}
}

// submitCall takes the tool call of a job down the road. asked is the job's
// own signal, the parent of the call's.
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
	h.opts.Bus.Publish(in.who, asked)
	h.opts.Bus.Publish(in.who, child)
	in.call.SignalID = child.ID()
	in.setCall(child.ID(), want.Name, want.Arguments)
	h.call(w, in)
}

// wantsTool reports whether the job raw of a stranger is a call, however
// malformed, and puts it into in for the record.
func (in *intake) wantsTool(raw json.RawMessage) bool {
	member, ok := jsonrpc.Get(raw, "tool")
	if !ok {
		return false
	}
	name, _ := jsonrpc.Text(member)
	args, ok := jsonrpc.Get(raw, "args")
	if !ok {
		args = json.RawMessage("{}")
	}
	in.setCall(signal.NewID("sig_"), name, args)
	return true
}

// refuseJob answers a job that is none, and has it recorded. err may be a
// kernel error, which keeps its own code.
func (h *Handler) refuseJob(w http.ResponseWriter, r *http.Request, in *intake, code string, err error) {
	var kernel *signal.KernelError
	reason := err.Error()
	if errors.As(err, &kernel) {
		code, reason = kernel.Code, kernel.Message
	}
	h.failed(w, h.opts.Refuser.Refuse(r.Context(), &in.call, code, reason))
}

// call takes in down the road and answers with what came of it. A caller that
// hangs up does not end its call: what it did would then be unknown, and what
// was approved for it lost.
func (h *Handler) call(w http.ResponseWriter, in *intake) {
	reply, failure := h.opts.Gate.Call(h.calls, &in.call)
	switch {
	case failure != nil:
		h.failed(w, failure)
	case reply == nil: // fails closed: a gate that says nothing is broken
		h.broken(w, errors.New("the gate gave neither reply nor failure"))
	default:
		h.settle(w, reply)
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

// note answers a job without a tool: its own signal is all there is.
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
	h.write(w, http.StatusOK, jsonType, body)
}
