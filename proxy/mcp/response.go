package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
)

// A response is the HTTP answer to one request. The last three fields are for
// one that carries a stream, and may be nil.
type response struct {
	w       http.ResponseWriter
	rc      http.ResponseController
	length  [1]string // the value of Content-Length
	timeout time.Duration
	plain   bool                 // the client reads application/json
	events  bool                 // the client reads text/event-stream
	shown   *identity.Credential // by the client
	core    *core
	client  context.Context // done when the client has gone
	claim   *share.Claim    // that lent the buffer of an answer which nothing else sends again; nil = none did

	wake  <-chan struct{} // holds a token when lists have changed
	flush func()          // sends the pending list changes
	busy  func() bool     // whether answers are due that a closing door waits for
}

// respond returns the answer to r.
func (c *core) respond(w http.ResponseWriter, r *http.Request) *response {
	return &response{w: w, rc: *http.NewResponseController(w), timeout: c.opts.IOTimeout, core: c, client: r.Context()}
}

// reply reports and sends the answer a to x.
func (c *core) reply(out *response, x *exchange, a answer) {
	c.observe(x, a)
	out.finish(a)
}

// finish sends the answer a, a plain one in one piece with its length.
func (o *response) finish(a answer) {
	if a.opened != "" {
		o.w.Header()[headerSession] = []string{a.opened}
	}
	if a.scopes != nil {
		o.w.Header().Set("WWW-Authenticate", o.core.opts.Challenges.StepUp(o.shown, a.scopes))
	}
	switch {
	case a.problem != nil:
		o.core.refusal(o.w, o.shown, a.problem)
	case a.silent && o.events:
		o.beginEvents() // an event stream without an answer: every client survives it
	case a.body == nil:
		o.w.WriteHeader(a.status)
	case !o.plain && a.status == http.StatusOK:
		o.beginEvents()
		_ = o.writeEvent("", a.message()) // a client that has gone needs no answer
	default:
		h := o.w.Header()
		h["Content-Type"], h["Cache-Control"] = wire.JSONType, wire.NoStore
		size := len(a.body)
		for _, part := range a.rest {
			size += len(part)
		}
		o.length[0] = strconv.Itoa(size)
		h["Content-Length"] = o.length[:]
		_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // fails only for a writer without a network; the server ends it with the request
		o.w.WriteHeader(a.status)
		_, _ = o.w.Write(a.body) // a client that has gone needs no answer
		if rest := a.rest; rest != nil {
			if to, ok := o.w.(io.ReaderFrom); ok { // without a copy, as far as the connection has ReadFrom
				_, _ = to.ReadFrom(&rest)
			} else {
				_, _ = rest.WriteTo(o.w)
			}
		}
		_ = o.rc.Flush() // under the deadline, not after it
		if a.ended {
			o.claim.Delivered()
		}
	}
}

// largeResult is the size in bytes from which a result is not copied into its message.
const largeResult = 16 << 10

// largeMessage returns the message with a large result, which it does not copy: its
// beginning and the other parts.
func (c *core) largeMessage(x *exchange, o outcome) (begin []byte, rest net.Buffers, ok bool) {
	rest, ok = net.Buffers{o.result}, true
	if !o.complete && x.stateless != nil {
		var changes []jsonrpc.Change
		if o.result, changes, ok = completions(o.result, x.row, c.serverInfo); ok {
			parts, err := jsonrpc.Splice(o.result, changes...)
			rest, ok = parts, err == nil
		}
	}
	for i, part := range rest {
		if !o.complete {
			rest[i] = jsonrpc.OneLine(part)
		}
	}
	frame := jsonrpc.NewSuccess(x.id, nil)
	end := len(frame) - 1
	return frame[:end], append(rest, frame[end:]), ok
}

// message returns the whole message of a, nil for none and for a silent one.
func (a *answer) message() []byte {
	switch {
	case a.silent:
		return nil
	case a.rest == nil:
		return a.body
	}
	return slices.Concat(append([][]byte{a.body}, a.rest...)...)
}

// beginEvents sends the head of an event stream.
func (o *response) beginEvents() {
	h := o.w.Header()
	h["Content-Type"], h["Cache-Control"] = wire.EventType, wire.NoStore
	h.Set("X-Accel-Buffering", "no") // proxies in between must not collect events
	o.w.WriteHeader(http.StatusOK)
}

