package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// outcome is what came of a request without a session, before it is put into
// words for the request that asks for it. The zero value means that our own
// parts contradict themselves.
type outcome struct {
	result          json.RawMessage
	failure         *proxy.Failure
	refused         *objection // by the door, not yet recorded
	cancelled       bool       // nobody waits for it
	decision, trace string
}

// objection is a code and the reason for it.
type objection struct{ code, reason string }

// called takes a tool call down its road.
func (d *Door) called(ctx context.Context, x *exchange) outcome {
	return taken(ctx, x, d.opts.Gate.Call)
}

// relayed takes any other request down its road.
func (d *Door) relayed(ctx context.Context, x *exchange) outcome {
	if d.opts.Relayer == nil {
		return unknownMethod(x)
	}
	return taken(ctx, x, d.opts.Relayer.Relay)
}

// taken gives what comes of x on a road.
func taken(ctx context.Context, x *exchange, road func(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure)) outcome {
	reply, failure := road(ctx, &x.call)
	switch {
	case errors.Is(context.Cause(ctx), errCancelled):
		return outcome{cancelled: true}
	case failure != nil || reply == nil:
		return outcome{failure: failure}
	}
	return outcome{result: reply.Result, decision: reply.DecisionID, trace: reply.TraceID}
}

// enumerated gives one page of a list as the principal may see it.
func (d *Door) enumerated(ctx context.Context, x *exchange) outcome {
	if d.opts.Relayer == nil {
		return unknownMethod(x)
	}
	result, failure := d.opts.Relayer.Enumerate(ctx, &x.call, x.who)
	if failure != nil && failure.Kernel.Code == signal.CodeEnvelopeMethod {
		return outcome{refused: &objection{failure.Kernel.Code, failure.Reason}} // recorded, as for any method that is not served
	}
	return outcome{result: result, failure: failure}
}

func unknownMethod(x *exchange) outcome {
	return outcome{refused: &objection{signal.CodeEnvelopeMethod, "method " + x.call.Message.Method + " is not served here"}}
}

// listedTools gives one page of the tools that the principal may see.
func (d *Door) listedTools(ctx context.Context, x *exchange) outcome {
	result, ok := d.toolPage(ctx, x)
	if !ok {
		return outcome{refused: &objection{signal.CodeEnvelopeParams, staleCursor}}
	}
	return outcome{result: result}
}

// discover says which revisions are served and what the route of x can do (MCP
// 2026-07-28, server/discover).
func (d *Door) discover(_ context.Context, x *exchange) outcome {
	return outcome{result: slices.Concat(
		[]byte(`{"supportedVersions":`), d.supported(x), []byte(`,"capabilities":`), d.modernCapabilities(x),
		[]byte(`,"instructions":`), jsonrpc.Quote(instructions), []byte{'}'})}
}

// modernCapabilities is what the route of x can do, but for what the revision
// took away, and the tasks of held calls, if the gate has them.
func (d *Door) modernCapabilities(x *exchange) json.RawMessage {
	offered := d.offered(x)
	if without, err := jsonrpc.Delete(offered, "tasks"); err == nil {
		offered = without
	}
	extensions, _ := jsonrpc.Get(offered, "extensions")
	if _, has := jsonrpc.Get(extensions, extensionTasks); has || !d.opts.Tasks {
		return offered
	}
	if !isObject(extensions) {
		extensions = json.RawMessage("{}")
	}
	extensions, err := jsonrpc.Set(extensions, extensionTasks, json.RawMessage("{}"))
	if err != nil {
		return offered
	}
	if with, err := jsonrpc.Set(offered, "extensions", extensions); err == nil {
		return with
	}
	return offered
}

// extensionTasks is the extension that lets a server answer a call with a task.
const extensionTasks = "io.modelcontextprotocol/tasks"

// worded is the answer to x that says o.
func (d *Door) worded(x *exchange, o outcome, row modernRow) answer {
	switch {
	case o.cancelled:
		return answer{silent: true, status: http.StatusAccepted}
	case o.refused != nil:
		return d.withStatus(d.refuse(x, o.refused.code, o.refused.reason))
	case o.failure != nil:
		return d.worseWorded(x, o.failure, row)
	}
	result, ok := d.complete(o.result, row)
	if !ok { // fails closed
		return d.broken(x)
	}
	return answer{status: http.StatusOK, body: success(x.id(), result), decision: o.decision, trace: o.trace}
}

