package mcp

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// Header names of the Streamable HTTP transport, in canonical form.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
)

// ServeHTTP serves /mcp and /mcp/{server} (Streamable HTTP), and /sse,
// /sse/{server} and /messages (HTTP+SSE of 2024-11-05); every other path is 404.
// It fails closed: what is not understood is refused before anything is read.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = wire.NoSniff
	if !d.hosts.Admits(r) {
		problem(w, http.StatusForbidden, "host or origin is not one of this listener's: see toolgate.allowed_hosts and toolgate.allowed_origins")
		return
	}
	var to *endpoint
	first, route, named := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch { // only the canonical spelling of a path is served
	case r.URL.RawPath != "" || named && (route == "" || strings.Contains(route, "/")) || !strings.HasPrefix(r.URL.Path, "/"):
	case first == "mcp":
		to = mcpEndpoint
	case first == "sse":
		to = sseEndpoint
	case r.URL.Path == messagesPath:
		to = messagesEndpoint
	}
	if to == nil {
		problem(w, http.StatusNotFound, "no such path")
		return
	}
	if !d.work.Enter() {
		problem(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	defer d.work.Leave()
	if route != "" && (d.opts.HasServer == nil || !d.opts.HasServer(route)) {
		if _, ok := d.authenticatedPrincipal(w, r, identity.Resource{Door: "/" + first, Server: route}); ok { // a sender learns no server's name
			problem(w, http.StatusNotFound, "no such server")
		}
		return
	}
	serve, ok := to.serve[r.Method]
	if !ok {
		notAllowed(w, to.allow, to.hint)
		return
	}
	serve(d, w, r, route)
}

// An endpoint is one kind of path with its methods, and the answer to any other
// method.
type endpoint struct {
	allow, hint string
	serve       map[string]func(d *Door, w http.ResponseWriter, r *http.Request, route string)
}

// The endpoints. Those of mcpEndpoint and sseEndpoint serve the server route, ""
// for all servers.
var (
	mcpEndpoint = &endpoint{"GET, POST, DELETE", "use POST, GET or DELETE", map[string]func(*Door, http.ResponseWriter, *http.Request, string){
		http.MethodPost: (*Door).post, http.MethodGet: (*Door).listen, http.MethodDelete: (*Door).remove,
	}}
	sseEndpoint = &endpoint{"GET", "use GET, and post to the endpoint that it names", map[string]func(*Door, http.ResponseWriter, *http.Request, string){
		http.MethodGet: (*Door).sse,
	}}
	messagesEndpoint = &endpoint{"POST", "use POST", map[string]func(*Door, http.ResponseWriter, *http.Request, string){
		http.MethodPost: (*Door).message,
	}}
)

// standardAccept is the Accept header of most clients: both answers, in the order
// of the specification's examples.
const standardAccept = "application/json, text/event-stream"

// accepts returns which answers a client reads. A client without an Accept
// header reads both. A client that names event streams first gets one even
// where a single message would do.
func accepts(h http.Header) (plain, events bool) {
	first, _, _ := strings.Cut(h.Get("Accept"), ",")
	media, _, _ := strings.Cut(first, ";")
	prefersEvents := strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
	return !prefersEvents && guard.Accepts(h, "application/json"), guard.Accepts(h, "text/event-stream")
}

// notAllowed refuses a method.
func notAllowed(w http.ResponseWriter, allow, detail string) {
	w.Header().Set("Allow", allow)
	problem(w, http.StatusMethodNotAllowed, detail)
}

// lostSession is what clients hear of a session that is not theirs or not there.
const lostSession = "the session is not known here: send initialize"

// maxUnauthenticatedBytes bounds the body of an unauthenticated request that is
// read: enough for the record to name the tool.
const maxUnauthenticatedBytes = 64 << 10

// post takes one message:
//
//	media -> identify -> body -> decode -> version -> session -> dispatch -> observe -> reply
func (d *Door) post(w http.ResponseWriter, r *http.Request, route string) {
	plain, events, types, lines := true, true, r.Header["Content-Type"], r.Header["Accept"]
	if len(types) != 1 || types[0] != "application/json" || r.Header["Content-Encoding"] != nil || len(lines) != 1 || lines[0] != standardAccept {
		if !guard.JSONBody(r.Header) {
			problem(w, http.StatusUnsupportedMediaType, "send application/json in UTF-8")
			return
		}
		if plain, events = accepts(r.Header); !plain && !events {
			problem(w, http.StatusNotAcceptable, "accept application/json and text/event-stream")
			return
		}
	}
	out := &response{w: w, rc: *http.NewResponseController(w), timeout: d.opts.IOTimeout, plain: plain, events: events, core: d.core, client: r.Context()}
	x := &exchange{versions: httpVersions, owned: true}
	x.call.Route, x.call.Transport = route, "http"
	if r.Header["Traceparent"] != nil {
		x.call.Trace = span.FromHeader(r.Header)
	}
	body, ok := d.readBody(out, r, x, identity.Resource{Door: "/mcp", Server: route})
	defer x.claim.Release()
	if !ok || x.denied == nil && r.Header[headerSession] != nil && jsontext.Value(body).Kind() == '[' && d.postBatch(out, x, r, body) {
		return
	}
	d.decode(x, body)
	// A session header takes precedence over the body, and initialize belongs to the older
	// revisions unless its body says otherwise.
	if m := x.call.Message; m != nil && m.Method == "initialize" {
		x.open = d.session.openSession
	}
	m, said, inSession := x.call.Message, r.Header[headerVersion], len(r.Header[headerSession]) > 0
	bare := x.declares && !inSession
	if !bare && len(said) == 1 && (m == nil || m.Method != "initialize") {
		bare = said[0] == statelessVersion || !inSession && !slices.Contains(olderVersions, said[0]) && m != nil && m.Kind == jsonrpc.Request
	}
	if bare {
		if d.opts.PassOn == nil || !d.stateless.passOn(w, r, x, body) {
			d.stateless.postStateless(r, out, x)
		}
		return
	}
	a, ok := d.checkSession(x, r.Header)
	if x.elsewhere != nil {
		x.elsewhere(w, r, body)
		return
	}
	if !ok {
		d.reply(out, x, a)
		return
	}
	if !events || x.session == nil || plain && !x.mayNotify() {
		out.claim = &x.claim
		out.finish(d.session.serve(x))
		return
	}
	x.claim.Hold()
	d.answerOnStream(out, x.session, x.id, func(t *eventlog.Stream) answer {
		defer x.claim.Release()
		x.useStream(t)
		return d.session.serve(x)
	})
}

// serve admits x, runs it and reports the answer.
func (s *sessionServer) serve(x *exchange) answer {
	a, done := s.admit(x)
	if !done {
		a = s.run(x)
	}
	s.observe(x, a)
	return a
}

// maxSkippedBytes is how much of a body beyond the limit is read for the id of its
// message, which many clients write last.
const maxSkippedBytes = 64 << 20

// readBody authenticates the sender of r, which is for at, claims room for the body and reads it; of one
// beyond the limit x gets the outline. If ok is false, r has been answered. The caller
// releases x.claim in either case.
func (d *Door) readBody(out *response, r *http.Request, x *exchange, at identity.Resource) (body []byte, ok bool) {
	x.denied = d.authenticate(x, r, at)
	out.shown = &x.call.Credential
	if x.denied != nil && x.denied.Kernel.Code != signal.CodeUnauthenticated { // it was not looked up
		d.refusal(out.w, out.shown, x.denied)
		return nil, false
	}
	limit, further := d.opts.Limits.Bytes, maxSkippedBytes
	if x.denied != nil {
		limit, further = min(limit, maxUnauthenticatedBytes), 0
	}
	size := int64(limit)
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength)
	}
	if !d.opts.Budget.Take(&x.claim, ownerOf(x.call.Principal), size) {
		d.overloaded(out.w, x)
		return nil, false
	}
	x.call.Bytes = &x.claim
	var err error
	if body, x.long, err = jsonrpc.ReadBounded(r.Body, r.ContentLength, limit, further); err != nil {
		problem(out.w, http.StatusBadRequest, "the body ended early")
		return nil, false
	}
	if read := int64(len(body)); read < size {
		x.claim.Shrink(read)
	}
	return body, true
}

