package mcp

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
)

// voice is how servers reach one client of a revision before 2026-07-28: their
// questions become JSON-RPC requests, and what they tell notifications. It goes
// out on the stream of the request that it belongs to while that can be read:
//
//	voice -> stream of its request -> GET stream -> newest stream of a request -> mailbox
//	      -> event stream of HTTP+SSE
//	      -> stdout
//
// One that belongs to no request has no stream of its own.
type voice struct {
	session *session
	stream  *stream // nil = of no request
}

var _ registry.Peer = (*voice)(nil)

// Ask implements registry.Peer. A question that cannot be brought to the client
// now waits until a stream can carry it. The Error of an answer that did not
// come in time, or cannot come any more, is ours.
func (v *voice) Ask(ctx context.Context, all []registry.Question) []registry.Answer {
	r := newInquiry(v.session, all)
	for i := range all {
		r.put(v, i)
	}
	r.wait(ctx, v)
	return r.answers
}

// Tell implements registry.Peer. Of changes of lists that a client has not yet
// heard of, it hears once.
func (v *voice) Tell(method string, params json.RawMessage) {
	if v.session.news.add(method) {
		return
	}
	v.send(letter{message: jsonrpc.OneLine(jsonrpc.NewNotification(method, params))})
}

// send brings l on its way and reports false when there is none.
func (v *voice) send(l letter) bool {
	return v.stream != nil && v.stream.post(l) || v.session.post(l)
}

// speakOn makes t the stream of x: what is said in the course of it goes there.
func (x *exchange) speakOn(t *stream) {
	x.notify = t.notify
	x.call.Peer = &voice{session: x.session, stream: t}
}
