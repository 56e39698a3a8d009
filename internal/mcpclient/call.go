package mcpclient

import (
	"bytes"
	"context"
	"encoding/json"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
)

// Call is one request to a server. Its exported fields are set before Do.
type Call struct {
	ID     string // from Conn.NextID; decimal digits, also fit for a progress token
	Method string
	Params json.RawMessage // sent as they are, nil for none
	// Bound are the parameters that headers repeat (paramheader).
	Bound []paramheader.Parameter
	// Loose accepts a result that strict decoding refuses, if its envelope is
	// sound: the elements of a list are judged one by one later.
	Loose bool
	// Owner belongs to the caller.
	Owner any

	key      json.RawMessage // the id on the wire
	line     []byte          // what goes on the wire
	claimed  atomic.Bool     // line has been handed to the transport, or must never be
	unsent   atomic.Bool     // the transport had it, and it is certain that no byte went
	done     atomic.Bool     // the fields below are set
	answered chan struct{}   // closed then; made by Do
	result   json.RawMessage
	fault    *Error
}

// claim reports whether the transport may write the call. It is true once in the
// life of a call: nothing is sent twice.
func (p *Call) claim() bool { return p.claimed.CompareAndSwap(false, true) }

// withdraw takes the call back, and reports whether it is certain that no byte
// of it reached the server.
func (p *Call) withdraw() bool { return p.claim() || p.unsent.Load() }

// answer sets the outcome. Whoever removed the call from its table calls it.
func (p *Call) answer(result json.RawMessage, fault *Error) {
	p.result, p.fault = result, fault
	p.done.Store(true)
	close(p.answered)
}

// Answered reports whether the answer has arrived. It may be called at any time,
// also before Do.
func (p *Call) Answered() bool { return p.done.Load() }

// await waits for the answer, or the end of ctx or the connection.
func (c *Conn) await(ctx context.Context, p *Call) error {
	select {
	case <-p.answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return c.life.Err()
	}
}

// Lookup returns the call with an id that waits for its answer, nil for none.
func (c *Conn) Lookup(id string) *Call {
	p, _ := c.calls.Peek(jsonrpc.Quote(id))
	return p
}

// Settle answers the call whose id is raw in the server's place, if fits agrees,
// and reports whether it did.
func (c *Conn) Settle(raw json.RawMessage, fits func(*Call) bool, result json.RawMessage) bool {
	p, ok := c.calls.Match(raw, fits)
	if ok {
		p.answer(result, nil)
	}
	return ok
}

// fault fails a call that waits for its answer.
func (c *Conn) fault(p *Call, e *Error) {
	if _, open := c.calls.Match(p.key, nil); open {
		p.answer(nil, e)
	}
}

// named finds the call whose id stands in the head of a message that was not
// read to its end.
func (c *Conn) named(head []byte) *Call {
	const most = 256
	head = bytes.ReplaceAll(head[:min(len(head), most)], []byte(" "), nil)
	_, rest, ok := bytes.Cut(head, []byte(`"id":"`))
	if !ok {
		return nil
	}
	id, _, _ := bytes.Cut(rest, []byte{'"'})
	return c.Lookup(string(id))
}
