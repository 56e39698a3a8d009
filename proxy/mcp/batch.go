package mcp

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// batchVersion is the one revision with batches; receiving them is a MUST there
// (MCP 2025-03-26, base protocol).
const batchVersion = "2025-03-26"

// maxBatch bounds the messages of one batch; together they may be as large as
// one message.
const maxBatch = 64

// batches reports whether data is a batch that s, which may be nil, takes.
// Any other array is refused as what it is: no message.
func (s *session) batches(data []byte) bool {
	return s != nil && s.version == batchVersion && jsonrpc.IsBatch(data)
}

// split takes a batch apart into exchanges that are judged each on its own: x,
// with its session, is what they have in common. A batch that is refused as a
// whole leaves its fault in x.
func (s *sessionServer) split(x *exchange, data []byte) ([]*exchange, bool) {
	if s.opts.Observe != nil {
		x.began = s.opts.Now()
	}
	all, err := jsonrpc.Split(data, s.opts.Limits, maxBatch)
	if err != nil {
		x.call.Fault = jsonrpc.FaultOf(err)
		x.id = x.call.Fault.ID
		return nil, false
	}
	parts := make([]*exchange, len(all))
	for i, raw := range all {
		part := *x
		s.decode(&part, raw)
		if m := part.call.Message; m != nil && m.Method == "initialize" {
			x.call.Fault = &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: "initialize must not be part of a batch"}
			return nil, false
		}
		parts[i] = &part
	}
	return parts, true
}

// runBatch admits parts in order and runs the requests among them concurrently.
// It calls tell once for each answer, from several goroutines. The caller must
// call wait, which returns after the last tell.
func (s *sessionServer) runBatch(parts []*exchange, flying *atomic.Int64, tell func(answer)) (wait func()) {
	var work sync.WaitGroup
	var left []*exchange
	settled := func(x *exchange, a answer) {
		s.observe(x, a)
		tell(a)
	}
	for _, x := range parts {
		if a, done := s.admitCounted(x, flying); done {
			settled(x, a)
			continue
		}
		left = append(left, x)
	}
	for _, x := range left { // after all are admitted, so that an id is not taken twice
		work.Go(func() {
			defer flying.Add(-1)
			settled(x, s.run(x))
		})
	}
	return work.Wait
}

// replies collects the answers to one batch. It is safe for concurrent use.
type replies struct {
	mu   sync.Mutex // protects the field below
	body []byte
}

// add puts a into the array, if it says something.
func (r *replies) add(a answer) {
	if a.body == nil || a.silent {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	open := byte(',')
	if r.body == nil {
		open = '['
	}
	r.body = append(append(r.body, open), a.body...)
}

// array gives the answers as one, nil when there are none.
func (r *replies) array() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil {
		return nil
	}
	return append(r.body, ']')
}

// postBatch answers body, a batch, if its session takes batches or is lost, and
// reports whether it did.
func (d *Door) postBatch(out *response, x *exchange, r *http.Request, body []byte) bool {
	ids, said := r.Header[headerSession], r.Header[headerVersion]
	s := d.session.find(ids[0], x.who, x.call.Route, false)
	switch {
	case s == nil || len(ids) > 1:
		d.decode(x, body)
		a := d.refuse(x, signal.CodeSessionLost, lostSession)
		d.observe(x, a)
		out.finish(a)
	case !s.batches(body) || len(said) > 1 || len(said) == 1 && said[0] != batchVersion:
		return false
	default:
		x.use(s)
		d.answerBatch(r.Context(), out, x, body)
	}
	return true
}

// answerBatch answers a batch of x's session. Answers come as an array, or as
// single events where one of the messages may report or the client reads
// nothing else.
func (d *Door) answerBatch(ctx context.Context, out *response, x *exchange, body []byte) {
	parts, ok := d.session.split(x, body)
	switch {
	case !ok:
		a := d.refuseFault(x)
		d.observe(x, a)
		out.finish(a)
		return
	case out.events && (!out.plain || slices.ContainsFunc(parts, (*exchange).mayNotify)):
		d.answerBatchOnStream(ctx, out, parts)
		return
	}
	var flying atomic.Int64
	var all replies
	d.session.runBatch(parts, &flying, all.add)()
	a := answer{status: http.StatusAccepted, body: all.array()}
	if a.body != nil {
		a.status = http.StatusOK
	}
	out.finish(a)
}

// answerBatchOnStream answers parts on one event stream, which can be resumed
// like the stream of a single request.
func (d *Door) answerBatchOnStream(ctx context.Context, out *response, parts []*exchange) {
	out.plain = false // nothing is gained by waiting
	d.answerOnStream(ctx, out, parts[0].session, func(t *stream) answer {
		for _, x := range parts {
			x.useStream(t)
		}
		var flying atomic.Int64
		d.session.runBatch(parts, &flying, func(a answer) {
			if a.body != nil && !a.silent {
				t.send(a.body)
			}
		})()
		return answer{}
	})
}
