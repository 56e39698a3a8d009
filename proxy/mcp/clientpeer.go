package mcp

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
)

// clientPeer sends what servers ask and notify to one client of a session
// revision: questions as JSON-RPC requests, the rest as notifications. A
// message takes the first way that can be read:
//
//	stream of its request -> GET stream -> newest request stream -> mailbox
//	event stream of HTTP+SSE
//	stdout
//
// A message that belongs to no request starts at the second.
type clientPeer struct {
	session *session
	stream  *stream // nil = of no request
}

var _ registry.Peer = (*clientPeer)(nil)

// Ask implements registry.Peer. A question that cannot be sent now waits until
// a stream can carry it. When the client does not answer, the Error of the
// answer is toolgate's own.
func (p *clientPeer) Ask(ctx context.Context, all []registry.Question) []registry.Answer {
	r := newQuestionSet(p.session, all)
	for i := range all {
		r.send(p, i)
	}
	r.wait(ctx, p)
	return r.answers
}

// Tell implements registry.Peer. Several list changes that the client has not
// yet received become one.
func (p *clientPeer) Tell(method string, params json.RawMessage) {
	if p.session.changes.add(method) {
		return
	}
	p.send(outgoing{message: jsonrpc.OneLine(jsonrpc.NewNotification(method, params))})
}

// send sends o and returns false when no way exists.
func (p *clientPeer) send(l outgoing) bool {
	return p.stream != nil && p.stream.post(l) || p.session.post(l)
}

// useStream makes t the stream for messages that belong to x.
func (x *exchange) useStream(t *stream) {
	x.notify = t.send
	x.call.Peer = &clientPeer{session: x.session, stream: t}
}
