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
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// methodRow is one row of the dispatch table.
type methodRow struct {
	handle  func(*sessionServer, *exchange) answer
	session bool // refused before initialize
	reaches bool // a server, which may ask and tell before it answers
}

// requests is every request method that is served. What has no row is refused
// and recorded: a method is never passed on because nobody thought of it.
var requests = map[string]methodRow{
	"initialize": {handle: (*sessionServer).initialize},
	"ping":       {handle: (*sessionServer).ping},
	"tools/list": {handle: (*sessionServer).listTools, session: true, reaches: true},
	"tools/call": {handle: (*sessionServer).govern, session: true, reaches: true},

	"resources/list":           {handle: (*sessionServer).enumerate, session: true, reaches: true},
	"resources/templates/list": {handle: (*sessionServer).enumerate, session: true, reaches: true},
	"resources/read":           {handle: (*sessionServer).govern, session: true, reaches: true},
	"resources/subscribe":      {handle: (*sessionServer).govern, session: true, reaches: true},
	"resources/unsubscribe":    {handle: (*sessionServer).govern, session: true, reaches: true},
	"prompts/list":             {handle: (*sessionServer).enumerate, session: true, reaches: true},
	"prompts/get":              {handle: (*sessionServer).govern, session: true, reaches: true},
	"completion/complete":      {handle: (*sessionServer).govern, session: true, reaches: true},
	"logging/setLevel":         {handle: (*sessionServer).setLevel, session: true, reaches: true},
	"tasks/get":                {handle: (*sessionServer).govern, session: true, reaches: true},
	"tasks/result":             {handle: (*sessionServer).govern, session: true, reaches: true},
	"tasks/list":               {handle: (*sessionServer).enumerate, session: true, reaches: true},
	"tasks/cancel":             {handle: (*sessionServer).govern, session: true, reaches: true},
}

// extension is the row of a method that is not of the protocol: on the road of
// one server the gate knows whether that server has it.
var extension = methodRow{handle: (*sessionServer).govern, session: true, reaches: true}

// rowFor returns the row of the method that x requests.
func (s *sessionServer) rowFor(x *exchange) (methodRow, bool) {
	r, ok := requests[x.call.Message.Method]
	if !ok && x.session != nil && x.call.Route != "" && s.opts.Relayer != nil {
		return extension, true
	}
	return r, ok
}

// mayNotify reports whether x is a request during which messages may be sent
// before its answer: the client wants progress or log messages, a server may ask
// it, or messages wait for it. x may have no session.
func (s *sessionServer) mayNotify(x *exchange) bool {
	if x.call.Message == nil || x.call.Message.Kind != jsonrpc.Request || x.session == nil {
		return false
	}
	r, ok := s.rowFor(x)
	if !ok || !r.reaches {
		return false
	}
	return x.token != nil || x.session.mayBeNotified || x.session.streams.waiting.Load() || *x.session.level.Load() != ""
}

// doorNotifications is every notification that the door itself understands. Others under
// "notifications/" are for servers, if there is a Notifier.
var doorNotifications = map[string]func(*exchange){
	"notifications/cancelled":   (*exchange).cancelRequest,
	"notifications/progress":    (*exchange).takeProgress,
	"notifications/initialized": func(*exchange) {}, // the transports see to it
}

// exchange is one received message with what the door knows about its sender.
type exchange struct {
	call      proxy.Call
	who       policy.Principal
	id        json.RawMessage                  // of the request, nil when none is known
	token     json.RawMessage                  // progressToken as the client spelled it, nil when it wants no progress
	declares  bool                             // _meta has members of the revisions without sessions
	session   *session                         // nil before initialize
	stateless *statelessRequest                // nil for a revision with sessions
	versions  []string                         // the revisions that initialize may agree to, newest first
	open      func(*session) (*session, error) // keeps the session that initialize made, or gives the one it is for
	notify    func(message []byte)             // sends on the stream of this request; nil = it has none
	began     time.Time                        // when it was received; zero when nobody observes
	opened    string                           // key of the session that initialize made

	row    methodRow       // what it asks for, set by admit
	ctx    context.Context // of the work, set by admit
	flight string          // key in session's flights; "" = not entered
}

// answer is the outcome of one message.
type answer struct {
	body    []byte         // one JSON-RPC message, nil = none
	status  int            // for HTTP
	problem *proxy.Failure // the transport's own answer in place of body over HTTP
	opened  string         // id of the session that was made
	silent  bool           // a cancelled request: the stream ends without an answer

	decision, trace string          // in the audit trail, "" when nothing was recorded
	fault           json.RawMessage // what body says went wrong, nil = nothing did
}

// isCall reports whether x wants a tool called, however malformed.
func (x *exchange) isCall() bool {
	return x.call.Message != nil && x.call.Message.Method == "tools/call"
}

// authFailure says why no principal was identified.
type authFailure struct {
	code, reason string
	given        *proxy.Failure // as the gate put it, nil when the door refuses
}

