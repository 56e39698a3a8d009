package mcpclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/wait"
)

// Headers of the Streamable HTTP transport, in canonical form.
const (
	headerSession  = "Mcp-Session-Id"
	headerRevision = "Mcp-Protocol-Version"
	headerLast     = "Last-Event-Id"
)

const (
	mediaEvents = "text/event-stream"
	mediaJSON   = "application/json"
	// maxResumes is how often in a row an event stream is asked for again that
	// gives nothing.
	maxResumes = 5
)

// Endpoint is one Streamable HTTP endpoint (MCP basic/transports). It follows no
// redirects.
type Endpoint struct {
	URL       *url.URL
	Header    http.Header       // of every request; takes precedence over all others
	Transport http.RoundTripper // makes the connections
	MaxBytes  int               // of one message
	Pause     time.Duration     // before an event stream is first opened again, unless the server asks for another
	Log       hclog.Logger      // never nil
	// Broken, unless nil, receives the reason why a request got no response.
	Broken func(error)
}

// Session is what the answer to initialize agreed on. The zero value is none.
type Session struct{ ID, Revision string }

// SessionID returns the session id that a response grants, "" for none.
func SessionID(res *http.Response) string { return res.Header.Get(headerSession) }

// Media returns the media type of a response.
func Media(res *http.Response) string {
	switch text := res.Header.Get("Content-Type"); text {
	case mediaJSON, mediaEvents:
		return text
	default:
		media, _, _ := mime.ParseMediaType(text)
		return media
	}
}

// IsEvents reports whether res is an event stream.
func IsEvents(res *http.Response) bool {
	return res.StatusCode == http.StatusOK && Media(res) == mediaEvents
}

// IsJSON reports whether res is a plain answer.
func IsJSON(res *http.Response) bool {
	return res.StatusCode == http.StatusOK && Media(res) == mediaJSON
}

