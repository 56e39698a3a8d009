package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// statelessVersion is the first revision without sessions: each request names
// its client, revision and capabilities in params._meta.
const statelessVersion = "2026-07-28"

// Keys of _meta that belong to this hop (MCP 2026-07-28, base protocol).
const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// statelessRequest holds the members of a 2026-07-28 request that concern only
// the client and this door.
type statelessRequest struct {
	group     *clientGroup    // on whose account it is; nil until it is admitted
	state     json.RawMessage // params.requestState, nil = none
	responses json.RawMessage // params.inputResponses, nil = none
}

// admitStateless checks x up to its client group. h is nil on transports
// without headers. If ok is false, a answers x.
func (s *statelessServer) admitStateless(ctx context.Context, x *exchange, h http.Header) (a answer, ok bool) {
	m := x.call.Message
	x.stateless = &x.bare
	x.call.Era = statelessVersion
	switch {
	case m == nil:
		a = s.refuseFault(x)
		if a.problem == nil {
			a.status = http.StatusBadRequest
		}
		return x.withoutNull(a), false
	case m.Kind == jsonrpc.Notification:
		return x.withoutNull(s.takeNotification(x)), false
	case m.Kind != jsonrpc.Request:
		return s.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusBadRequest, "answers are given as inputResponses of a request"), false
	}
	if a, ok := s.checkRevision(x, h); !ok {
		return a, false
	}
	if fault := x.readClient(); fault != "" {
		return s.refuseAs(x, signal.CodeEnvelopeParams, http.StatusBadRequest, fault), false
	}
	if x.call.Level != "" {
		s.opts.Deprecated("logging")
	}
	return s.checkRequest(ctx, x, h)
}

// checkRevision refuses a revision that is not served, and a header that
// contradicts the body.
func (s *statelessServer) checkRevision(x *exchange, h http.Header) (answer, bool) {
	raw, said := x.call.Message.Param("_meta", metaVersion)
	if lines := h[headerVersion]; len(lines) == 1 && lines[0] == statelessVersion && string(raw) == `"`+statelessVersion+`"` {
		return answer{}, true
	}
	wanted, isText := jsonrpc.Text(raw)
	if h != nil && said == isText {
		if lines := h[headerVersion]; !said && len(lines) == 1 {
			wanted, isText = lines[0], true
		} else if fault := paramheader.CheckText(h, headerVersion, wanted, false); fault != "" {
			return s.refuseAs(x, signal.CodeHeaderMismatch, http.StatusBadRequest, fault), false
		}
	}
	if wanted == statelessVersion || !isText {
		return answer{}, true // introduce says what is missing
	}
	a := s.refuseAs(x, signal.CodeEnvelopeVersion, http.StatusBadRequest, "revision "+wanted+" is not served without a session")
	supported := s.supported(x)
	if slices.Contains(x.versions, wanted) {
		supported = quoted(statelessVersion)
	}
	return x.withData(x.withData(a, "supported", supported), "requested", jsonrpc.Quote(wanted)), false
}

// supported is the list of the revisions served, newest first.
func (c *core) supported(x *exchange) json.RawMessage {
	return quoted(append([]string{statelessVersion}, x.versions...)...)
}

// quoted returns texts as a JSON array.
func quoted(texts ...string) json.RawMessage {
	out, _ := jsonv2.Marshal(texts, jsontext.AllowInvalidUTF8(true)) // cannot fail
	return out
}

// readClient reads what _meta says about the client. It returns what is
// missing, "" when nothing is.
func (x *exchange) readClient() string {
	m := x.call.Message
	if version, _ := m.Param("_meta", metaVersion); !isText(version) {
		return "_meta needs " + metaVersion + ", a string"
	}
	capabilities, _ := m.Param("_meta", metaCapabilities)
	if !isObject(capabilities) {
		return "_meta needs " + metaCapabilities + ", an object"
	}
	if raw, ok := m.Param("_meta", metaLevel); ok {
		level, _ := jsonrpc.Text(raw)
		if !slices.Contains(proxy.Levels, level) {
			return metaLevel + " is no log level"
		}
		x.call.Level = level
	}
	x.call.Capabilities = capabilities
	meta, _ := m.Param("_meta")
	x.call.Client, x.call.ClientInfo = nameOf(meta, metaClient), clientInfo(meta, metaClient)
	return ""
}

