package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
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

// dress adds the _meta that every stateless request has to params. All other
// bytes stay. What the members say of another hop is replaced.
func (c *conn) dress(r request, params json.RawMessage) (json.RawMessage, error) {
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	meta, ok := jsonrpc.Get(params, "_meta")
	if !ok {
		meta = json.RawMessage(`{}`)
	}
	capabilities, level := c.claims(r)
	own := []member{{metaRevision, jsonrpc.Quote(c.Revision())}, {metaClient, c.info}, {metaCapabilities, capabilities}, {metaLevel, level}, {metaSubscription, nil}}
	meta, err := setAll(meta, own...)
	if err != nil {
		return nil, err
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

// statelessNotice deals with a notification of a server without a handshake.
// What names a subscription goes to it, and all else where it goes from any
// server.
func (c *conn) statelessNotice(msg *jsonrpc.Message, during *mcpclient.Call) {
	if msg.Method == "notifications/cancelled" {
		c.endSubscription(msg.Params)
		return
	}
	p, params := c.subscription(msg.Params, during)
	if p == nil {
		c.notice(msg, during)
		return
	}
	msg.Params = params
	p.heard(msg)
}

// subscription finds the listening request to which a notification belongs, and
// returns its params without the subscription's id. Over HTTP the stream tells,
// too.
func (c *conn) subscription(params json.RawMessage, during *mcpclient.Call) (*pending, json.RawMessage) {
	meta, _ := jsonrpc.Get(params, "_meta")
	name, named := jsonrpc.Get(meta, metaSubscription)
	if id, ok := jsonrpc.Text(name); ok && during == nil {
		during = c.Lookup(id)
	}
	p := pendingOf(during)
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

// endSubscription ends a subscription that the server tears down over stdio.
func (c *conn) endSubscription(params json.RawMessage) {
	id, _ := jsonrpc.Get(params, "requestId")
	listening := func(call *mcpclient.Call) bool { p := pendingOf(call); return p != nil && p.heard != nil }
	if !c.Settle(id, listening, json.RawMessage(`{}`)) {
		c.dropped.Add(1)
	}
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
	return nil, rpcFault(codeMethod, fmt.Sprintf("the server speaks MCP %s, which has no %s", c.Revision(), strconv.Quote(method)), nil), true
}
