package mcp

import (
	"context"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const (
	// patience is how long a call that may report goes on before its client gets
	// the head of an event stream, so that it can ask for the answer again.
	patience = time.Second
	// retryField asks a client to wait that many milliseconds before it comes back
	// to a stream that was closed.
	retryField = "retry: 1000\n"
)

// reports reports whether x, which may have no session, is a request that may
// have messages sent before its answer.
func (d *Door) reports(x *exchange) bool {
	if x.call.Message == nil || x.call.Message.Kind != jsonrpc.Request || x.session == nil {
		return false
	}
	r, ok := d.rowOf(x)
	if !ok || !r.reaches {
		return false
	}
	_, token := progressToken(x.call.Message.Params)
	return token || x.session.attentive()
}

// converse answers a request of s with an event stream, or in one piece when
// nothing was reported before the answer that work gives. Work has a goroutine
// of its own, which Close waits for: it goes on when the client has gone, and
// what comes of it can be asked for (Last-Event-ID).
func (d *Door) converse(ctx context.Context, out *response, s *session, work func(*stream) answer) {
	d.carry(ctx, out, d.replay.open(s, true), connection{wake: s.news.wake, tell: s.catchUp}, work)
}

// carry is converse with the stream that rd reads, and with what c tells on it
// beside.
func (d *Door) carry(ctx context.Context, out *response, rd *reader, c connection, work func(*stream) answer) {
	t := rd.stream
	defer rd.detach()
	if !out.plain {
		rd.begin()
	}
	d.stay()
	go func() {
		defer d.leave()
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
	c.w, c.rc, c.client = out.w, out.rc, ctx
	d.pump(c, rd)
}

// waitFirst waits for something to say, as long as it is worth to wait for an
// answer in one piece. It reports false when the client has gone.
func (rd *reader) waitFirst(ctx context.Context) bool {
	var limit <-chan time.Time
	if rd.stream.prime {
		timer := time.NewTimer(patience)
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

// connection is one HTTP response that carries a stream. Channels and functions
// may be nil.
type connection struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	client context.Context // done when the client has gone
	end    <-chan struct{} // closed when the connection must end
	wake   <-chan struct{} // a token when there is news
	tell   func()          // tells it
	busy   func() bool     // whether answers are due that a closing door waits for
}

// pump carries what rd reads to the client until the stream is over, the client
// has gone, a write takes too long, or one of the ends of c is reached. It
// holds nothing but the event that it writes.
func (d *Door) pump(c connection, rd *reader) {
	defer func() { _ = c.rc.SetWriteDeadline(time.Time{}) }() // it may go on to its next request
	beat := time.NewTicker(d.opts.Heartbeat)
	defer beat.Stop()
	closing, life, stop := d.ends(rd.stream)
	defer stop()
	for d.drain(c, rd) {
		var err error
		select {
		case <-rd.wake:
		case <-c.wake:
			c.tell()
		case <-beat.C:
			err = d.write(c, []byte(": heartbeat\n\n"))
		case <-closing:
			if c.busy != nil && c.busy() {
				closing = nil // its end comes with the last answer
				continue
			}
			return
		case <-life:
			return
		case <-c.end:
			d.drain(c, rd)
			return
		case <-rd.gone:
			return
		case <-c.client.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// ends gives what closes connections of t that could go on: for a stream that
// no call will end, the door, and the end of a connection's life where the
// client knows to come back.
func (d *Door) ends(t *stream) (closing <-chan struct{}, life <-chan time.Time, stop func() bool) {
	if !t.call {
		closing = d.streams
	}
	if !t.prime || d.opts.StreamLife <= 0 {
		return closing, nil, func() bool { return true }
	}
	timer := time.NewTimer(d.opts.StreamLife)
	return closing, timer.C, timer.Stop
}

// drain writes what there is to read and reports whether there may be more.
func (d *Door) drain(c connection, rd *reader) bool {
	for {
		id, message, ok, over := rd.read()
		if !ok {
			return !over
		}
		_ = c.rc.SetWriteDeadline(time.Now().Add(d.opts.IOTimeout)) // a writer without deadlines has no network
		if writeEvent(c.w, c.rc, id, message) != nil {
			return false
		}
	}
}

// write sends data within the time that a write may take.
func (d *Door) write(c connection, data []byte) error {
	_ = c.rc.SetWriteDeadline(time.Now().Add(d.opts.IOTimeout)) // as above
	return writeAll(c.w, c.rc, data)
}
