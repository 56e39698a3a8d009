package mcp

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
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
	w.Header()["X-Content-Type-Options"] = noSniff
	if status := d.guard(r); status != 0 {
		problem(w, status, "host or origin is not one of this listener's")
		return
	}
	serve, route := wayOf(r)
	if serve == nil {
		problem(w, http.StatusNotFound, "no such path")
		return
	}
	if !d.enter() {
		problem(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	defer d.leave()
	if route != "" && !d.opts.HasServer(route) {
		if _, ok := d.known(w, r); ok { // a stranger learns no server's name
			problem(w, http.StatusNotFound, "no such server")
		}
		return
	}
	serve(d, w, r, route)
}

// way serves one kind of path for the server route, "" = all.
type way func(d *Door, w http.ResponseWriter, r *http.Request, route string)

// wayOf gives what serves the path of r and the server that it names; nil =
// nothing does. Only the canonical spelling of a path is one.
func wayOf(r *http.Request) (way, string) {
	path := r.URL.Path
	switch {
	case r.URL.RawPath != "":
		return nil, ""
	case path == "/mcp":
		return (*Door).streamable, ""
	case path == "/sse":
		return (*Door).sse, ""
	case path == messagesPath:
		return (*Door).message, ""
	}
	serve := way((*Door).streamable)
	name, ok := strings.CutPrefix(path, "/mcp/")
	if !ok {
		serve = (*Door).sse
		name, ok = strings.CutPrefix(path, "/sse/")
	}
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, ""
	}
	return serve, name
}

// streamable serves the one path of Streamable HTTP.
func (d *Door) streamable(w http.ResponseWriter, r *http.Request, route string) {
	switch r.Method {
	case http.MethodPost:
		d.post(w, r, route)
	case http.MethodGet:
		d.listen(w, r, route)
	case http.MethodDelete:
		d.remove(w, r, route)
	default:
		notAllowed(w, "GET, POST, DELETE", "use POST, GET or DELETE")
	}
}

// notAllowed refuses a method.
func notAllowed(w http.ResponseWriter, allow, detail string) {
	w.Header().Set("Allow", allow)
	problem(w, http.StatusMethodNotAllowed, detail)
}

// lostSession is what clients hear of a session that is not theirs or not there.
const lostSession = "the session is not known here: send initialize"

// strangerBytes bounds what is read of somebody who is not known: enough for
// the record to say what was wanted.
const strangerBytes = 64 << 10

// post takes one message:
//
//	media -> identify -> body -> decode -> version -> session -> dispatch -> observe -> reply
func (d *Door) post(w http.ResponseWriter, r *http.Request, route string) {
	if !jsonBody(r.Header) {
		problem(w, http.StatusUnsupportedMediaType, "send application/json in UTF-8")
		return
	}
	plain, events := accepts(r.Header)
	if !plain && !events {
		problem(w, http.StatusNotAcceptable, "accept application/json and text/event-stream")
		return
	}
	out := &response{w: w, rc: http.NewResponseController(w), timeout: d.opts.IOTimeout, plain: plain, events: events}
	x := &exchange{versions: httpVersions, dialect: d.dialect(route), open: d.keep}
	x.call = proxy.Call{Route: route, Transport: "http"}
	out.shown = len(r.Header["Authorization"]) > 0
	who := d.identify(x, r.Header)
	body, limits, ok := d.receive(out, r, who)
	if !ok || who == nil && d.postBatch(out, x, r, body) {
		return
	}
	d.decode(x, body, limits)
	if x.showsModern(r.Header) {
		d.postModern(r, out, x, who)
		return
	}
	a, ok := d.approach(x, who, r.Header)
	switch {
	case !ok:
		d.observe(x, a)
	case events && x.session != nil && (d.reports(x) || !plain):
		d.converse(r.Context(), out, x.session, func(t *stream) answer {
			x.speakOn(t)
			return d.settle(x)
		})
		return
	default:
		a = d.settle(x)
	}
	out.finish(a)
}

// receive reads the body of r, less of a stranger's, and gives the limits that
// it has to be held to. ok is false when there is none and that has been said.
func (d *Door) receive(out *response, r *http.Request, s *stranger) (body []byte, limits jsonrpc.Limits, ok bool) {
	limits = d.opts.Limits
	if s != nil {
		limits.Bytes = min(limits.Bytes, strangerBytes)
	}
	body, err := d.body(out.rc, r, int64(limits.Bytes)+1)
	if err != nil {
		problem(out.w, http.StatusBadRequest, "the body ended early")
		return nil, limits, false
	}
	return body, limits, true
}

// dialect is the error dialect of route.
func (d *Door) dialect(route string) wire.Dialect {
	if route != "" {
		return wire.MCP
	}
	return d.opts.Errors
}

// keep stores the session that an HTTP initialize made.
func (d *Door) keep(s *session) (*session, error) {
	if !d.sessions.open(s) {
		return nil, errNoRoom
	}
	return s, nil
}

