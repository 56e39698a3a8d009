package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
)

// discover returns the revisions that are served and the capabilities of x's
// route (MCP 2026-07-28, server/discover).
func (c *core) discover(_ context.Context, x *exchange) outcome {
	return outcome{result: slices.Concat(
		[]byte(`{"supportedVersions":`), c.supported(x), []byte(`,"capabilities":`), c.statelessCapabilities(x),
		[]byte(`,"instructions":`), jsonrpc.Quote(instructions), []byte{'}'})}
}

// statelessCapabilities returns the capabilities of x's route without those
// that the revision removed, and with the tasks of held calls when the gate has
// them.
func (c *core) statelessCapabilities(x *exchange) json.RawMessage {
	offered := c.offered(x)
	if without, err := jsonrpc.Delete(offered, "tasks"); err == nil {
		offered = without
	}
	extensions, _ := jsonrpc.Get(offered, "extensions")
	if _, has := jsonrpc.Get(extensions, extensionTasks); has || !c.opts.Tasks {
		return offered
	}
	return setIn(offered, json.RawMessage("{}"), "extensions", extensionTasks)
}

// extensionTasks is the extension that lets a server answer a call with a task.
const extensionTasks = "io.modelcontextprotocol/tasks"

// completeResult adds the members that every result of the revision has. It
// returns false for bytes that cannot be a result, such as a question that
// should have been asked on the road.
func (c *core) completeResult(result json.RawMessage, row method) (json.RawMessage, bool) {
	raw, typed := jsonrpc.Get(result, "resultType")
	if kind, ok := jsonrpc.Text(raw); typed && (!ok || kind == "input_required") {
		return nil, false
	}
	if !isObject(result) {
		return nil, false
	}
	if !typed {
		result = setIn(result, json.RawMessage(`"complete"`), "resultType")
	}
	if row.cached {
		ttl, _ := jsonrpc.Get(result, "ttlMs")
		if n, err := strconv.ParseInt(string(ttl), 10, 64); err != nil || n < 0 {
			result = setIn(result, json.RawMessage("0"), "ttlMs")
		}
		result = setIn(result, json.RawMessage(`"private"`), "cacheScope") // what the policy has filtered is one principal's
	}
	return setIn(result, c.serverInfo(), "_meta", metaServer), true
}

// serverInfo returns the name and version of toolgate.
func (c *core) serverInfo() json.RawMessage {
	return slices.Concat([]byte(`{"name":"toolgate","version":`), jsonrpc.Quote(c.opts.Version), []byte{'}'})
}

// statelessFailure returns the answer to x for a failure. Codes that the
// revision removed are replaced.
func (c *core) statelessFailure(x *exchange, f *proxy.Failure) answer {
	a := x.withStatus(c.failed(x, f))
	if a.isResult() && x.call.Message.Method != "tools/call" {
		a = c.failedAs(wire.Gateway, x, f) // only a tool's result can stand for an error
	}
	if result, ok := jsonrpc.Get(a.body, "result"); ok {
		if whole, ok := c.completeResult(result, x.row); ok {
			a.body = jsonrpc.OneLine(jsonrpc.NewSuccess(x.id, whole))
		}
		return a
	}
	code, _ := jsonrpc.Get(f.Upstream, "code")
	object := a.fault
	var err error
	switch string(code) {
	case "-32021": // what the client lacks is between it and the server
		a.status, object = http.StatusBadRequest, jsonrpc.OneLine(f.Upstream)
	case "-32002":
		object, err = jsonrpc.Set(notFound(object, x), "code", json.RawMessage("-32602"))
	case "-32020", "-32022", "-32042":
		if own, _ := jsonrpc.Get(object, "code"); string(own) == string(code) {
			object, err = jsonrpc.Set(object, "code", json.RawMessage("-32603"))
		}
	default:
		return a
	}
	if err != nil || a.body == nil {
		return c.broken(x)
	}
	a.fault, a.body = object, errorBody(x, object)
	return a
}

// isResult reports whether a is a result, whatever it says.
func (a *answer) isResult() bool {
	_, ok := jsonrpc.Get(a.body, "result")
	return ok
}

// notFound adds the uri of the resource that x asked for to an error object.
func notFound(object json.RawMessage, x *exchange) json.RawMessage {
	data, _ := jsonrpc.Get(object, "data")
	uri, ok := x.call.Message.Param("uri")
	if _, said := jsonrpc.Get(data, "uri"); said || !ok || data != nil && !isObject(data) {
		return object
	}
	return setIn(object, uri, "data", "uri")
}

// withStatus gives a the HTTP status that revision 2026-07-28 wants for a method
// that is not served; other refusals of the road stay what they are.
func (x *exchange) withStatus(a answer) answer {
	data, _ := jsonrpc.Get(a.fault, "data")
	raw, _ := jsonrpc.Get(data, "code")
	if code, _ := jsonrpc.Get(a.fault, "code"); x.stateless != nil && string(code) == "-32601" && string(raw) == `"METHOD_NOT_FOUND"` {
		a.status = http.StatusNotFound
	}
	return a
}