// extractAnswers moves requestState and inputResponses from params into x: they
// concern only the client and this door. It returns what is wrong with them, ""
// when nothing is.
func (x *exchange) extractAnswers() string {
	m := x.call.Message
	for _, member := range []struct {
		name string
		to   *json.RawMessage
		ok   func(json.RawMessage) bool
		want string
	}{
		{"requestState", &x.stateless.state, isText, "a string"},
		{"inputResponses", &x.stateless.responses, isAnswers, "an object of objects"},
	} {
		raw, _ := m.Param(member.name)
		if raw == nil {
			continue
		}
		if !member.ok(raw) {
			return "params." + member.name + " must be " + member.want
		}
		left, err := jsonrpc.Delete(m.Params, member.name)
		if err != nil {
			return "params cannot be read"
		}
		*member.to = raw
		without := *m
		without.SetParams(left)
		m, x.call.Message = &without, &without
	}
	return ""
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

func isText(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// isAnswers reports whether raw is an object of results.
func isAnswers(raw json.RawMessage) bool {
	for _, result := range jsonrpc.Members(raw) {
		if !isObject(result) {
			return false
		}
	}
	return isObject(raw)
}

// checkRequest refuses a method that is not served and headers that contradict
// the body.
func (s *statelessServer) checkRequest(ctx context.Context, x *exchange, h http.Header) (answer, bool) {
	m := x.call.Message
	ok := s.findRow(x)
	name := ""
	if h != nil {
		var fault string
		if name, fault = standardFault(h, m, x.row.named); fault != "" {
			return s.refuseAs(x, signal.CodeHeaderMismatch, http.StatusBadRequest, fault), false
		}
	}
	if !ok {
		return s.refuseAs(x, signal.CodeEnvelopeMethod, http.StatusNotFound, "method "+m.Method+" is not served in revision "+statelessVersion), false
	}
	if a, ok := s.ownTask(x); !ok {
		return a, false
	}
	if x.row.asks {
		if fault := x.extractAnswers(); fault != "" {
			return s.refuse(x, signal.CodeEnvelopeParams, fault), false
		}
	}
	g := s.groups.enter(x.call.Principal, x.call.Client, x.call.Route, x.call.Capabilities)
	if g == nil {
		return s.refuse(x, signal.CodeOverloaded, "too many clients are at work"), false
	}
	x.stateless.group = g
	x.call.Session, x.call.Home = g.key, g
	if s.opts.PassOn != nil {
		x.call.TaskID = func(id string) string { return s.signer.taskID(id, s.opts.Replica, x.call.Principal) }
	}
	return s.checkArgumentHeaders(ctx, x, h, name)
}

// find gives the tool that the sender of x sees under name, nil for none.
func (s *statelessServer) find(ctx context.Context, x *exchange, name string) *registry.Tool {
	if f, ok := s.opts.Gate.(Finder); ok {
		return f.Find(ctx, &x.call, x.call.Principal, name)
	}
	tools := s.opts.Gate.Listing(ctx, &x.call, x.call.Principal).Tools
	if i := slices.IndexFunc(tools, func(t *registry.Tool) bool { return shownName(t, x.call.Route) == name }); i >= 0 {
		return tools[i]
	}
	return nil
}

// checkArgumentHeaders refuses x unless its headers repeat the arguments that
// the definition of the tool name names. A tool that the caller does not see names none.
func (s *statelessServer) checkArgumentHeaders(ctx context.Context, x *exchange, h http.Header, name string) (answer, bool) {
	if h == nil || !x.isCall() {
		return answer{}, true
	}
	t := s.find(ctx, x, name)
	if t == nil {
		return answer{}, true
	}
	args, _ := x.call.Message.Param("arguments")
	bound, _ := paramheader.Parameters(t.Definition) // an invalid annotation binds nothing
	if fault := paramheader.Check(h, bound, args); fault != "" {
		s.groups.leave(x.stateless.group)
		return s.refuseAs(x, signal.CodeHeaderMismatch, http.StatusBadRequest, fault), false
	}
	return answer{}, true
}

// findRow sets the row of x and reports whether its method is served. A method
// without a row may belong to an extension: the road knows which of those the
// operator has named and refuses any other.
func (s *statelessServer) findRow(x *exchange) bool {
	switch {
	case x.row.in&stateless != 0:
		return true
	case s.opts.Relayer == nil || x.row.in != 0: // the revision removed it
		return false
	}
	x.row = method{run: (*core).govern}
	return true
}

// withoutNull removes the id from an error that answers no readable id: in this
// revision an id is a string or a number.
func (x *exchange) withoutNull(a answer) answer {
	if x.id == nil && a.body != nil {
		if body, err := jsonrpc.Delete(a.body, "id"); err == nil {
			a.body = body
		}
	}
	return a
}

// withData adds a member to the data of the error that a is.
func (x *exchange) withData(a answer, name string, value json.RawMessage) answer {
	a.fault = setIn(a.fault, value, "data", name)
	a.body = errorBody(x, a.fault)
	return a
}

// standardFault reports how the headers Mcp-Method and Mcp-Name contradict m, ""
// when they agree. Member is the member of params that Mcp-Name repeats, "" for
// a method without one; name is its text.
func standardFault(h http.Header, m *jsonrpc.Message, member string) (name, fault string) {
	if fault := paramheader.CheckText(h, paramheader.Method, m.Method, false); fault != "" || member == "" {
		return "", fault
	}
	name, ok := m.TextParam(member)
	if !ok {
		return "", "params." + member + ", which header " + paramheader.Name + " repeats, is no string"
	}
	return name, paramheader.CheckText(h, paramheader.Name, name, true)
}

// postStateless serves a request without a session:
//
//	admitStateless -> checkRevision -> readClient -> checkRequest -> group -> call -> observe -> reply
func (s *statelessServer) postStateless(r *http.Request, out *response, x *exchange) {
	var a answer
	ok := x.denied == nil
	if ok {
		a, ok = s.admitStateless(r.Context(), x, r.Header)
	} else {
		a = s.refuseUnauthenticated(x, x.denied)
	}
	switch {
	case !ok:
		s.reply(out, x, a)
	case x.opensListener() && !out.events:
		s.groups.leave(x.stateless.group)
		s.reply(out, x, s.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusNotAcceptable, "accept text/event-stream"))
	case out.events && (x.opensListener() || x.mayNotify() || !out.plain):
		s.serveStream(out, s.events.OpenQueue(&x.stateless.group.streams, true), func(t *eventlog.Stream) answer {
			return s.serveStateless(r.Context(), x, t.Send)
		})
	default:
		out.claim = &x.claim
		out.finish(s.serveStateless(r.Context(), x, nil))
	}
}

// opensListener reports whether x opens a stream of notifications.
func (x *exchange) opensListener() bool { return x.call.Message.Method == listenMethod }

// serveStateless serves x, which has joined its group.
func (s *statelessServer) serveStateless(ctx context.Context, x *exchange, notify func([]byte)) answer {
	defer s.groups.leave(x.stateless.group)
	var a answer
	switch {
	case x.crowded || ctx.Err() != nil:
		a = s.refuseUnbegun(ctx, x)
	case x.opensListener():
		a = s.serveListener(ctx, x, notify)
	case notify == nil && x.stateless.state == nil && !x.mayBeAsked():
		a = s.serveAtOnce(ctx, x)
	default:
		a = s.serveAttempt(ctx, x, notify)
	}
	s.observe(x, a)
	return a
}

// mayBeAsked reports whether a server may ask the client of x before it answers x.
func (x *exchange) mayBeAsked() bool {
	return x.row.asks && slices.ContainsFunc([]string{"elicitation", "sampling", "roots"}, func(feature string) bool {
		_, can := jsonrpc.Get(x.call.Capabilities, feature)
		return can
	})
}

// serveAtOnce serves x, whose client gets one answer and nothing before it, on the goroutine
// of its connection. The end of ctx says that the client has gone, and cancels x.
func (s *statelessServer) serveAtOnce(ctx context.Context, x *exchange) (a answer) {
	x.call.Peer = x.stateless.group
	x.work.Begin(s.base)
	x.call.Cancel = &x.work
	defer x.work.End(nil)
	gone := func() { x.work.End(errCancelled) }
	if client, ok := ctx.(wait.Watchable); ok {
		if x.gone.Ended = gone; !client.Watch(&x.gone) {
			gone()
		}
		defer client.Unwatch(&x.gone)
	} else {
		defer context.AfterFunc(ctx, gone)()
	}
	defer func() {
		if fault := recover(); fault != nil {
			s.logPanic(x, fault)
			a = s.broken(x)
		}
	}()
	if a = s.answerTo(x, x.row.run(s.core, &x.work, x)); errors.Is(x.work.Err(), errCancelled) {
		return answer{silent: true, status: http.StatusAccepted}
	}
	a.ended = true
	return a
}

// serveStateless serves a line of a revision without sessions.
func (c *stdioClient) serveStateless(x *exchange) {
	d := c.door
	a, ok := d.stateless.admitStateless(d.base, x, nil)
	if !ok {
		c.answer(x, a)
		return
	}
	key, base := x.call.Message.Key, d.base
	if x.opensListener() {
		base = &c.listening // a stream of notifications has no other end to wait for
	}
	if err := c.session.begin(base, key, &x.work); err != nil {
		d.stateless.groups.leave(x.stateless.group)
		c.answer(x, d.refuse(x, signal.CodeEnvelopeInvalid, err.Error()))
		return
	}
	c.start(x, func() {
		a := d.stateless.serveStateless(&x.work, x, c.send)
		c.session.finish(key, d.opts.Now())
		c.reply(a)
	})
}

// cancelRequest cancels the request without a session that x names, if x is
// such a notification.
func (c *stdioClient) cancelRequest(x *exchange) {
	m := x.call.Message
	if m != nil && m.Kind == jsonrpc.Notification && m.Method == "notifications/cancelled" {
		c.session.cancelRequest(m)
	}
}

// discover returns the revisions that are served and the capabilities of x's
// route (MCP 2026-07-28, server/discover).
func (c *core) discover(ctx context.Context, x *exchange) outcome {
	info, instructions := c.introduce(ctx, x)
	result, ok := c.completeResult(slices.Concat(
		[]byte(`{"supportedVersions":`), c.supported(x), []byte(`,"capabilities":`), c.statelessCapabilities(x),
		[]byte(`,"instructions":`), jsonrpc.Quote(instructions), []byte{'}'}), x.row, info)
	return outcome{result: jsonrpc.OneLine(result), complete: ok}
}

// statelessCapabilities returns the capabilities of x's route without those
// that the revision removed, and with the tasks of held calls when the gate has
// them.
func (c *core) statelessCapabilities(x *exchange) json.RawMessage {
	offered := c.offered(x)
	if without, err := jsonrpc.Delete(offered, "tasks"); err == nil {
		offered = without
	}
	if _, has := jsonrpc.At(offered, "extensions", extensionTasks); has || !c.opts.Tasks {
		return offered
	}
	return setIn(offered, json.RawMessage("{}"), "extensions", extensionTasks)
}

// extensionTasks is the extension that lets a server answer a call with a task.
const extensionTasks = "io.modelcontextprotocol/tasks"

// completeResult adds the members that every result of the revision has. It
// returns false for bytes that cannot be a result, such as a question that
// should have been asked on the road.
func (c *core) completeResult(result json.RawMessage, row method, info json.RawMessage) (json.RawMessage, bool) {
	result, changes, ok := completions(result, row, info)
	if !ok {
		return nil, false
	}
	result, err := jsonrpc.Extend(result, changes...)
	return result, err == nil
}

// completedMessage returns the whole answer to x with what completeResult makes of result.
func (c *core) completedMessage(x *exchange, result json.RawMessage) ([]byte, bool) {
	result, changes, ok := completions(result, x.row, c.serverInfo)
	if !ok {
		return nil, false
	}
	message, err := jsonrpc.ExtendSuccess(x.id, result, changes...)
	return jsonrpc.OneLine(message), err == nil
}

// complete is the resultType of a result that names none.
var complete = json.RawMessage(`"complete"`)

// completions returns the changes of completeResult, and the result that they are made to.
func completions(result json.RawMessage, row method, info json.RawMessage) (json.RawMessage, []jsonrpc.Change, bool) {
	known, _, ok := jsonrpc.Unpack(result, true, nil, "resultType", "ttlMs", "_meta")
	if !ok {
		return nil, nil, false
	}
	if known[0] == nil {
		known[0] = complete
	} else if kind, ok := jsonrpc.Text(known[0]); !ok || kind == "input_required" {
		return nil, nil, false
	}
	if known[2] != nil && !isObject(known[2]) {
		result = setIn(result, json.RawMessage("{}"), "_meta")
	}
	room := make([]jsonrpc.Change, 5)
	changes, members := append(room[:0:4], jsonrpc.Change{Name: "resultType", Value: known[0], Checked: true}), room[4:]
	if row.cached {
		if n, err := strconv.ParseInt(string(known[1]), 10, 64); err != nil || n < 0 {
			known[1] = json.RawMessage("0")
		}
		changes = append(changes, jsonrpc.Change{Name: "ttlMs", Value: known[1], Checked: true},
			jsonrpc.Change{Name: "cacheScope", Value: json.RawMessage(`"private"`), Checked: true}) // what the policy has filtered is one principal's
	}
	members[0] = jsonrpc.Change{Name: metaServer, Value: info, Checked: true}
	return result, append(changes, jsonrpc.Change{Name: "_meta", Members: members}), true
}

// serverInfoOf returns the name of toolgate and its version.
func serverInfoOf(version string) json.RawMessage {
	return slices.Concat([]byte(`{"name":"toolgate","version":`), jsonrpc.Quote(version), []byte{'}'})
}

// statelessFailure returns the answer to x for a failure. Codes that the
// revision removed are replaced.
func (c *core) statelessFailure(x *exchange, f *proxy.Failure) answer {
	a := x.withStatus(c.failed(x, f))
	if _, is := jsonrpc.Get(a.body, "result"); is && x.call.Message.Method != "tools/call" {
		a = c.failedAs(wire.Gateway, x, f) // only a tool's result can stand for an error
	}
	if result, ok := jsonrpc.Get(a.body, "result"); ok {
		if message, ok := c.completedMessage(x, result); ok {
			a.body = message
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
	raw, _ := jsonrpc.At(a.fault, "data", "code")
	if code, _ := jsonrpc.Get(a.fault, "code"); x.stateless != nil && string(code) == "-32601" && string(raw) == `"METHOD_NOT_FOUND"` {
		a.status = http.StatusNotFound
	}
	return a
}
