package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	dialTimeout = 5 * time.Second
	maxRefusal  = 64 << 10 // bytes of an error page that are read
	maxReplies  = 256      // lines of ours that are no requests and wait to be sent
	maxPosts    = 8        // of them that are sent at once
	postTimeout = 30 * time.Second
)

// newPool makes the HTTP connections of one upstream. No proxy from the
// environment, no compression that could hide an answer's size.
func newPool() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
}

// httpWire is the round tripper below mcp-go's HTTP transports.
type httpWire struct {
	c       *conn
	base    http.RoundTripper
	target  *url.URL
	headers map[string]string
	replay  bool           // Go may send a body again that never went out
	sse     *transport.SSE // nil for Streamable HTTP
	posts   chan struct{}  // a slot for each line of ours that is sent and is no request

	replying atomic.Int64 // how many replies there are
	listened atomic.Bool  // there has been a GET stream
}

// dialHTTP makes a connection over Streamable HTTP, or over the older HTTP+SSE
// when the type says so.
func dialHTTP(ctx context.Context, c *conn, cfg config.Server, base http.RoundTripper, patience time.Duration) error {
	target, err := url.Parse(cfg.URL)
	if err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https" {
		return fmt.Errorf("the url %q is not an http or https address", cfg.URL)
	}
	w := &httpWire{c: c, base: base, target: target, headers: cfg.Headers, replay: true, posts: make(chan struct{}, maxPosts)}
	for name := range cfg.Headers {
		// With one of these Go takes a POST for repeatable and repeats it.
		if strings.EqualFold(name, "Idempotency-Key") || strings.EqualFold(name, "X-Idempotency-Key") {
			w.replay = false
		}
	}
	c.wire = w
	client := &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if cfg.Type != "sse" {
		c.transport, err = transport.NewStreamableHTTP(cfg.URL, transport.WithHTTPBasicClient(client),
			//lint:ignore SA1019 upstreams of the revisions before 2026-07-28 announce changes on the GET stream
			transport.WithContinuousListening(), transport.WithHTTPLogger(quiet))
		if err != nil {
			return err
		}
		return c.transport.Start(c.life)
	}
	return w.startSSE(ctx, cfg.URL, client, patience)
}

// startSSE opens the stream of HTTP+SSE, which is the connection.
func (w *httpWire) startSSE(ctx context.Context, address string, client *http.Client, patience time.Duration) error {
	const never = 24 * time.Hour // calls carry their own deadlines
	sse, err := transport.NewSSE(address, transport.WithHTTPClient(client), transport.WithSSELogger(quiet),
		transport.WithEndpointTimeout(patience), transport.WithResponseTimeout(never))
	if err != nil {
		return err
	}
	w.sse, w.c.transport = sse, sse
	sse.SetConnectionLostHandler(func(err error) {
		w.c.fail(&Error{Kind: Failed, Sent: true, Err: fmt.Errorf("the server ended the event stream: %w", err)})
	})
	defer context.AfterFunc(ctx, func() { w.c.fail(&Error{Kind: Timeout, Sent: true, Err: ctx.Err()}) })()
	return sse.Start(w.c.life)
}

// RoundTrip implements http.RoundTripper: our bytes go out, and what comes in
// passes the filter before mcp-go sees it.
func (w *httpWire) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != w.target.Scheme || req.URL.Host != w.target.Host {
		return nil, fmt.Errorf("refusing to leave %s://%s", w.target.Scheme, w.target.Host)
	}
	for name, value := range w.headers {
		req.Header.Set(name, value)
	}
	p, _ := req.Context().Value(keyPending{}).(*pending)
	if p != nil && req.Method == http.MethodPost {
		if err := w.substitute(req, p); err != nil {
			return nil, err
		}
	}
	resp, err := w.base.RoundTrip(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			w.c.fail(&Error{Kind: Unavailable, Err: err})
		}
		return nil, err
	}
	return w.filter(resp, p), nil
}

