// Package share divides a bounded number of places between owners, such as the
// connections to a server between principals.
//
// A share binds only while somebody waits: an owner who is alone may have every place.
// When all places are held and somebody asks for one, the owner who has the most gives
// up an idle one. While none is idle, the one who asks waits, and goes before an owner
// who has more places; one place of that owner is marked as leaving, so that no new
// work keeps it busy.
//
//	mine := pool.Claim("agent-7", connection)
//	mu.Unlock()
//	select {
//	case <-mine.Granted():
//	case <-ctx.Done(): // lock, mine.Release()
//	}
//
// A Pool is not safe for concurrent use. The lock that protects the state of the holders
// protects the Pool as well.
package share

import (
	"cmp"
	"slices"
)

// State says whether a place can be given to somebody else.
type State uint8

// The states of a place.
const (
	Idle   State = iota // to anybody
	Pinned              // to an owner who then has no more places than the one before
	Busy                // to nobody
)

// A Holder is what has a place. Its methods are called under the lock of the Pool.
type Holder interface {
	State() State
	// Used orders holders by their last use: the smaller, the longer ago.
	Used() int64
	// Evict is called once, when the place was given to somebody else.
	Evict()
}

// Pool is a number of places. Make one with New.
type Pool[O comparable] struct {
	most    int
	held    map[O]int
	places  map[*Place[O]]struct{}
	waiting []*Place[O] // the first to ask first
}

// Place is one place, or the request for one.
type Place[O comparable] struct {
	pool    *Pool[O]
	owner   O
	holder  Holder
	granted chan struct{}
	leaving *Place[O] // the request that it is going to be given to
	victim  *Place[O] // the place that is going to be given to this request
}

// New returns a pool of most places; 0 = as many as are asked for.
func New[O comparable](most int) *Pool[O] {
	return &Pool[O]{most: most, held: make(map[O]int), places: make(map[*Place[O]]struct{})}
}

// Claim asks for a place. The caller releases it, whether it was granted or not.
func (p *Pool[O]) Claim(owner O, holder Holder) *Place[O] {
	pl := &Place[O]{pool: p, owner: owner, holder: holder, granted: make(chan struct{})}
	p.waiting = append(p.waiting, pl)
	p.Settle()
	return pl
}

// Full reports whether every place is held.
func (p *Pool[O]) Full() bool { return p.most > 0 && len(p.places) >= p.most }

// Held returns how many places are held.
func (p *Pool[O]) Held() int { return len(p.places) }

// Settle gives places to those who wait. Call it when a holder is no longer busy.
func (p *Pool[O]) Settle() {
	for next := p.next(); next != nil && p.give(next); next = p.next() {
	}
}

// next returns the request of the owner who has the fewest places, the oldest first;
// nil when nobody waits.
func (p *Pool[O]) next() (next *Place[O]) {
	for _, pl := range p.waiting {
		if next == nil || p.held[pl.owner] < p.held[next.owner] {
			next = pl
		}
	}
	return next
}

// give grants a request if it can, and reports whether it could. If not, it marks one
// place of an owner who has more.
func (p *Pool[O]) give(to *Place[O]) bool {
	var victim *Place[O]
	if p.Full() {
		victim = p.choose(to, func(s State, _ bool) bool { return s == Idle })
		if victim == nil {
			victim = p.choose(to, func(s State, more bool) bool { return s == Pinned && more })
		}
		if victim == nil {
			p.mark(to)
			return false
		}
		victim.remove()
	}
	p.forget(to)
	p.held[to.owner]++
	p.places[to] = struct{}{}
	close(to.granted)
	if victim != nil {
		victim.holder.Evict()
	}
	return true
}

// mark marks the place that a request waits for, unless one is marked already.
func (p *Pool[O]) mark(to *Place[O]) {
	if to.victim != nil {
		return
	}
	if to.victim = p.choose(to, func(_ State, more bool) bool { return more }); to.victim != nil {
		to.victim.leaving = to
	}
}

// choose returns a place that may be given to a request: of the owner who has the most,
// or else of the one who asks, the one used longest ago. More says that its owner still has
// as many places as the one who asks, or more, when the place has changed hands.
func (p *Pool[O]) choose(to *Place[O], may func(s State, more bool) bool) (victim *Place[O]) {
	own := func(pl *Place[O]) int {
		if pl.owner == to.owner {
			return 1
		}
		return 0
	}
	for pl := range p.places {
		s := pl.holder.State()
		if s == Busy && pl.leaving != nil || !may(s, p.held[pl.owner] > p.held[to.owner]+1) {
			continue
		}
		if victim == nil || cmp.Or(p.held[pl.owner]-p.held[victim.owner], own(pl)-own(victim), cmp.Compare(victim.holder.Used(), pl.holder.Used())) > 0 {
			victim = pl
		}
	}
	return victim
}

// forget removes a request from those that wait.
func (p *Pool[O]) forget(pl *Place[O]) {
	if i := slices.Index(p.waiting, pl); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	if pl.victim != nil {
		pl.victim.leaving, pl.victim = nil, nil
	}
}

// Granted is closed when the place is held.
func (pl *Place[O]) Granted() <-chan struct{} { return pl.granted }

// Leaving reports whether the place is going to be given up: it should get no new work.
func (pl *Place[O]) Leaving() bool { return pl.leaving != nil }

// Release gives the place up, or withdraws the request. It may be called again, and by
// Evict.
func (pl *Place[O]) Release() {
	pl.pool.forget(pl)
	if pl.remove() {
		pl.pool.Settle()
	}
}

// remove takes the place from its holder and reports whether it had it.
func (pl *Place[O]) remove() bool {
	p := pl.pool
	if _, held := p.places[pl]; !held {
		return false
	}
	delete(p.places, pl)
	if p.held[pl.owner]--; p.held[pl.owner] == 0 {
		delete(p.held, pl.owner)
	}
	if pl.leaving != nil {
		pl.leaving.victim, pl.leaving = nil, nil
	}
	return true
}
