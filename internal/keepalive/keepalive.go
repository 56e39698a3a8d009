// Package keepalive sends HTTP/1.1 requests over pooled connections, on the
// goroutine of the caller.
//
// The Transport of net/http gives every connection two goroutines, which makes
// one request cost several switches between goroutines. A gateway that sends a
// short request and waits for a short answer pays more for them than for the
// request itself. This Transport writes the request and reads the answer in
// place. A request on an idle connection costs three system calls: one that finds
// the connection still open, one write, and one read when the answer is there.
//
// RoundTrip has net/http write the request and read the response. Post is for
// the many short requests to one address: a Template holds their head, and a plain
// answer is returned as its body. What is not plain is left to net/http: chunked
// bodies, for example, and every status but 200. https is left to another
// RoundTripper, because a server may choose HTTP/2 there.
//
//	t := keepalive.New(&http.Transport{ForceAttemptHTTP2: true})
//	defer t.CloseIdleConnections()
//	res, err := t.RoundTrip(req)
//
//	head, ok := keepalive.NewTemplate(address, header)
//	answer, res, err := t.Post(ctx, keepalive.Post{Head: head, Body: body, MaxBytes: 1 << 20})
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
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
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
	cut   func()                // ends what waits for the connection
	watch wait.Watcher          // calls cut
	drop  func() bool           // ends watch, see cutWith
	host  string                // that it was dialled for, as in its URL
	used  bool                  // it has carried a request
	r     *bufio.Reader
	w     *bufio.Writer
	limit io.LimitedReader // of the response header
	last  plainHead        // of the last plain answer
	since time.Time        // when it became idle

	// The fields below belong to the request that has the connection.
	life    wait.Watchable // that watch watches
	req     *http.Request  // nil = post
	post    Post
	sent    bool  // it was written, or written says why not
	quiet   bool  // the server had sent nothing before
	written error // why the request could not be written whole
}

// RoundTrip implements http.RoundTripper. It returns the cause of the request's
// context when that ends first; the connection is then closed. The body of a
// response must be read to its end or closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "http" {
		return t.secure.RoundTrip(req)
	}
	c, stop, err := t.send(req.Context(), req.URL, req, Post{})
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of RoundTripper; the error that counts is err
		}
		return nil, err
	}
	return c.response(req.Context(), stop, req)
}

// send sends req, or else p, and returns its connection when an answer begins to
// arrive or the connection has failed. The context cuts the connection off until
// stop is called. An idle connection that the server has closed, or on which it
// has sent something of its own accord, is not written to; another one is taken.
func (t *Transport) send(ctx context.Context, to *url.URL, req *http.Request, p Post) (c *conn, stop func() bool, err error) {
	for {
		if c, err = t.connect(ctx, to); err != nil {
			return nil, nil, err
		}
		stop = c.cutWith(ctx)
		c.req, c.post, c.sent, c.quiet, c.written = req, p, false, true, nil
		c.await()
		if c.req, c.post = nil, (Post{}); c.quiet {
			break
		}
		stop()
		_ = c.Close() // nothing was written
	}
	c.used = true
	if c.limit.N = t.secure.MaxResponseHeaderBytes; c.limit.N <= 0 {
		c.limit.N = 64 << 10
	}
	return c, stop, nil
}

// cutWith cuts c off when ctx ends, unless stop is called before, which then returns true. Stop is
// called once, before the connection belongs to another request.
func (c *conn) cutWith(ctx context.Context) (stop func() bool) {
	life, ok := ctx.(wait.Watchable)
	if !ok {
		return context.AfterFunc(ctx, c.cut)
	}
	if c.life = life; !life.Watch(&c.watch) {
		c.cut()
	}
	return c.drop
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.secure.CloseIdleConnections()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIdleLocked(time.Time{})
}

// connect returns a connection to the host of an address: the one that became
// idle last, or a new one.
func (t *Transport) connect(ctx context.Context, to *url.URL) (*conn, error) {
	host := to.Host
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
	if to.Port() == "" {
		addr = net.JoinHostPort(to.Hostname(), "80")
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	socket, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	c := &conn{Conn: socket, t: t, host: host, w: bufio.NewWriter(socket)}
	c.cut = func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	c.watch.Ended = c.cut
	c.drop = func() bool {
		life := c.life
		c.life = nil // it keeps the whole request
		return life.Unwatch(&c.watch)
	}
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

// response reads the final response; interim ones (1xx) are dropped. A server may
// answer and close before it has read all of the request, so a failure to write is
// reported only when there is no response. Req may be nil for a POST.
func (c *conn) response(ctx context.Context, stop func() bool, req *http.Request) (*http.Response, error) {
	for {
		res, err := http.ReadResponse(c.r, req)
		switch {
		case err == nil && res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols:
			continue
		case err == nil:
			c.limit.N = 1<<63 - 1 // the body is bounded by its reader
			res.Close = res.Close || c.written != nil
			b := &body{ReadCloser: res.Body, c: c, ctx: ctx, stop: stop, reuse: !res.Close && (req == nil || !req.Close)}
			if res.Body != http.NoBody {
				res.Body = b
			} else {
				b.finish(true)
			}
			return res, nil
		case c.written != nil:
			err = c.written
		case c.limit.N <= 0:
			err = errHeaderTooLarge
		}
		stop()
		_ = c.Close() // err says more
		return nil, causeOf(ctx, err)
	}
}

// write writes the request. It reports whether an answer can be waited for.
func (c *conn) write() bool {
	c.sent = true
	p := &c.post
	switch {
	case c.req != nil:
		c.written = c.req.Write(unflushed{c.w})
	case p.Claim != nil && !p.Claim.Claim():
		c.written = errWithdrawn
	default:
		head := strconv.AppendInt(append(c.w.AvailableBuffer(), p.Head.before...), int64(len(p.Body)), 10)
		head = append(append(append(head, p.Head.after...), p.Extra...), "\r\n"...)
		_, _ = c.w.Write(head) // Flush returns its error
		_, c.written = c.w.Write(p.Body)
	}
	if c.written == nil {
		c.written = c.w.Flush()
	}
	return c.written == nil
}

// unflushed hides what it is from net/http, which would send the head before it
// begins to read the body, and so before it is known that there will be one.
type unflushed struct{ *bufio.Writer }

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

// finish gives the connection back for the next request, unless the response is not
// at its end or the context has cut the connection off.
func (b *body) finish(whole bool) {
	if b.done.CompareAndSwap(false, true) {
		b.c.release(b.stop() && whole && b.reuse)
	}
}

// release keeps the connection for the next request. It closes a connection that
// cannot carry another request, and any connection while enough others are idle.
func (c *conn) release(reuse bool) {
	t := c.t
	most := t.secure.MaxIdleConnsPerHost
	if most == 0 {
		most = http.DefaultMaxIdleConnsPerHost
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !reuse || c.r.Buffered() > 0 || len(t.idle[c.host]) >= most {
		_ = c.Close() // the response was read, or nobody wants it
		return
	}
	c.since = time.Now()
	t.idle[c.host] = append(t.idle[c.host], c)
	if t.timer == nil {
		t.timer = time.AfterFunc(t.timeout(), t.expire)
	}
}