// Passing reports whether a status may be another one soon.
func Passing(status int) bool {
	return status >= 500 && status != http.StatusNotImplemented || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// outBody reads the body of a POST. net/http writes nothing of a request before
// it begins to read the body, so the first read is the moment of sending. It
// offers nothing but io.ReadCloser: net/http would take a shorter way.
type outBody struct {
	r     bytes.Reader
	claim func() bool // nil when it was called
}

// newBody returns the body of a POST of message.
func newBody(message []byte, claim func() bool) *outBody {
	b := &outBody{claim: claim}
	b.r.Reset(message)
	return b
}

// Read claims the message at the first read and fails if it was withdrawn.
func (b *outBody) Read(buf []byte) (int, error) {
	if claim := b.claim; claim != nil {
		if b.claim = nil; !claim() {
			return 0, errWithdrawn
		}
	}
	return b.r.Read(buf)
}

// Close implements io.Closer.
func (b *outBody) Close() error { return nil }

// Headers returns the headers of a POST in a session.
func (e *Endpoint) Headers(s Session) http.Header {
	return e.with(http.Header{"Content-Type": {mediaJSON}, "Accept": {mediaJSON + ", " + mediaEvents}}, s)
}

// with adds the session and the headers of every request to h.
func (e *Endpoint) with(h http.Header, s Session) http.Header {
	if s.ID != "" {
		h[headerSession] = []string{s.ID}
	}
	if s.Revision != "" {
		h[headerRevision] = []string{s.Revision}
	}
	maps.Copy(h, e.Header)
	return h
}

// Post sends one message with the headers h, which begin with those of Headers
// and are not changed. Claim is called right before the first byte of the request
// is written, and prevents that by returning false; nil always agrees. If the
// connection fails, net/http sends the request again only when none of its bytes was
// written, and claim is called again. The caller closes the body of the response.
func (e *Endpoint) Post(ctx context.Context, h http.Header, message []byte, claim func() bool) (*http.Response, error) {
	req := e.request(ctx, http.MethodPost, h)
	req.Body, req.ContentLength = newBody(message, claim), int64(len(message))
	if h["Idempotency-Key"] == nil && h["X-Idempotency-Key"] == nil { // with one of these net/http repeats a POST after bytes were written
		req.GetBody = func() (io.ReadCloser, error) { return newBody(message, claim), nil }
	}
	return e.roundTrip(req)
}

// request returns a request to the endpoint without a body.
func (e *Endpoint) request(ctx context.Context, method string, h http.Header) *http.Request {
	req := http.Request{Method: method, URL: e.URL, Host: e.URL.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h}
	return req.WithContext(ctx)
}

// roundTrip sends a request to the endpoint.
func (e *Endpoint) roundTrip(req *http.Request) (*http.Response, error) {
	res, err := e.Transport.RoundTrip(req)
	if err != nil && e.Broken != nil {
		e.Broken(err)
	}
	return res, err
}

// Open asks for an event stream with GET: the one that at was read from, or the
// session's own. The caller closes the body of the response.
func (e *Endpoint) Open(ctx context.Context, s Session, at *Position) (*http.Response, error) {
	h := http.Header{"Accept": {mediaEvents}}
	if at.Last != "" {
		h[headerLast] = []string{at.Last}
	}
	return e.roundTrip(e.request(ctx, http.MethodGet, e.with(h, s)))
}

// End ends a session with DELETE. A server may refuse that.
func (e *Endpoint) End(ctx context.Context, s Session) {
	if res, err := e.roundTrip(e.request(ctx, http.MethodDelete, e.with(http.Header{}, s))); err == nil {
		res.Body.Close()
	}
}

// errEnded reports a stream that ended before the answer.
var errEnded = errors.New("the event stream ended before the answer")

// errGone reports a response that is no event stream.
var errGone = errors.New("the endpoint does not resume the stream")

// Follow passes the messages of the event stream that answers a POST to take,
// until done reports that nothing more is wanted. With resume, a stream that breaks off is continued where it was
// left, if the server gave its events ids; the POST is never sent again. The
// caller closes body. The error says why the stream ended early.
func (e *Endpoint) Follow(ctx context.Context, body io.Reader, s Session, resume bool, take func(Event), done func() bool) error {
	var at Position
	err := e.pump(body, &at, true, take, done)
	for !done() {
		pause := at.pause(e.Pause)
		if at.retry > 0 && err == nil { // a server that wants to be polled says so
			at.tries = 1
		}
		if !resume || at.Last == "" || at.tries > maxResumes || ctx.Err() != nil {
			return errors.Join(errEnded, err)
		}
		if wait.For(ctx, pause); done() {
			break
		}
		var status int
		if status, err = e.resume(ctx, s, &at, true, take, done); errors.Is(err, errGone) && !Passing(status) {
			at.Last = ""
		}
	}
	return nil
}

// resume opens a stream at a position and reads it until done reports true
// or the connection ends; neither is an error. The status is 0 without a response.
func (e *Endpoint) resume(ctx context.Context, s Session, at *Position, eager bool, take func(Event), done func() bool) (status int, err error) {
	res, err := e.Open(ctx, s, at)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if !IsEvents(res) {
		return res.StatusCode, errGone
	}
	return res.StatusCode, e.pump(res.Body, at, eager, take, done)
}

// pump passes messages to take until the stream ends, which is nil, or done. Of a message
// that is too large and answers something, an eager pump does not await the end.
func (e *Endpoint) pump(body io.Reader, at *Position, eager bool, take func(Event), done func() bool) error {
	events := NewEvents(body, e.MaxBytes, at)
	events.eager = eager
	for !done() {
		event, err := events.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case event.isMessage():
			take(event)
		}
	}
	return nil
}

// Listen keeps the GET stream of a session open until ctx ends or the server
// refuses it. It calls answered, unless it is nil, once or more for each response
// to a request for the stream, before it reads the stream. It returns whether the
// stream was ever open, and the status of the refusal, 0 when ctx ended.
func (e *Endpoint) Listen(ctx context.Context, s Session, take func(Event), answered func()) (opened bool, status int) {
	var at Position
	done := func() bool {
		if answered != nil {
			answered()
		}
		return false
	}
	for ctx.Err() == nil {
		status, err := e.resume(ctx, s, &at, false, take, done)
		done()
		e.Log.Debug("the stream of the server's own messages ended", "status", status, "error", err)
		refused := errors.Is(err, errGone) && !Passing(status)
		switch {
		case refused && at.Last == "":
			return opened, status
		case refused: // the server may have forgotten the event
			at.Last = ""
		}
		opened = opened || status != 0 && !errors.Is(err, errGone)
		wait.For(ctx, at.pause(e.Pause))
	}
	return opened, 0
}

// ErrTooLong reports a body beyond the size limit.
var ErrTooLong = errors.New("the answer is too large")

// ReadBody reads the body of a response of at most most bytes. A longer one is
// ErrTooLong.
func ReadBody(res *http.Response, most int) ([]byte, error) {
	if n := res.ContentLength; n >= 0 && n <= int64(most) {
		body := make([]byte, n)
		_, err := io.ReadFull(res.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(most)+1))
	if err == nil && len(body) > most {
		err = ErrTooLong
	}
	return body, err
}
