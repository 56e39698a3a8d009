package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// eras says in which revisions a method exists.
type eras uint8

const (
	withSession eras = 1 << iota // those before 2026-07-28
	stateless                    // 2026-07-28
	always      = withSession | stateless
)

// A method is one row of the dispatch table.
type method struct {
	run     func(*core, context.Context, *exchange) outcome
	in      eras
	anytime bool   // allowed before initialize; it reaches no server
	asks    bool   // without a session, its servers may ask the client
	cached  bool   // without a session, its result says how long it may be kept
	named   string // without a session, the member of params that header Mcp-Name repeats
}

// methods is every request method that is served. Any other is refused and
// recorded, but for methods of extensions: the gate knows which of those a
// server has, or the operator has named.
var methods = map[string]method{
	"initialize":               {run: (*core).initialize, in: withSession, anytime: true},
	"ping":                     {run: (*core).ping, in: withSession, anytime: true},
	"server/discover":          {run: (*core).discover, in: stateless, cached: true},
	"tools/list":               {run: (*core).listTools, in: always, cached: true},
	"tools/call":               {run: (*core).govern, in: always, asks: true, named: "name"},
	"resources/list":           {run: (*core).enumerate, in: always, cached: true},
	"resources/templates/list": {run: (*core).enumerate, in: always, cached: true},
	"resources/read":           {run: (*core).govern, in: always, asks: true, cached: true, named: "uri"},
	"resources/subscribe":      {run: (*core).subscribe, in: withSession},
	"resources/unsubscribe":    {run: (*core).govern, in: withSession},
	"resources/directory/read": {run: (*core).govern, in: always, cached: true},
	"skills/list":              {run: (*core).enumerate, in: always, cached: true},
	"skills/get":               {run: (*core).govern, in: always, cached: true},
	"prompts/list":             {run: (*core).enumerate, in: always, cached: true},
	"prompts/get":              {run: (*core).govern, in: always, asks: true, named: "name"},
	"completion/complete":      {run: (*core).govern, in: always},
	"logging/setLevel":         {run: (*core).setLevel, in: withSession},
	"tasks/get":                {run: (*core).govern, in: always, named: "taskId"},
	"tasks/update":             {run: (*core).govern, in: stateless, named: "taskId"},
	"tasks/result":             {run: (*core).govern, in: withSession},
	"tasks/list":               {run: (*core).enumerate, in: withSession},
	"tasks/cancel":             {run: (*core).govern, in: always, named: "taskId"},
	listenMethod:               {in: stateless},
}

// listenMethod opens a stream of notifications.
const listenMethod = "subscriptions/listen"

// exchange is one received message with what the door knows about its sender.
type exchange struct {
	call      proxy.Call
	denied    *proxy.Failure                   // why call.Principal is nobody, nil otherwise; HTTP only
	id        json.RawMessage                  // of the request, nil when none is known
	token     json.RawMessage                  // progressToken as the client spelled it, nil when it wants no progress
	declares  bool                             // _meta has members of the revisions without sessions
	row       method                           // what it requests
	session   *session                         // nil before initialize
	stateless *statelessRequest                // nil for a revision with sessions
	bare      statelessRequest                 // that stateless is
	versions  []string                         // the revisions that initialize may agree to, newest first
	open      func(*session) (*session, error) // keeps the session that initialize made, or gives the one it is for
	opened    *session                         // that session
	notify    func(message []byte)             // sends on the stream of this request; nil = it has none
	owned     bool                             // nobody else has its bytes
	claim     share.Claim                      // what an HTTP request holds of the budget: call.Bytes
	long      *jsonrpc.Outline                 // of a message beyond the limit, nil for any other
	began     time.Time                        // when it was received; zero when nobody observes
	ctx       context.Context                  // of the work, set by admit
	work      wait.Context                     // that ctx usually is
	gone      wait.Watcher                     // ends work when the client has gone, in some revisions
	flight    string                           // key in session's flights; "" = not entered
	crowded   bool                             // it has no room to wait

	// elsewhere answers a request whose session another replica has, or may have; nil = none does
	elsewhere func(w http.ResponseWriter, r *http.Request, body []byte)
}