// approach takes x as far as its session; s is set when nobody knows the
// sender. If ok is false x has its answer.
func (d *Door) approach(x *exchange, s *stranger, h http.Header) (a answer, ok bool) {
	if s != nil {
		return d.turnAway(x, s), false
	}
	if a, ok := d.checkVersion(x, h[headerVersion]); !ok {
		return a, false
	}
	return d.attach(x, h[headerSession])
}

// settle takes x from its session to its answer.
func (d *Door) settle(x *exchange) answer {
	a := d.serve(x)
	if x.session != nil {
		d.sessions.touch(x.session)
	}
	d.observe(x, a)
	return a
}

// identify puts credential and principal into x, or says why there is nobody.
func (d *Door) identify(x *exchange, h http.Header) *stranger {
	c, ok := credential(h)
	if !ok {
		return &stranger{code: signal.CodeUnauthenticated, reason: "the Authorization header is not one bearer token"}
	}
	x.call.Credential = c
	return d.recognise(x)
}

// checkVersion refuses a revision header that names none of ours. initialize
// negotiates in its body, so its header says nothing.
func (d *Door) checkVersion(x *exchange, lines []string) (answer, bool) {
	m := x.call.Message
	switch {
	case len(lines) == 0 || m == nil || m.Method == "initialize":
		return answer{}, true
	case len(lines) == 1 && slices.Contains(httpVersions, lines[0]):
		return answer{}, true
	}
	a := d.refuse(x, signal.CodeEnvelopeInvalid, "MCP-Protocol-Version is not one of "+strings.Join(httpVersions, ", "))
	a.status = http.StatusBadRequest
	return a, false
}

// attach finds the session that x shows. A session that is over, unknown or
// another's is lost, without saying which; initialize ignores what is shown.
// What is no message is refused for that, whatever it shows.
func (d *Door) attach(x *exchange, ids []string) (answer, bool) {
	m := x.call.Message
	if len(ids) == 0 || m != nil && m.Kind == jsonrpc.Request && m.Method == "initialize" {
		return answer{}, true
	}
	if len(ids) == 1 {
		x.use(d.sessions.find(ids[0], x.who, x.call.Route))
	}
	if x.session == nil && m != nil {
		return d.refuse(x, signal.CodeSessionLost, lostSession), false
	}
	return answer{}, true
}

// use makes s the session of x.
func (x *exchange) use(s *session) {
	if s == nil {
		return
	}
	x.session = s
	x.call.Session, x.call.Era, x.call.Client = s.key, s.version, s.client
	x.call.Capabilities, x.call.Level = s.can, s.leastSevere()
	x.call.Peer, x.call.Home = s.home, s.home
}

// body reads up to limit bytes of the request's body, which is one more than
// the decoder takes.
func (d *Door) body(rc *http.ResponseController, r *http.Request, limit int64) ([]byte, error) {
	_ = rc.SetReadDeadline(time.Now().Add(d.opts.IOTimeout)) // a writer without deadlines has no network
	var data []byte
	var err error
	if n := r.ContentLength; n >= 0 && n <= 64<<10 && n < limit {
		data = make([]byte, n)
		_, err = io.ReadFull(r.Body, data)
	} else {
		data, err = io.ReadAll(io.LimitReader(r.Body, limit))
	}
	_ = rc.SetReadDeadline(time.Time{})
	return data, err
}

// remove ends the session that the request shows.
func (d *Door) remove(w http.ResponseWriter, r *http.Request, route string) {
	s, ok := d.own(w, r, route)
	if !ok {
		return
	}
	d.sessions.end(s)
	w.WriteHeader(http.StatusNoContent)
}

// known identifies the sender of a request without a message, or answers 401
// itself and reports false.
func (d *Door) known(w http.ResponseWriter, r *http.Request) (policy.Principal, bool) {
	c, ok := credential(r.Header)
	if !ok {
		unauthorized(w, nil, true)
		return policy.Principal{}, false
	}
	who, failure := d.opts.Gate.Identify(r.Context(), c)
	if failure != nil || !who.Valid() {
		unauthorized(w, failure, c.Bearer != "")
		return policy.Principal{}, false
	}
	return who, true
}

// own finds the session of a request without a message, or answers the
// refusal itself and reports false.
func (d *Door) own(w http.ResponseWriter, r *http.Request, route string) (*session, bool) {
	who, ok := d.known(w, r)
	if !ok {
		return nil, false
	}
	lines, ids := r.Header[headerVersion], r.Header[headerSession]
	if len(ids) == 0 || len(lines) == 1 && lines[0] == modernVersion {
		notAllowed(w, "POST", "there is no session: use POST")
		return nil, false
	}
	if len(lines) > 1 || len(lines) == 1 && !slices.Contains(httpVersions, lines[0]) {
		problem(w, http.StatusBadRequest, "MCP-Protocol-Version is not served here")
		return nil, false
	}
	if s := d.sessions.find(ids[0], who, route); s != nil && len(ids) == 1 {
		return s, true
	}
	problem(w, http.StatusNotFound, lostSession)
	return nil, false
}