// authenticate stores the credential of h and its principal in x, or returns why
// there is none. A nil h keeps the credential that x has.
func (c *core) authenticate(x *exchange, h http.Header) *authFailure {
	if h != nil {
		shown, ok := identity.FromHeader(h)
		if !ok {
			return &authFailure{code: signal.CodeUnauthenticated, reason: "the Authorization header is not one bearer token"}
		}
		x.call.Credential = shown
	}
	who, f := c.opts.Gate.Identify(c.base, x.call.Credential)
	switch {
	case f != nil:
		return &authFailure{code: f.Kernel.Code, reason: f.Reason, given: f}
	case !who.Valid():
		return &authFailure{code: signal.CodeUnauthenticated, reason: "missing or unknown bearer token"}
	}
	x.who, x.call.Principal = who, who
	return nil
}

// refuseUnauthenticated refuses a request without a principal. Only tool calls
// are recorded: an anonymous flood of anything else leaves no trace.
func (c *core) refuseUnauthenticated(x *exchange, s *authFailure) answer {
	if s.given != nil && !x.isCall() {
		return c.failed(x, s.given)
	}
	return c.refuse(x, s.code, s.reason)
}

// serveAsync admits x and runs it through spawn, for clients that accept
// answers in any order. At most MaxFlights requests run at a time, counted in
// flying. reply is called once.
func (s *sessionServer) serveAsync(x *exchange, flying *atomic.Int64, spawn func(func()), reply func(answer)) {
	if a, done := s.admitCounted(x, flying); done {
		reply(a)
		return
	}
	spawn(func() {
		defer flying.Add(-1)
		reply(s.run(x))
	})
}

// admitCounted is admit for serveAsync. If done is false, flying counts x, and
// the caller must run x and then decrement flying.
func (s *sessionServer) admitCounted(x *exchange, flying *atomic.Int64) (a answer, done bool) {
	if flying.Load() >= int64(s.opts.MaxFlights) && x.isCall() {
		return s.refuse(x, signal.CodeOverloaded, "too many calls of this client are in flight"), true
	}
	a, done = s.admit(x)
	switch {
	case done:
		return a, true
	case x.flight == "": // initialize and what came before it keep their order
		return s.run(x), true
	}
	flying.Add(1)
	return answer{}, false
}

// admit does everything about x that must happen in order of arrival:
// notifications, answers and faults are served whole (done is true); a request
// is looked up and registered in its session. If done is false the caller must
// run x.
func (s *sessionServer) admit(x *exchange) (a answer, done bool) {
	if x.call.Message == nil {
		x.session.failQuestion(x.id)
		return s.refuseFault(x), true
	}
	switch x.call.Message.Kind {
	case jsonrpc.Request:
	case jsonrpc.Notification:
		return s.takeNotification(x), true
	default:
		return s.takeAnswer(x), true
	}
	method := x.call.Message.Method
	r, ok := s.rowFor(x)
	x.row = r
	switch {
	case !ok:
		return s.refuse(x, signal.CodeEnvelopeMethod, "method "+method+" is not served here"), true
	case r.session && x.session == nil:
		a := s.refuse(x, signal.CodeEnvelopeInvalid, "no session: send initialize first, then show its session id")
		a.status = http.StatusBadRequest
		return a, true
	case x.session == nil || method == "initialize":
		x.ctx = s.base
		return answer{}, false
	}
	key := jsonrpc.Key(x.id)
	ctx, err := x.session.begin(s.base, key)
	switch {
	case errors.Is(err, errEnded):
		return s.refuse(x, signal.CodeSessionLost, "the session has ended"), true
	case err != nil:
		return s.refuse(x, signal.CodeEnvelopeInvalid, err.Error()), true
	}
	x.ctx, x.flight = ctx, key
	return answer{}, false
}

