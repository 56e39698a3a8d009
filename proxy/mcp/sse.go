package mcp

import (
	"net/http"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// messagesPath is the path that every HTTP+SSE client posts to, whatever its
// route.
const messagesPath = "/messages"

// A sseClient is one client of HTTP+SSE (MCP 2024-11-05, transports). It posts
// each message in a request of its own and gets every answer on one event
// stream, which begins and ends with its session. Its events are not kept for
// resumption.
type sseClient struct {
	duplex
	out *stream
}

// sse opens the stream of an HTTP+SSE client and serves it until the client
// leaves or stops reading, its session makes room for another, or the door
// closes. Calls in flight continue: in that revision only a notification
// cancels a call.
func (d *Door) sse(w http.ResponseWriter, r *http.Request, route string) {
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	who, ok := d.authenticatedPrincipal(w, r)
	if !ok {
		return
	}
	s := newSession(who, route, "", "")
	rd := d.events.openQueue(&s.streams, false)
	c := &sseClient{out: rd.stream}
	c.duplex = duplex{door: d, session: s, send: c.out.send, spawn: c.spawnFlight}
	s.sseClient, s.direct = c, c.out.post
	stream := s.openStream()
	defer rd.detach()
	if _, err := d.session.openSession(s); err != nil {
		problem(w, http.StatusServiceUnavailable, errNoRoom.Error())
		return
	}
	defer d.session.endSession(s)
	conn := connection{
		w: w, rc: http.NewResponseController(w), client: r.Context(),
		end: stream, wake: s.changes.wake, flush: c.flushChanges, busy: func() bool { return c.flying.Load() > 0 },
	}
	beginEvents(w)
	if d.write(conn, []byte("event: endpoint\ndata: "+messagesPath+"?sessionId="+s.id+"\n\n")) == nil {
		d.pump(conn, rd)
	}
}

// message serves one message, or one batch, of an HTTP+SSE client:
//
//	media -> identify -> body -> decode -> session -> dispatch -> observe -> event
//
// The request is answered with 202 and its message with an event. A message
// without an id or without a session has no event to answer it, and is answered
// as on /mcp.
func (d *Door) message(w http.ResponseWriter, r *http.Request, _ string) {
	if !guard.JSONBody(r.Header) {
		problem(w, http.StatusUnsupportedMediaType, "send application/json in UTF-8")
		return
	}
	out := &response{w: w, rc: http.NewResponseController(w), timeout: d.opts.IOTimeout, plain: true}
	x := &exchange{versions: olderVersions}
	x.call = proxy.Call{Transport: "http"}
	body, ok := d.readBody(out, r, x)
	if !ok {
		return
	}
	c := d.sseClientFor(x, r)
	if c != nil && x.session.batches(body) {
		out.finish(c.serveBatch(x, body))
		return
	}
	d.decode(x, body)
	if c == nil {
		a := d.refuseUnattached(x, body)
		d.observe(x, a)
		out.finish(a)
		return
	}
	// Work that takes time is accepted first and answered later.
	status := answer{status: http.StatusAccepted}
	c.serve(x, func(a answer) {
		if x.flight == "" && (a.problem != nil || a.body != nil && x.id == nil) {
			status = a
			return
		}
		c.reply(a)
	})
	out.finish(status)
}

// sseClientFor returns the client that posts x, nil for none, and attaches x to
// it.
func (d *Door) sseClientFor(x *exchange, r *http.Request) *sseClient {
	ids := r.URL.Query()["sessionId"]
	if x.denied != nil || len(ids) != 1 {
		return nil
	}
	s := d.session.find(ids[0], x.who, "", true)
	if s == nil {
		return nil
	}
	c := s.sseClient
	x.call.Route = c.session.route
	x.open, x.notify = c.openSession, c.send
	x.use(c.current())
	return c
}

// refuseUnattached answers a message that belongs to no HTTP+SSE client.
func (d *Door) refuseUnattached(x *exchange, body []byte) answer {
	switch {
	case x.denied != nil:
		return d.refuseUnauthenticated(x, x.denied)
	case x.call.Message == nil && !jsonrpc.IsBatch(body):
		return d.refuseFault(x)
	}
	return d.refuse(x, signal.CodeSessionLost, "the session is not known here: open /sse again")
}

// spawnFlight runs the work of a call in a goroutine that Close waits for. The
// last one ends the stream of a closing door.
func (c *sseClient) spawnFlight(work func()) {
	d := c.door
	d.work.Continue()
	go func() {
		defer d.work.Leave()
		work()
		select {
		case <-d.streams:
			if c.flying.Load() == 0 {
				d.session.endSession(c.session)
			}
		default:
		}
	}()
}
