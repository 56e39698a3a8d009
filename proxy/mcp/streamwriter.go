package mcp

import (
	"context"
	"net/http"
	"time"
)

const (
	// streamDelay is how long a call that may report runs before its client gets the
	// head of an event stream, so that the client can ask for the answer again.
	streamDelay = time.Second
	// retryField asks a client to wait that many milliseconds before it reconnects
	// to a closed stream.
	retryField = "retry: 1000\n"
)

// answerOnStream answers a request of s with an event stream, or in one piece
// when nothing is sent before the answer. It runs work in a goroutine that
// Close waits for: work continues when the client disconnects, and the client
// can fetch the answer with Last-Event-ID.
func (d *Door) answerOnStream(ctx context.Context, out *response, s *session, work func(*stream) answer) {
	d.serveStream(ctx, out, d.events.open(s, true), connection{wake: s.changes.wake, flush: s.flushChanges}, work)
}

// serveStream is answerOnStream for the stream of rd. conn says what else is
// sent on the stream.
func (c *core) serveStream(ctx context.Context, out *response, rd *reader, conn connection, work func(*stream) answer) {
	t := rd.stream
	defer rd.detach()
	if !out.plain {
		rd.begin()
	}
	c.work.Continue()
	go func() {
		defer c.work.Leave()
		t.finish(work(t))
	}()
	if out.plain && !rd.waitFirst(ctx) {
		return
	}
	if a := rd.begin(); a != nil {
		out.finish(*a)
		return
	}
	beginEvents(out.w)
	conn.w, conn.rc, conn.client = out.w, out.rc, ctx
	c.pump(conn, rd)
}

// waitFirst waits until the stream has an event or its call an answer, or until
// streamDelay has passed for a stream that can be resumed. It returns false when
// ctx ends first: the client has gone.
func (rd *reader) waitFirst(ctx context.Context) bool {
	var limit <-chan time.Time
	if rd.stream.prime {
		timer := time.NewTimer(streamDelay)
		defer timer.Stop()
		limit = timer.C
	}
	select {
	case <-rd.wake:
	case <-limit:
	case <-ctx.Done():
		return false
	}
	return true
}

// A connection is one HTTP response that carries a stream. Channels and
// functions may be nil.
type connection struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	client context.Context // done when the client has gone
	end    <-chan struct{} // closed when the connection must end
	wake   <-chan struct{} // holds a token when lists have changed
	flush  func()          // sends the pending list changes
	busy   func() bool     // whether answers are due that a closing door waits for
}

// pump writes the events of rd to the client until the stream is over, the
// client has left, a write takes longer than IOTimeout, or conn has to end. It
// buffers one event only.
func (c *core) pump(conn connection, rd *reader) {
	defer func() { _ = conn.rc.SetWriteDeadline(time.Time{}) }() // the connection may serve another request
	heartbeat := time.NewTicker(c.opts.Heartbeat)
	defer heartbeat.Stop()
	closing, life, stop := c.ends(rd.stream)
	defer stop()
	for c.drain(conn, rd) {
		var err error
		select {
		case <-rd.wake:
		case <-conn.wake:
			conn.flush()
		case <-heartbeat.C:
			err = c.write(conn, []byte(": heartbeat\n\n"))
		case <-closing:
			if conn.busy != nil && conn.busy() {
				closing = nil // the last answer ends the connection
				continue
			}
			return
		case <-life:
			return
		case <-conn.end:
			c.drain(conn, rd)
			return
		case <-rd.gone:
			return
		case <-conn.client.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// ends returns what closes a connection of t early: closing for a stream that
// belongs to no call, and life for a client that knows how to come back
// (StreamLife).
func (c *core) ends(t *stream) (closing <-chan struct{}, life <-chan time.Time, stop func() bool) {
	if !t.call {
		closing = c.streams
	}
	if !t.prime || c.opts.StreamLife <= 0 {
		return closing, nil, func() bool { return true }
	}
	timer := time.NewTimer(c.opts.StreamLife)
	return closing, timer.C, timer.Stop
}

// drain writes the events that are ready and reports whether there may be more.
func (c *core) drain(conn connection, rd *reader) bool {
	for {
		id, message, ok, over := rd.read()
		if !ok {
			return !over
		}
		_ = conn.rc.SetWriteDeadline(time.Now().Add(c.opts.IOTimeout)) // fails only for a writer without a network
		if writeEvent(conn.w, conn.rc, id, message) != nil {
			return false
		}
	}
}

// write sends data within IOTimeout.
func (c *core) write(conn connection, data []byte) error {
	_ = conn.rc.SetWriteDeadline(time.Now().Add(c.opts.IOTimeout)) // as in drain
	return writeAll(conn.w, conn.rc, data)
}