// run serves an admitted request. A panic ends that request only.
func (s *sessionServer) run(x *exchange) (a answer) {
	if x.flight != "" {
		defer x.session.finish(x.flight)
	}
	defer func() {
		if r := recover(); r != nil {
			s.opts.Log.Error("panic in the mcp door", "method", x.call.Message.Method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			a = s.broken(x)
		}
	}()
	a = x.row.handle(s, x)
	if errors.Is(context.Cause(x.ctx), errCancelled) {
		return answer{silent: true, status: http.StatusAccepted, decision: a.decision, trace: a.trace}
	}
	return a
}

// govern passes x to the gate, which alone judges it, and returns its answer. A
// request that calls no tool needs a Relayer.
func (s *sessionServer) govern(x *exchange) answer {
	road := s.opts.Gate.Call
	switch {
	case x.isCall():
	case s.opts.Relayer == nil:
		return s.refuseUnserved(x)
	default:
		road = s.opts.Relayer.Relay
	}
	if x.token != nil {
		if x.notify != nil {
			x.call.Progress = progress(x.notify, x.token)
		}
		if x.session != nil {
			x.call.Later = progress(func(message []byte) { x.session.peer.send(outgoing{message: message}) }, x.token)
		}
	}
	reply, failure := road(x.ctx, &x.call)
	switch {
	case failure != nil:
		return s.failed(x, failure)
	case reply == nil: // fails closed: a gate that says nothing is broken
		return s.broken(x)
	}
	return answer{
		status: http.StatusOK, body: success(x.id, reply.Result),
		decision: reply.DecisionID, trace: reply.TraceID,
	}
}

// takeNotification serves a notification. A notification that names a request
// method is a call without an id: it is refused, never run and never dropped in
// silence.
func (c *core) takeNotification(x *exchange) answer {
	method := x.call.Message.Method
	if take, ok := doorNotifications[method]; ok {
		take(x)
	} else if !strings.HasPrefix(method, "notifications/") {
		a := c.refuse(x, signal.CodeEnvelopeInvalid, "method "+method+" is no notification: it needs an id")
		a.status = http.StatusBadRequest
		return a
	} else if x.session != nil && c.opts.Notifier != nil {
		if f := c.opts.Notifier.Notify(c.base, &x.call); f != nil {
			c.opts.Log.Debug("a notification is not passed on", "method", method, "session", x.call.Session, "reason", f.Reason)
		}
	}
	return answer{status: http.StatusAccepted}
}

// takeAnswer accepts an answer. It drops and counts an answer that matches no
// open question.
func (s *sessionServer) takeAnswer(x *exchange) answer {
	if !x.session.takeAnswer(x.call.Message) {
		s.opts.Log.Debug("an answer to nothing that waits for one", "session", x.call.Session, "so far", s.unmatched.Add(1))
	}
	return answer{status: http.StatusAccepted}
}

// takeProgress accepts progress that the client reports about a question.
func (x *exchange) takeProgress() {
	if x.session != nil {
		x.session.takeProgress(x.call.Message.Params)
	}
}

// cancelRequest cancels the request that the notification x names, if it is in
// flight in the same session.
func (x *exchange) cancelRequest() {
	if x.session == nil {
		return
	}
	if id, ok := x.call.Message.Param("requestId"); ok {
		x.session.abort(jsonrpc.Key(id))
	}
}

// refuseFault answers bytes that are not a message. The gate refuses and
// records them like a call. Over HTTP a refusal whose request id could be read
// is answered with 200, like any other refusal.
func (c *core) refuseFault(x *exchange) answer {
	_, failure := c.opts.Gate.Call(c.base, &x.call)
	if failure == nil { // fails closed: a gate that lets no message pass is broken
		return c.broken(x)
	}
	a := c.failed(x, failure)
	if a.problem == nil && x.id == nil {
		a.status = http.StatusBadRequest // no request at all; with an id, clients would drop the body of a 400
	}
	return a
}

// refuse answers x with the refusal code and records it.
func (c *core) refuse(x *exchange, code, reason string) answer {
	return c.failed(x, c.opts.Refuser.Refuse(c.base, &x.call, code, reason))
}

// failed returns the answer for f in the error dialect of x's route. Authentication failures
// and lost sessions also have an HTTP status and body of their own.
func (c *core) failed(x *exchange, f *proxy.Failure) answer {
	if x.call.Route != "" {
		return c.failedAs(wire.MCP, x, f)
	}
	return c.failedAs(c.opts.Errors, x, f)
}

// failedAs is failed in a given dialect.
func (c *core) failedAs(dialect wire.Dialect, x *exchange, f *proxy.Failure) answer {
	reply, err := wire.Answer(dialect, wire.Failure(*f))
	if err != nil {
		return c.broken(x)
	}
	a := answer{status: http.StatusOK, silent: reply.Silent, decision: f.DecisionID, trace: f.TraceID, fault: faultOf(reply)}
	switch f.Kernel.Code {
	case signal.CodeUnauthenticated, signal.CodeSessionLost:
		a.status, a.problem = reply.HTTP, f
	}
	switch {
	case reply.Result != nil:
		a.body = success(x.id, reply.Result)
	case reply.Error != nil:
		a.body = jsonrpc.OneLine(jsonrpc.NewFailureObject(idOrNull(x.id), reply.Error))
	}
	return a
}

// broken answers x with INTERNAL_ERROR when our tables or the gate contradict
// themselves.
func (c *core) broken(x *exchange) answer {
	const code, message = -32603, "Internal error"
	body, err := wire.CreateErrorResponse(x.id, code, message, nil)
	if err != nil { // the id is one that was decoded, so there is no such case
		body = jsonrpc.NewFailure(nil, code, message, nil)
	}
	object, _ := jsonrpc.Get(body, "error")
	return answer{status: http.StatusOK, body: body, fault: object}
}

// succeed answers x with a result that the door made.
func (c *core) succeed(x *exchange, result json.RawMessage) answer {
	body, err := wire.CreateSuccessResponse(x.id, result)
	if err != nil {
		return c.broken(x)
	}
	return answer{status: http.StatusOK, body: body}
}

// success returns the response message that carries result unchanged: results
// of the road have been checked already.
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
