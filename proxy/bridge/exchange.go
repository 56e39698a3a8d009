package bridge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// orderPatience bounds the wait of a message without an answer for the requests
// before it, so that one that is stuck does not block all others.
const orderPatience = 5 * time.Second

const unknownEffect = "whether the request took effect is unknown"

// exchange sends the request f and makes sure that it is answered.
func (t *talk) exchange(f *flight, m *jsonrpc.Message) {
	s := t.currentSession()
	if f.method == "initialize" {
		s = session{}
	}
	ctx, connected := traced(f.ctx, f.sent)
	res, err := t.endpoint.Post(ctx, t.headers(m, f.era, s), m.Raw, nil)
	f.sent()
	switch {
	case err != nil && connected.Load():
		t.broken(f, "the connection broke before the answer", err)
		return
	case err != nil:
		t.log.Warn("the endpoint cannot be reached", "endpoint", t.name, "error", err)
		t.fail(f, refusal(signal.CodeUpstreamUnavailable, "no endpoint answers at "+t.name+": "+err.Error()))
		return
	}
	defer res.Body.Close()
	t.mu.Lock()
	f.granted = mcpclient.SessionID(res)
	t.mu.Unlock()
	switch {
	case mcpclient.IsEvents(res):
		t.follow(f, res.Body, s)
	case mcpclient.IsJSON(res):
		t.answered(f, res)
	default:
		t.refuse(f, res, s)
	}
}

// traced returns a context that calls sent when a request has been written, and
// a flag that is set while there is a connection that may have carried it.
func traced(ctx context.Context, sent func()) (context.Context, *atomic.Bool) {
	connected := new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { connected.Store(false) }, // a second one only when nothing was written
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				sent()
			}
		},
	}), connected
}

// broken answers f when its effect is unknown.
func (t *talk) broken(f *flight, what string, err error) {
	if f.ctx.Err() != nil {
		what = "the bridge closed before the answer"
	}
	if !t.settled(f) {
		t.log.Warn(what, "method", f.method, "error", err)
	}
	t.fail(f, refusal(signal.CodeToolFailed, what+": "+unknownEffect))
}

// RoundTrip implements http.RoundTripper. It records the outcome of each request for
// verdict.
func (t *talk) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.transport.RoundTrip(req)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tried = true
	if res != nil {
		closed := res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden
		t.refused, t.heard = t.refused || closed, t.heard || !closed
	}
	return res, err
}

// answered relays a JSON answer.
func (t *talk) answered(f *flight, res *http.Response) {
	text, err := mcpclient.ReadBody(res, t.opts.MaxAnswerBytes)
	switch {
	case errors.Is(err, mcpclient.ErrTooLong):
		t.broken(f, "the answer is too large", err)
	case err != nil:
		t.broken(f, "the connection broke within the answer", err)
	default:
		t.relay(f, text)
		t.conclude(f, text)
	}
}

// conclude answers f if the body text did not. An endpoint that refuses a
// message may not have read its id: its error is passed on under the request's
// own id.
func (t *talk) conclude(f *flight, text []byte) {
	if t.settled(f) {
		return
	}
	got, ok := readMessages(text)
	if !ok || len(got) != 1 || got[0].failure == nil || got[0].id != nil {
		t.broken(f, "the endpoint gave something that does not answer the request", nil)
		return
	}
	if t.settle(f) {
		t.out.Send(jsonrpc.NewFailureObject(f.id, got[0].failure))
	}
}

// follow relays the messages of the event stream that answers f. A stream that breaks
// before the answer is continued from the last event, if its events have ids. The
// request is never sent again.
func (t *talk) follow(f *flight, body io.Reader, s session) {
	take, done := func(event mcpclient.Event) { t.relayEvent(f, event) }, func() bool { return t.settled(f) }
	if err := t.endpoint.Follow(f.ctx, body, s.Session, !f.era.stateless, take, done); err != nil {
		t.broken(f, "the event stream ended before the answer", err)
	}
}

