package rest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// signals streams the signals of who's own calls as server-sent events until
// the client goes, does not keep up, is no longer known, or the handler
// closes. A reader that is too slow is told so, if it still reads, and dropped:
// no call ever waits for it.
func (h *Handler) signals(w http.ResponseWriter, r *http.Request, who policy.Principal) {
	if !h.reads(w, r, "text/event-stream") {
		return
	}
	sub, err := h.opts.Bus.Subscribe(who)
	if err != nil {
		h.refuseStream(w, err)
		return
	}
	defer sub.Close()
	ctx, done := streamContext(r, h.streams)
	defer done()
	credential, _ := identity.FromHeader(r.Header) // known has read it before
	s := &stream{h: h, w: w, rc: http.NewResponseController(w), credential: credential, who: who}
	s.run(ctx, sub)
}

// refuseStream refuses a listener for the reason that the bus gave.
func (h *Handler) refuseStream(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, bus.ErrTooMany):
		h.refuse(w, problem{http.StatusTooManyRequests, string(wire.Overloaded), "too many event streams are open"})
	case errors.Is(err, bus.ErrClosed):
		h.refuse(w, shuttingDown)
	default:
		h.broken(w, err)
	}
}

// stream is one open event stream. One goroutine uses it.
type stream struct {
	h          *Handler
	w          http.ResponseWriter
	rc         *http.ResponseController
	credential identity.Credential
	who        policy.Principal
}

// run writes events and heartbeats until one of the reasons to end is there.
func (s *stream) run(ctx context.Context, sub *bus.Subscription) {
	head := s.w.Header()
	head["Content-Type"], head["Cache-Control"] = eventType, noStore
	head.Set("X-Accel-Buffering", "no") // proxies in between must not collect events
	s.w.WriteHeader(http.StatusOK)
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }() // the connection goes on to its next request
	if s.send([]byte(": listening\n\n")) != nil {             // the head tells the client that it is being heard
		return
	}
	asked := time.Now()
	for {
		n, err := s.next(ctx, sub)
		if ctx.Err() != nil {
			return
		}
		if time.Since(asked) >= s.h.opts.Heartbeat {
			if !s.stillKnown(ctx) {
				return
			}
			asked = time.Now()
		}
		switch {
		case err == nil:
			err = s.send(event(n))
		case errors.Is(err, context.DeadlineExceeded):
			err = s.send([]byte(": heartbeat\n\n"))
		case errors.Is(err, bus.ErrDropped):
			_ = s.send([]byte(dropped)) // the stream ends, whether it is read or not
		}
		if err != nil {
			return
		}
	}
}

// dropped is what a reader hears that was too slow.
const dropped = "event: dropped\ndata: {\"reason\":\"signals came faster than they were read; the ones after the last event are lost\"}\n\n"

// next waits for a signal, for one heartbeat at most.
func (s *stream) next(ctx context.Context, sub *bus.Subscription) (signal.JSONRPCNotification, error) {
	ctx, stop := context.WithTimeout(ctx, s.h.opts.Heartbeat)
	defer stop()
	return sub.Next(ctx)
}

// stillKnown reports whether the credential of the stream still names the
// principal that it named: a revoked or expired token hears nothing more.
func (s *stream) stillKnown(ctx context.Context) bool {
	who, failure := s.h.opts.Gate.Identify(ctx, s.credential)
	return failure == nil && who.Subject == s.who.Subject && who.Tenant == s.who.Tenant
}

// send writes one piece of the stream within the time that it may take.
func (s *stream) send(piece []byte) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.h.opts.IOTimeout)) // a writer without deadlines has no network
	if _, err := s.w.Write(piece); err != nil {
		return err
	}
	return s.rc.Flush()
}

// event is one notification as an event whose id is that of its signal.
func event(n signal.JSONRPCNotification) []byte {
	message := jsonrpc.NewNotification(n.Method, n.Params)
	out := make([]byte, 0, len(message)+80)
	if id, ok := signalID(n.Params); ok {
		out = append(append(append(out, "id: "...), id...), '\n')
	}
	out = append(out, "event: signal\ndata: "...)
	out = append(out, jsonrpc.OneLine(message)...)
	return append(out, "\n\n"...)
}

// signalID gives the id of the signal in params.
func signalID(params json.RawMessage) (string, bool) {
	inner, ok := jsonrpc.Get(params, "signal")
	if !ok {
		return "", false
	}
	raw, ok := jsonrpc.Get(inner, "id")
	if !ok {
		return "", false
	}
	return jsonrpc.Text(raw)
}
