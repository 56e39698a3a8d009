package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// row is what the dispatch table knows of a request method.
type row struct {
	handle  func(*Door, *exchange) answer
	session bool // refused before initialize
	reaches bool // a server, which may ask and tell before it answers
}

// requests is every request method that is served. What has no row is refused
// and recorded: a method is never passed on because nobody thought of it.
var requests = map[string]row{
	"initialize": {handle: (*Door).initialize},
	"ping":       {handle: (*Door).ping},
	"tools/list": {handle: (*Door).listTools, session: true, reaches: true},
	"tools/call": {handle: (*Door).callTool, session: true, reaches: true},

	"resources/list":           {handle: (*Door).enumerate, session: true, reaches: true},
	"resources/templates/list": {handle: (*Door).enumerate, session: true, reaches: true},
	"resources/read":           {handle: (*Door).relay, session: true, reaches: true},
	"resources/subscribe":      {handle: (*Door).relay, session: true, reaches: true},
	"resources/unsubscribe":    {handle: (*Door).relay, session: true, reaches: true},
	"prompts/list":             {handle: (*Door).enumerate, session: true, reaches: true},
	"prompts/get":              {handle: (*Door).relay, session: true, reaches: true},
	"completion/complete":      {handle: (*Door).relay, session: true, reaches: true},
	"logging/setLevel":         {handle: (*Door).setLevel, session: true, reaches: true},
	"tasks/get":                {handle: (*Door).relay, session: true, reaches: true},
	"tasks/result":             {handle: (*Door).relay, session: true, reaches: true},
	"tasks/list":               {handle: (*Door).enumerate, session: true, reaches: true},
	"tasks/cancel":             {handle: (*Door).relay, session: true, reaches: true},
}

// extension is the row of a method that is not of the protocol: on the road of
// one server the gate knows whether that server has it.
var extension = row{handle: (*Door).relay, session: true, reaches: true}

// rowOf finds what x asks for.
func (d *Door) rowOf(x *exchange) (row, bool) {
	r, ok := requests[x.call.Message.Method]
	if !ok && x.session != nil && x.call.Route != "" && d.opts.Relayer != nil {
		return extension, true
	}
	return r, ok
}

// notices is every notification that the door itself understands. Others under
// "notifications/" are for servers, if there is a Notifier.
var notices = map[string]func(*exchange){
	"notifications/cancelled":   (*exchange).cancelled,
	"notifications/progress":    (*exchange).reported,
	"notifications/initialized": func(*exchange) {}, // the transports see to it
}

// exchange is one received message with what the door knows of its sender.
type exchange struct {
	call     proxy.Call
	who      policy.Principal
	session  *session // nil before initialize
	modern   *modern  // nil for a revision with sessions
	dialect  wire.Dialect
	versions []string                         // the revisions that initialize may agree to, newest first
	open     func(*session) (*session, error) // keeps the session that initialize made, or gives the one it is for
	notify   func(message []byte)             // sends on the stream of this request; nil = it has none
	began    time.Time                        // when it was received; zero when nobody observes
	opened   string                           // key of the session that initialize made

	row    row             // what it asks for, set by admit
	ctx    context.Context // of the work, set by admit
	flight string          // key in session's flights; "" = not entered
}

// answer is what comes of one message.
type answer struct {
	body    []byte         // one JSON-RPC message, nil = none
	status  int            // for HTTP
	problem *proxy.Failure // the transport's own answer in place of body over HTTP
	opened  string         // id of the session that was made
	silent  bool           // a cancelled request: the stream ends without an answer

	decision, trace string          // in the audit trail, "" when nothing was recorded
	fault           json.RawMessage // what body says went wrong, nil = nothing did
}

// id is the request id to answer with, nil when none is known.
func (x *exchange) id() json.RawMessage {
	switch {
	case x.call.Message != nil:
		return x.call.Message.ID
	case x.call.Fault != nil:
		return x.call.Fault.ID
	}
	return nil
}

// isCall reports whether x wants a tool called, however malformed.
func (x *exchange) isCall() bool {
	return x.call.Message != nil && x.call.Message.Method == "tools/call"
}

// stranger is why nobody was identified.
type stranger struct {
	code, reason string
	given        *proxy.Failure // as the gate put it, nil when the door refuses
}