// deliver sends a message that has no answer. A message that cannot be
// delivered is logged.
func (t *talk) deliver(m *jsonrpc.Message) {
	t.awaitWritten()
	ctx, stop := context.WithTimeout(t.life, delivery)
	defer stop()
	s, e := t.currentSession(), eraOf(m)
	res, err := t.endpoint.Post(ctx, t.headers(m, e, s), m.Raw, nil)
	if err != nil {
		t.log.Warn("a message was not delivered", "method", m.Method, "kind", m.Kind.String(), "error", err)
		return
	}
	defer res.Body.Close()
	if res.StatusCode/100 == 2 {
		if !mcpclient.IsEvents(res) {
			_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxRefusal)) // only to keep the connection
		}
		if m.Method == "notifications/initialized" && !e.stateless {
			t.openSessionStream(s)
		}
		return
	}
	p := readProblem(res)
	if !e.stateless {
		t.sessionLost(res, p.rpc, s, nil)
	}
	t.log.Warn("a message was refused", "method", m.Method, "kind", m.Kind.String(), "status", res.StatusCode, "reason", p.reason(res))
}

// awaitWritten waits until all requests in flight are written but those that wait for
// their turn, so that a message without an answer arrives after them, as far as concurrent
// HTTP requests have an order.
func (t *talk) awaitWritten() {
	t.mu.Lock()
	var before []*flight
	for _, f := range t.flights {
		if f.begun.Load() {
			before = append(before, f)
		}
	}
	t.mu.Unlock()
	late := time.After(orderPatience)
	for _, f := range before {
		select {
		case <-f.written:
		case <-late:
			return
		}
	}
}

// A message is one message of the endpoint, read only as far as the bridge must
// understand it.
type message struct {
	line    []byte          // unchanged, on one line
	method  string          // "" in answers
	id      json.RawMessage // nil for none and null
	result  json.RawMessage // of an answer
	failure json.RawMessage // the error object of an answer
}

// readMessages returns the messages of one JSON text: several for a batch,
// which only 2025-03-26 has. It reports false for text that is not JSON or
// holds no messages.
func readMessages(data []byte) ([]message, bool) {
	if !json.Valid(data) {
		return nil, false
	}
	line := jsonrpc.OneLine(bytes.TrimSpace(data))
	if line[0] != '[' {
		m, ok := readOne(line)
		return []message{m}, ok
	}
	var all []message
	for part := range jsonrpc.Elements(line) {
		m, ok := readOne(part)
		if !ok {
			return nil, false
		}
		all = append(all, m)
	}
	return all, len(all) > 0
}

func readOne(line []byte) (message, bool) {
	m := message{line: line}
	m.method, _ = jsonrpc.TextAt(line, "method")
	m.id, _ = jsonrpc.Get(line, "id")
	if string(m.id) == "null" {
		m.id = nil
	}
	if m.method == "" {
		m.result, _ = jsonrpc.Get(line, "result")
		m.failure, _ = jsonrpc.Get(line, "error")
	}
	if len(m.failure) > 0 && m.failure[0] != '{' {
		m.failure = nil
	}
	return m, m.method != "" || m.result != nil || m.failure != nil
}

// relay passes on the messages of one event or body, which belongs to the request f,
// or to none if f is nil.
func (t *talk) relay(f *flight, data []byte) {
	all, ok := readMessages(data)
	if !ok {
		t.log.Warn("the endpoint sent what is no message", "bytes", len(data))
		return
	}
	for _, m := range all {
		asked := t.noteQuestion(m)
		if m.method != "" || t.claim(f, m) {
			t.out.Send(m.line)
		}
		if asked { // now: a refusal that the question causes comes after it
			wait.Signal(t.calls.Moved)
		}
	}
}

