package mcp

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
)

// party is what the door keeps between the requests of clients without
// sessions: one principal on one route with one set of capabilities. Upstream
// connections are kept for it as they are for a session, and it is the Home of
// what servers say outside of a request.
type party struct {
	key     string // what the road sees
	route   string
	owner   string // the principal, for what is counted by principal
	streams streams
	place   *list.Element // in parties.order; nil = at work

	// Protected by parties.mu.
	busy int
	used time.Time

	mu      sync.Mutex // protects the fields below
	errands []*errand  // under way that may ask, the oldest first
	listens map[*listener]struct{}
	watched map[string]*watch // :: uri of a resource -> who listens for its updates
}

// parties are the parties that are at work or were not long ago.
type parties struct {
	ttl  time.Duration
	max  int
	now  func() time.Time
	over func(key string)

	mu    sync.Mutex // protects the fields below
	byKey map[string]*party
	order *list.List // of *party that are not at work, the longest idle first
	held  map[string]*holdings
	calls int // parked, of all principals
}

// holdings are what one principal holds of what is bounded for each.
type holdings struct{ calls, listens int }

func newParties(opts Options) *parties {
	return &parties{
		ttl: opts.SessionTTL, max: opts.MaxSessions, now: opts.Now, over: opts.Ended,
		byKey: make(map[string]*party), order: list.New(), held: make(map[string]*holdings),
	}
}

// ownerOf names a principal.
func ownerOf(who policy.Principal) string { return digestOf(who.Subject, who.Tenant) }

// partyKey names a party: nobody who does not know all that it is made of can
// have the same.
func partyKey(who policy.Principal, route string, capabilities json.RawMessage) string {
	return "prn_" + digestOf(who.Subject, who.Tenant, route, string(capabilities))
}

// digestOf is one name for a row of texts.
func digestOf(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part))
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// enter gives the party of who on route, at work until leave. When there is no
// room the one that has been idle longest ends, the principal's own before any
// other; nil when all are at work.
func (t *parties) enter(who policy.Principal, route string, capabilities json.RawMessage) *party {
	key := partyKey(who, route, capabilities)
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byKey[key]
	if p == nil {
		if len(t.byKey) >= t.max && !t.shedLocked(ownerOf(who)) {
			return nil
		}
		p = &party{key: key, route: route, owner: ownerOf(who), listens: make(map[*listener]struct{}), watched: make(map[string]*watch)}
		t.byKey[key] = p
	}
	if p.place != nil {
		t.order.Remove(p.place)
		p.place = nil
	}
	p.busy++
	return p
}

// stay counts in work of p that goes on when its request is over.
func (t *parties) stay(p *party) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.busy++
}

// leave counts work of p out.
func (t *parties) leave(p *party) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.busy--; p.busy == 0 {
		p.used = t.now()
		p.place = t.order.PushBack(p)
	}
}

// shedLocked ends one idle party, one of owner before any other, and reports
// whether there was one. The caller must hold t.mu.
func (t *parties) shedLocked(owner string) bool {
	victim := t.order.Front()
	if victim == nil {
		return false
	}
	for e := victim; e != nil; e = e.Next() {
		if e.Value.(*party).owner == owner {
			victim = e
			break
		}
	}
	t.endLocked(victim)
	return true
}

// endLocked ends an idle party. Its end is told before its key can be taken
// again, so that no connection of its successor is closed for it. The caller
// must hold t.mu.
func (t *parties) endLocked(e *list.Element) {
	p := t.order.Remove(e).(*party)
	delete(t.byKey, p.key)
	t.over(p.key)
}

// sweep ends the parties that have been idle for too long.
func (t *parties) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.order.Front(); e != nil && t.now().Sub(e.Value.(*party).used) > t.ttl; e = t.order.Front() {
		t.endLocked(e)
	}
}

// endAll ends every party that is not at work.
func (t *parties) endAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.order.Front(); e != nil; e = t.order.Front() {
		t.endLocked(e)
	}
}

// all gives the parties there are.
func (t *parties) all() []*party {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*party, 0, len(t.byKey))
	for _, p := range t.byKey {
		all = append(all, p)
	}
	return all
}

// holdLocked gives what owner holds. The caller must hold t.mu.
func (t *parties) holdLocked(owner string) *holdings {
	h := t.held[owner]
	if h == nil {
		h = &holdings{}
		t.held[owner] = h
	}
	return h
}

// dropLocked forgets an owner that holds nothing. The caller must hold t.mu.
func (t *parties) dropLocked(owner string) {
	if h := t.held[owner]; h != nil && *h == (holdings{}) {
		delete(t.held, owner)
	}
}

// park counts in a call that waits for its client, and reports false when there
// are as many as there may be.
func (t *parties) park(p *party, each, total int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.holdLocked(p.owner)
	if h.calls >= each || t.calls >= total {
		t.dropLocked(p.owner)
		return false
	}
	h.calls++
	t.calls++
	return true
}

// unpark counts one out.
func (t *parties) unpark(p *party) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holdLocked(p.owner).calls--
	t.calls--
	t.dropLocked(p.owner)
}

// listen counts in a stream of notifications, and reports false when the
// principal has as many as it may have.
func (t *parties) listen(p *party, each int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.holdLocked(p.owner)
	if h.listens >= each {
		return false
	}
	h.listens++
	return true
}

// unlisten counts one out.
func (t *parties) unlisten(p *party) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holdLocked(p.owner).listens--
	t.dropLocked(p.owner)
}

var _ registry.Peer = (*party)(nil)

// Ask puts what belongs to no request, or nobody knows to which, in the course
// of the newest request that can be answered with questions: it is the same
// client's. A client that has none under way cannot be asked.
func (p *party) Ask(ctx context.Context, round []registry.Question) []registry.Answer {
	p.mu.Lock()
	var e *errand
	if n := len(p.errands); n > 0 {
		e = p.errands[n-1]
	}
	p.mu.Unlock()
	if e == nil {
		return unanswered(round, "the client can be asked in the course of its own requests only")
	}
	return e.settle(ctx, round)
}

// begin enters an errand that may ask.
func (p *party) begin(e *errand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errands = append(p.errands, e)
}

// end takes it out.
func (p *party) end(e *errand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.errands, e); i >= 0 {
		p.errands = slices.Delete(p.errands, i, i+1)
	}
}

// Tell passes a notification to the streams that want it.
func (p *party) Tell(method string, params json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.listens {
		if l.wants(method, params) {
			l.deliver(method, params)
		}
	}
}

// unanswered gives an error for each question.
func unanswered(round []registry.Question, reason string) []registry.Answer {
	all := make([]registry.Answer, len(round))
	for i := range all {
		all[i].Error = failed(reason)
	}
	return all
}
