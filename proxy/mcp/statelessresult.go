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

// outcome is the result of a request without a session, before it is put into
// the form that the attempt asks for. The zero value means that our own parts
// contradict themselves.
type outcome struct {
	result          json.RawMessage
	failure         *proxy.Failure
	refused         *doorRefusal // by the door, not yet recorded
	cancelled       bool         // nobody waits for it
	decision, trace string
}

// doorRefusal is a refusal by the door that is not yet recorded.
type doorRefusal struct{ code, reason string }

// called takes a tool call down its road.
func (s *statelessServer) called(ctx context.Context, x *exchange) outcome {
	return callRoad(ctx, x, s.opts.Gate.Call)
}

// relayed takes any other request down its road.
func (s *statelessServer) relayed(ctx context.Context, x *exchange) outcome {
	if s.opts.Relayer == nil {
		return unknownMethod(x)
	}
	return callRoad(ctx, x, s.opts.Relayer.Relay)
}

// callRoad returns the outcome of x on road.
func callRoad(ctx context.Context, x *exchange, road func(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure)) outcome {
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
func (s *statelessServer) enumerated(ctx context.Context, x *exchange) outcome {
	if s.opts.Relayer == nil {
		return unknownMethod(x)
	}
	result, failure := s.opts.Relayer.Enumerate(ctx, &x.call, x.who)
	if failure != nil && failure.Kernel.Code == signal.CodeEnvelopeMethod {
		return outcome{refused: &doorRefusal{failure.Kernel.Code, failure.Reason}} // recorded, as for any method that is not served
	}
	return outcome{result: result, failure: failure}
}

func unknownMethod(x *exchange) outcome {
	return outcome{refused: &doorRefusal{signal.CodeEnvelopeMethod, "method " + x.call.Message.Method + " is not served here"}}
}

// listedTools gives one page of the tools that the principal may see.
func (s *statelessServer) listedTools(ctx context.Context, x *exchange) outcome {
	result, ok := s.toolPage(ctx, x)
	if !ok {
		return outcome{refused: &doorRefusal{signal.CodeEnvelopeParams, staleCursor}}
	}
	return outcome{result: result}
}

// discover says which revisions are served and what the route of x can do (MCP
// 2026-07-28, server/discover).
func (s *statelessServer) discover(_ context.Context, x *exchange) outcome {
	return outcome{result: slices.Concat(
		[]byte(`{"supportedVersions":`), s.supported(x), []byte(`,"capabilities":`), s.statelessCapabilities(x),
		[]byte(`,"instructions":`), jsonrpc.Quote(instructions), []byte{'}'})}
}

// statelessCapabilities returns the capabilities of x's route without those
// that the revision removed, and with the tasks of held calls when the gate has
// them.
func (s *statelessServer) statelessCapabilities(x *exchange) json.RawMessage {
	offered := s.offered(x)
	if without, err := jsonrpc.Delete(offered, "tasks"); err == nil {
		offered = without
	}
	extensions, _ := jsonrpc.Get(offered, "extensions")
	if _, has := jsonrpc.Get(extensions, extensionTasks); has || !s.opts.Tasks {
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

// statelessAnswer returns the answer to x for o.
func (s *statelessServer) statelessAnswer(x *exchange, o outcome, row statelessRow) answer {
	switch {
	case o.cancelled:
		return answer{silent: true, status: http.StatusAccepted}
	case o.refused != nil:
		return s.withStatus(s.refuse(x, o.refused.code, o.refused.reason))
	case o.failure != nil:
		return s.statelessFailure(x, o.failure, row)
	}
	result, ok := s.completeResult(o.result, row)
	if !ok { // fails closed
		return s.broken(x)
	}
	return answer{status: http.StatusOK, body: success(x.id, result), decision: o.decision, trace: o.trace}
}

// completeResult adds the members that every result of the revision has. It
// returns false for bytes that cannot be a result, such as a question that
// should have been asked on the road.
func (s *statelessServer) completeResult(result json.RawMessage, row statelessRow) (json.RawMessage, bool) {
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
		meta, err = jsonrpc.Set(meta, metaServer, s.serverInfo())
	}
	set("_meta", meta)
	return result, err == nil
}

// serverInfo is who answers.
func (c *core) serverInfo() json.RawMessage {
	return slices.Concat([]byte(`{"name":"toolgate","version":`), jsonrpc.Quote(c.opts.Version), []byte{'}'})
}

// statelessFailure returns the answer to x for a failure. Codes that the
// revision removed are replaced.
func (s *statelessServer) statelessFailure(x *exchange, f *proxy.Failure, row statelessRow) answer {
	a := s.withStatus(s.failed(x, f))
	if a.isResult() && x.call.Message.Method != "tools/call" {
		a = s.failedAs(wire.Gateway, x, f) // only a tool's result can stand for an error
	}
	if result, ok := jsonrpc.Get(a.body, "result"); ok {
		if whole, ok := s.completeResult(result, row); ok {
			a.body = success(x.id, whole)
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
		return s.broken(x)
	}
	a.fault, a.body = object, jsonrpc.OneLine(jsonrpc.NewFailureObject(idOrNull(x.id), object))
	return a
}

// isResult reports whether a is a result, whatever it says.
func (a *answer) isResult() bool {
	_, ok := jsonrpc.Get(a.body, "result")
	return ok
}

// notFound adds to an error object which resource x wanted.
func notFound(object json.RawMessage, x *exchange) json.RawMessage {
	uri, ok := x.call.Message.Param("uri")
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
func (s *statelessServer) withStatus(a answer) answer {
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