// noteQuestion counts m among the open questions, and reports whether it is one, or takes
// back the one that m withdraws.
func (t *talk) noteQuestion(m message) bool {
	if m.method == "notifications/cancelled" {
		id, _ := jsonrpc.At(m.line, "params", "requestId")
		t.asked.Match(id, nil)
		return false
	}
	return m.method != "" && t.asked.Len() < maxAsked && t.asked.Put(m.id, struct{}{})
}

// relayEvent relays the message of one event. The request whose answer is too large fails:
// f, unless the answer has another's id.
func (t *talk) relayEvent(f *flight, event mcpclient.Event) {
	if event.Long == nil {
		t.relay(f, event.Data)
		return
	}
	if id := event.Long.ID(); id != nil {
		t.mu.Lock()
		f = t.flights[jsonrpc.Key(id)]
		t.mu.Unlock()
	}
	t.log.Warn("the endpoint sent a message that is too large: it was dropped", "most_bytes", t.opts.MaxAnswerBytes)
	if f != nil && !event.Long.Asks() {
		t.broken(f, "the answer is too large", nil)
	}
}

// claim settles the request that m answers, before the client can use its id
// again. It reports false for an answer that is not awaited: a continued stream may
// repeat one.
func (t *talk) claim(from *flight, m message) bool {
	t.mu.Lock()
	f := t.flights[jsonrpc.Key(m.id)]
	if f == nil || f.answered {
		t.mu.Unlock()
		t.log.Debug("the endpoint answered what was not asked, or not any more")
		return false
	}
	f.answered = true
	t.dropLocked(f)
	t.mu.Unlock()
	if f != from {
		f.cancel() // its own exchange has no answer
	}
	switch {
	case m.result == nil:
	case f.method == "initialize":
		t.establishSession(f, m.result)
	case f.method == "tools/list" && f.era.stateless:
		t.learnParameters(m.result)
	}
	return true
}

const (
	// maxRefusal bounds the bytes that are read of a refusal.
	maxRefusal = 64 << 10
	// maxProblem bounds the bytes of a refusal that may be a message.
	maxProblem = 16 << 20
	// maxReason bounds the bytes of a reason in an answer.
	maxReason = 1000
)

// refusal is a failure of the bridge itself.
func refusal(code, reason string) wire.Failure {
	source := signal.ModuleRef{Tier: 4, Module: "bridge", Function: "exchange"}
	kernel, err := signal.ErrorFor(code, reason, source, nil, nil)
	if err != nil { // an unknown code is answered as INTERNAL_ERROR
		kernel = &signal.KernelError{Code: signal.CodeInternal}
	}
	return wire.Failure{Kernel: kernel, Reason: reason}
}

// errorObject writes a failure in dialect gateway, as the stdio door does.
func errorObject(w wire.Failure) json.RawMessage {
	reply, err := wire.Answer(wire.Gateway, w)
	if err != nil || reply.Error == nil { // every code used here has a row
		return wire.Internal
	}
	return reply.Error
}

// A problem is the body of a refusal: a JSON-RPC answer, problem details (RFC
// 9457) with toolgate's members, or neither.
type problem struct {
	rpc *message

	Title, Detail, Reason, Remedy, Code string
	DecisionID                          string          `json:"decision_id"`
	TraceID                             string          `json:"trace_id"`
	RetryAfterMS                        float64         `json:"retry_after_ms"`
	Details                             json.RawMessage `json:"details"`
}

func readProblem(res *http.Response) problem {
	var p problem
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem+1)) // without a body, the status is the reason
	if got, ok := readMessages(text); ok && len(got) == 1 && got[0].method == "" {
		return problem{rpc: &got[0]}
	}
	if len(text) > maxRefusal || !strings.HasSuffix(mcpclient.Media(res), "json") || json.Unmarshal(text, &p) != nil {
		return problem{}
	}
	return p
}

