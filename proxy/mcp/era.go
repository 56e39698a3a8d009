package mcp

import (
	"context"
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// postModern takes a request without a session; s is set when nobody knows the
// sender:
//
//	meet -> checkRevision -> introduce -> checkModern -> party -> errand -> observe -> reply
func (d *Door) postModern(r *http.Request, out *response, x *exchange, s *stranger) {
	var a answer
	ok := s == nil
	if ok {
		a, ok = d.meet(r.Context(), x, r.Header)
	} else {
		a = d.turnAway(x, s)
	}
	switch {
	case !ok:
		d.observe(x, a)
		out.finish(a)
	case x.listens() && !out.events:
		d.parties.leave(x.modern.party)
		a = d.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusNotAcceptable, "accept text/event-stream")
		d.observe(x, a)
		out.finish(a)
	case out.events && (x.listens() || x.mayReport() || !out.plain):
		d.carry(r.Context(), out, d.replay.pass(&x.modern.party.streams), connection{}, func(t *stream) answer {
			return d.settleModern(r.Context(), x, t.notify)
		})
	default:
		out.finish(d.settleModern(r.Context(), x, nil))
	}
}

// mayReport reports whether x may be told something before its answer.
func (x *exchange) mayReport() bool {
	_, wanted := progressToken(x.call.Message.Params)
	return wanted || x.call.Level != ""
}

// listens reports whether x opens a stream of notifications.
func (x *exchange) listens() bool { return x.call.Message.Method == listenMethod }

// settleModern takes x, which has its party, to its answer.
func (d *Door) settleModern(ctx context.Context, x *exchange, notify func([]byte)) answer {
	defer d.parties.leave(x.modern.party)
	var a answer
	if x.listens() {
		a = d.attend(ctx, x, notify)
	} else {
		a = d.takeTurn(ctx, x, notify)
	}
	d.observe(x, a)
	return a
}

// pass begins a stream for o of which nothing is kept that was read, and which
// ends with an answer. It gives its reader.
func (r *replay) pass(o *streams) *reader {
	t := &stream{all: r, owner: o, call: true, once: true, bytes: streamCost}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.owner.bytes += t.bytes
	r.bytes += t.bytes
	return t.attachLocked()
}

// takeModern takes a line without a session, and reports whether it is one.
func (p *pipe) takeModern(x *exchange) bool {
	if !x.saysModern() {
		return false
	}
	d := p.door
	a, ok := d.meet(d.base, x, nil)
	if !ok {
		p.reply(x, a)
		return true
	}
	if p.flying.Load() >= int64(d.opts.MaxFlights) {
		d.parties.leave(x.modern.party)
		p.reply(x, d.refuse(x, signal.CodeOverloaded, "too many requests of this client are in flight"))
		return true
	}
	key := jsonrpc.Key(x.id())
	ctx, err := p.stateless.begin(d.base, key)
	if err != nil {
		d.parties.leave(x.modern.party)
		p.reply(x, d.refuse(x, signal.CodeEnvelopeInvalid, err.Error()))
		return true
	}
	stop := func() {}
	if x.listens() {
		ctx, stop = p.whileHearing(ctx)
	}
	p.flying.Add(1)
	p.flights.Go(func() {
		defer stop()
		defer p.flying.Add(-1)
		defer p.stateless.finish(key)
		a := d.settleModern(ctx, x, p.send)
		if a.body != nil && !a.silent {
			p.send(a.body)
		}
	})
	return true
}

// whileHearing gives a context that also ends with the client's input: a stream
// of notifications has no end of its own that could be waited for.
func (p *pipe) whileHearing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	unbind := context.AfterFunc(p.hearing, cancel)
	return ctx, func() { unbind(); cancel() }
}

// cancels ends the request without a session that x names, if x is such a
// notification. On stdio it need not say of which revision it is, and may.
func (p *pipe) cancels(x *exchange) {
	m := x.call.Message
	if m == nil || m.Kind != jsonrpc.Notification || m.Method != "notifications/cancelled" {
		return
	}
	if id, ok := jsonrpc.Get(m.Params, "requestId"); ok {
		p.stateless.abort(jsonrpc.Key(id))
	}
}