// writeEvent sends message, one line, as one event and flushes it. An empty
// message makes an event that only carries its id and the time to come back.
func (o *response) writeEvent(id string, message []byte) error {
	event := make([]byte, 0, len(id)+len(message)+32)
	if id != "" {
		event = append(append(append(event, "id: "...), id...), '\n')
	}
	if len(message) > 0 {
		event = append(event, "event: message\n"...)
	} else {
		event = append(event, retryField...)
	}
	event = append(append(append(event, "data: "...), message...), "\n\n"...)
	return o.write(event)
}

// write sends data within IOTimeout.
func (o *response) write(data []byte) error {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // as in finish
	if _, err := o.w.Write(data); err != nil {
		return err
	}
	return o.rc.Flush()
}

// problem sends a refusal of the transport as problem details (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string) {
	writeProblem(w, status, fmt.Appendf(nil, `{"type":"about:blank","title":%s,"status":%d,"detail":%s}`,
		jsonrpc.Quote(http.StatusText(status)), status, jsonrpc.Quote(detail)))
}

// refusal sends f in the words and with the status of the error table, as the answer to a
// request that shows a credential.
func (c *core) refusal(w http.ResponseWriter, shown *identity.Credential, f *proxy.Failure) {
	reply, err := wire.Problem(wire.Failure(*f))
	if err != nil { // a code without a row
		problem(w, http.StatusInternalServerError, http.StatusText(http.StatusInternalServerError))
		return
	}
	switch reply.Status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", c.opts.Challenges.Challenge(shown))
	case http.StatusTooManyRequests: // the next guess has to connect again
		w.Header()["Connection"] = []string{"close"}
	}
	if f.RetryAfter > 0 {
		w.Header()["Retry-After"] = []string{strconv.Itoa(int(math.Ceil(f.RetryAfter.Seconds())))}
	}
	writeProblem(w, reply.Status, reply.Body)
}

