package mcp

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// messagesPath is where clients of HTTP+SSE post, whatever their road.
const messagesPath = "/messages"

// sseClient is one client of HTTP+SSE (MCP 2024-11-05, transports). It posts
// each message in a request of its own; everything for it is sent on the one
// event stream with which its session began and ends. Nothing is kept for it.
type sseClient struct {
	door    *Door
	session *session
	out     *stream
	flying  atomic.Int64

	mu             sync.Mutex // protects the fields below
	initialized    bool       // initialize has been answered, and session says what was agreed
	ready          bool       // the client has sent notifications/initialized
	pendingChanges bool       // lists changed before that
}

// sse opens the stream of an HTTP+SSE client and serves it until the client
// leaves or stops reading, its session has to make room, or the door closes.
// Calls in flight continue: that revision cancels with a notification only.
func (d *Door) sse(w http.ResponseWriter, r *http.Request, route string) {
	if r.Method != http.MethodGet {
		notAllowed(w, "GET", "use GET, and post to the endpoint that it names")
		return
	}
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	who, ok := d.authenticatedPrincipal(w, r)
	if !ok {
		return
	}
	s := newSession(who, route, "", "")
	c := &sseClient{door: d, session: s, out: d.events.openQueue(s)}
	s.sseClient, s.direct = c, c.out.post
	rd, stream := c.out.attach(), s.openStream()
	defer rd.detach()
	if !d.session.sessions.open(s) {
		problem(w, http.StatusServiceUnavailable, errNoRoom.Error())
		return
	}
	defer d.session.sessions.end(s)
	conn := connection{
		w: w, rc: http.NewResponseController(w), client: r.Context(),
		end: stream, wake: s.changes.wake, flush: c.flushChanges, busy: func() bool { return c.flying.Load() > 0 },
	}
	beginEvents(w)
	if d.write(conn, []byte("event: endpoint\ndata: "+messagesPath+"?sessionId="+s.id+"\n\n")) == nil {
		d.pump(conn, rd)
	}
}

// message serves one message, or batch, of an HTTP+SSE client:
//
//	media -> identify -> body -> decode -> session -> dispatch -> observe -> event
//
// The request is answered with 202 and its message with an event. What has no
// event to answer with, because it has no id or no session, is answered as on
// /mcp.
func (d *Door) message(w http.ResponseWriter, r *http.Request, _ string) {
	if r.Method != http.MethodPost {
		notAllowed(w, "POST", "use POST")
		return
	}
	if !guard.JSONBody(r.Header) {
		problem(w, http.StatusUnsupportedMediaType, "send application/json in UTF-8")
		return
	}
	out := &response{w: w, rc: http.NewResponseController(w), timeout: d.opts.IOTimeout, plain: true}
	out.shown = len(r.Header["Authorization"]) > 0
	x := &exchange{versions: olderVersions}
	x.call = proxy.Call{Transport: "http"}
	denied := d.authenticate(x, r.Header)
	body, limits, ok := d.readBody(out, r, denied)
	if !ok {
		return
	}
	var c *sseClient
	if denied == nil {
		c = d.sseClientFor(x, r)
	}
	if c != nil && x.session.batches(body) {
		c.serveBatch(out, x, body)
		return
	}
	d.decode(x, body, limits)
	if c != nil {
		c.serve(out, x)
		return
	}
	a := d.refuseUnattached(x, denied, body)
	d.observe(x, a)
	out.finish(a)
}

// sseClientFor finds the client that posts x and attaches x to it.
func (d *Door) sseClientFor(x *exchange, r *http.Request) *sseClient {
	ids := r.URL.Query()["sessionId"]
	if len(ids) != 1 {
		return nil
	}
	s := d.session.sessions.find(ids[0], x.who, "", true)
	if s == nil {
		return nil
	}
	c := s.sseClient
	x.call.Route = c.session.route
	x.open, x.notify = c.openSession, c.out.notify
	x.use(c.current())
	return c
}

// refuseUnattached answers a message that belongs to no HTTP+SSE client.
func (d *Door) refuseUnattached(x *exchange, s *authFailure, body []byte) answer {
	switch {
	case s != nil:
		return d.refuseUnauthenticated(x, s)
	case x.call.Message == nil && !jsonrpc.IsBatch(body):
		return d.refuseFault(x)
	}
	return d.refuse(x, signal.CodeSessionLost, "the session is not known here: open /sse again")
}

// serve serves one message. Work that takes time is accepted first and answered
// later.
func (c *sseClient) serve(out *response, x *exchange) {
	d := c.door
	status, accepted := answer{status: http.StatusAccepted}, false
	spawn := func(work func()) {
		accepted = true
		c.spawn(work)
	}
	d.session.serveAsync(x, &c.flying, spawn, func(a answer) {
		d.observe(x, a)
		if !accepted && (a.problem != nil || a.body != nil && x.id == nil) {
			status = a
			return
		}
		c.reply(a)
	})
	c.noteInitialized(x)
	out.finish(status)
}

// spawn runs the work of a call in a goroutine that Close waits for. The last
// one ends the stream of a closing door.
func (c *sseClient) spawn(work func()) {
	d := c.door
	d.work.Continue()
	go func() {
		defer d.work.Leave()
		work()
		d.session.sessions.touch(c.session)
		select {
		case <-d.streams:
			if c.flying.Load() == 0 {
				d.session.sessions.end(c.session)
			}
		default:
		}
	}()
}

// reply sends the answer a, if it has a body.
func (c *sseClient) reply(a answer) {
	if a.body != nil && !a.silent {
		c.out.send(a.body)
	}
}

// openSession stores what initialize negotiated.
func (c *sseClient) openSession(s *session) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.initialized {
		return nil, errTwice
	}
	c.initialized = true
	c.session.version, c.session.client, c.session.capabilities = s.version, s.client, s.capabilities
	return c.session, nil
}

// current returns the session of c, nil before initialize.
func (c *sseClient) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.initialized {
		return nil
	}
	return c.session
}

// noteInitialized notes that the client accepts notifications, if x says so.
func (c *sseClient) noteInitialized(x *exchange) {
	if !x.isInitialized() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = true
	if c.pendingChanges {
		c.pendingChanges = false
		token(c.session.changes.wake)
	}
}

// flushChanges sends the pending list changes once the client accepts
// notifications.
func (c *sseClient) flushChanges() {
	c.mu.Lock()
	ready := c.ready
	c.pendingChanges = c.pendingChanges || !ready
	c.mu.Unlock()
	if ready {
		c.session.flushChanges()
	}
}
