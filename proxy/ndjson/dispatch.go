package ndjson

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// exchange is one line with what the door knows of it.
type exchange struct {
	call  proxy.Call
	req   *ndjson.Request // nil when the line is no request
	fault *ndjson.Fault   // why not
	who   policy.Principal
	at    string // pointer of what the door itself refuses, "" for all of it
}

// id is the id to answer with, nil when none is known.
func (x *exchange) id() json.RawMessage {
	if x.req != nil {
		return x.req.ID
	}
	return x.fault.ID
}

// action is the action as the caller named it.
func (x *exchange) action() string {
	if x.req == nil {
		return ""
	}
	return x.req.Action
}

// receive decodes a line. An invoke becomes the tools/call that it stands for,
// with the input's own bytes as arguments.
func (d *Door) receive(session string, line []byte) *exchange {
	x := &exchange{call: proxy.Call{Transport: "ndjson", Credential: d.opts.Credential, Session: session}}
	req, err := ndjson.Decode(line)
	if err != nil {
		x.refuse(err)
		return x
	}
	if x.req = req; req.Type == ndjson.Invoke {
		x.setCall()
	}
	return x
}

// refuse notes why the line is no request.
func (x *exchange) refuse(err error) {
	fault, ok := errors.AsType[*ndjson.Fault](err)
	if !ok { // fails closed: whatever it is, it is no request
		fault = &ndjson.Fault{Text: ndjson.InvalidEnvelope, Cause: &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: err.Error()}}
	}
	x.req, x.fault, x.call.Message, x.call.Fault = nil, fault, nil, fault.Cause
}

// setCall makes the message that the road judges. It is decoded like any other,
// so that nothing passes here that would not pass another door.
func (x *exchange) setCall() {
	id := x.req.ID
	if id == nil {
		id = json.RawMessage(`""`)
	}
	params := slices.Concat([]byte(`{"name":`), jsonrpc.Quote(x.req.Action), []byte(`,"arguments":`), x.req.Input, []byte(`}`))
	m, err := jsonrpc.Decode(jsonrpc.NewRequest(id, "tools/call", params), jsonrpc.Limits{})
	if err != nil {
		fault := &ndjson.Fault{Text: ndjson.InvalidEnvelope, ID: x.req.ID, Cause: &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: err.Error(), ID: x.req.ID}}
		x.refuse(fault)
		return
	}
	x.call.Message = m
}

// path gives the steps of a pointer into the call's message, as the client
// sees the place in its request.
func (x *exchange) path(pointer string) []any {
	if rest, ok := strings.CutPrefix(pointer, "/params/arguments"); ok && x.req != nil {
		return append([]any{"payload", "input"}, ndjson.Path(x.req.Input, rest)...)
	}
	return ndjson.Path(nil, pointer)
}

// authenticate puts the principal behind the door's credential into x, or
// returns the response that refuses x. Each line is authenticated, so that a
// revoked token stops its client. Only what wanted an action invoked is recorded.
func (d *Door) authenticate(ctx context.Context, x *exchange) (refusal []byte) {
	who, f := d.opts.Gate.Identify(ctx, x.call.Credential)
	switch {
	case f == nil && who.Valid():
		x.who, x.call.Principal = who, who
		return nil
	case f == nil:
		return d.refuse(ctx, x, signal.CodeUnauthenticated, "missing or unknown bearer token")
	case x.call.Message == nil:
		return d.failed(x, f)
	}
	return d.refuse(ctx, x, f.Kernel.Code, f.Reason)
}

// refuseFlight refuses a request that may not run beside those that do.
func (d *Door) refuseFlight(ctx context.Context, x *exchange, why error) []byte {
	code := signal.CodeOverloaded
	if errors.Is(why, errDuplicate) {
		code, x.at = signal.CodeEnvelopeInvalid, "/id"
	}
	return d.refuse(ctx, x, code, why.Error())
}

// refuse answers x with the refusal code and has it recorded.
func (d *Door) refuse(ctx context.Context, x *exchange, code, reason string) []byte {
	return d.failed(x, d.opts.Refuser.Refuse(ctx, &x.call, code, reason))
}

// refuseFault answers a line that is no request. The gate refuses and records
// it as it does a call.
func (d *Door) refuseFault(ctx context.Context, x *exchange) []byte {
	_, failure := d.opts.Gate.Call(ctx, &x.call)
	if failure == nil { // fails closed: a gate that lets this pass is broken
		return d.broken(x, "", "")
	}
	return d.failed(x, failure)
}

// run does the work of a request.
func (d *Door) run(ctx context.Context, x *exchange) []byte {
	if x.req.Type == ndjson.ListActions {
		return ndjson.NewSuccess(x.id(), actions(d.opts.Gate.List(ctx, &x.call, x.who)))
	}
	reply, failure := d.opts.Gate.Call(ctx, &x.call)
	switch {
	case failure != nil:
		return d.failed(x, failure)
	case reply == nil: // fails closed: a gate that says nothing is broken
		return d.broken(x, "", "")
	}
	return d.replied(x, reply)
}