// recognise puts the principal behind x's credential into x, or says why there
// is none.
func (d *Door) recognise(x *exchange) *stranger {
	who, f := d.opts.Gate.Identify(d.base, x.call.Credential)
	switch {
	case f != nil:
		return &stranger{code: f.Kernel.Code, reason: f.Reason, given: f}
	case !who.Valid():
		return &stranger{code: signal.CodeUnauthenticated, reason: "nobody was identified"}
	}
	x.who = who
	return nil
}

// turnAway refuses a stranger. Only what wanted a tool called is recorded: an
// anonymous flood of anything else leaves no trace.
func (d *Door) turnAway(x *exchange, s *stranger) answer {
	if s.given != nil && !x.isCall() {
		return d.failed(x, s.given)
	}
	return d.refuse(x, s.code, s.reason)
}

// serve is the whole of a message's way through the door for a transport that
// needs no order between the two halves.
func (d *Door) serve(x *exchange) answer {
	a, done := d.admit(x)
	if done {
		return a
	}
	return d.run(x)
}

// take is a message's way through the door for clients whose answers may come
// in any order: requests of a session that may take time are given to spawn,
// up to MaxFlights of flying. reply is called once.
func (d *Door) take(x *exchange, flying *atomic.Int64, spawn func(func()), reply func(answer)) {
	if a, done := d.accept(x, flying); done {
		reply(a)
		return
	}
	spawn(func() {
		defer flying.Add(-1)
		reply(d.run(x))
	})
}

// accept is admit for such clients. If done is false, flying counts x, and the
// caller must run x and then count it out.
func (d *Door) accept(x *exchange, flying *atomic.Int64) (a answer, done bool) {
	if flying.Load() >= int64(d.opts.MaxFlights) && x.isCall() {
		return d.refuse(x, signal.CodeOverloaded, "too many calls of this client are in flight"), true
	}
	a, done = d.admit(x)
	switch {
	case done:
		return a, true
	case x.flight == "": // initialize and what came before it keep their order
		return d.run(x), true
	}
	flying.Add(1)
	return answer{}, false
}

// admit settles everything about x that must happen in the order of arrival:
// what is not a request is dealt with whole (done is true), a request is
// looked up and entered in its session. If done is false the caller must run x.
func (d *Door) admit(x *exchange) (a answer, done bool) {
	if x.call.Message == nil {
		x.session.spoiled(x.id())
		return d.refuseFault(x), true
	}
	switch x.call.Message.Kind {
	case jsonrpc.Request:
		return d.admitRequest(x)
	case jsonrpc.Notification:
		return d.notice(x), true
	default:
		return d.answered(x), true
	}
}

// admitRequest enters the request x in its session.
func (d *Door) admitRequest(x *exchange) (a answer, done bool) {
	method := x.call.Message.Method
	r, ok := d.rowOf(x)
	x.row = r
	switch {
	case !ok:
		return d.refuse(x, signal.CodeEnvelopeMethod, "method "+method+" is not served here"), true
	case r.session && x.session == nil:
		a := d.refuse(x, signal.CodeEnvelopeInvalid, "no session: send initialize first, then show its session id")
		a.status = http.StatusBadRequest
		return a, true
	case x.session == nil || method == "initialize":
		x.ctx = d.base
		return answer{}, false
	}
	key := jsonrpc.Key(x.id())
	ctx, err := x.session.begin(d.base, key)
	switch {
	case errors.Is(err, errEnded):
		return d.refuse(x, signal.CodeSessionLost, "the session has ended"), true
	case err != nil:
		return d.refuse(x, signal.CodeEnvelopeInvalid, err.Error()), true
	}
	x.ctx, x.flight = ctx, key
	return answer{}, false
}

