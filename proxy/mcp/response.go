package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
)

// Header values that every answer shares; never changed.
var (
	jsonType    = []string{"application/json"}
	problemType = []string{"application/problem+json"}
	eventType   = []string{"text/event-stream"}
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
)

// A response is the HTTP answer to one POST.
type response struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	plain   bool        // the client reads application/json
	events  bool        // the client reads text/event-stream
	asked   http.Header // of the request
}

// finish sends the answer a, a plain one in one piece with its length.
func (o *response) finish(a answer) {
	defer func() { _ = o.rc.SetWriteDeadline(time.Time{}) }() // the connection may serve another request
	if a.opened != "" {
		o.w.Header()[headerSession] = []string{a.opened}
	}
	switch {
	case a.problem != nil:
		refusal(o.w, o.asked, a.status, a.problem)
	case a.silent && o.events:
		beginEvents(o.w) // an event stream without an answer: every client survives it
	case a.body == nil:
		o.w.WriteHeader(a.status)
	case !o.plain && a.status == http.StatusOK:
		beginEvents(o.w)
		_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // a writer without deadlines has no network
		_ = writeEvent(o.w, o.rc, "", a.body)                // a client that has gone needs no answer
	default:
		h := o.w.Header()
		h["Content-Type"], h["Cache-Control"] = jsonType, noStore
		h["Content-Length"] = []string{strconv.Itoa(len(a.body))}
		_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // as above
		o.w.WriteHeader(a.status)
		if _, err := o.w.Write(a.body); err == nil {
			_ = o.rc.Flush() // under the deadline, not after it
		}
	}
}

// beginEvents sends the head of an event stream.
func beginEvents(w http.ResponseWriter) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = eventType, noStore
	h.Set("X-Accel-Buffering", "no") // proxies in between must not collect events
	w.WriteHeader(http.StatusOK)
}

// writeEvent sends message, one line, as one event and flushes it. An empty
// message makes an event that only carries its id and the time to come back.
func writeEvent(w http.ResponseWriter, rc *http.ResponseController, id string, message []byte) error {
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
	return writeAll(w, rc, event)
}

// writeAll sends data and flushes it.
func writeAll(w http.ResponseWriter, rc *http.ResponseController, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return err
	}
	return rc.Flush()
}

// problem sends a refusal of the transport as problem details (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string) {
	writeProblem(w, status, fmt.Appendf(nil, `{"type":"about:blank","title":%s,"status":%d,"detail":%s}`,
		jsonrpc.Quote(http.StatusText(status)), status, jsonrpc.Quote(detail)))
}

// refusal sends f, which may be nil for 401, in the words of the error table.
func refusal(w http.ResponseWriter, asked http.Header, status int, f *proxy.Failure) {
	if status == http.StatusUnauthorized {
		guard.Challenge(w.Header(), asked)
	}
	if f == nil {
		problem(w, status, "missing or unknown bearer token")
		return
	}
	reply, err := wire.Problem(wire.Failure(*f))
	if err != nil { // a code without a row: the status is all that is certain
		problem(w, status, http.StatusText(status))
		return
	}
	writeProblem(w, status, reply.Body)
}

// writeProblem sends body, which is problem details.
func writeProblem(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = problemType, noStore
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// decode validates data as one envelope. It stores the message, or the fault, in
// x, with the members of the message that every transport reads.
func (c *core) decode(x *exchange, data []byte) {
	if c.opts.Observe != nil {
		x.began = c.opts.Now()
	}
	envelope := wire.Envelope{Profile: c.opts.Profile, Deterministic: c.opts.Deterministic, Limits: c.opts.Limits}
	if x.denied != nil {
		envelope.Limits.Bytes = min(envelope.Limits.Bytes, maxUnauthenticatedBytes)
	}
	x.call.Message, x.call.Fault = envelope.Validate(data)
	m := x.call.Message
	if m == nil {
		x.id = x.call.Fault.ID
		return
	}
	x.id, x.row = m.ID, methods[m.Method]
	_, version := m.Meta(metaVersion)
	_, capabilities := m.Meta(metaCapabilities)
	x.declares = version || capabilities
	if token, _ := m.Meta("progressToken"); len(token) > 0 && strings.IndexByte(`"-0123456789`, token[0]) >= 0 {
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

// faultOf returns the error object of a refusal, or the data that stands for
// one in a result.
func faultOf(r wire.Reply) json.RawMessage {
	if r.Error != nil || r.Result == nil {
		return r.Error
	}
	meta, _ := jsonrpc.Get(r.Result, "_meta")
	data, _ := jsonrpc.Get(meta, wire.MetaError)
	return data
}
