package mcpclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

// framing is what the messages to and from a server look like. Calls are always
// MCP methods, params and results, whatever the server speaks.
type framing interface {
	// request makes the line of a call. With an error nothing may be sent.
	request(p *Call) ([]byte, *Error)
	// receive takes one line from the server.
	receive(c *Conn, line []byte)
}

// messageFrames are JSON-RPC messages.
type messageFrames struct{}

func (messageFrames) request(p *Call) ([]byte, *Error) {
	return jsonrpc.NewRequest(p.key, p.Method, p.Params), nil
}

func (messageFrames) receive(c *Conn, line []byte) {
	_ = c.receive(line, source{any: true}) // a refused message is counted
}

// actionFrames are those of the NDJSON action protocol: tools are its actions.
// Arguments and output pass byte for byte; params._meta has no place in it.
type actionFrames struct{}

// request turns tools/list into list_actions and tools/call into invoke. A line
// beyond what the protocol allows is refused.
func (actionFrames) request(p *Call) ([]byte, *Error) {
	switch p.Method {
	case "tools/list":
		return ndjson.NewList(p.ID), nil
	case "tools/call":
	default:
		return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("the server has no %s", p.Method)}
	}
	name, _ := jsonrpc.Get(p.Params, "name")
	input, ok := jsonrpc.Get(p.Params, "arguments")
	if !ok {
		input = json.RawMessage(`{}`)
	}
	line := ndjson.NewInvoke(p.ID, name, input)
	if len(line) > ndjson.MaxLine {
		return nil, &Error{Kind: TooLarge, Err: fmt.Errorf("the call is %d bytes long, and the server takes at most %d\nhint: send less, or a reference in place of the data", len(line), ndjson.MaxLine)}
	}
	return line, nil
}

// receive takes one response. One that nobody waits for is dropped and counted;
// a malformed one fails its call where the id is certain.
func (actionFrames) receive(c *Conn, line []byte) {
	r, err := ndjson.DecodeResponse(line, c.limits)
	if err != nil {
		if p, data := c.takeLooseActions(line); p != nil {
			p.answer(definitions(data))
			return
		}
		_ = c.receiveFaulty(line, malformed(err), source{any: true})
		return
	}
	c.garbage.Store(0)
	p := c.take(r.ID, source{any: true})
	switch {
	case p == nil:
		c.opts.Dropped.Add(1)
	case !r.OK:
		p.answer(nil, &Error{Kind: Failed, Sent: true, RPC: errorObject(r)})
	case p.Loose: // only lists are
		p.answer(definitions(r.Data))
	default:
		p.answer(toolResult(r))
	}
}

// takeLooseActions finds the data in a list answer that strict decoding refused,
// as takeLoose does.
func (c *Conn) takeLooseActions(line []byte) (*Call, json.RawMessage) {
	members, err := LooseMembers(line)
	if err != nil || string(members["ok"]) != "true" || members["data"] == nil || !c.isLoose(members["id"]) {
		return nil, nil
	}
	return c.take(members["id"], source{any: true}), members["data"]
}

// errorObject writes a refusal as a JSON-RPC error object.
func errorObject(r *ndjson.Response) json.RawMessage {
	out := append([]byte(`{"code":-32000,"message":`), jsonrpc.Quote(r.Error)...)
	if r.Issues != nil {
		out = append(append(append(out, `,"data":{"issues":`...), r.Issues...), '}')
	}
	return append(out, '}')
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
	own, err := jsonrpc.Edit(json.RawMessage(`{}`),
		jsonrpc.Change{Name: "action", Value: a.Action}, jsonrpc.Change{Name: "boundaryNotice", Value: a.BoundaryNotice},
		jsonrpc.Change{Name: "uncertainty", Value: a.Uncertainty}, jsonrpc.Change{Name: "assumptions", Value: a.Assumptions},
	)
	if err != nil {
		return nil, malformed(err)
	}
	out = append(append(out, `,"_meta":{"`+ndjson.MetaAction+`":`...), own...)
	return append(out, `}}`...), nil
}

// definitions makes the result of tools/list from the data of list_actions:
// an array of actions, or an object that has it as "actions".
func definitions(data json.RawMessage) (json.RawMessage, *Error) {
	if data[0] == '{' {
		members, err := LooseMembers(data)
		if err != nil {
			return nil, malformed(err)
		}
		if data = members["actions"]; data == nil {
			return nil, malformed(errors.New("data has no actions"))
		}
	}
	actions, err := LooseElements(data)
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
		meta = slices.Concat([]byte(`{"boundaryNotice":`), notice, []byte{'}'})
	}
	out, err := jsonrpc.Edit(json.RawMessage(`{}`),
		jsonrpc.Change{Name: "name", Value: first(raw, "name", "action", "id")}, jsonrpc.Change{Name: "description", Value: first(raw, "description", "summary")},
		jsonrpc.Change{Name: "inputSchema", Value: input}, jsonrpc.Change{Name: "outputSchema", Value: first(raw, "outputSchema", "output_schema")},
		jsonrpc.Change{Name: "_meta", Value: meta},
	)
	if err != nil {
		return action
	}
	return out
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