// An outcome is the result of a request before it is worded for its revision.
// The zero value means that toolgate's own parts contradict each other.
type outcome struct {
	result          json.RawMessage
	complete        bool // result is one line, and has the members that its revision adds
	failure         *proxy.Failure
	code, reason    string // of a refusal by the door that is not yet recorded
	decision, trace string // in the audit trail, "" when nothing was recorded
}

// refused returns the outcome of a request that the door refuses.
func refused(code, reason string) outcome { return outcome{code: code, reason: reason} }

// unserved returns the outcome of a method that is not served.
func unserved(x *exchange) outcome {
	return refused(signal.CodeEnvelopeMethod, "method "+x.call.Message.Method+" is not served here")
}

// answer is the answer to one message.
type answer struct {
	body    []byte         // one JSON-RPC message, nil = none
	rest    net.Buffers    // of a message that begins with body; the bytes are shared
	status  int            // for HTTP
	problem *proxy.Failure // the transport's own answer in place of body over HTTP
	opened  string         // id of the session that was made
	silent  bool           // a cancelled request: the stream ends without an answer
	ended   bool           // the call that it answers does not go on
	scopes  []string       // that a token has to have over HTTP, for an answer 403

	decision, trace string          // in the audit trail, "" when nothing was recorded
	fault           json.RawMessage // what body says went wrong, nil = nothing did
}

// isCall reports whether x wants a tool called, however malformed.
func (x *exchange) isCall() bool {
	return x.call.Message != nil && x.call.Message.Method == "tools/call"
}

// mayNotify reports whether messages may be sent before the answer to x: the
// client wants progress or log messages, a server may ask it, or messages wait
// for it. x may have no session.
func (x *exchange) mayNotify() bool {
	s := x.session
	switch {
	case x.stateless != nil:
		return x.token != nil || x.call.Level != ""
	case s == nil || x.row.anytime || x.call.Message == nil || x.call.Message.Kind != jsonrpc.Request:
		return false
	}
	return x.token != nil || s.mayBeNotified || s.streams.Waiting.Load() || *s.level.Load() != ""
}

// authenticate stores the credential of r, shown at a resource, and its principal in x, or
// returns why there is none. A nil r keeps the credential that x has.
func (c *core) authenticate(x *exchange, r *http.Request, at identity.Resource) *proxy.Failure {
	if r != nil {
		x.call.Credential = identity.FromRequest(r, at)
	}
	who, f := c.opts.Gate.Identify(c.base, x.call.Credential)
	switch {
	case f != nil:
		return f
	case who.Valid() && !x.call.Credential.Malformed:
		x.call.Principal = who
		return nil
	}
	const reason = "missing or unknown bearer token"
	kernel, _ := signal.ErrorFor(signal.CodeUnauthenticated, reason, door, nil, nil) // the code has a row
	return &proxy.Failure{Kernel: kernel, Reason: reason}
}

// door is the source of the errors that the door itself finds.
var door = signal.ModuleRef{Tier: 0, Module: "gateway", Function: "identify"}

// refuseUnauthenticated refuses a request without a principal. Only tool calls
// are recorded: an anonymous flood of anything else leaves no trace.
func (c *core) refuseUnauthenticated(x *exchange, f *proxy.Failure) answer {
	if !x.isCall() {
		return c.failed(x, f)
	}
	return c.refuse(x, f.Kernel.Code, f.Reason)
}

// admit does everything about x that must happen in order of arrival:
// notifications, answers and faults are served whole (done is true); a request
// is looked up and registered in its session. If done is false the caller must
// run x.
func (s *sessionServer) admit(x *exchange) (a answer, done bool) {
	m := x.call.Message
	switch {
	case m == nil:
		x.session.failQuestion(x.id)
		return s.refuseFault(x), true
	case m.Kind == jsonrpc.Notification:
		return s.takeNotification(x), true
	case m.Kind != jsonrpc.Request:
		return s.takeAnswer(x), true
	case x.row.in&withSession != 0:
	case x.session != nil && x.call.Route != "" && s.opts.Relayer != nil:
		x.row = method{run: (*core).govern} // of an extension, perhaps
	default:
		return s.answerTo(x, unserved(x)), true
	}
	switch {
	case !x.row.anytime && x.session == nil:
		return s.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusBadRequest, "no session: send initialize first, then show its session id"), true
	case x.session == nil || m.Method == "initialize":
		x.ctx = s.base
		return answer{}, false
	}
	key := m.Key
	err := x.session.begin(s.base, key, &x.work)
	switch {
	case errors.Is(err, errEnded):
		return s.refuse(x, signal.CodeSessionLost, "the session has ended"), true
	case err != nil:
		return s.refuse(x, signal.CodeEnvelopeInvalid, err.Error()), true
	}
	x.ctx, x.flight, x.call.Cancel = &x.work, key, &x.work
	return answer{}, false
}