// writeProblem sends body, which is problem details.
func writeProblem(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = wire.ProblemType, wire.NoStore
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// decode validates data as one envelope, unless x has the outline of a message that is
// too large. It stores the message, or the fault, in x, with the members of the message
// that every transport reads.
func (c *core) decode(x *exchange, data []byte) {
	if c.opts.Observe != nil {
		x.began = c.opts.Now()
	}
	envelope := wire.Envelope{Profile: c.opts.Profile, Deterministic: c.opts.Deterministic, Limits: c.opts.Limits}
	envelope.Limits.Owned = x.owned
	if x.denied != nil {
		envelope.Limits.Bytes = min(envelope.Limits.Bytes, maxUnauthenticatedBytes)
	}
	if x.long == nil {
		x.call.Message, x.call.Fault = envelope.Validate(data)
	} else {
		x.call.Fault = x.long.TooLarge(envelope.Limits.Bytes)
	}
	m := x.call.Message
	if m == nil {
		x.id = x.call.Fault.ID
		return
	}
	x.id, x.row = m.ID, methods[m.Method]
	_, version := m.Param("_meta", metaVersion)
	_, capabilities := m.Param("_meta", metaCapabilities)
	x.declares = version || capabilities
	if token, _ := m.Param("_meta", "progressToken"); len(token) > 0 && strings.IndexByte(`"-0123456789`, token[0]) >= 0 {
		x.token = token // a token of another type asks for nothing
	}
}

// observe reports the envelope x and its answer a to Options.Observe. It does not
// parse a again: a carries what an event says.
func (c *core) observe(x *exchange, a answer) {
	if c.opts.Observe == nil {
		return
	}
	path := "/mcp" // also of stdio
	if x.call.Route != "" {
		path += "/" + x.call.Route
	}
	e := wire.Event{
		Time: x.began, Duration: c.opts.Now().Sub(x.began),
		RequestID: jsonrpc.IDText(x.id), TraceID: a.trace, DecisionID: a.decision,
		Session: x.call.Session, Transport: x.call.Transport, Route: path,
		Status: wire.StatusAccepted, Error: a.fault,
	}
	switch {
	case a.silent:
		e.Status = wire.StatusCancelled
	case a.fault != nil:
		e.Status = wire.StatusError
	case a.body != nil:
		e.Status = wire.StatusOK
	}
	if x.call.Message != nil {
		e.Method = x.call.Message.Method
	}
	if e.Session == "" && x.opened != nil {
		e.Session = x.opened.key
	}
	c.opts.Observe(e)
}

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
// can fetch the answer with Last-Event-ID. request is the ID of the request, nil for
// several.
func (d *Door) answerOnStream(out *response, s *session, request json.RawMessage, work func(*eventlog.Stream) answer) {
	out.wake, out.flush = s.changes.wake, s.flushChanges
	d.serveStream(out, d.events.Open(&s.streams, true, request), work)
}

// serveStream is answerOnStream for the stream of rd.
func (c *core) serveStream(out *response, rd *eventlog.Reader, work func(*eventlog.Stream) answer) {
	t := rd.Stream
	defer rd.Detach()
	if !out.plain {
		rd.Begin()
	}
	c.work.Continue()
	var a answer // read only when the call ended before the stream began
	c.calls.Go(func() {
		defer c.work.Leave()
		a = work(t)
		t.Finish(a.message)
	})
	if out.plain && !waitFirst(out.client, rd) {
		return
	}
	if !rd.Begin() {
		out.finish(a)
		return
	}
	out.beginEvents()
	c.pump(out, rd)
}

// waitFirst waits until the stream has an event or its call an answer, or until
// streamDelay has passed for a stream that can be resumed. It returns false when
// ctx ends first: the client has gone.
func waitFirst(ctx context.Context, rd *eventlog.Reader) bool {
	var limit <-chan time.Time
	if rd.Primed() {
		limit = time.After(streamDelay)
	}
	select {
	case <-rd.Wake():
	case <-limit:
	case <-ctx.Done():
		return false
	}
	return true
}

// pump writes the events of rd to the client until the stream is over, the
// client has left, a write takes longer than IOTimeout, or out has to end. It
// buffers one event only.
func (c *core) pump(out *response, rd *eventlog.Reader) {
	heartbeat := time.NewTicker(c.opts.Heartbeat)
	defer heartbeat.Stop()
	var closing <-chan struct{} // closed for a stream that belongs to no call
	if !rd.OfCall() {
		closing = c.closing.Done()
	}
	var life <-chan time.Time // for a client that knows how to come back (StreamLife)
	if rd.Primed() && c.opts.StreamLife > 0 {
		life = time.After(c.opts.StreamLife)
	}
	for out.drain(rd) {
		var err error
		select {
		case <-rd.Wake():
		case <-out.wake:
			out.flush()
		case <-heartbeat.C:
			err = out.write([]byte(": heartbeat\n\n"))
		case <-closing:
			if out.busy != nil && out.busy() {
				closing = nil // the last answer ends the connection
				continue
			}
			return
		case <-life:
			return
		case <-rd.Gone():
			return
		case <-out.client.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// drain writes the events that are ready and reports whether there may be more.
func (o *response) drain(rd *eventlog.Reader) bool {
	for {
		id, message, ok, over := rd.Read()
		if !ok {
			return !over
		}
		if o.writeEvent(id, message) != nil {
			return false
		}
	}
}

// headerLast names the last event that a client has had, in canonical form.
const headerLast = "Last-Event-Id"

// listen serves the event stream of a session, or the one that Last-Event-ID
// continues, until the client goes, the session ends, a newer stream takes
// over, a write takes too long or the door closes.
func (d *Door) listen(w http.ResponseWriter, r *http.Request, route string) {
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	s, who, ok := d.requestedSession(w, r, route)
	if !ok {
		return
	}
	defer func() { s.touch(d.opts.Now()) }()
	last := r.Header[headerLast]
	if len(last) == 0 {
		d.follow(w, r, s, d.events.Open(&s.streams, false, nil))
		return
	}
	switch rd, ok := d.resume(who, s, last); {
	case !ok:
		problem(w, http.StatusBadRequest, "Last-Event-ID is none that can be continued: it is not of this session, or too old")
	case rd == nil:
		w.WriteHeader(http.StatusNoContent) // by which event streams say: do not come back
	default:
		d.follow(w, r, s, rd)
	}
}

// follow sends what rd reads. Only the stream that belongs to no call ends with
// its session.
func (d *Door) follow(w http.ResponseWriter, r *http.Request, s *session, rd *eventlog.Reader) {
	defer rd.Detach()
	out := d.respond(w, r)
	out.wake, out.flush = s.changes.wake, s.flushChanges
	out.beginEvents()
	_ = out.rc.Flush() // the head tells the client that it is being heard
	d.pump(out, rd)
}
