package mcpclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// receiveFaulty handles a message that strict decoding refused with e: an answer
// whose id is certain fails its call, anything else is dropped and counted. It
// returns the cause of e, or nil for a loose result.
func (c *Conn) receiveFaulty(raw []byte, e *Error, from source) error {
	if p, result := c.takeLoose(raw, from); p != nil {
		if c.actions {
			p.answer(definitions(result))
		} else {
			p.answer(result, nil)
		}
		return nil
	}
	c.opts.Dropped.Add(1)
	c.opts.Log.Warn("the server sent an invalid message", "error", e.Err)
	if p := c.take(faultyID(raw), from); p != nil {
		p.answer(nil, e)
		return e.Err
	}
	if c.garbage.Add(1) >= maxGarbage {
		c.Fail(failed(errors.New("the upstream sends nothing but garbage")))
	}
	return e.Err
}

// faultyID returns the id of the call that a refused message answers, "" for none: of a
// batch that of its first message. What has none, such as a line of a log, is nobody's
// answer; nor is a request of the server.
func faultyID(raw []byte) string {
	message := jsonrpc.OutlineOf(bytes.TrimLeft(raw, "[ \t\r\n"))
	if message.Asks() {
		return ""
	}
	id, _ := jsonrpc.Text(message.ID())
	return id
}

// malformed fails a call whose answer makes no sense.
func malformed(err error) *Error { return failed(fmt.Errorf("%w: %w", ErrMalformed, err)) }

// takeLoose finds the result in a list answer that strict decoding refused, so
// that one bad tool does not hide the others. Only the envelope has to be sound.
func (c *Conn) takeLoose(raw []byte, from source) (*Call, json.RawMessage) {
	members, err := LooseMembers(raw)
	result := members["result"]
	if c.actions {
		result = members["data"]
	}
	id, _ := jsonrpc.Text(members["id"])
	p := c.Lookup(id)
	if err != nil || result == nil || p == nil || !p.Loose || members["error"] != nil || members["method"] != nil || c.actions && string(members["ok"]) != "true" {
		return nil, nil
	}
	return c.take(id, from), result
}

// loose lets values be anything that is JSON in shape.
var loose = jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// LooseMembers splits an object whose own names are unique, and leaves its
// values unexamined.
func LooseMembers(raw []byte) (map[string]json.RawMessage, error) {
	out, v := make(map[string]json.RawMessage), jsontext.Value(raw)
	unique := v.Kind() == '{' && v.IsValid(loose) && jsonrpc.Each(raw, func(name []byte, value json.RawMessage) bool {
		_, dup := out[string(name)]
		out[string(name)] = bytes.Clone(value)
		return !dup
	})
	if !unique {
		return nil, fmt.Errorf("%w: no JSON object, or one with two members of one name", ErrMalformed)
	}
	return out, nil
}

// LooseElements splits an array and leaves its elements unexamined.
func LooseElements(raw []byte) (out []json.RawMessage, err error) {
	if err = jsonv2.Unmarshal(raw, &out, loose); err != nil || raw[0] != '[' {
		return nil, errors.Join(ErrMalformed, err)
	}
	return out, nil
}
