package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// pending is one request of ours that waits for its answer.
type pending struct {
	id    string // as the wire shows it without quotes; also the progress token
	line  []byte // what goes on the wire in place of mcp-go's bytes
	loose bool   // the answer may hold what strict decoding refuses

	ofClient bool                   // it is made for somebody, and not on our own account
	from     Downstream             // for whom
	clock    *patience              // nil for a request on our own account
	progress func(json.RawMessage)  // nil = not wanted
	queue    queue                  // of what is told and asked in its course
	over     atomic.Bool            // it has ended
	heard    func(*jsonrpc.Message) // see request

	headers http.Header // what the request has besides, over HTTP

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
type table struct {
	pool jsonrpc.Pool[*pending]

	mu      sync.Mutex        // protects the fields below
	clients map[*pending]bool // those of clients
}

// put adds p, whose id no other request of the connection has.
func (t *table) put(p *pending) {
	t.pool.Put(jsonrpc.Quote(p.id), p)
	if p.ofClient {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.clients == nil {
			t.clients = make(map[*pending]bool)
		}
		t.clients[p] = true
	}
}

// gone takes p out of those of clients.
func (t *table) gone(p *pending) {
	if p != nil && p.ofClient {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.clients, p)
	}
}

// sole gives the request of a client that waits while no other one does.
func (t *table) sole() *pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.clients) == 1 {
		for p := range t.clients {
			return p
		}
	}
	return nil
}

// take removes and gives the request that raw, an id as it stands on the wire,
// answers. When only is not nil no other request counts. Nil means that the
// id is nobody's.
func (t *table) take(raw json.RawMessage, only *pending) *pending {
	p, _ := t.pool.MatchIf(raw, func(p *pending) bool { return only == nil || p == only })
	t.gone(p)
	return p
}

// peek gives a request by id and leaves it where it is.
func (t *table) peek(id string) *pending {
	p, _ := t.pool.Peek(jsonrpc.Quote(id))
	return p
}

// drop removes p and reports whether it was still there.
func (t *table) drop(p *pending) bool {
	t.gone(p)
	return t.pool.Drop(jsonrpc.Quote(p.id))
}

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
