// Package plainhttp serves plain requests of HTTP/1.1 on the goroutine of their
// connection.
//
// While a handler runs, the server of net/http reads from the connection on another
// goroutine, to notice that the client has gone. For a request that is answered within
// a fraction of a millisecond, the start and the end of that read cost more than the
// rest: two switches between goroutines, four deadlines, a system call. A Server
// watches the client of a request only when its handler runs longer than a moment.
//
// It takes requests of one form: POST with a known length or GET without a body, a head
// that arrives in one piece, headers of printable ASCII that appear once. With the first
// request of another form, the connection belongs to net/http, which reads that request
// from its first byte. TLS and HTTP/2 are net/http's.
//
// A connection that waits has no buffers: for its next request, and for the end of a
// request that is watched. So an event stream that a client opens with GET keeps what its
// handler keeps, and two goroutines.
//
// Requests of a connection that have the same head share its http.Header: a handler must not change
// the headers of its request.
//
//	s := plainhttp.Server{HTTP: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}}
//	err := s.Serve(l)
package plainhttp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// bufferSize bounds the head of a plain request, in bytes.
const bufferSize = 4 << 10

// A connection waits for its next request for restAfter, and at most twice as long, with the buffers
// and the stack that serving the last one has left.
const restAfter = 200 * time.Millisecond

// While the server ends, a connection waits this long for a request that may be on its way: one
// that has carried none since it was accepted, as in net/http, and another one since its last answer.
const (
	firstGrace = 5 * time.Second
	nextGrace  = time.Second
)

// watchAfter is how long a handler runs before its client is watched.
var watchAfter = 20 * time.Millisecond

// Server serves the handler of an http.Server. It is safe for concurrent use.
type Server struct {
	// HTTP serves all requests that are not plain. Of its settings, Handler,
	// ReadHeaderTimeout, IdleTimeout, ConnContext and ErrorLog also hold for plain ones. Of
	// the context that ConnContext returns, plain requests have the values.
	HTTP *http.Server

	restAfter time.Duration // 0 = the constant

	mu       sync.Mutex // protects the fields below
	listener net.Listener
	open     map[*conn]struct{}
	closing  bool
	serving  sync.WaitGroup // the goroutines of open
}

// Serve serves the connections that l accepts until Shutdown or Close is called, and
// then returns http.ErrServerClosed. It closes l. It may be called once.
func (s *Server) Serve(l net.Listener) error {
	defer s.end(func(*conn) {})
	s.mu.Lock()
	s.listener, s.open = l, make(map[*conn]struct{})
	s.mu.Unlock()
	for pause := 5 * time.Millisecond; ; {
		accepted, err := l.Accept()
		var passing interface{ Temporary() bool } // of too many open files, as in net/http
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			s.start(accepted)
		case s.isClosing():
			return http.ErrServerClosed
		case !errors.As(err, &passing) || !passing.Temporary():
			return err
		default:
			s.logf("accepting a connection: %v; again in %v", err, pause)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
		}
	}
}

// logf logs as net/http does.
func (s *Server) logf(format string, args ...any) {
	cmp.Or(s.HTTP.ErrorLog, log.Default()).Printf(format, args...)
}

// start serves a connection on a goroutine of its own, which Shutdown waits for.
func (s *Server) start(accepted net.Conn) {
	c := newConn(s, accepted)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		_ = c.Close() // the client will connect elsewhere
		return
	}
	s.open[c] = struct{}{}
	s.serving.Go(func() { c.run(1, s.HTTP.ReadHeaderTimeout) })
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// Shutdown ends idle connections and waits until the requests under way are answered,
// also those of net/http. A connection whose first request is awaited has five seconds since it was
// accepted, and one that has had an answer one second since then; a request that arrives is served, and
// its answer ends the connection. Shutdown returns the error of ctx when that ends first.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end((*conn).endIdle)
	answered := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		return s.HTTP.Shutdown(ctx) // nothing more is left to it
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes all connections at once.
func (s *Server) Close() error {
	s.end(func(c *conn) { _ = c.Close() })
	return s.HTTP.Close()
}

// end stops Serve and calls each for the open connections.
func (s *Server) end(each func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	if s.listener != nil {
		_ = s.listener.Close() // Serve returns
		s.listener = nil
	}
	for c := range s.open {
		each(c)
	}
}

