package bridge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/signal"
)

const (
	// orderPatience is how long a message without an answer waits for requests
	// before it to go out; beyond it a stuck one would hold up all others.
	orderPatience = 5 * time.Second
)

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
	t.grant(f, mcpclient.SessionID(res))
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
		GetConn: func(string) { connected.Store(false) }, // again only when nothing was written
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				sent()
			}
		},
	}), connected
}

// broken answers f when nobody can say whether it took effect.
func (t *talk) broken(f *flight, what string, err error) {
	if f.ctx.Err() != nil {
		what = "the bridge closed before the answer"
	}
	if !t.settled(f) {
		t.log.Warn(what, "method", f.method, "error", err)
	}
	t.fail(f, refusal(signal.CodeToolFailed, what+": "+unknownEffect))
}

// RoundTrip implements http.RoundTripper. It notes what came of each request,
// for the verdict.
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

// answered reads an answer that came as JSON.
func (t *talk) answered(f *flight, res *http.Response) {
	text, err := mcpclient.ReadBody(res, maxAnswer)
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

// follow relays the messages of the event stream that answers f. When it breaks
// off before the answer it is continued where it was left, if the endpoint gave
// its events ids; the request is never sent again.
func (t *talk) follow(f *flight, body io.Reader, s session) {
	take, done := func(data []byte) { t.relay(f, data) }, func() bool { return t.settled(f) }
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

// awaitWritten waits until all requests in flight are written, so that a
// message without an answer arrives after them, as far as concurrent HTTP
// requests have an order.
func (t *talk) awaitWritten() {
	t.mu.Lock()
	var before []*flight
	for _, f := range t.flights {
		before = append(before, f)
	}
	t.mu.Unlock()
	late := time.NewTimer(orderPatience)
	defer late.Stop()
	for _, f := range before {
		select {
		case <-f.written:
		case <-late.C:
			return
		}
	}
}
