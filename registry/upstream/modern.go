package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
)

// The members of _meta that a request has of each hop (MCP 2026-07-28 basic,
// "_meta").
const (
	metaRevision     = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// The codes of that revision (basic, "Error Codes").
const (
	codeHeaders     = "-32020"
	codeCapability  = "-32021"
	codeUnsupported = "-32022"
	codeMethod      = "-32601"
)

// rpcFault is the error of a request that we answer in the server's place.
func rpcFault(code, message string, data json.RawMessage) *Error {
	object := object(
		member{"code", json.RawMessage(code)}, member{"message", jsonrpc.Quote(message)}, member{"data", data},
	)
	return &Error{Kind: Failed, RPC: object, Err: errors.New(message)}
}

// codeOf gives the code of a server's own error, "" for any other.
func codeOf(e *Error) string {
	if e == nil || e.RPC == nil {
		return ""
	}
	code, _ := jsonrpc.Get(e.RPC, "code")
	return string(code)
}

// clientInfo is what we tell a server of ourselves.
func clientInfo(version string) json.RawMessage {
	return object(member{"name", json.RawMessage(`"toolgate"`)}, member{"version", jsonrpc.Quote(version)})
}

// dress gives params with the _meta that every request has where there is no
// handshake, and gives p the headers that repeat it over HTTP. All other bytes
// stay. What the members say of another hop is replaced.
func (c *conn) dress(p *pending, r request, params json.RawMessage) (json.RawMessage, error) {
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	meta, ok := jsonrpc.Get(params, "_meta")
	if !ok {
		meta = json.RawMessage(`{}`)
	}
	capabilities, level := c.claims(r)
	own := []member{{metaRevision, jsonrpc.Quote(c.speaks())}, {metaClient, c.info}, {metaCapabilities, capabilities}, {metaLevel, level}, {metaSubscription, nil}}
	meta, err := setAll(meta, own...)
	if err != nil {
		return nil, err
	}
	if _, ok := c.wire.(*httpWire); ok {
		p.headers = http.Header{"Mcp-Protocol-Version": {c.speaks()}}
		paramheader.Set(p.headers, r.method, params, r.bound)
	}
	return jsonrpc.Set(params, "_meta", meta)
}

// claims gives what a request says that its client can do, and from which level
// on that wants to hear the log, nil for none. Over the shared connection it can
// do nothing, as nobody could be asked or told.
func (c *conn) claims(r request) (capabilities, level json.RawMessage) {
	if c.client == nil {
		return json.RawMessage(`{}`), nil
	}
	capabilities = r.from.Capabilities
	if isEmpty(capabilities) {
		capabilities = c.client.can()
	}
	name := r.from.Level
	if name == "" {
		name, _ = c.client.remembered()
	}
	if r.ofClient && name != "" {
		level = jsonrpc.Quote(name)
	}
	return capabilities, level
}

// setAll sets the members of an object, and deletes those that are nil.
func setAll(obj json.RawMessage, members ...member) (json.RawMessage, error) {
	var err error
	for _, m := range members {
		if m.value == nil {
			obj, err = jsonrpc.Delete(obj, m.name)
		} else {
			obj, err = jsonrpc.Set(obj, m.name, m.value)
		}
		if err != nil {
			return nil, err
		}
	}
	return obj, nil
}

// closesStreams reports whether a request is cancelled by closing the stream of
// its answer, and by nothing else (MCP 2026-07-28 basic/patterns/cancellation).
func (c *conn) closesStreams() bool {
	_, ok := c.wire.(*httpWire)
	return ok && c.modern()
}

// modernNotice deals with a notification of a server without a handshake, and
// gives what mcp-go is to read in its place, as receive does. What names a
// subscription goes to it, and all else where it goes from any server.
func (c *conn) modernNotice(msg *jsonrpc.Message, from source) []byte {
	if msg.Method == "notifications/cancelled" {
		return c.torn(msg.Params)
	}
	p, params := c.subscription(msg.Params, from)
	if p == nil {
		c.notice(msg, from)
		return nil
	}
	msg.Params = params
	p.heard(msg)
	return nil
}

// subscription finds the listening request to which a notification belongs, and
// gives its params without the name of it. Over HTTP the stream tells, too.
func (c *conn) subscription(params json.RawMessage, from source) (*pending, json.RawMessage) {
	meta, _ := jsonrpc.Get(params, "_meta")
	name, named := jsonrpc.Get(meta, metaSubscription)
	p := from.only
	if id, ok := jsonrpc.Text(name); ok && p == nil {
		p = c.table.peek(id)
	}
	if p == nil || p.heard == nil {
		return nil, nil
	}
	if named {
		params = unnamed(params, meta)
	}
	return p, params
}

// unnamed takes the name of the subscription off.
func unnamed(params, meta json.RawMessage) json.RawMessage {
	rest, err := jsonrpc.Delete(meta, metaSubscription)
	if err != nil {
		return params
	}
	left := member{"_meta", rest}
	if isEmpty(rest) {
		left.value = nil
	}
	if out, err := setAll(params, left); err == nil {
		return out
	}
	return params
}

// torn ends a subscription that the server tears down over stdio.
func (c *conn) torn(params json.RawMessage) []byte {
	id, _ := jsonrpc.Get(params, "requestId")
	p, ok := c.table.pool.MatchIf(id, func(p *pending) bool { return p.heard != nil })
	if !ok {
		c.dropped.Add(1)
		return nil
	}
	p.answer(json.RawMessage(`{}`), nil)
	return acknowledgement(p)
}

// answeredHere gives the answer to a request that a server without a handshake
// knows nothing of, and reports whether there is one.
func (c *conn) answeredHere(method string) (json.RawMessage, *Error, bool) {
	switch method {
	case "ping", "logging/setLevel": // the level is remembered and travels with each request
		return json.RawMessage(`{}`), nil, true
	case "tasks/get", "tasks/cancel":
		extensions, _ := jsonrpc.Get(c.offer, "extensions")
		if _, ok := jsonrpc.Get(extensions, "io.modelcontextprotocol/tasks"); ok {
			return nil, nil, false
		}
	case "tasks/list", "tasks/result":
	default:
		return nil, nil, false
	}
	return nil, rpcFault(codeMethod, fmt.Sprintf("the server speaks MCP %s, which has no %s", c.speaks(), strconv.Quote(method)), nil), true
}
