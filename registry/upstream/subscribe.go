package upstream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const methodUpdated = "notifications/resources/updated"

// A stream is what a subscription to resources is on a stateless connection:
// one listening request, and its successors when it ends.
type stream struct {
	uris []string
	life context.Context
	end  context.CancelFunc

	settle  sync.Once
	settled chan struct{} // closed when the server has acknowledged it, or refused
	refusal *Error        // set before
	empty   bool          // it was acknowledged, and nothing promised; set before
}

// subscribe handles resources/subscribe and resources/unsubscribe.
func (s *session) subscribe(ctx context.Context, r *request) *Error {
	uri := textParam(r, "uri")
	if uri == "" {
		return rpcFault("-32602", "params.uri must be a string", nil)
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctxError(ctx)
	}
	if r.method == methodSubscribe {
		return s.watchResource(ctx, uri)
	}
	return s.unwatchResource(ctx, uri)
}

// watchResource adds a resource. Over HTTP all resources share one stream,
// because each costs a connection; the new stream opens before the old one
// ends, so that no update is lost. Over stdio each resource has its own stream.
// The caller must hold s.turn.
func (s *session) watchResource(ctx context.Context, uri string) *Error {
	switch {
	case s.streams[uri] != nil:
		return nil
	case s.conn.ClosesStreams():
		return s.replace(ctx, func(*stream) bool { return true }, append(slices.Sorted(maps.Keys(s.streams)), uri))
	}
	return s.replace(ctx, func(*stream) bool { return false }, []string{uri})
}

// unwatchResource removes a resource. The caller must hold s.turn.
func (s *session) unwatchResource(ctx context.Context, uri string) *Error {
	st := s.streams[uri]
	if st == nil {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(st.uris), func(u string) bool { return u == uri })
	return s.replace(ctx, func(old *stream) bool { return old == st }, rest)
}

// listenAgain opens the streams of a client on its new connection. If the
// server refuses one resource, the others are still opened.
func (s *session) listenAgain(ctx context.Context, held []subscription) {
	uris := make([]string, len(held))
	for i, sub := range held {
		uris[i] = sub.uri
	}
	if s.conn.ClosesStreams() && s.replace(ctx, func(*stream) bool { return false }, uris) == nil {
		return
	}
	for _, uri := range uris {
		if e := s.watchResource(ctx, uri); e != nil {
			s.conn.opts.Logger.Warn("subscribing again", "uri", uri, "error", e)
		}
	}
}

// replace opens a stream for uris, if there are any, and then ends the streams
// that are old. If the server refuses, nothing changes. The caller must hold
// s.turn.
func (s *session) replace(ctx context.Context, old func(*stream) bool, uris []string) (e *Error) {
	var next *stream
	if len(uris) > 0 {
		if next, e = s.conn.beginStream(ctx, uris); e != nil {
			return e
		}
	}
	maps.DeleteFunc(s.streams, func(_ string, st *stream) bool {
		if old(st) {
			st.end()
		}
		return old(st)
	})
	for _, uri := range uris {
		s.streams[uri] = next
	}
	return nil
}

// beginStream opens a stream and waits for the server's acknowledgement.
func (c *conn) beginStream(ctx context.Context, uris []string) (*stream, *Error) {
	st := &stream{uris: uris, settled: make(chan struct{})}
	st.life, st.end = context.WithCancel(c.Life())
	if !c.Go(func() { c.keepStream(st) }) {
		st.end()
		return nil, c.Died(true)
	}
	select {
	case <-st.settled:
		if st.refusal != nil {
			return nil, st.refusal
		}
		return st, nil
	case <-ctx.Done():
		st.end()
		e := ctxError(ctx)
		e.Sent = true
		return nil, e
	}
}

// keepStream keeps a stream open until it is ended. A failure before the first
// acknowledgement is a refusal; after it, the stream is opened again.
func (c *conn) keepStream(st *stream) {
	defer st.end()
	uris, _ := jsonv2.Marshal(st.uris) // strings cannot fail
	c.listen(st.life, object(member{"resourceSubscriptions", uris}), func(msg *jsonrpc.Message) {
		switch msg.Method {
		case methodAcknowledged:
			if st.conclude(nil, !grants(msg.Params)) {
				return
			}
			for _, uri := range st.uris { // who knows what changed meanwhile
				c.notifyPeer(c.client.peer(), &c.queue, &jsonrpc.Message{Method: methodUpdated, Params: object(member{"uri", jsonrpc.Quote(uri)})})
			}
		case methodUpdated:
			c.notifyPeer(c.client.peer(), &c.queue, msg)
		default:
			c.dropped.Add(1)
		}
	}, func(e *Error, _, _ bool) bool {
		if e == nil {
			e = failed(errors.New("the server closed the subscription at once"))
		}
		st.conclude(e, false)
		return st.refusal != nil || st.empty
	})
}

// conclude records the server's first response to a stream, and reports whether
// it was the first.
func (st *stream) conclude(refusal *Error, empty bool) (first bool) {
	st.settle.Do(func() {
		st.refusal, st.empty, first = refusal, empty, true
		close(st.settled)
	})
	return first
}
