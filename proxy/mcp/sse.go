package mcp

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// messagesPath is where clients of HTTP+SSE post, whatever their road.
const messagesPath = "/messages"

// caller is one client of HTTP+SSE (MCP 2024-11-05, transports). What it says
// comes by POST, each message in a request of its own; all that it is told goes
// out on the one event stream with which it began, and its session ends with
// that. Nothing is kept for it.
type caller struct {
	door    *Door
	session *session
	out     *stream
	flying  atomic.Int64

	mu      sync.Mutex // protects the fields below
	greeted bool       // initialize has been answered, and session says what was agreed
	ready   bool       // the client has sent notifications/initialized
	late    bool       // there was news before that
}

// sse opens the stream of a caller and serves it until the client goes, the
// session has to make room, the client does not read, or the door closes. Calls
// in flight go on: that revision cancels by a notification only.
func (d *Door) sse(w http.ResponseWriter, r *http.Request, route string) {
	if r.Method != http.MethodGet {
		notAllowed(w, "GET", "use GET, and post to the endpoint that it names")
		return
	}
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	who, ok := d.known(w, r)
	if !ok {
		return
	}
	s := newSession(who, route, "", "")
	c := &caller{door: d, session: s, out: d.replay.queue(s)}
	s.caller, s.direct = c, c.out.post
	rd, stream := c.out.attach(), s.openStream()
	defer rd.detach()
	if !d.sessions.open(s) {
		problem(w, http.StatusServiceUnavailable, errNoRoom.Error())
		return
	}
	defer d.sessions.end(s)
	conn := connection{
		w: w, rc: http.NewResponseController(w), client: r.Context(),
		end: stream, wake: s.news.wake, tell: c.catchUp, busy: func() bool { return c.flying.Load() > 0 },
	}
	beginEvents(w)
	if d.write(conn, []byte("event: endpoint\ndata: "+messagesPath+"?sessionId="+s.id+"\n\n")) == nil {
		d.pump(conn, rd)
	}
}

// message takes one message, or batch, of a caller:
//
//	media -> identify -> body -> decode -> session -> dispatch -> observe -> event
//
// It is answered with 202, and then with an event. What cannot be answered
// there, for want of an id or of a session, is answered as on /mcp.
func (d *Door) message(w http.ResponseWriter, r *http.Request, _ string) {
	if r.Method != http.MethodPost {
		notAllowed(w, "POST", "use POST")
		return
	}
	if !jsonBody(r.Header) {
		problem(w, http.StatusUnsupportedMediaType, "send application/json in UTF-8")
		return
	}
	out := &response{w: w, rc: http.NewResponseController(w), timeout: d.opts.IOTimeout, plain: true}
	out.shown = len(r.Header["Authorization"]) > 0
	x := &exchange{versions: olderVersions, dialect: d.dialect("")}
	x.call = proxy.Call{Transport: "http"}
	who := d.identify(x, r.Header)
	body, limits, ok := d.receive(out, r, who)
	if !ok {
		return
	}
	var c *caller
	if who == nil {
		c = d.callerOf(x, r)
	}
	if c != nil && x.session.batches(body) {
		c.batch(out, x, body)
		return
	}
	d.decode(x, body, limits)
	if c != nil {
		c.take(out, x)
		return
	}
	a := d.stray(x, who, body)
	d.observe(x, a)
	out.finish(a)
}

// callerOf finds the caller that posts x, and makes x one of its messages.
func (d *Door) callerOf(x *exchange, r *http.Request) *caller {
	ids := r.URL.Query()["sessionId"]
	if len(ids) != 1 {
		return nil
	}
	c := d.sessions.caller(ids[0], x.who)
	if c == nil {
		return nil
	}
	x.call.Route, x.dialect = c.session.route, d.dialect(c.session.route)
	x.open, x.notify = c.keep, c.out.notify
	x.use(c.current())
	return c
}

// stray answers a message that belongs to no caller.
func (d *Door) stray(x *exchange, s *stranger, body []byte) answer {
	switch {
	case s != nil:
		return d.turnAway(x, s)
	case x.call.Message == nil && !jsonrpc.IsBatch(body):
		return d.refuseFault(x)
	}
	return d.refuse(x, signal.CodeSessionLost, "the session is not known here: open /sse again")
}

// take deals with one message. What takes time is accepted before it is done.
func (c *caller) take(out *response, x *exchange) {
	d := c.door
	status, accepted := answer{status: http.StatusAccepted}, false
	spawn := func(work func()) {
		accepted = true
		c.spawn(work)
	}
	d.take(x, &c.flying, spawn, func(a answer) {
		d.observe(x, a)
		if !accepted && (a.problem != nil || a.body != nil && x.id() == nil) {
			status = a
			return
		}
		c.reply(a)
	})
	c.heard(x)
	out.finish(status)
}

// spawn runs work of a call, which Close waits for. The last one ends the
// stream of a closing door.
func (c *caller) spawn(work func()) {
	d := c.door
	d.stay()
	go func() {
		defer d.leave()
		work()
		d.sessions.touch(c.session)
		select {
		case <-d.streams:
			if c.flying.Load() == 0 {
				d.sessions.end(c.session)
			}
		default:
		}
	}()
}

// reply sends the answer a, if there is one to send.
func (c *caller) reply(a answer) {
	if a.body != nil && !a.silent {
		c.out.send(a.body)
	}
}

// keep notes in the session what initialize has agreed.
func (c *caller) keep(s *session) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greeted {
		return nil, errTwice
	}
	c.greeted = true
	c.session.version, c.session.client, c.session.can = s.version, s.client, s.can
	return c.session, nil
}

// current is the session of c, nil before initialize.
func (c *caller) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.greeted {
		return nil
	}
	return c.session
}

// heard notes that the client is ready to be told things, if x says so.
func (c *caller) heard(x *exchange) {
	if !x.opensTalk() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = true
	if c.late {
		c.late = false
		token(c.session.news.wake)
	}
}

// catchUp tells the news, once the client is ready.
func (c *caller) catchUp() {
	c.mu.Lock()
	ready := c.ready
	c.late = c.late || !ready
	c.mu.Unlock()
	if ready {
		c.session.catchUp()
	}
}