// run does the work of a request that was admitted. A panic is the end of that
// request and of no other, whatever goroutine it runs on.
func (d *Door) run(x *exchange) (a answer) {
	if x.flight != "" {
		defer x.session.finish(x.flight)
	}
	defer func() {
		if r := recover(); r != nil {
			d.opts.Log.Error("panic in the mcp door", "method", x.call.Message.Method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			a = d.broken(x)
		}
	}()
	a = x.row.handle(d, x)
	if errors.Is(context.Cause(x.ctx), errCancelled) {
		return answer{silent: true, status: http.StatusAccepted, decision: a.decision, trace: a.trace}
	}
	return a
}

// notice takes a notification. One that spells a request method is a call that
// lost its id: it must neither run unseen nor be dropped unsaid.
func (d *Door) notice(x *exchange) answer {
	method := x.call.Message.Method
	if take, ok := notices[method]; ok {
		take(x)
	} else if !strings.HasPrefix(method, "notifications/") {
		a := d.refuse(x, signal.CodeEnvelopeInvalid, "method "+method+" is no notification: it needs an id")
		a.status = http.StatusBadRequest
		return a
	} else if x.session != nil && d.opts.Notifier != nil {
		if f := d.opts.Notifier.Notify(d.base, &x.call); f != nil {
			d.opts.Log.Debug("a notification is not passed on", "method", method, "session", x.call.Session, "reason", f.Reason)
		}
	}
	return answer{status: http.StatusAccepted}
}

// answered takes an answer. One to what was not asked, or not any more, is
// dropped and counted.
func (d *Door) answered(x *exchange) answer {
	if !x.session.answered(x.call.Message) {
		d.opts.Log.Debug("an answer to nothing that waits for one", "session", x.call.Session, "so far", d.strays.Add(1))
	}
	return answer{status: http.StatusAccepted}
}

// reported takes what the client reports of its work on what it was asked.
func (x *exchange) reported() {
	if x.session != nil {
		x.session.reported(x.call.Message.Params)
	}
}

// cancelled ends the request that the notification x names, if it is in flight
// in the same session.
func (x *exchange) cancelled() {
	if x.session == nil {
		return
	}
	if id, ok := jsonrpc.Get(x.call.Message.Params, "requestId"); ok {
		x.session.abort(jsonrpc.Key(id))
	}
}

// refuseFault answers bytes that are no message. The gate refuses and records
// them as it does a call. Over HTTP a refused request, one whose id could be
// read, is answered with 200 as any other refusal is.
func (d *Door) refuseFault(x *exchange) answer {
	_, failure := d.opts.Gate.Call(d.base, &x.call)
	if failure == nil { // fails closed: a gate that lets no message pass is broken
		return d.broken(x)
	}
	a := d.failed(x, failure)
	if a.problem == nil && x.id() == nil {
		a.status = http.StatusBadRequest // no request at all; with an id, clients would drop the body of a 400
	}
	return a
}

// refuse answers x with the refusal code and has it recorded.
func (d *Door) refuse(x *exchange, code, reason string) answer {
	return d.failed(x, d.opts.Refuser.Refuse(d.base, &x.call, code, reason))
}

// failed turns a failure into its answer in the dialect of x. Authentication
// and session loss also have an HTTP status and body of their own.
func (d *Door) failed(x *exchange, f *proxy.Failure) answer {
	reply, err := wire.Answer(x.dialect, wire.Failure(*f))
	if err != nil {
		return d.broken(x)
	}
	a := answer{status: http.StatusOK, silent: reply.Silent, decision: f.DecisionID, trace: f.TraceID, fault: faultOf(reply)}
	switch f.Kernel.Code {
	case signal.CodeUnauthenticated, signal.CodeSessionLost:
		a.status, a.problem = reply.HTTP, f
	}
	switch {
	case reply.Result != nil:
		a.body = success(x.id(), reply.Result)
	case reply.Error != nil:
		a.body = jsonrpc.OneLine(jsonrpc.NewFailureObject(idOrNull(x.id()), reply.Error))
	}
	return a
}

// broken answers x when our own tables or the gate contradict themselves.
func (d *Door) broken(x *exchange) answer {
	const code, message = -32603, "Internal error"
	body, err := wire.CreateErrorResponse(x.id(), code, message, nil)
	if err != nil { // the id is one that was decoded, so there is no such case
		body = jsonrpc.NewFailure(nil, code, message, nil)
	}
	object, _ := jsonrpc.Get(body, "error")
	return answer{status: http.StatusOK, body: body, fault: object}
}

// succeed answers x with a result of our own making.
func (d *Door) succeed(x *exchange, result json.RawMessage) answer {
	body, err := wire.CreateSuccessResponse(x.id(), result)
	if err != nil {
		return d.broken(x)
	}
	return answer{status: http.StatusOK, body: body}
}

// success is the answer message that carries result as it is: what comes from
// the road has been judged, and is not read again.
func success(id, result json.RawMessage) []byte {
	return jsonrpc.OneLine(jsonrpc.NewSuccess(id, result))
}

// idOrNull gives the null that JSON-RPC wants where no id is known.
func idOrNull(id json.RawMessage) json.RawMessage {
	if id == nil {
		return json.RawMessage("null")
	}
	return id
}