// conn is a connection whose requests were plain so far.
type conn struct {
	net.Conn
	server *Server
	ctx    context.Context // with the values that all its requests have
	r      *bufio.Reader   // nil at rest
	remote string
	used   bool                // it has carried a request
	seen   head                // of the last request
	fields [usualHeaders]field // of the last request that was read line by line
	posted bool                // the last request was a POST
	said   answerHead          // of the last answer
	spare  []byte              // room for an answer

	mu         sync.Mutex // protects the fields below
	idle       bool       // no byte of the next request has arrived
	since      time.Time  // of the wait for the next request
	ended      bool       // one more request is served at most
	quiet      bool       // await ended because its time was over
	readUntil  time.Time  // the deadline of reads, if await has set it last; else zero
	writeUntil time.Time  // the deadline of writes, zero = none
	watch      watch
}

func newConn(s *Server, accepted net.Conn) *conn {
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, accepted.LocalAddr())
	ctx = context.WithValue(ctx, http.ServerContextKey, s.HTTP)
	if s.HTTP.ConnContext != nil {
		ctx = s.HTTP.ConnContext(ctx, accepted)
	}
	return &conn{Conn: accepted, server: s, ctx: ctx, r: bufio.NewReaderSize(accepted, bufferSize), remote: accepted.RemoteAddr().String()}
}

// run is serve. A panic ends c, and no other connection.
func (c *conn) run(n int, within time.Duration) {
	defer func() {
		if p := recover(); p != nil {
			c.server.logf("serving %s: panic: %v\n%s", c.remote, p, debug.Stack())
			_ = c.Close() // what it carries is lost
			c.forget()
		}
	}()
	c.serve(n, within)
}

// serve answers the plain requests of c, if the first n bytes of the next one arrive
// within a time. When c has then waited for restAfter, or up to twice as long, it waits on at rest: without
// buffers, and on a goroutine whose stack has not grown.
func (c *conn) serve(n int, within time.Duration) {
	var slack time.Duration // of within; 0 = it does not wait at rest afterwards
	for c.await(n, within, slack) {
		if c.posted { // some clients send ends of lines after the body of a POST; net/http skips them too
			next, _ := c.r.Peek(4)
			_, _ = c.r.Discard(len(next) - len(bytes.TrimLeft(next, "\r\n"))) // these bytes are there
		}
		r := c.readRequest()
		if r == nil {
			c.leave()
			c.forget()
			return
		}
		c.used, c.posted = true, r.http.Method == http.MethodPost
		if !c.answer(r) {
			break
		}
		n, within = 4, min(cmp.Or(c.server.restAfter, restAfter), c.server.HTTP.IdleTimeout)
		slack = min(within, c.server.HTTP.IdleTimeout-within)
	}
	if left := c.server.HTTP.IdleTimeout - time.Since(c.since); c.quiet && slack > 0 && left > 0 {
		c.spare, c.fields, c.seen, c.said = nil, [usualHeaders]field{}, head{}, answerHead{}
		c.shed()
		c.server.serving.Go(func() { c.run(n, left) })
		return
	}
	_ = c.Close() // the client has gone, or has its answer
	c.forget()
}

// forget removes c from the open connections.
func (c *conn) forget() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	delete(c.server.open, c)
}

// await waits for the first n bytes of a request, of which net/http waits for as many. It
// returns false for a client that does not send them within the time, and the slack at most, or, while the
// server ends, within its grace. A deadline that is in force already is not set again.
func (c *conn) await(n int, within, slack time.Duration) bool {
	c.mu.Lock()
	c.idle, c.since = true, time.Now()
	if left := c.readUntil.Sub(c.since); left < within || left > within+slack {
		c.readUntil = c.since.Add(within + slack)
		_ = c.SetReadDeadline(c.readUntil) // fails only for a connection that is closed
	}
	if c.ended {
		c.expire()
	}
	c.mu.Unlock()
	err := c.fill(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle, c.quiet = false, errors.Is(err, os.ErrDeadlineExceeded) && !c.ended
	return err == nil
}

// fill waits for the next n bytes. A connection without a buffer gets one with the first.
func (c *conn) fill(n int) error {
	if c.r == nil {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c.Conn, first); err != nil {
			return err
		}
		c.r = bufio.NewReaderSize(&rest{Conn: c.Conn, first: first}, bufferSize)
	}
	_, err := c.r.Peek(n)
	return err
}

