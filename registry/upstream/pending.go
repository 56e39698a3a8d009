package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// pending is one request of ours that waits for its answer.
type pending struct {
	id    string // as the wire shows it without quotes; also the progress token
	line  []byte // what goes on the wire in place of mcp-go's bytes
	loose bool   // the answer may hold what strict decoding refuses
	prog  *progress

	claimed  atomic.Bool // line has been handed to the wire, or must never be
	unsent   atomic.Bool // the wire had it, and it is certain that no byte went
	answered atomic.Bool // the fields below are set and stay as they are
	result   json.RawMessage
	fault    *Error
}

// claim reports whether the caller may put p's line on the wire. It is true
// once in the life of p: nothing is ever sent twice.
func (p *pending) claim() bool { return p.claimed.CompareAndSwap(false, true) }

// withdraw takes p back, and reports whether it is certain that no byte of it
// reached the upstream.
func (p *pending) withdraw() bool { return p.claim() || p.unsent.Load() }

// answer sets the outcome. It is called by whoever took p out of its table.
func (p *pending) answer(result json.RawMessage, fault *Error) {
	p.result, p.fault = result, fault
	p.answered.Store(true)
}

// table holds the requests of one connection that wait for an answer. It is
// safe for concurrent use.
type table struct{ pool jsonrpc.Pool[*pending] }

// put adds p, whose id no other request of the connection has.
func (t *table) put(p *pending) { t.pool.Put(jsonrpc.Quote(p.id), p) }

// take removes and gives the request that raw, an id as it stands on the wire,
// answers. When only is not nil no other request counts. Nil means that the
// id is nobody's.
func (t *table) take(raw json.RawMessage, only *pending) *pending {
	p, _ := t.pool.MatchIf(raw, func(p *pending) bool { return only == nil || p == only })
	return p
}

// peek gives a request by id and leaves it where it is.
func (t *table) peek(id string) *pending {
	p, _ := t.pool.Peek(jsonrpc.Quote(id))
	return p
}

// drop removes p and reports whether it was still there.
func (t *table) drop(p *pending) bool { return t.pool.Drop(jsonrpc.Quote(p.id)) }

// linePrefix is how every request that mcp-go marshals begins: our ids are
// decimal digits in a string, so the id ends at the next quote.
const linePrefix = `{"jsonrpc":"2.0","id":"`

// idOf reads the id from a request as mcp-go wrote it, "" when it is none of
// ours.
func idOf(line []byte) string {
	rest, ok := bytes.CutPrefix(line, []byte(linePrefix))
	if !ok {
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte{'"'})
	return string(id)
}

// acknowledgement is what mcp-go gets to read when p has been answered: enough
// to wake the caller, and nothing of what the upstream wrote.
func acknowledgement(p *pending) []byte {
	return append(append([]byte(linePrefix), p.id...), `","result":{}}`...)
}

// progressDepth is how many progress notifications of one call may wait for
// their receiver; later ones are dropped until it catches up.
const progressDepth = 64

// progress delivers the progress notifications of one call in order, away from
// the goroutine that reads the connection.
type progress struct {
	deliver func(json.RawMessage)
	queue   chan json.RawMessage
	done    chan struct{}
	muted   atomic.Bool

	mu     sync.Mutex // protects the fields below
	closed bool
}

// newProgress starts the delivery to f.
func newProgress(f func(json.RawMessage)) *progress {
	p := &progress{deliver: f, queue: make(chan json.RawMessage, progressDepth), done: make(chan struct{})}
	go p.run()
	return p
}

// run delivers until finish.
func (p *progress) run() {
	defer close(p.done)
	for params := range p.queue {
		if !p.muted.Load() {
			p.deliver(params)
		}
	}
}

// offer queues params unless the queue is full or finished.
func (p *progress) offer(params json.RawMessage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	select {
	case p.queue <- params:
		return true
	default:
		return false
	}
}

// finish ends the delivery and returns when the receiver will not be called
// again. With mute, what is still queued is dropped.
func (p *progress) finish(mute bool) {
	if p == nil {
		return
	}
	p.muted.Store(mute)
	p.mu.Lock()
	p.closed = true
	close(p.queue)
	p.mu.Unlock()
	<-p.done
}

var (
	// errMalformed is reported for an answer that cannot be trusted.
	errMalformed = errors.New("the upstream's answer is malformed")
	// errWithdrawn is reported to a wire that comes too late to send.
	errWithdrawn = errors.New("the request was given up before it was sent")
)

// named finds the request whose id stands in the head of a message that was
// not read to its end.
func (t *table) named(head []byte) *pending {
	const most = 256
	head = bytes.ReplaceAll(head[:min(len(head), most)], []byte(" "), nil)
	_, rest, ok := bytes.Cut(head, []byte(`"id":"`))
	if !ok {
		return nil
	}
	id, _, _ := bytes.Cut(rest, []byte{'"'})
	return t.peek(string(id))
}