// run serves an admitted request. A panic ends that request only.
func (s *sessionServer) run(x *exchange) (a answer) {
	if x.flight != "" {
		defer func() { x.session.finish(x.flight, s.opts.Now()) }()
	}
	defer func() {
		if fault := recover(); fault != nil {
			s.logPanic(x, fault)
			a = s.broken(x)
		}
	}()
	if x.token != nil {
		if x.notify != nil {
			x.call.Progress = progress(x.notify, x.token)
		}
		if x.session != nil {
			peer := x.session.peer // the task may live for a day, and x need not
			x.call.Later = progress(func(message []byte) { peer.send(eventlog.Message{Text: message}) }, x.token)
		}
	}
	if x.crowded || x.ctx.Err() != nil {
		a = s.refuseUnbegun(x.ctx, x)
	} else {
		a = s.answerTo(x, x.row.run(s.core, x.ctx, x))
	}
	if errors.Is(context.Cause(x.ctx), errCancelled) {
		return answer{silent: true, status: http.StatusAccepted, decision: a.decision, trace: a.trace}
	}
	a.ended = true
	return a
}

// logPanic logs a panic in the work of x.
func (c *core) logPanic(x *exchange, fault any) {
	c.opts.Log.Error("panic in the mcp door", "method", x.call.Message.Method, "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
}

// accept admits x, for clients that accept answers in any order. It returns the work
// that is left, nil when x is served. reply is called once, by accept or by the work.
func (s *sessionServer) accept(x *exchange, reply func(answer)) (work func()) {
	settle := func(a answer) {
		s.observe(x, a)
		reply(a)
	}
	a, done := s.admit(x)
	if !done && x.flight == "" { // initialize and what came before it keep their order
		a, done = s.run(x), true
	}
	if done {
		settle(a)
		return nil
	}
	return func() { settle(s.run(x)) }
}

// refuseUnbegun refuses x, which was admitted and had no room to wait, or whose ctx ended while it
// waited.
func (c *core) refuseUnbegun(ctx context.Context, x *exchange) answer {
	switch {
	case x.crowded:
		return c.refuse(x, signal.CodeOverloaded, "too many requests of this client wait")
	case errors.Is(context.Cause(ctx), proxy.ErrShutdown):
		return c.refuse(x, signal.CodeUpstreamUnavailable, "toolgate is shutting down; the request waited, and nothing was sent")
	}
	return c.refuse(x, signal.CodeCancelled, "the request was cancelled while it waited")
}

// govern passes x to the gate, which alone judges it. A request that calls no
// tool needs a Relayer.
func (c *core) govern(ctx context.Context, x *exchange) outcome {
	road := c.opts.Gate.Call
	if x.call.Message.Method != "tools/call" {
		if c.opts.Relayer == nil {
			return unserved(x)
		}
		road = c.opts.Relayer.Relay
	}
	reply, failure := road(ctx, &x.call)
	if failure != nil || reply == nil { // without either, the gate is broken
		return outcome{failure: failure}
	}
	return outcome{result: reply.Result, decision: reply.DecisionID, trace: reply.TraceID}
}

// enumerate returns one page of a list as the principal may see it. The page,
// its cursor included, is the upstream's.
func (c *core) enumerate(ctx context.Context, x *exchange) outcome {
	if c.opts.Relayer == nil {
		return unserved(x)
	}
	result, failure := c.opts.Relayer.Enumerate(ctx, &x.call, x.call.Principal)
	if failure != nil && (failure.Kernel.Code == signal.CodeEnvelopeMethod || failure.Kernel.Code == signal.CodeStopped) {
		return refused(failure.Kernel.Code, failure.Reason) // recorded, as for any method that is not served
	}
	return outcome{result: result, failure: failure}
}

// setLevel stores the least severe level of log messages that the client wants,
// if the road allows it. The level goes with every later request; the server of
// a single-server route gets it at once.
func (c *core) setLevel(ctx context.Context, x *exchange) outcome {
	level, _ := x.call.Message.TextParam("level")
	switch {
	case c.opts.Relayer == nil:
		return unserved(x)
	case !slices.Contains(proxy.Levels, level):
		return refused(signal.CodeEnvelopeParams, "params.level is not one of "+strings.Join(proxy.Levels, ", "))
	}
	c.opts.Deprecated("logging")
	x.call.Level = level
	o := c.govern(ctx, x)
	if o.result != nil {
		x.session.level.Store(&level)
		x.session.keep()
	}
	return o
}

// ping answers the client's liveness check. It is never limited.
func (c *core) ping(context.Context, *exchange) outcome {
	return outcome{result: json.RawMessage(`{}`)}
}

// takeNotification serves a notification. A notification that names a request
// method is a call without an id: it is refused, never run and never dropped in
// silence.
func (c *core) takeNotification(x *exchange) answer {
	switch name := x.call.Message.Method; {
	case !strings.HasPrefix(name, "notifications/"):
		return c.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusBadRequest, "method "+name+" is no notification: it needs an id")
	case name == "notifications/initialized": // the transports see to it
	case x.session == nil:
	case name == "notifications/cancelled":
		x.session.cancelRequest(x.call.Message)
	case name == "notifications/progress":
		x.session.takeProgress(x.call.Message.Params)
	case c.opts.Notifier != nil:
		if f := c.opts.Notifier.Notify(c.base, &x.call); f != nil {
			c.opts.Log.Debug("a notification is not passed on", "method", name, "session", x.call.Session, "reason", f.Reason)
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

// cancelRequest cancels the request that a notification names, if it is in flight
// in the same session.
func (s *session) cancelRequest(m *jsonrpc.Message) {
	if id, ok := m.Param("requestId"); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		if work, ok := s.flights[jsonrpc.Key(id)]; ok {
			reason, _ := m.TextParam("reason")
			work.End(cancelled{text.Clip(reason, maxReasonBytes, "...")})
		}
	}
}

// answerTo puts o into the words of x's revision. Results of the road have been
// checked already and pass unchanged.
func (c *core) answerTo(x *exchange, o outcome) answer {
	switch {
	case o.code != "":
		return x.withStatus(c.refuse(x, o.code, o.reason))
	case o.failure != nil && x.stateless != nil:
		return c.statelessFailure(x, o.failure)
	case o.failure != nil:
		return c.failed(x, o.failure)
	}
	a, ok := answer{status: http.StatusOK, decision: o.decision, trace: o.trace}, o.result != nil
	switch {
	case len(o.result) >= largeResult:
		a.body, a.rest, ok = c.largeMessage(x, o)
	case o.complete:
		a.body = jsonrpc.NewSuccess(x.id, o.result)
	case x.stateless != nil:
		a.body, ok = c.completedMessage(x, o.result)
	default:
		a.body = jsonrpc.NewSuccess(x.id, jsonrpc.OneLine(o.result))
	}
	if !ok { // fails closed
		return c.broken(x)
	}
	if x.opened != nil {
		a.opened = x.opened.id
	}
	return a
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

// refuseAs is refuse with an HTTP status of its own.
func (c *core) refuseAs(x *exchange, code string, status int, reason string) answer {
	a := c.refuse(x, code, reason)
	a.status = status
	return a
}

// failed returns the answer for f in the error dialect of x's route. On /mcp and stdio
// the dialect that f.Errors names takes precedence.
// Authentication failures and lost sessions also have an HTTP status and body of
// their own.
func (c *core) failed(x *exchange, f *proxy.Failure) answer {
	if x.call.Route != "" {
		return c.failedAs(wire.MCP, x, f)
	}
	if own := wire.Dialect(f.Errors); own.Valid() {
		return c.failedAs(own, x, f)
	}
	return c.failedAs(c.opts.Errors, x, f)
}

// failedAs is failed in a given dialect.
func (c *core) failedAs(dialect wire.Dialect, x *exchange, f *proxy.Failure) answer {
	reply, err := wire.Answer(dialect, wire.Failure(*f))
	if err != nil {
		return c.broken(x)
	}
	a := answer{status: http.StatusOK, silent: reply.Silent, decision: f.DecisionID, trace: f.TraceID}
	switch f.Kernel.Code {
	case signal.CodeUnauthenticated, signal.CodeSessionLost:
		a.status, a.problem = reply.HTTP, f
	}
	if f.Scopes != nil && x.call.Transport == "http" {
		a.status, a.scopes = http.StatusForbidden, f.Scopes
	}
	switch {
	case reply.Result != nil: // with data that stands for an error object
		a.fault, _ = jsonrpc.At(reply.Result, "_meta", wire.MetaError)
		a.body = jsonrpc.OneLine(jsonrpc.NewSuccess(x.id, reply.Result))
	case reply.Error != nil:
		a.body, a.fault = errorBody(x, reply.Error), reply.Error
	}
	return a
}

// errorBody returns the response to x that carries an error object.
func errorBody(x *exchange, object json.RawMessage) []byte {
	return jsonrpc.OneLine(jsonrpc.NewFailureObject(x.id, object))
}

// broken answers x with INTERNAL_ERROR when our tables or the gate contradict
// themselves.
func (c *core) broken(x *exchange) answer {
	body, _ := wire.CreateErrorResponse(x.id, -32603, "Internal error", nil) // fails for no id that was decoded
	return answer{status: http.StatusOK, body: body, fault: wire.Internal}
}

// cursorPrefix marks toolgate's own cursors. The rest is the name of the last
// tool of the previous page, so that a list that changed meanwhile continues
// where it was left, or is refused when that tool is gone.
const cursorPrefix = "after:"

// staleCursor refuses a cursor that names no place in the list.
const staleCursor = "the cursor is none of ours or the list has changed: list again from the start"

// listTools returns one page of what the principal may see. The definitions are
// the upstreams' own bytes.
func (c *core) listTools(ctx context.Context, x *exchange) outcome {
	l, at := c.opts.Gate.Listing(ctx, &x.call, x.call.Principal), 0
	if raw, ok := x.call.Message.Param("cursor"); ok {
		if at = cursorPlace(raw, l.Tools, x.call.Route); at == 0 {
			return refused(signal.CodeEnvelopeParams, staleCursor)
		}
	}
	key := pageKey{door: c, at: at, stateless: x.stateless != nil}
	return outcome{result: l.Page(key, func() []byte { return jsonrpc.OneLine(c.page(x, l.Tools, at)) }), complete: true}
}

// pageKey names a page among those of one list.
type pageKey struct {
	door      *core
	at        int // place of its first tool
	stateless bool
}

// page returns the result of tools/list, in the words of x's revision, whose first
// tool is tools[at].
func (c *core) page(x *exchange, tools []*registry.Tool, at int) []byte {
	const begin = `{"tools":[`
	frame := json.RawMessage(begin + `]}`)
	tools = tools[at:]
	if len(tools) > c.opts.PageSize {
		tools = tools[:c.opts.PageSize]
		frame = fmt.Appendf(nil, begin+`],"nextCursor":%q}`, cursorAfter(shownName(tools[len(tools)-1], x.call.Route)))
	}
	if x.stateless != nil {
		frame, _ = c.completeResult(frame, x.row, c.serverInfo) // false for no result of ours
	}
	size := len(frame) + len(tools)
	for _, t := range tools {
		size += len(shownDefinition(t, x.call.Route))
	}
	out := append(make([]byte, 0, size), begin...)
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, shownDefinition(t, x.call.Route)...)
	}
	return append(out, frame[len(begin):]...)
}

// shownDefinition returns the definition of t as route lists it.
func shownDefinition(t *registry.Tool, route string) json.RawMessage {
	if route == "" {
		return t.Listed
	}
	return t.Definition
}

// shownName returns the name of t as route lists it.
func shownName(t *registry.Tool, route string) string {
	if route == "" {
		return t.Exposed
	}
	return t.Name
}

// cursorAfter returns the cursor of the page that follows the tool name.
func cursorAfter(name string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + name))
}

// cursorPlace returns the index at which the page of the cursor raw starts, 0
// when raw is not a cursor of tools.
func cursorPlace(raw json.RawMessage, tools []*registry.Tool, route string) int {
	cursor, _ := jsonrpc.Text(raw)
	plain, _ := base64.RawURLEncoding.DecodeString(cursor)
	name := strings.TrimPrefix(string(plain), cursorPrefix)
	if cursor != cursorAfter(name) {
		return 0
	}
	return 1 + slices.IndexFunc(tools, func(t *registry.Tool) bool { return shownName(t, route) == name })
}