// shed gives back the buffer of c when nothing is in it, and returns how many bytes are.
func (c *conn) shed() (buffered int) {
	if c.r != nil {
		buffered = c.r.Buffered()
	}
	if buffered == 0 {
		c.r = nil
	}
	return buffered
}

// endIdle ends c after the request that is under way, or that arrives within the grace of c.
func (c *conn) endIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended = true; c.idle {
		c.expire()
	}
}

// expire ends await after the grace of c. The caller must hold c.mu.
func (c *conn) expire() {
	grace := nextGrace
	if !c.used {
		grace = firstGrace
	}
	time.AfterFunc(time.Until(c.since.Add(grace)), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.idle {
			c.endReads()
		}
	})
}

// endReads makes a read that is under way fail, and all later ones. The caller must hold c.mu.
func (c *conn) endReads() {
	c.readUntil = time.Time{}
	_ = c.SetReadDeadline(time.Unix(1, 0)) // fails only for a connection that is closed
}

// limitReads sets a deadline of reads that is not await's.
func (c *conn) limitReads(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readUntil = time.Time{}
	return c.SetReadDeadline(t)
}

// limitWrites sets the deadline of writes, zero = none. It leaves one in force that ends
// earlier by a sixteenth of the time, or a second, at most.
func (c *conn) limitWrites(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Equal(c.writeUntil) {
		return nil
	}
	if early := t.Sub(c.writeUntil); early >= 0 && early <= min(time.Until(t)/16, time.Second) {
		return nil
	}
	err := c.SetWriteDeadline(t)
	if err == nil {
		c.writeUntil = t
	}
	return err
}

// leave leaves c to net/http, with the request that has begun to arrive.
func (c *conn) leave() {
	first, _ := c.r.Peek(c.r.Buffered())
	_ = c.limitWrites(time.Time{})                       // fails only for a connection that is closed
	l := &begun{conn: c.Conn, first: bytes.Clone(first)} // not the whole buffer, for as long as a stream lasts
	_ = c.server.HTTP.Serve(l)                           // returns when l has no more connections, or the server ends
	if l.conn != nil {
		_ = c.Close() // the server ends
	}
}

// answer serves one request. It returns false when the connection cannot carry
// another one.
func (c *conn) answer(r *request) (again bool) {
	defer r.life.End(nil)
	w := &r.response
	*w = response{conn: c, header: make(http.Header, 8), out: c.spare[:0], length: -1}
	if !r.body.Arrived() {
		_ = c.limitReads(time.Time{}) // fails only for a connection that is closed; as in net/http, the time was for the head
	}
	c.mu.Lock()
	c.watch.request, c.watch.reading = r, nil
	if c.watch.timer == nil {
		c.watch.timer = time.AfterFunc(watchAfter, c.look)
	} else {
		c.watch.timer.Reset(watchAfter)
	}
	c.mu.Unlock()
	defer func() {
		c.stopWatching()
		if p := recover(); p != nil { // as in net/http, other connections go on
			if again = false; p != http.ErrAbortHandler { //nolint:errorlint // a panic with this very value
				c.server.logf("serving %s: panic: %v\n%s", c.remote, p, debug.Stack())
			}
		}
	}()
	c.server.HTTP.Handler.ServeHTTP(w, &r.http)
	w.last = c.stopWatching()
	if !w.finish() {
		return false
	}
	_, err := c.r.Discard(int(r.body.left)) // what the handler has left, at most maxBody
	return err == nil
}

// begun is a listener of one connection, whose first bytes were read.
type begun struct {
	conn  net.Conn // nil after it was accepted
	first []byte
}

// Accept implements net.Listener.
func (b *begun) Accept() (net.Conn, error) {
	if b.conn == nil {
		return nil, net.ErrClosed
	}
	c := &rest{Conn: b.conn, first: b.first}
	b.conn = nil
	return c, nil
}

// Close implements net.Listener.
func (b *begun) Close() error { return nil }

// Addr implements net.Listener.
func (b *begun) Addr() net.Addr { return nil }