// overloaded refuses a request whose body has no room, before the body is read: what it
// asks for is not known, so the refusal is not recorded.
func (d *Door) overloaded(w http.ResponseWriter, x *exchange) {
	f := proxy.OverBudget()
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = wire.JSONType, wire.NoStore
	h.Set("Retry-After", strconv.Itoa(int(f.RetryAfter.Seconds())))
	w.WriteHeader(f.Status)
	_, _ = w.Write(d.failed(x, f).body) // a client that has gone needs no answer
}

// checkSession checks the revision header and finds the session of x. If ok is
// false, a answers x.
//
// initialize negotiates in its body, so its revision header is ignored; it is refused in
// a session that lives, and begins another when that is over. A session that
// has ended, is unknown or belongs to another principal is lost, without saying
// which. Bytes that are not a message are refused as such, whatever session they
// name.
func (d *Door) checkSession(x *exchange, h http.Header) (a answer, ok bool) {
	if x.denied != nil {
		return d.refuseUnauthenticated(x, x.denied), false
	}
	m, lines, ids := x.call.Message, h[headerVersion], h[headerSession]
	if m != nil && m.Method != "initialize" && len(lines) > 0 && (len(lines) > 1 || !slices.Contains(httpVersions, lines[0])) {
		a = d.refuse(x, signal.CodeEnvelopeInvalid, "MCP-Protocol-Version is not one of "+strings.Join(httpVersions, ", "))
		a.status = http.StatusBadRequest
		return a, false
	}
	if len(lines) == 1 && m != nil && m.Method != "initialize" {
		if tooOld := d.tooOld(lines[0]); tooOld != "" {
			return d.refuseAs(x, signal.CodeEnvelopeVersion, http.StatusBadRequest, tooOld), false
		}
	}
	if len(ids) == 0 {
		return answer{}, true
	}
	opens := m != nil && m.Kind == jsonrpc.Request && m.Method == "initialize"
	if len(ids) == 1 {
		x.use(d.session.find(ids[0], x.call.Principal, x.call.Route, false))
	}
	if x.session == nil && m != nil && len(ids) == 1 {
		x.use(d.session.takeOver(x, ids[0]))
	}
	switch {
	case opens && x.session != nil:
		return d.refuse(x, signal.CodeEnvelopeInvalid, errTwice.Error()), false
	case x.session == nil && m != nil && x.elsewhere == nil && !opens:
		return d.refuse(x, signal.CodeSessionLost, lostSession), false
	}
	return answer{}, true
}