// complete gives result the members that every result of the revision has. It
// reports false for what cannot be one, such as a question that should have
// been asked on the road.
func (d *Door) complete(result json.RawMessage, row modernRow) (json.RawMessage, bool) {
	raw, typed := jsonrpc.Get(result, "resultType")
	if kind, ok := jsonrpc.Text(raw); typed && (!ok || kind == "input_required") {
		return nil, false
	}
	var err error
	set := func(name string, value json.RawMessage) {
		if err == nil {
			result, err = jsonrpc.Set(result, name, value)
		}
	}
	if !typed {
		set("resultType", json.RawMessage(`"complete"`))
	}
	if row.cached {
		ttl, _ := jsonrpc.Get(result, "ttlMs")
		if n, e := strconv.ParseInt(string(ttl), 10, 64); e != nil || n < 0 {
			set("ttlMs", json.RawMessage("0"))
		}
		set("cacheScope", json.RawMessage(`"private"`)) // what the policy has filtered is one principal's
	}
	meta, _ := jsonrpc.Get(result, "_meta")
	if !isObject(meta) {
		meta = json.RawMessage("{}")
	}
	if err == nil {
		meta, err = jsonrpc.Set(meta, metaServer, d.serverInfo())
	}
	set("_meta", meta)
	return result, err == nil
}

// serverInfo is who answers.
func (d *Door) serverInfo() json.RawMessage {
	return slices.Concat([]byte(`{"name":"toolgate","version":`), jsonrpc.Quote(d.opts.Version), []byte{'}'})
}

// worseWorded is the answer to x for a failure. What the revision has no longer
// never leaves: a resource that is not there has another number, and a page
// that a person must see first is asked for on the road or not at all.
func (d *Door) worseWorded(x *exchange, f *proxy.Failure, row modernRow) answer {
	a := d.withStatus(d.failed(x, f))
	if a.isResult() && x.call.Message.Method != "tools/call" {
		as := *x
		as.dialect = wire.Gateway // only a tool's result can stand for an error
		a = d.failed(&as, f)
	}
	if result, ok := jsonrpc.Get(a.body, "result"); ok {
		if whole, ok := d.complete(result, row); ok {
			a.body = success(x.id(), whole)
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
		return d.broken(x)
	}
	a.fault, a.body = object, jsonrpc.OneLine(jsonrpc.NewFailureObject(idOrNull(x.id()), object))
	return a
}

// isResult reports whether a is a result, whatever it says.
func (a *answer) isResult() bool {
	_, ok := jsonrpc.Get(a.body, "result")
	return ok
}

// notFound adds to an error object which resource x wanted.
func notFound(object json.RawMessage, x *exchange) json.RawMessage {
	uri, ok := jsonrpc.Get(x.call.Message.Params, "uri")
	if !ok {
		return object
	}
	data, there := jsonrpc.Get(object, "data")
	if !there {
		data = json.RawMessage("{}")
	}
	if _, said := jsonrpc.Get(data, "uri"); said {
		return object
	}
	if with, err := jsonrpc.Set(data, "uri", uri); err == nil {
		if whole, err := jsonrpc.Set(object, "data", with); err == nil {
			return whole
		}
	}
	return object
}

// withStatus gives a the HTTP status that the revision wants for a method that
// is not served; other refusals of the road stay what they are.
func (d *Door) withStatus(a answer) answer {
	if code, _ := jsonrpc.Get(a.fault, "code"); string(code) == "-32601" && faultCode(a) == "METHOD_NOT_FOUND" {
		a.status = http.StatusNotFound
	}
	return a
}

// faultCode is the canonical code of the refusal that a is.
func faultCode(a answer) string {
	data, _ := jsonrpc.Get(a.fault, "data")
	raw, _ := jsonrpc.Get(data, "code")
	code, _ := jsonrpc.Text(raw)
	return code
}
