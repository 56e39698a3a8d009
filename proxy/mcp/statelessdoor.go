package mcp

import (
	"context"
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

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
		s.observe(x, a)
		out.finish(a)
	case x.opensListener() && !out.events:
		s.groups.leave(x.stateless.group)
		a = s.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusNotAcceptable, "accept text/event-stream")
		s.observe(x, a)
		out.finish(a)
	case out.events && (x.opensListener() || x.mayNotify() || !out.plain):
		s.serveStream(r.Context(), out, s.events.openQueue(&x.stateless.group.streams, true), connection{}, func(t *stream) answer {
			return s.serveStateless(r.Context(), x, t.send)
		})
	default:
		out.finish(s.serveStateless(r.Context(), x, nil))
	}
}

// opensListener reports whether x opens a stream of notifications.
func (x *exchange) opensListener() bool { return x.call.Message.Method == listenMethod }

// serveStateless serves x, which has joined its group.
func (s *statelessServer) serveStateless(ctx context.Context, x *exchange, notify func([]byte)) answer {
	defer s.groups.leave(x.stateless.group)
	var a answer
	if x.opensListener() {
		a = s.serveListener(ctx, x, notify)
	} else {
		a = s.serveAttempt(ctx, x, notify)
	}
	s.observe(x, a)
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
	refuse := func(code, reason string) {
		d.stateless.groups.leave(x.stateless.group)
		c.answer(x, d.refuse(x, code, reason))
	}
	if c.flying.Load() >= int64(d.opts.MaxFlights) {
		refuse(signal.CodeOverloaded, "too many requests of this client are in flight")
		return
	}
	key := jsonrpc.Key(x.id)
	ctx, err := c.session.begin(d.base, key)
	if err != nil {
		refuse(signal.CodeEnvelopeInvalid, err.Error())
		return
	}
	stop := func() {}
	if x.opensListener() {
		ctx, stop = c.whileListening(ctx)
	}
	c.flying.Add(1)
	c.spawn(func() {
		defer stop()
		defer c.flying.Add(-1)
		defer func() { c.session.finish(key, d.opts.Now()) }()
		c.reply(d.stateless.serveStateless(ctx, x, c.send))
	})
}

// whileListening returns a context that also ends with the client's input: a
// notification stream has no other end to wait for.
func (c *stdioClient) whileListening(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	unbind := context.AfterFunc(c.listening, cancel)
	return ctx, func() { unbind(); cancel() }
}

// cancelRequest cancels the request without a session that x names, if x is
// such a notification.
func (c *stdioClient) cancelRequest(x *exchange) {
	m := x.call.Message
	if m == nil || m.Kind != jsonrpc.Notification || m.Method != "notifications/cancelled" {
		return
	}
	if id, ok := m.Param("requestId"); ok {
		c.session.abort(jsonrpc.Key(id))
	}
}
