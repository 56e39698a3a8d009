// Package keepalive sends HTTP/1.1 requests over pooled connections, on the
// goroutine of the caller.
//
// The Transport of net/http gives every connection two goroutines, which makes
// one request cost several switches between goroutines. A gateway that sends a
// short request and waits for a short answer pays more for them than for the
// request itself. This Transport writes the request and reads the answer in
// place, with the parsers of net/http; https is left to another RoundTripper,
// because a server may choose HTTP/2 there.
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
	"time"
)

// errHeaderTooLarge is reported for a response whose header exceeds
// http.Transport.MaxResponseHeaderBytes.
var errHeaderTooLarge = errors.New("the response header is too large")

// Transport is an http.RoundTripper. It is safe for concurrent use.
type Transport struct {
	secure *http.Transport

	mu    sync.Mutex         // protects the fields below
	idle  map[string][]*conn // :: host:port ⇒ idle connections, the longest idle first
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
	addr  string
	r     *bufio.Reader
	w     *bufio.Writer
	limit io.LimitedReader // of the response header
	since time.Time        // idle since
}

// RoundTrip implements http.RoundTripper. It returns the cause of the request's
// context when that ends first; the connection is then closed. The body of a
// response must be read to its end or closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "http" {
		return t.secure.RoundTrip(req)
	}
	c, err := t.connect(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of RoundTripper; the error that counts is err
		}
		return nil, err
	}
	ctx := req.Context()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	res, err := c.exchange(req)
	if err != nil {
		stop()
		_ = c.Close() // err says more
		return nil, causeOf(ctx, err)
	}
	b := &body{ReadCloser: res.Body, c: c, ctx: ctx, stop: stop, reuse: !res.Close && !req.Close}
	if res.Body == http.NoBody {
		b.finish(true)
	} else {
		res.Body = b
	}
	return res, nil
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
	addr := req.URL.Host
	if req.URL.Port() == "" {
		addr = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	for c := t.take(addr); c != nil; c = t.take(addr) {
		if c.r.Buffered() == 0 && open(c.Conn) {
			return c, nil
		}
		_ = c.Close() // the server has closed it, or sent what nobody asked for
	}
	dial := t.secure.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	raw, err := dial(req.Context(), "tcp", addr)
	if err != nil {
		return nil, causeOf(req.Context(), err)
	}
	c := &conn{Conn: raw, t: t, addr: addr, w: bufio.NewWriter(raw)}
	c.limit.R = raw
	c.r = bufio.NewReader(&c.limit)
	return c, nil
}

// take removes the idle connection to addr that was used last, nil for none.
func (t *Transport) take(addr string) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.idle[addr]
	if len(all) == 0 {
		return nil
	}
	c := all[len(all)-1]
	all[len(all)-1] = nil
	t.idle[addr] = all[:len(all)-1]
	return c
}

// put keeps c for the next request, or closes it when enough are idle.
func (t *Transport) put(c *conn) {
	most := t.secure.MaxIdleConnsPerHost
	if most == 0 {
		most = http.DefaultMaxIdleConnsPerHost
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle[c.addr]) >= most {
		_ = c.Close() // nothing is lost
		return
	}
	c.since = time.Now()
	t.idle[c.addr] = append(t.idle[c.addr], c)
	if t.timer == nil {
		t.timer = time.AfterFunc(t.timeout(), t.expire)
	}
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
	for addr, all := range t.idle {
		n := 0
		for n < len(all) && (before.IsZero() || !all[n].since.After(before)) {
			_ = all[n].Close() // nothing is lost
			n++
		}
		if n == len(all) {
			delete(t.idle, addr)
			continue
		}
		t.idle[addr], left = slices.Delete(all, 0, n), true
	}
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	if left {
		t.timer = time.AfterFunc(t.timeout(), t.expire)
	}
}

// exchange writes req and reads the head of its response. A server may answer and
// close before it has read all of req, so a failure to write is reported only
// when there is no response.
func (c *conn) exchange(req *http.Request) (*http.Response, error) {
	written := req.Write(c.w)
	if written == nil {
		written = c.w.Flush()
	}
	res, err := c.readHead(req)
	switch {
	case err == nil:
		res.Close = res.Close || written != nil
		return res, nil
	case written != nil:
		return nil, written
	}
	return nil, err
}

// readHead reads the head of the final response: interim ones (1xx) are dropped.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	c.limit.N = c.t.secure.MaxResponseHeaderBytes
	if c.limit.N <= 0 {
		c.limit.N = 64 << 10
	}
	for {
		res, err := http.ReadResponse(c.r, req)
		switch {
		case err != nil && c.limit.N <= 0:
			return nil, errHeaderTooLarge
		case err != nil:
			return nil, err
		case res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols:
			c.limit.N = 1<<63 - 1 // the body is bounded by its reader
			return res, nil
		}
	}
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

// finish gives the connection back, or closes it when it cannot serve another
// request: the response is not at its end, or the context has cut it off.
func (b *body) finish(whole bool) {
	if !b.done.CompareAndSwap(false, true) {
		return
	}
	if b.stop() && whole && b.reuse {
		b.c.t.put(b.c)
		return
	}
	_ = b.c.Close() // the response was read, or nobody wants it
}
