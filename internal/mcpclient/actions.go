package mcpclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

// writeAction makes the line of a call for a server of the NDJSON action protocol,
// whose actions appear as tools: tools/list becomes list_actions and tools/call
// becomes invoke. Arguments and output pass byte for byte; params._meta has no
// place in it. A line beyond what the protocol allows is refused.
func (p *Call) writeAction() *Error {
	switch p.Method {
	case "tools/list":
		p.line = ndjson.NewList(p.ID)
		return nil
	case "tools/call":
	default:
		return &Error{Kind: Unavailable, Err: fmt.Errorf("the server has no %s", p.Method)}
	}
	name, _ := jsonrpc.Get(p.Params, "name")
	input, ok := jsonrpc.Get(p.Params, "arguments")
	if !ok {
		input = json.RawMessage(`{}`)
	}
	if p.line = ndjson.NewInvoke(p.ID, name, input); len(p.line) > ndjson.MaxLine {
		return &Error{Kind: TooLarge, Err: fmt.Errorf("the call is %d bytes long, and the server takes at most %d\nhint: send less, or a reference in place of the data", len(p.line), ndjson.MaxLine)}
	}
	return nil
}

// receiveAction handles one response. One that nobody waits for is dropped and
// counted; a malformed one fails its call where the id is certain.
func (c *Conn) receiveAction(line []byte) {
	r, err := ndjson.DecodeResponse(line, c.limits)
	if err != nil {
		_ = c.receiveFaulty(line, malformed(err), source{any: true}) // a refused message is counted
		return
	}
	c.garbage.Store(0)
	id, _ := jsonrpc.Text(r.ID)
	p := c.take(id, source{any: true})
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
