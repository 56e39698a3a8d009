package upstream

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// maxGarbage is how many messages in a row may make no sense before the
// connection is given up.
const maxGarbage = 100

// source says which requests a stream may answer: the one that it was opened
// for, or, where all share one stream, any.
type source struct {
	only *pending
	any  bool
}

// receive takes one message from the upstream and gives what mcp-go is to read
// in its place, nil for nothing. It never hands over a byte of the upstream's.
func (c *conn) receive(raw []byte, from source) []byte {
	msg, err := jsonrpc.Decode(raw, c.limits)
	if err != nil {
		return c.receiveFaulty(raw, err, from)
	}
	c.garbage.Store(0)
	switch msg.Kind {
	case jsonrpc.Notification:
		if c.modern() {
			return c.modernNotice(msg, from)
		}
		c.notice(msg, from)
	case jsonrpc.Request:
		c.respond(msg, from)
	case jsonrpc.Success:
		return c.settle(msg.ID, from, msg.Result, nil)
	case jsonrpc.Failure:
		return c.settle(msg.ID, from, nil, &Error{Kind: Failed, Sent: true, RPC: msg.Error})
	}
	return nil
}

// settle gives the answer to whom it belongs.
func (c *conn) settle(id json.RawMessage, from source, result json.RawMessage, fault *Error) []byte {
	p := c.take(id, from)
	if p == nil {
		c.dropped.Add(1)
		return nil
	}
	p.answer(result, fault)
	return acknowledgement(p)
}

// take finds the request that id answers on a stream.
func (c *conn) take(id json.RawMessage, from source) *pending {
	if len(id) == 0 || from.only == nil && !from.any {
		return nil
	}
	return c.table.take(id, from.only)
}

// receiveFaulty deals with what strict decoding refused: an answer whose id is
// certain fails its request, anything else is dropped and counted.
func (c *conn) receiveFaulty(raw []byte, err error, from source) []byte {
	if p, result := c.takeLoose(raw, from); p != nil {
		p.answer(result, nil)
		return acknowledgement(p)
	}
	c.dropped.Add(1)
	if fault, ok := errors.AsType[*jsonrpc.Fault](err); ok {
		if p := c.take(fault.ID, from); p != nil {
			p.answer(nil, &Error{Kind: Failed, Sent: true, Err: fmt.Errorf("%w: %w", errMalformed, err)})
			return acknowledgement(p)
		}
	}
	if c.garbage.Add(1) >= maxGarbage {
		c.fail(&Error{Kind: Failed, Sent: true, Err: errors.New("the upstream sends nothing but garbage")})
	}
	return nil
}

// takeLoose finds the result in a list answer that strict decoding refused, so
// that one bad tool does not sink its neighbours: each element is judged on its
// own later. Only the envelope has to be clean.
func (c *conn) takeLoose(raw []byte, from source) (*pending, json.RawMessage) {
	members, err := looseMembers(raw)
	if err != nil || members["result"] == nil || members["error"] != nil || members["method"] != nil {
		return nil, nil
	}
	id, ok := jsonrpc.Text(members["id"])
	if !ok {
		return nil, nil
	}
	if p := c.table.peek(id); p == nil || !p.loose {
		return nil, nil
	}
	return c.take(members["id"], from), members["result"]
}

// looseOptions let the values be anything that is JSON in shape.
var looseOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// looseMembers splits an object whose own names are without doubles and leaves
// its values unexamined.
func looseMembers(raw []byte) (map[string]json.RawMessage, error) {
	dec := jsontext.NewDecoder(newReader(raw), looseOptions...)
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, errors.Join(errMalformed, err)
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
			return nil, fmt.Errorf("%w: two members %q", errMalformed, key)
		}
		out[key] = json.RawMessage(append([]byte(nil), value...))
	}
	_, err := dec.ReadToken()
	return out, err
}

// looseElements splits an array and leaves its elements unexamined.
func looseElements(raw []byte) ([]json.RawMessage, error) {
	dec := jsontext.NewDecoder(newReader(raw), looseOptions...)
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '[' {
		return nil, errors.Join(errMalformed, err)
	}
	var out []json.RawMessage
	for kind := dec.PeekKind(); kind != ']'; kind = dec.PeekKind() {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		out = append(out, json.RawMessage(append([]byte(nil), value...)))
	}
	return out, nil
}
