package mcp

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
)

// decode validates data as one envelope. It stores the message, or the fault, in
// x, with the members of the message that every transport reads.
func (c *core) decode(x *exchange, data []byte) {
	if c.opts.Observe != nil {
		x.began = c.opts.Now()
	}
	envelope := wire.Envelope{Profile: c.opts.Profile, Deterministic: c.opts.Deterministic, Limits: c.opts.Limits}
	if x.denied != nil {
		envelope.Limits.Bytes = min(envelope.Limits.Bytes, maxUnauthenticatedBytes)
	}
	x.call.Message, x.call.Fault = envelope.Validate(data)
	m := x.call.Message
	if m == nil {
		x.id = x.call.Fault.ID
		return
	}
	x.id, x.row = m.ID, methods[m.Method]
	_, version := m.Meta(metaVersion)
	_, capabilities := m.Meta(metaCapabilities)
	x.declares = version || capabilities
	if token, _ := m.Meta("progressToken"); len(token) > 0 && strings.IndexByte(`"-0123456789`, token[0]) >= 0 {
		x.token = token // a token of another type asks for nothing
	}
}

// observe reports the envelope x and its answer a to Options.Observe. It does not
// parse a again: a carries what an event says.
func (c *core) observe(x *exchange, a answer) {
	if c.opts.Observe == nil {
		return
	}
	path := "/mcp" // also of stdio
	if x.call.Route != "" {
		path += "/" + x.call.Route
	}
	e := wire.Event{
		Time: x.began, Duration: c.opts.Now().Sub(x.began),
		RequestID: jsonrpc.IDText(x.id), TraceID: a.trace, DecisionID: a.decision,
		Session: x.call.Session, Transport: x.call.Transport, Route: path,
		Status: a.outcomeWord(), Error: a.fault,
	}
	if x.call.Message != nil {
		e.Method = x.call.Message.Method
	}
	if e.Session == "" && x.opened != nil {
		e.Session = x.opened.key
	}
	c.opts.Observe(e)
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
