package upstream

import (
	"cmp"
	"context"
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

// rpcFault is the error of a request that is answered in the server's place.
func rpcFault(code, message string, data json.RawMessage) *Error {
	object := object(
		member{"code", json.RawMessage(code)}, member{"message", jsonrpc.Quote(message)}, member{"data", data},
	)
	return &Error{Kind: Failed, RPC: object, Err: errors.New(message)}
}

// codeOf returns the code of a server's error object, "" for any other error.
func codeOf(e *Error) string {
	if e == nil || e.RPC == nil {
		return ""
	}
	code, _ := jsonrpc.Get(e.RPC, "code")
	return string(code)
}

// appendClientMeta appends the _meta of a stateless request, which replaces what
// another hop said there. Requests on the shared connection claim no capabilities and no
// log level, because nobody could be asked or notified.
func (c *conn) appendClientMeta(meta []jsonrpc.Change, r *request) []jsonrpc.Change {
	capabilities, level := nothing, json.RawMessage(nil)
	if c.client != nil {
		if capabilities = r.From.Capabilities; isEmpty(capabilities) {
			capabilities = c.client.clientCapabilities()
		}
		remembered, _ := c.client.remembered()
		if name := cmp.Or(r.From.Level, remembered); r.ofClient && name != "" {
			level = jsonrpc.Quote(name)
		}
	}
	return append(meta, // made here, or a part of a decoded message
		jsonrpc.Change{Name: metaRevision, Value: jsonrpc.Quote(c.Revision()), Checked: true}, jsonrpc.Change{Name: metaClient, Value: c.info, Checked: true},
		jsonrpc.Change{Name: metaCapabilities, Value: capabilities, Checked: true}, jsonrpc.Change{Name: metaLevel, Value: level, Checked: true}, jsonrpc.Change{Name: metaSubscription},
	)
}

// statelessNotice handles a notification of a stateless server. One that names
// a subscription goes to its listening request, which over HTTP the stream
// identifies, too; every other is handled as in notice.
func (c *conn) statelessNotice(msg *jsonrpc.Message, during *mcpclient.Call) {
	if msg.Method == "notifications/cancelled" {
		c.endSubscription(msg.Params)
		return
	}
	params, name := withoutMeta(msg.Params, metaSubscription)
	listening := during
	if id, ok := jsonrpc.Text(name); ok && during == nil {
		listening = c.Lookup(id)
	}
	if p := pendingOf(listening); p != nil && p.request.onNotice != nil {
		msg.SetParams(params)
		p.request.onNotice(msg)
		return
	}
	c.notice(msg, during)
}

// endSubscription ends a subscription that the server cancels over stdio.
func (c *conn) endSubscription(params json.RawMessage) {
	id, _ := jsonrpc.TextAt(params, "requestId")
	p := pendingOf(c.Lookup(id))
	if p == nil || p.request.onNotice == nil || !c.Settle(&p.Call, json.RawMessage(`{}`), nil) {
		c.dropped.Add(1)
	}
}

// answerHere answers a request that a stateless server does not know, and reports
// whether it did.
func (s *session) answerHere(ctx context.Context, r *request) (json.RawMessage, *Error, bool) {
	switch r.method {
	case methodSubscribe, methodUnsubscribe:
		return json.RawMessage(`{}`), s.subscribe(ctx, r), true
	case methodListen:
		if r.listen == nil {
			return nil, nil, false
		}
		result, e := s.conn.openListen(ctx, r)
		return result, e, true
	case "ping", "logging/setLevel": // the level is remembered and travels with each request
		return json.RawMessage(`{}`), nil, true
	case "tasks/get", "tasks/cancel":
		extensions, _ := jsonrpc.Get(s.conn.offer, "extensions")
		if _, ok := jsonrpc.Get(extensions, "io.modelcontextprotocol/tasks"); ok {
			return nil, nil, false
		}
	case "tasks/list", "tasks/result":
	default:
		return nil, nil, false
	}
	return nil, rpcFault(codeMethod, fmt.Sprintf("the server speaks MCP %s, which has no %s", s.conn.Revision(), strconv.Quote(r.method)), nil), true
}