// reason returns the endpoint's reason for a refusal, or its status.
func (p problem) reason(res *http.Response) string {
	if p.rpc != nil {
		p.Detail, _ = jsonrpc.TextAt(p.rpc.failure, "message")
	}
	for _, text := range []string{p.Reason, p.Detail, p.Title} {
		if text != "" {
			return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
		}
	}
	said := "the endpoint answered with status " + strconv.Itoa(res.StatusCode)
	if media := mcpclient.Media(res); res.StatusCode/100 == 2 && media != "" {
		said += " and content type " + media
	}
	return said
}

// refuse answers f, whose POST was refused:
//
//	404 in a session         -> SESSION_LOST, and the session is forgotten
//	a JSON-RPC answer        -> unchanged, with the id of the request
//	problem details with one of our codes -> that code
//	anything else            -> by its status
func (t *talk) refuse(f *flight, res *http.Response, s session) {
	p := readProblem(res)
	if f.era.stateless {
		s = session{}
	}
	if !t.settled(f) {
		t.log.Warn("the endpoint refused a message", "method", f.method, "status", res.StatusCode, "reason", p.reason(res), "hint", hint(res.StatusCode))
	}
	switch {
	case t.sessionLost(res, p.rpc, s, f.id):
		t.fail(f, refusal(signal.CodeSessionLost, lostReason))
	case p.rpc != nil:
		t.relay(f, p.rpc.line)
		t.conclude(f, p.rpc.line)
	default:
		t.fail(f, p.failure(res))
	}
}

// hint returns a remedy for a status.
func hint(status int) string {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "say who asks with --token or TOOLGATE_TOKEN"
	case status/100 == 3:
		return "redirects are not followed: connect to the address itself, if you trust it"
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return "does --connect name an MCP endpoint, or on a toolgate /mcp?"
	}
	return ""
}

// failure returns the failure for a refusal that is not JSON-RPC.
func (p problem) failure(res *http.Response) wire.Failure {
	reason := p.reason(res)
	code := codeOfStatus(res.StatusCode)
	if row, err := wire.Lookup(wire.Code(p.Code)); err == nil && row.Form != wire.AsNothing {
		code = row.Kernel
	} else if code == signal.CodeToolFailed {
		reason += ": " + unknownEffect
	}
	w := refusal(code, reason)
	w.Kernel.RetryEligible = w.Kernel.RetryEligible && (p.Code != "" || mcpclient.Passing(res.StatusCode))
	w.Remedy, w.DecisionID, w.TraceID = p.Remedy, p.DecisionID, p.TraceID
	if w.Remedy == "" {
		w.Remedy = hint(res.StatusCode)
	}
	w.RetryAfter = time.Duration(p.RetryAfterMS) * time.Millisecond
	if s, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil && w.RetryAfter <= 0 {
		w.RetryAfter = time.Duration(s) * time.Second
	}
	w.Kernel.Detail = map[string]any{"status": res.StatusCode}
	if len(p.Details) > len("{}") && p.Details[0] == '{' {
		w.Kernel.Detail["details"] = p.Details
	}
	return w
}

// statusCodes are the kernel codes of statuses with a definite reason.
var statusCodes = map[int]string{
	http.StatusUnauthorized: signal.CodeUnauthenticated, http.StatusForbidden: signal.CodeUnauthenticated,
	http.StatusRequestEntityTooLarge: signal.CodeEnvelopeTooLarge, http.StatusTooManyRequests: signal.CodeRateLimited,
	http.StatusServiceUnavailable: signal.CodeUpstreamUnavailable,
}

// codeOfStatus returns the kernel code of a status without further detail. A
// status that another server behind the endpoint may have caused is a failure;
// any other refusal means that the request was not carried out.
func codeOfStatus(status int) string {
	if status/100 == 3 || status/100 == 4 {
		return cmp.Or(statusCodes[status], signal.CodeUpstreamUnavailable)
	}
	return cmp.Or(statusCodes[status], signal.CodeToolFailed)
}
