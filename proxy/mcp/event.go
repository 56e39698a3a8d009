package mcp

import (
	"encoding/json"
	"errors"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
)

// decode holds data to the envelope that both transports share and puts the
// message, or the reason why there is none, into x.
func (d *Door) decode(x *exchange, data []byte, limits jsonrpc.Limits) {
	if d.opts.Observe != nil {
		x.began = d.opts.Now()
	}
	envelope := wire.Envelope{Profile: d.opts.Profile, Deterministic: d.opts.Deterministic, Limits: limits}
	x.call.Message, x.call.Fault = envelope.Validate(data)
}

// observe tells of the envelope x, whose answer is a. The answer is not read
// again: what an event needs of it was noted when it was made.
func (d *Door) observe(x *exchange, a answer) {
	if d.opts.Observe == nil {
		return
	}
	e := wire.Event{
		Time: x.began, Duration: d.opts.Now().Sub(x.began),
		RequestID: jsonrpc.IDText(x.id()), TraceID: a.trace, DecisionID: a.decision,
		Session: x.call.Session, Transport: x.call.Transport, Route: roadOf(x.call.Route),
		Status: a.word(), Error: a.fault,
	}
	if x.call.Message != nil {
		e.Method = x.call.Message.Method
	}
	if e.Session == "" {
		e.Session = x.opened
	}
	d.opts.Observe(e)
}

// roadOf names a route as its path, whatever the transport: stdio has the same
// road as /mcp.
func roadOf(server string) string {
	if server == "" {
		return "/mcp"
	}
	return "/mcp/" + server
}

// word is the status of a.
func (a *answer) word() string {
	switch {
	case a.silent:
		return wire.StatusCancelled
	case a.fault != nil:
		return wire.StatusError
	case a.body != nil:
		return wire.StatusOK
	}
	return wire.StatusAccepted
}

// faultOf is what a refusal says: the error object, or what stands for one in
// a result.
func faultOf(r wire.Reply) json.RawMessage {
	if r.Error != nil || r.Result == nil {
		return r.Error
	}
	meta, _ := jsonrpc.Get(r.Result, "_meta")
	data, _ := jsonrpc.Get(meta, wire.MetaError)
	return data
}

// faultIn is the fault that the codec promises.
func faultIn(err error) *jsonrpc.Fault {
	var f *jsonrpc.Fault
	if !errors.As(err, &f) { // fails closed
		f = &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: err.Error()}
	}
	return f
}
