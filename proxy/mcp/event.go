package mcp

import (
	"encoding/json"
	"errors"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
)

// decode holds data to the envelope that both transports share and puts the
// message, or the reason why there is none, into x.
func (c *core) decode(x *exchange, data []byte, limits jsonrpc.Limits) {
	if c.opts.Observe != nil {
		x.began = c.opts.Now()
	}
	envelope := wire.Envelope{Profile: c.opts.Profile, Deterministic: c.opts.Deterministic, Limits: limits}
	x.call.Message, x.call.Fault = envelope.Validate(data)
}

// observe tells of the envelope x, whose answer is a. The answer is not read
// again: what an event needs of it was noted when it was made.
func (c *core) observe(x *exchange, a answer) {
	if c.opts.Observe == nil {
		return
	}
	e := wire.Event{
		Time: x.began, Duration: c.opts.Now().Sub(x.began),
		RequestID: jsonrpc.IDText(x.id()), TraceID: a.trace, DecisionID: a.decision,
		Session: x.call.Session, Transport: x.call.Transport, Route: routePath(x.call.Route),
		Status: a.outcomeWord(), Error: a.fault,
	}
	if x.call.Message != nil {
		e.Method = x.call.Message.Method
	}
	if e.Session == "" {
		e.Session = x.opened
	}
	c.opts.Observe(e)
}

// routePath returns the path of a route: stdio has the route of /mcp.
func routePath(server string) string {
	if server == "" {
		return "/mcp"
	}
	return "/mcp/" + server
}

// outcomeWord returns the status of a in an envelope event.
func (a *answer) outcomeWord() string {
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
