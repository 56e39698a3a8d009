package mcpclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// maxGarbage is how many messages in a row may make no sense before the
// connection is given up.
const maxGarbage = 100

// source says which calls a stream may answer: the one that it was opened for,
// or, where all share one stream, any.
type source struct {
	only *Call
	any  bool
}

// receive takes one message of the server. The error is ErrMalformed with the
// *jsonrpc.Fault of a message that strict decoding refused; the connection
// continues, and a call that the message certainly answers has failed with it.
func (c *Conn) receive(raw []byte, from source) error {
	msg, err := jsonrpc.Decode(raw, c.limits)
	if err != nil {
		return c.receiveFaulty(raw, malformed(err), from)
	}
	c.garbage.Store(0)
	switch msg.Kind {
	case jsonrpc.Success:
		c.settle(msg.ID, from, msg.Result, nil)
	case jsonrpc.Failure:
		c.settle(msg.ID, from, nil, &Error{Kind: Failed, Sent: true, RPC: msg.Error})
	default:
		c.opts.Handle(msg, from.only)
	}
	return nil
}

// settle answers the call that id names.
func (c *Conn) settle(id json.RawMessage, from source, result json.RawMessage, fault *Error) {
	if p := c.take(id, from); p != nil {
		p.answer(result, fault)
		return
	}
	c.opts.Dropped.Add(1)
}

// take removes the call that id answers on a stream from the table, nil for
// none. The caller answers it.
func (c *Conn) take(id json.RawMessage, from source) *Call {
	if len(id) == 0 || from.only == nil && !from.any {
		return nil
	}
	p, _ := c.calls.Match(id, func(p *Call) bool { return from.only == nil || p == from.only })
	return p
}

// receiveFaulty handles a message that strict decoding refused: an
// answer whose id is certain fails its call, anything else is dropped and
// counted. It returns the cause of e, or nil for a loose result.
func (c *Conn) receiveFaulty(raw []byte, e *Error, from source) error {
	if p, result := c.takeLoose(raw, from); p != nil {
		p.answer(result, nil)
		return nil
	}
	c.opts.Dropped.Add(1)
	if fault, ok := errors.AsType[*jsonrpc.Fault](e.Err); ok {
		if p := c.take(fault.ID, from); p != nil {
			p.answer(nil, e)
			return e.Err
		}
	}
	if c.garbage.Add(1) >= maxGarbage {
		c.Fail(failed(errors.New("the upstream sends nothing but garbage")))
	}
	return e.Err
}

// malformed fails a call whose answer makes no sense.
func malformed(err error) *Error { return failed(fmt.Errorf("%w: %w", ErrMalformed, err)) }

// takeLoose finds the result in a list answer that strict decoding refused, so
// that one bad tool does not hide the others. Only the envelope has to be sound.
func (c *Conn) takeLoose(raw []byte, from source) (*Call, json.RawMessage) {
	members, err := LooseMembers(raw)
	if err != nil || members["result"] == nil || members["error"] != nil || members["method"] != nil || !c.isLoose(members["id"]) {
		return nil, nil
	}
	return c.take(members["id"], from), members["result"]
}

// isLoose reports whether an id names a call that accepts loose results.
func (c *Conn) isLoose(raw json.RawMessage) bool {
	id, _ := jsonrpc.Text(raw)
	p := c.Lookup(id)
	return p != nil && p.Loose
}

// looseOptions let values be anything that is JSON in shape.
var looseOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// LooseMembers splits an object whose own names are unique, and leaves its
// values unexamined.
func LooseMembers(raw []byte) (map[string]json.RawMessage, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), looseOptions...)
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, errors.Join(ErrMalformed, err)
	}
	out := make(map[string]json.RawMessage)
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		if _, dup := out[key]; dup {
			return nil, fmt.Errorf("%w: two members %q", ErrMalformed, key)
		}
		out[key] = bytes.Clone(value)
	}
	_, err := dec.ReadToken()
	return out, err
}

// LooseElements splits an array and leaves its elements unexamined.
func LooseElements(raw []byte) ([]json.RawMessage, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), looseOptions...)
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '[' {
		return nil, errors.Join(ErrMalformed, err)
	}
	var out []json.RawMessage
	for kind := dec.PeekKind(); kind != ']'; kind = dec.PeekKind() {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		out = append(out, bytes.Clone(value))
	}
	return out, nil
}
