package upstream

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

// framing is what the messages to and from a server look like. What lies above
// it speaks of MCP methods, params and results, whatever the server speaks.
type framing interface {
	// request makes the line of a request. With an error nothing may be sent.
	request(id, method string, params json.RawMessage) ([]byte, *Error)
	// receive takes one line from the server and gives what mcp-go is to read
	// in its place, nil for nothing.
	receive(c *conn, line []byte) []byte
	// isMCP reports whether the server is to be initialized and may be sent
	// notifications.
	isMCP() bool
}

// mcpFrames are JSON-RPC messages.
type mcpFrames struct{}

func (mcpFrames) isMCP() bool { return true }

func (mcpFrames) request(id, method string, params json.RawMessage) ([]byte, *Error) {
	return jsonrpc.NewRequest(jsonrpc.Quote(id), method, params), nil
}

func (mcpFrames) receive(c *conn, line []byte) []byte { return c.receive(line, source{any: true}) }

// actionFrames are those of the NDJSON action protocol: tools are its actions.
// Arguments and output pass byte for byte; params._meta has no place in it.
type actionFrames struct{}

func (actionFrames) isMCP() bool { return false }

// request turns tools/list into list_actions and tools/call into invoke. A
// line beyond what the protocol allows is refused.
func (actionFrames) request(id, method string, params json.RawMessage) ([]byte, *Error) {
	switch method {
	case "tools/list":
		return ndjson.NewList(id), nil
	case "tools/call":
	default:
		return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("the server has no %s", method)}
	}
	name, _ := jsonrpc.Get(params, "name")
	input, ok := jsonrpc.Get(params, "arguments")
	if !ok {
		input = json.RawMessage(`{}`)
	}
	line := ndjson.NewInvoke(id, name, input)
	if len(line) > ndjson.MaxLine {
		return nil, &Error{Kind: TooLarge, Err: fmt.Errorf("the call is %d bytes long, and the server takes at most %d\nhint: send less, or a reference in place of the data", len(line), ndjson.MaxLine)}
	}
	return line, nil
}

// receive takes one response. One that nobody waits for is dropped and
// counted; one that is malformed fails its request where the id is certain.
func (actionFrames) receive(c *conn, line []byte) []byte {
	r, err := ndjson.DecodeResponse(line, c.limits)
	if err != nil {
		if p, data := c.takeLooseActions(line); p != nil {
			p.answer(definitions(data))
			return acknowledgement(p)
		}
		return c.receiveFaulty(line, err, source{any: true})
	}
	c.garbage.Store(0)
	p := c.take(r.ID, source{any: true})
	if p == nil {
		c.dropped.Add(1)
		return nil
	}
	switch {
	case !r.OK:
		p.answer(nil, &Error{Kind: Failed, Sent: true, RPC: errorObject(r)})
	case p.loose: // only lists are
		p.answer(definitions(r.Data))
	default:
		p.answer(toolResult(r))
	}
	return acknowledgement(p)
}

// takeLooseActions finds the data in a list answer that strict decoding
// refused, as takeLoose does.
func (c *conn) takeLooseActions(line []byte) (*pending, json.RawMessage) {
	members, err := looseMembers(line)
	if err != nil || string(members["ok"]) != "true" || members["data"] == nil {
		return nil, nil
	}
	id, ok := jsonrpc.Text(members["id"])
	if !ok {
		return nil, nil
	}
	if p := c.table.peek(id); p == nil || !p.loose {
		return nil, nil
	}
	return c.take(members["id"], source{any: true}), members["data"]
}

// errorObject is what a refusal of the server's is in JSON-RPC.
func errorObject(r *ndjson.Response) json.RawMessage {
	out := append([]byte(`{"code":-32000,"message":`), jsonrpc.Quote(r.Error)...)
	if r.Issues != nil {
		out = append(append(append(out, `,"data":{"issues":`...), r.Issues...), '}')
	}
	return append(out, '}')
}

// malformed fails a request whose answer makes no sense.
func malformed(err error) *Error {
	return &Error{Kind: Failed, Sent: true, Err: fmt.Errorf("%w: %w", errMalformed, err)}
}

// toolResult makes a tool result of what an action answered: its output as
// text and as structuredContent, its words about itself under _meta.
func toolResult(r *ndjson.Response) (json.RawMessage, *Error) {
	a, err := r.Answer()
	if err != nil {
		return nil, malformed(err)
	}
	out := make([]byte, 0, 3*len(a.Output)+256)
	out = append(append(out, `{"content":[{"type":"text","text":`...), jsonrpc.Quote(string(a.Output))...)
	out = append(append(out, `}],"structuredContent":`...), a.Output...)
	own := object(
		member{"action", a.Action}, member{"boundaryNotice", a.BoundaryNotice},
		member{"uncertainty", a.Uncertainty}, member{"assumptions", a.Assumptions},
	)
	out = append(append(out, `,"_meta":{"`+ndjson.MetaAction+`":`...), own...)
	return append(out, `}}`...), nil
}

// definitions makes the result of tools/list from the data of list_actions:
// an array of actions, or an object that has it as "actions".
func definitions(data json.RawMessage) (json.RawMessage, *Error) {
	if data[0] == '{' {
		members, err := looseMembers(data)
		if err != nil {
			return nil, malformed(err)
		}
		if data = members["actions"]; data == nil {
			return nil, malformed(errors.New("data has no actions"))
		}
	}
	actions, err := looseElements(data)
	if err != nil {
		return nil, malformed(err)
	}
	out := append(make([]byte, 0, len(data)+32), `{"tools":[`...)
	for i, action := range actions {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, definition(action)...)
	}
	return append(out, `]}`...), nil
}

// definition makes a tool definition of an action, the same from the same
// bytes, so that it has one fingerprint. What cannot be read stays as it is,
// for the catalogue to refuse.
func definition(action json.RawMessage) json.RawMessage {
	raw, _, err := jsonrpc.CheckValue(action, jsonrpc.Limits{})
	if err != nil || raw[0] != '{' {
		return action
	}
	input := first(raw, "inputSchema", "input_schema", "schema")
	if input == nil {
		input = json.RawMessage(`{"type":"object"}`)
	}
	var meta json.RawMessage
	if notice := first(raw, "boundaryNotice"); notice != nil {
		meta = object(member{"boundaryNotice", notice})
	}
	return object(
		member{"name", first(raw, "name", "action", "id")}, member{"description", first(raw, "description", "summary")},
		member{"inputSchema", input}, member{"outputSchema", first(raw, "outputSchema", "output_schema")}, member{"_meta", meta},
	)
}

// first gives the first of the members that the object has.
func first(obj json.RawMessage, names ...string) json.RawMessage {
	for _, name := range names {
		if value, ok := jsonrpc.Get(obj, name); ok && string(value) != "null" {
			return value
		}
	}
	return nil
}

// member is one member of an object.
type member struct {
	name  string
	value json.RawMessage // nil = the object does not have it
}

// object writes the members that are there.
func object(members ...member) json.RawMessage {
	out := []byte{'{'}
	for _, m := range members {
		if m.value == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), m.name...), `":`...), m.value...)
	}
	return append(out, '}')
}
