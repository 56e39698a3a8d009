package bridge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

const (
	// maxResumes is how often in a row a stream is asked for again that gives
	// nothing.
	maxResumes = 5
	// orderPatience is how long a message without an answer waits for requests
	// before it to go out; beyond it a stuck one would hold up all others.
	orderPatience = 5 * time.Second
)

const unknownEffect = "whether the request took effect is unknown"

// exchange sends the request f and sees to it that it is answered.
func (t *talk) exchange(f *flight, m *jsonrpc.Message) {
	s := t.current()
	if f.method == "initialize" {
		s = session{}
	}
	ctx, connected := traced(f.ctx, f.sent)
	res, err := t.do(ctx, http.MethodPost, t.headers(m, f.era, s), m.Raw)
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
	t.grant(f, res.Header.Get(headerSession))
	media := mediaOf(res)
	switch {
	case res.StatusCode == http.StatusOK && media == "text/event-stream":
		t.follow(f, res.Body, s)
	case res.StatusCode == http.StatusOK && media == "application/json":
		t.answered(f, res.Body)
	default:
		t.refuse(f, res, s)
	}
}

// traced gives a context that tells sent when a request has been written, and
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

// do sends one HTTP request. A POST whose connection fails is sent again by
// net/http only when not one byte of it was written. The error names no URL.
func (t *talk) do(ctx context.Context, method string, h http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = h
	if t.opts.Token != "" {
		h.Set("Authorization", "Bearer "+t.opts.Token)
	}
	res, err := t.http.Do(req)
	t.tell(res)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return res, err
}

// tell notes what came of an HTTP request, for the verdict.
func (t *talk) tell(res *http.Response) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tried = true
	if res != nil {
		closed := res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden
		t.refused, t.heard = t.refused || closed, t.heard || !closed
	}
}

func mediaOf(res *http.Response) string {
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return media
}

// answered takes an answer that came as JSON.
func (t *talk) answered(f *flight, body io.Reader) {
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	switch {
	case err != nil:
		t.broken(f, "the connection broke within the answer", err)
	case len(text) > maxAnswer:
		t.broken(f, "the answer is too large", errTooLong)
	default:
		t.relay(f, text)
		t.conclude(f, text)
	}
}

// conclude answers f, if text, all that came, did not. An endpoint that refuses
// a message may not have read its id: such an error is passed on under the
// request's own.
func (t *talk) conclude(f *flight, text []byte) {
	if t.settled(f) {
		return
	}
	got, ok := read(text)
	if !ok || len(got) != 1 || got[0].failure == nil || got[0].id != nil {
		t.broken(f, "the endpoint gave something that does not answer the request", nil)
		return
	}
	if t.end(f) {
		t.out.Send(jsonrpc.NewFailureObject(f.id, got[0].failure))
	}
}

// follow takes the messages of the event stream that answers f. When it breaks
// off before the answer it is taken up where it was left, if the endpoint
// named its events; the request is never sent again.
func (t *talk) follow(f *flight, body io.Reader, s session) {
	var at place
	err := t.pump(f, body, &at)
	for n := 0; !t.settled(f); {
		if at.fresh || at.retry > 0 && err == nil { // an endpoint that wants to be polled says so
			n, at.fresh = 0, false
		}
		n++
		if f.era.modern || at.last == "" || n > maxResumes || errors.Is(err, errTooLong) || f.ctx.Err() != nil {
			t.broken(f, "the event stream ended before the answer", err)
			return
		}
		if wait(f.ctx, at.pause(t.opts.Pause, n)); !t.settled(f) {
			err = t.resume(f, s, &at)
		}
	}
}

// errGone is reported for a stream that the endpoint does not know any more.
var errGone = errors.New("the endpoint does not resume the stream")

// resume takes up the stream of f where at says. The end of the stream is no
// error.
func (t *talk) resume(f *flight, s session, at *place) error {
	res, err := t.open(f.ctx, s, at)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK && mediaOf(res) == "text/event-stream" {
		return t.pump(f, res.Body, at)
	}
	if !passing(res.StatusCode) {
		at.last = ""
	}
	return errGone
}

// passing reports whether a status may be another one soon.
func passing(status int) bool {
	return status >= 500 && status != http.StatusNotImplemented || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// open asks for an event stream by GET.
func (t *talk) open(ctx context.Context, s session, at *place) (*http.Response, error) {
	h := http.Header{"Accept": {"text/event-stream"}}
	s.show(h)
	if at.last != "" {
		h.Set(headerLast, at.last)
	}
	return t.do(ctx, http.MethodGet, h, nil)
}

// pump relays events until the stream ends, which is nil, or f, which may be
// nil, is settled.
func (t *talk) pump(f *flight, body io.Reader, at *place) error {
	events := newEvents(body, maxAnswer, at)
	for f == nil || !t.settled(f) {
		data, err := events.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		t.relay(f, data)
	}
	return nil
}

// deliver sends a message that has no answer. One that cannot be delivered is
// logged, since there is nobody to tell.
func (t *talk) deliver(m *jsonrpc.Message) {
	t.order()
	ctx, stop := context.WithTimeout(t.life, delivery)
	defer stop()
	s, e := t.current(), eraOf(m)
	res, err := t.do(ctx, http.MethodPost, t.headers(m, e, s), m.Raw)
	if err != nil {
		t.log.Warn("a message was not delivered", "method", m.Method, "kind", m.Kind.String(), "error", err)
		return
	}
	defer res.Body.Close()
	if res.StatusCode/100 == 2 {
		if mediaOf(res) != "text/event-stream" {
			_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxRefusal)) // only to keep the connection
		}
		if m.Method == "notifications/initialized" && !e.modern {
			t.listen(s)
		}
		return
	}
	p := readProblem(res)
	if !e.modern {
		t.lost(res, p.rpc, s, nil)
	}
	t.log.Warn("a message was refused", "method", m.Method, "kind", m.Kind.String(), "status", res.StatusCode, "reason", p.say(res))
}

// order waits until the requests before are on their way: as much order as
// side by side HTTP requests can have.
func (t *talk) order() {
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

// wait lets d pass, or less when ctx is done.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
