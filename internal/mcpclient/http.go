package mcpclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
)

const (
	maxRefusal  = 64 << 10 // bytes of an error page that are read
	maxLossies  = 256      // messages that may be dropped and wait to be sent
	maxPosts    = 8        // messages without an answer that are sent at once
	postTimeout = 30 * time.Second
	endTimeout  = 5 * time.Second // for ending a session
	streamPause = time.Second     // before an event stream is first opened again
	streamHead  = time.Second     // that the handshake waits for the head of the session's stream
)

// httpWire carries messages over Streamable HTTP, where each call has a response
// of its own, or over HTTP+SSE (MCP 2024-11-05), where one event stream brings all
// answers and is the connection.
type httpWire struct {
	c       *Conn
	e       *Endpoint
	shared  bool          // HTTP+SSE
	posts   chan struct{} // a slot for each message without an answer that is sent
	lossies atomic.Int64
}

// OpenHTTP connects to a Streamable HTTP endpoint. Header goes with every request
// and takes precedence over all others. Base makes the connections.
func (c *Conn) OpenHTTP(address string, header http.Header, base http.RoundTripper) error {
	target, err := url.Parse(address)
	if err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https" {
		return fmt.Errorf("the url %q is not an http or https address", address)
	}
	if password, ok := target.User.Password(); ok && header.Get("Authorization") == "" {
		if header = header.Clone(); header == nil {
			header = http.Header{}
		}
		(&http.Request{Header: header}).SetBasicAuth(target.User.Username(), password)
	}
	w := &httpWire{c: c, posts: make(chan struct{}, maxPosts)}
	w.e = &Endpoint{URL: target, Header: header, Transport: base, MaxBytes: c.limits.Bytes, Pause: streamPause, Log: c.opts.Log, Broken: w.broken}
	c.wire, c.endpoint = w, w.e
	c.speakIn(Session{})
	return nil
}

// broken ends the connection to a server that cannot be dialled.
func (w *httpWire) broken(err error) {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		w.c.Fail(&Error{Kind: Unavailable, Err: err})
	}
}

// poster sends requests whose head is written once, such as a keepalive.Transport.
type poster interface {
	Post(ctx context.Context, p keepalive.Post) (answer []byte, res *http.Response, err error)
}

// send implements wire. A poster returns the body of a plain answer. The head of an answer that
// may open a session, or that is not the answer, is always read by net/http.
func (w *httpWire) send(ctx context.Context, p *Call) error {
	var res *http.Response
	said := w.c.spoken.Load()
	post, plain := keepalive.Post{}, said.head != nil && p.Method != methodInitialize && !w.shared
	if plain {
		post = keepalive.Post{Head: said.head, Body: p.line, Claim: p, MaxBytes: w.c.limits.Bytes, Answer: p.Bytes}
		if said.stateless {
			post.Extra, plain = said.repeat(p)
		}
		if p.Trace != nil {
			said.eachTrace(p, func(name, value string) { post.Extra, _ = keepalive.AppendHeader(post.Extra, name, value) })
		}
	}
	if plain {
		body, other, err := w.e.Transport.(poster).Post(ctx, post)
		switch {
		case err != nil:
			w.broken(err)
			return brokenOff(err)
		case other == nil:
			return cmp.Or(w.c.receive(body, source{only: p}), errNoAnswer)
		}
		res = other
	} else {
		var err error
		if res, err = w.e.Post(ctx, said.headers(p), p.line, p.Claim); err != nil {
			return brokenOff(err)
		}
	}
	defer res.Body.Close()
	res.Body = io.NopCloser(p.Bytes.Reader(ctx, res.Body))
	switch media := Media(res); {
	case w.shared && res.StatusCode/100 == 2: // the answer comes on the shared stream
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxRefusal)) // only to keep the connection
		return p.await(ctx)
	case res.StatusCode == http.StatusOK && (media == mediaJSON || media == mediaEvents):
		if p.Method == methodInitialize {
			w.c.speakIn(Session{ID: SessionID(res)})
		}
		if media == mediaEvents {
			return w.follow(ctx, res, p)
		}
		body, err := ReadBody(res, w.c.limits.Bytes)
		switch {
		case err == nil:
			return cmp.Or(w.c.receive(body, source{only: p}), errNoAnswer)
		case !errors.Is(err, ErrTooLong):
			return brokenOff(fmt.Errorf("reading the answer: %w", err))
		}
		w.c.Settle(p, nil, w.c.tooLarge())
	default:
		w.refused(res, p)
	}
	return nil
}

// brokenOff returns err, as an AnswerError where the answer is cut off.
func brokenOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.Join(unreadable("it breaks off"), err)
	}
	return err
}

// errNoAnswer reports a message in place of the answer to a request. It counts only if the call
// has no answer.
var errNoAnswer = unreadable("a message that does not have the id of the request")

// headers returns the headers of the request that sends p.
func (s *spoken) headers(p *Call) http.Header {
	if !s.stateless && p.Trace == nil {
		return s.header
	}
	header := make(http.Header, len(s.header)+5)
	if s.stateless {
		paramheader.Set(header, p.Method, p.Params, p.Bound)
	}
	s.eachTrace(p, header.Set)
	maps.Copy(header, s.header)
	return header
}

// eachTrace calls set for each header that carries the trace of p, unless every request of
// s has a header of that name.
func (s *spoken) eachTrace(p *Call, set func(name, value string)) {
	for _, name := range span.Fields {
		if value := p.Trace[name]; value != "" && s.header[http.CanonicalHeaderKey(name)] == nil {
			set(name, value)
		}
	}
}