// use makes s the session of x.
func (x *exchange) use(s *session) {
	if s == nil {
		return
	}
	x.session, x.call.TakenOver = s, s.taken
	x.call.Session, x.call.Era, x.call.Client, x.call.ClientInfo = s.key, s.version, s.client, s.clientInfo
	x.call.Capabilities, x.call.Level = s.capabilities, *s.level.Load()
	x.call.Peer, x.call.Home = s.peer, s.peer
}

// remove ends the session that the request shows.
func (d *Door) remove(w http.ResponseWriter, r *http.Request, route string) {
	s, _, ok := d.requestedSession(w, r, route)
	if !ok {
		return
	}
	d.session.endSession(s)
	w.WriteHeader(http.StatusNoContent)
}

// authenticatedPrincipal identifies the sender of a request without a message.
// It answers and returns false when there is none.
func (d *Door) authenticatedPrincipal(w http.ResponseWriter, r *http.Request, at identity.Resource) (policy.Principal, bool) {
	x := &exchange{}
	denied := d.authenticate(x, r, at)
	if denied != nil {
		d.refusal(w, &x.call.Credential, denied)
	}
	return x.call.Principal, denied == nil
}

// requestedSession finds the session of a request without a message, and its sender. It answers
// the refusal and returns false when there is none.
func (d *Door) requestedSession(w http.ResponseWriter, r *http.Request, route string) (s *session, who policy.Principal, ok bool) {
	who, ok = d.authenticatedPrincipal(w, r, identity.Resource{Door: "/mcp", Server: route})
	if !ok {
		return nil, who, false
	}
	lines, ids := r.Header[headerVersion], r.Header[headerSession]
	if len(ids) == 0 || len(lines) == 1 && lines[0] == statelessVersion {
		notAllowed(w, "POST", "there is no session: use POST")
		return nil, who, false
	}
	if len(lines) > 1 || len(lines) == 1 && !slices.Contains(httpVersions, lines[0]) {
		problem(w, http.StatusBadRequest, "MCP-Protocol-Version is not served here")
		return nil, who, false
	}
	x := &exchange{call: proxy.Call{Principal: who, Route: route}}
	s = d.session.find(ids[0], who, route, false)
	if s == nil && len(ids) == 1 {
		s = d.session.takeOver(x, ids[0])
	}
	switch {
	case len(ids) == 1 && s != nil:
		return s, who, true
	case x.elsewhere != nil:
		x.elsewhere(w, r, nil)
		return nil, who, false
	}
	problem(w, http.StatusNotFound, lostSession)
	return nil, who, false
}