// substitute puts p's line in the place of what mcp-go marshalled.
func (w *httpWire) substitute(req *http.Request, p *pending) error {
	head := make([]byte, len(linePrefix)+24)
	n, _ := io.ReadFull(req.Body, head)
	req.Body.Close()
	if idOf(head[:n]) != p.id {
		return errors.New("a message that is not the request went out in its name")
	}
	for name, values := range p.headers {
		req.Header[name] = values
	}
	req.ContentLength = int64(len(p.line))
	req.Body = &outBody{r: bytes.NewReader(p.line), p: p}
	req.GetBody = nil
	if w.replay {
		// Go asks for it only when not one byte of the request was written.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.line)), nil }
	}
	return nil
}

// outBody is the body of a request. Go writes nothing of a request before it
// has begun to read the body, so the first read is the moment of sending. It
// must not offer more than io.Reader: Go would take a shorter way.
type outBody struct {
	r     *bytes.Reader
	p     *pending
	begun bool
}

// Read claims the request at the first read and refuses if it was withdrawn.
func (b *outBody) Read(buf []byte) (int, error) {
	if !b.begun {
		if b.begun = true; !b.p.claim() {
			return 0, errWithdrawn
		}
	}
	return b.r.Read(buf)
}

// Close implements io.Closer.
func (b *outBody) Close() error { return nil }

// filter gives mcp-go a response that it can do no harm with.
func (w *httpWire) filter(resp *http.Response, p *pending) *http.Response {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	post := resp.Request.Method == http.MethodPost
	switch {
	case resp.StatusCode == http.StatusOK && media == "text/event-stream":
		w.listened.CompareAndSwap(false, !post)
		resp.Body = newEvents(w.c, resp.Body, w.source(p, post), w.sse != nil && !post)
		return resp
	case resp.StatusCode == http.StatusNotFound && !post && w.listened.Load():
		// The server may have forgotten the session. A request tells for sure.
		w.c.start(func() {
			ctx, stop := context.WithTimeout(w.c.life, postTimeout)
			defer stop()
			w.c.probe(ctx)
		})
		resp.Body = capped(resp.Body, maxRefusal)
		return resp
	case w.sse != nil && post && resp.StatusCode/100 == 2, !post, p == nil:
		resp.Body = capped(resp.Body, maxRefusal)
		return resp
	case resp.StatusCode == http.StatusOK && media == "application/json":
		return w.answered(resp, p)
	}
	return w.refused(resp, p, media)
}

// source says which requests a response may answer.
func (w *httpWire) source(p *pending, post bool) source {
	if w.sse != nil {
		return source{any: !post}
	}
	return source{only: p}
}

// answered takes the one JSON message of a response.
func (w *httpWire) answered(resp *http.Response, p *pending) *http.Response {
	most := w.c.limits.Bytes
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		resp.Body.Close()
		return w.fault(resp, p, &Error{Kind: Failed, Sent: true, Err: fmt.Errorf("reading the answer: %w", err)})
	case len(body) > most:
		resp.Body.Close()
		return w.fault(resp, p, tooLarge(most))
	}
	if up := w.c.receive(body, source{only: p}); up != nil {
		return replace(resp, up)
	}
	return w.fault(resp, p, &Error{Kind: Failed, Sent: true, Err: errMalformed})
}