// repeat returns the header lines that repeat the method and the parameters of a
// stateless call. It leaves out headers that every request has, and reports false for
// headers that a Template cannot carry.
func (s *spoken) repeat(p *Call) (lines []byte, ok bool) {
	lines, ok = make([]byte, 0, 128), len(p.Bound) < 2 // of several, two may have one name
	paramheader.Each(p.Method, p.Params, p.Bound, func(name, value string) {
		if s.header[name] == nil && ok {
			lines, ok = keepalive.AppendHeader(lines, name, value)
		}
	})
	return lines, ok
}

// follow takes the events of a response.
func (w *httpWire) follow(ctx context.Context, res *http.Response, p *Call) error {
	var fault error // of the last message that was refused
	take := func(event Event) {
		if fault = cmp.Or(w.c.receiveEvent(event, source{only: p}), fault); !p.Answered() {
			p.Bytes.Drop()
		}
	}
	return errors.Join(w.e.Follow(ctx, res.Body, w.c.spoken.Load().Session, !w.c.Stateless(), take, p.Answered), fault)
}

// refused takes a response that is not a plain answer: a JSON-RPC answer under
// another status, a lost session, or an error of HTTP's.
func (w *httpWire) refused(res *http.Response, p *Call) {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // the status says enough
	msg, err := jsonrpc.Decode(body, w.c.limits)
	ours := err == nil && msg.Kind == jsonrpc.Failure && (string(msg.ID) == string(p.key) || msg.ID == nil && w.c.Stateless())
	status := fmt.Errorf("the server answered with status %d: %s", res.StatusCode, Clip(body))
	e := failed(status)
	switch {
	case w.lost(res, msg, ours):
		e.Lost = true
	case ours:
		e.RPC, e.Err = msg.Error, nil
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		e = &Error{Kind: Unavailable, Sent: true, Err: fmt.Errorf("%w\nhint: check the headers configured for it", status)}
	case res.StatusCode/100 == 3:
		e.Err = fmt.Errorf("the server redirects to %q, which is not followed\nhint: configure that address if you trust it", res.Header.Get("Location"))
	case res.StatusCode/100 == 2:
		e.Err = unreadable("status %d with content type %q", res.StatusCode, Clip([]byte(Media(res))))
	default:
		e.Err = fmt.Errorf("%w: %w", unreadable("status %d", res.StatusCode), status)
	}
	w.c.Settle(p, nil, e)
}

// lost reports whether a response means that the server forgot the session, and
// so did not execute the call. That is a 404 (MCP basic/transports) unless it
// carries an answer of the server's own; some servers say it with 400 and the
// codes that SDKs use for their transport. To a request without a session, only
// another server than before answers so.
func (w *httpWire) lost(res *http.Response, msg *jsonrpc.Message, ours bool) bool {
	if said := w.c.spoken.Load(); said.ID == "" && !said.stateless {
		return false
	}
	ofTransport := false
	if msg != nil {
		code, _ := jsonrpc.Get(msg.Error, "code")
		ofTransport = string(code) == "-32000" || string(code) == "-32001"
	}
	switch res.StatusCode {
	case http.StatusNotFound:
		return !ours || ofTransport
	case http.StatusBadRequest:
		return ofTransport
	}
	return false
}

// post implements wire.
func (w *httpWire) post(ctx context.Context, line []byte, lossy bool) error {
	if !lossy {
		return w.deliver(ctx, line)
	}
	if w.lossies.Add(1) > maxLossies || !w.c.Go(func() {
		defer w.lossies.Add(-1)
		_ = w.deliver(ctx, line) // it may be lost
	}) {
		w.lossies.Add(-1)
		w.c.opts.Dropped.Add(1)
	}
	return nil
}

// deliver sends one message that has no answer.
func (w *httpWire) deliver(ctx context.Context, line []byte) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.c.life, stop)()
	select {
	case w.posts <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-w.posts }()
	ctx, stop = context.WithTimeout(ctx, postTimeout)
	defer stop()
	res, err := w.e.Post(ctx, w.c.spoken.Load().header, line, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // it keeps the connection, too
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("the server answered with status %d: %s", res.StatusCode, Clip(text))
	}
	return nil
}

// awaitStream begins to listen and waits until the server has answered the
// request for the stream, one way or the other, for at most streamHead: some
// servers answer with the first event.
func (w *httpWire) awaitStream(ctx context.Context) {
	answered := make(chan struct{})
	if !w.c.Go(func() { w.listen(sync.OnceFunc(func() { close(answered) })) }) {
		return
	}
	ctx, stop := context.WithTimeout(ctx, streamHead)
	defer stop()
	select {
	case <-answered:
	case <-ctx.Done():
	case <-w.c.life.Done():
	}
}

// listen takes what the server says on its own account, and calls answered when
// the server has answered the first request for the stream. A 404 after the stream
// was open may mean that the session is lost, which only a request finds out.
func (w *httpWire) listen(answered func()) {
	take := func(event Event) { _ = w.c.receiveEvent(event, source{}) } // a refused message is counted
	for known := false; ; {
		opened, status := w.e.Listen(w.c.life, w.c.spoken.Load().Session, take, answered)
		known = known || opened
		if !known || status != http.StatusNotFound {
			return
		}
		ctx, stop := context.WithTimeout(w.c.life, postTimeout)
		w.c.Ping(ctx)
		stop()
		if !wait.For(w.c.life, streamPause) {
			return
		}
	}
}

// close implements wire: the connections belong to base.
func (w *httpWire) close() {
	if said := w.c.spoken.Load(); said.ID != "" && !said.stateless {
		ctx, stop := context.WithTimeout(context.Background(), endTimeout)
		defer stop()
		w.e.End(ctx, said.Session)
	}
}
