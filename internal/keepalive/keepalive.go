// Package keepalive sends HTTP/1.1 requests over pooled connections, on the
// goroutine of the caller.
//
// The Transport of net/http gives every connection two goroutines, which makes
// one request cost several switches between goroutines. A gateway that sends a
// short request and waits for a short answer pays more for them than for the
// request itself. This Transport writes the request and reads the answer in
// place. It has a writer and a reader for the usual form of both, and leaves
// every other form to those of net/http: chunked bodies, for example, and headers
// that appear twice. https is left to another RoundTripper, because a server may
// choose HTTP/2 there. A request on an idle connection costs three system calls:
// one that finds the connection still open, one write, and one read when the
// answer is there.
//
//	t := keepalive.New(&http.Transport{ForceAttemptHTTP2: true})
//	defer t.CloseIdleConnections()
//	res, err := t.RoundTrip(req)
//
// A request is sent once. It is never repeated, not even when the server has
// closed an idle connection at the same moment: only the caller knows whether
// that is safe.
package keepalive

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// errHeaderTooLarge is reported for a response whose header exceeds
// http.Transport.MaxResponseHeaderBytes.
var errHeaderTooLarge = errors.New("the response header is too large")

// Transport is an http.RoundTripper. It is safe for concurrent use.
type Transport struct {
	secure *http.Transport

	mu    sync.Mutex         // protects the fields below
	idle  map[string][]*conn // :: host of a URL ⇒ idle connections, the longest idle first
	timer *time.Timer        // closes expired connections; nil = none are idle
}

// New returns a Transport with the settings of secure that concern plain HTTP:
// DialContext, MaxIdleConnsPerHost (0 = http.DefaultMaxIdleConnsPerHost),
// IdleConnTimeout (0 = 90 s) and MaxResponseHeaderBytes (0 = 64 KiB). Requests to
// https addresses are sent by secure itself. Proxies are not used for plain HTTP.
func New(secure *http.Transport) *Transport {
	return &Transport{secure: secure, idle: make(map[string][]*conn)}
}

// conn is one connection. It belongs to one request at a time.
type conn struct {
	net.Conn
	t     *Transport
	raw   syscall.RawConn       // nil where the connection has none
	poll  func(fd uintptr) bool // for raw, see await
	host  string                // that it was dialled for, as in its URL
	used  bool                  // it has carried a request
	r     *bufio.Reader
	w     *bufio.Writer
	limit io.LimitedReader // of the response header
	since time.Time        // when it became idle

	// The fields below belong to the request that has the connection.
	req     *http.Request
	sent    bool  // it was written, or written says why not
	quiet   bool  // the server had sent nothing before
	written error // why the request could not be written whole
}

// errStale reports an idle connection that the server has closed, or on which it
// has sent something of its own accord. Nothing was written to it.
var errStale = errors.New("the idle connection is stale")

// RoundTrip implements http.RoundTripper. It returns the cause of the request's
// context when that ends first; the connection is then closed. The body of a
// response must be read to its end or closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "http" {
		return t.secure.RoundTrip(req)
	}
	ctx := req.Context()
	for {
		c, err := t.connect(req)
		if err != nil {
			if req.Body != nil {
				_ = req.Body.Close() // the contract of RoundTripper; the error that counts is err
			}
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		res, err := c.exchange(req)
		if err == nil {
			b := &res.body
			b.ReadCloser, b.c, b.ctx, b.stop, b.reuse = res.Body, c, ctx, stop, !res.Close && !req.Close
			if res.Body == http.NoBody {
				b.finish(true)
			} else {
				res.Body = b
			}
			return &res.Response, nil
		}
		stop()
		_ = c.Close() // err says more
		if !errors.Is(err, errStale) {
			return nil, causeOf(ctx, err)
		}
	}
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.secure.CloseIdleConnections()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIdleLocked(time.Time{})
}