// refused takes a response that is not a plain answer: a JSON-RPC answer under
// another status, a lost session, or an error of HTTP's.
func (w *httpWire) refused(resp *http.Response, p *pending, media string) *http.Response {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	resp.Body.Close()
	msg, err := jsonrpc.Decode(body, w.c.limits)
	ours := err == nil && msg.Kind == jsonrpc.Failure && (string(msg.ID) == string(jsonrpc.Quote(p.id)) || msg.ID == nil && w.c.modern())
	status := fmt.Errorf("the server answered with status %d: %s", resp.StatusCode, clip(body))
	switch {
	case w.sessionLost(resp, msg, ours):
		return w.fault(resp, p, &Error{Kind: Failed, Sent: true, lost: true, Err: status})
	case ours:
		return w.fault(resp, p, &Error{Kind: Failed, Sent: true, RPC: msg.Error})
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return w.fault(resp, p, &Error{Kind: Unavailable, Sent: true, Err: fmt.Errorf("%w\nhint: check the headers configured for it", status)})
	case resp.StatusCode/100 == 3:
		return w.fault(resp, p, &Error{Kind: Failed, Sent: true, Err: fmt.Errorf("the server redirects to %q, which is not followed\nhint: configure that address if you trust it", resp.Header.Get("Location"))})
	case resp.StatusCode/100 == 2:
		return w.fault(resp, p, &Error{Kind: Failed, Sent: true, Err: fmt.Errorf("the server answered with status %d and content type %q", resp.StatusCode, media)})
	}
	return w.fault(resp, p, &Error{Kind: Failed, Sent: true, Err: status})
}

// sessionLost reports whether a response means that the server forgot our
// session, and so did not execute the request. That is a 404 (MCP
// basic/transports) unless it carries an answer of the server's own; some
// servers say it with 400 and the codes that SDKs use for their transport. To a
// request without a session, only another server than before answers so.
func (w *httpWire) sessionLost(resp *http.Response, msg *jsonrpc.Message, ours bool) bool {
	if resp.Request.Header.Get(transport.HeaderKeySessionID) == "" && !w.c.modern() {
		return false
	}
	ofTransport := false
	if msg != nil {
		code, _ := jsonrpc.Get(msg.Error, "code")
		ofTransport = string(code) == "-32000" || string(code) == "-32001"
	}
	switch resp.StatusCode {
	case http.StatusNotFound:
		return !ours || ofTransport
	case http.StatusBadRequest:
		return ofTransport
	}
	return false
}

// fault answers p, if it still waits, and gives mcp-go what wakes the caller.
func (w *httpWire) fault(resp *http.Response, p *pending, e *Error) *http.Response {
	if w.c.table.drop(p) {
		p.answer(nil, e)
	}
	return replace(resp, acknowledgement(p))
}

// replace gives resp another body and makes it a success.
func replace(resp *http.Response, body []byte) *http.Response {
	resp.Body.Close()
	resp.Status, resp.StatusCode = "200 OK", http.StatusOK
	resp.Header.Set("Content-Type", "application/json")
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp
}

// capped ends a body after most bytes.
func capped(body io.ReadCloser, most int64) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, most), body}
}

// tooLarge is the error of an answer beyond the cap.
func tooLarge(most int) *Error {
	return &Error{Kind: TooLarge, Sent: true, Err: fmt.Errorf("the answer is larger than %d bytes", most)}
}

// reply implements wire.
func (w *httpWire) reply(line []byte) {
	if w.replying.Add(1) > maxReplies || !w.c.start(func() {
		defer w.replying.Add(-1)
		w.answer(line)
	}) {
		w.replying.Add(-1)
		w.c.dropped.Add(1)
	}
}

// answer implements wire.
func (w *httpWire) answer(line []byte) {
	select {
	case w.posts <- struct{}{}:
	case <-w.c.life.Done():
		return
	}
	defer func() { <-w.posts }()
	ctx, stop := context.WithTimeout(w.c.life, postTimeout)
	defer stop()
	w.post(ctx, line)
}

// post sends one message outside mcp-go, which could not keep its id.
func (w *httpWire) post(ctx context.Context, line []byte) {
	target := w.target
	if w.sse != nil {
		if target = w.sse.GetEndpoint(); target == nil {
			return
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(line))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if revision, _ := w.c.revision.Load().(string); revision != "" {
		req.Header.Set(transport.HeaderKeyProtocolVersion, revision)
	}
	if id := w.c.transport.GetSessionId(); id != "" {
		req.Header.Set(transport.HeaderKeySessionID, id)
	}
	resp, err := w.RoundTrip(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body) // only to keep the connection
	resp.Body.Close()
}

// close implements wire: the connections belong to the pool of the server.
func (w *httpWire) close() {}