// connect returns a connection for req: the one that became idle last, or a new
// one.
func (t *Transport) connect(req *http.Request) (*conn, error) {
	host := req.URL.Host
	t.mu.Lock()
	if all := t.idle[host]; len(all) > 0 {
		c := all[len(all)-1]
		all[len(all)-1] = nil
		t.idle[host] = all[:len(all)-1]
		t.mu.Unlock()
		return c, nil
	}
	t.mu.Unlock()
	addr, dial := host, t.secure.DialContext
	if req.URL.Port() == "" {
		addr = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	socket, err := dial(req.Context(), "tcp", addr)
	if err != nil {
		return nil, causeOf(req.Context(), err)
	}
	c := &conn{Conn: socket, t: t, host: host, w: bufio.NewWriter(socket)}
	if sc, ok := socket.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn() // without it the connection is not examined
	}
	c.limit.R = socket
	c.r = bufio.NewReader(&c.limit)
	return c, nil
}

// timeout returns how long a connection may be idle.
func (t *Transport) timeout() time.Duration {
	if t.secure.IdleConnTimeout > 0 {
		return t.secure.IdleConnTimeout
	}
	return 90 * time.Second
}

// expire closes the connections that have been idle for too long.
func (t *Transport) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIdleLocked(time.Now().Add(-t.timeout()))
}

// closeIdleLocked closes the connections that have been idle since before, the
// zero time = all. The caller must hold t.mu.
func (t *Transport) closeIdleLocked(before time.Time) {
	left := false
	for host, all := range t.idle {
		n := 0
		for n < len(all) && (before.IsZero() || !all[n].since.After(before)) {
			_ = all[n].Close() // nothing is lost
			n++
		}
		if n == len(all) {
			delete(t.idle, host)
			continue
		}
		t.idle[host], left = slices.Delete(all, 0, n), true
	}
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	if left {
		t.timer = time.AfterFunc(t.timeout(), t.expire)
	}
}

// exchange writes req and reads the head of its final response; interim ones
// (1xx) are dropped. A server may answer and close before it has read all of req,
// so a failure to write is reported only when there is no response. The error is
// errStale when nothing was written.
func (c *conn) exchange(req *http.Request) (*response, error) {
	c.req, c.sent, c.quiet, c.written = req, false, true, nil
	if c.await(); !c.quiet {
		return nil, errStale
	}
	c.req, c.used = nil, true
	c.limit.N = c.t.secure.MaxResponseHeaderBytes
	if c.limit.N <= 0 {
		c.limit.N = 64 << 10
	}
	for {
		res, err := c.readHead(req)
		switch {
		case err == nil && res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols:
		case err == nil:
			c.limit.N = 1<<63 - 1 // the body is bounded by its reader
			res.Close = res.Close || c.written != nil
			return res, nil
		case c.written != nil:
			return nil, c.written
		case c.limit.N <= 0:
			return nil, errHeaderTooLarge
		default:
			return nil, err
		}
	}
}

// send writes c.req. It reports whether an answer can be waited for.
func (c *conn) send() bool {
	c.sent = true
	if c.written = c.writeRequest(c.req); c.written == nil {
		c.written = c.w.Flush()
	}
	return c.written == nil
}

// causeOf returns why a request has no response: its context, or err.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// body is the body of a response. Its end gives the connection back.
type body struct {
	io.ReadCloser
	c     *conn
	ctx   context.Context
	stop  func() bool
	reuse bool
	done  atomic.Bool // the connection is no longer this body's
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		whole := errors.Is(err, io.EOF)
		b.finish(whole)
		if !whole {
			err = causeOf(b.ctx, err)
		}
	}
	return n, err
}

// Close implements io.Closer. Closing before the end closes the connection. It
// may be called while Read runs.
func (b *body) Close() error {
	b.finish(false)
	return nil
}

// finish gives the connection back for the next request. It closes a connection
// that cannot serve one, because the response is not at its end or the context
// has cut it off, and one beyond those that may be idle.
func (b *body) finish(whole bool) {
	if !b.done.CompareAndSwap(false, true) {
		return
	}
	t, c := b.c.t, b.c
	most := t.secure.MaxIdleConnsPerHost
	if most == 0 {
		most = http.DefaultMaxIdleConnsPerHost
	}
	reuse := b.stop() && whole && b.reuse && c.r.Buffered() == 0
	t.mu.Lock()
	defer t.mu.Unlock()
	if !reuse || len(t.idle[c.host]) >= most {
		_ = c.Close() // the response was read, or nobody wants it
		return
	}
	c.since = time.Now()
	t.idle[c.host] = append(t.idle[c.host], c)
	if t.timer == nil {
		t.timer = time.AfterFunc(t.timeout(), t.expire)
	}
}
