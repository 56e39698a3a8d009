package mcp

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// owner names a principal.
type owner struct{ subject, tenant string }

func ownerOf(who policy.Principal) owner { return owner{who.Subject, who.Tenant} }

// account says whose a session or client group is, and when it was last used.
type account struct {
	owner owner
	used  atomic.Int64 // Unix time in nanoseconds
	order uint64       // counts what a table has held
}

// ledger returns a, for those that embed it.
func (a *account) ledger() *account { return a }

// touch marks what a belongs to as used: a request that has just ended counts as
// use.
func (a *account) touch(now time.Time) { a.used.Store(now.UnixNano()) }

// older reports whether a was used before b.
func (a *account) older(b *account) bool {
	if x, y := a.used.Load(), b.used.Load(); x != y {
		return x < y
	}
	return a.order < b.order
}

// client is what a table holds: a session, or a client group.
type client interface {
	ledger() *account
	// busy reports whether work is under way, or, with streams, an event stream
	// is open.
	busy(streams bool) bool
	// end ends it. It does not block.
	end()
}

// table holds clients until they have been idle for ttl, max of them. It is safe
// for concurrent use.
type table[T client] struct {
	ttl time.Duration
	max int
	now func() time.Time
	// reuse says that a key may be taken again after its client has ended.
	reuse bool

	mu    sync.Mutex // protects the fields below
	byKey map[string]T
	ended []T    // removed, and to be ended by unlock
	held  uint64 // how many there were
}

func newTable[T client](opts Options) *table[T] {
	return &table[T]{ttl: opts.SessionTTL, max: opts.MaxSessions, now: opts.Now, byKey: make(map[string]T)}
}

// put adds v under a key that is free. When the table is full, the client that
// has been idle longest ends, one of the same owner before any other, so that
// one principal's flood costs its own clients. It returns false when every
// client is at work.
func (t *table[T]) put(key string, v T) bool {
	t.mu.Lock()
	defer t.unlock()
	return t.putLocked(key, v)
}

// putLocked is put. The caller must hold t.mu.
func (t *table[T]) putLocked(key string, v T) bool {
	if len(t.byKey) >= t.max && !t.makeRoomLocked(v.ledger().owner) {
		return false
	}
	t.held++
	v.ledger().order = t.held
	v.ledger().touch(t.now())
	t.byKey[key] = v
	return true
}

// makeRoomLocked ends one idle client and reports whether there was one. The
// caller must hold t.mu.
func (t *table[T]) makeRoomLocked(of owner) bool {
	var victim string
	var best *account
	for key, v := range t.byKey {
		a := v.ledger()
		if best != nil && (a.owner != of && best.owner == of || (a.owner == of) == (best.owner == of) && best.older(a)) {
			continue
		}
		if !v.busy(false) {
			victim, best = key, a
		}
	}
	if best == nil {
		return false
	}
	t.endLocked(victim)
	return true
}

// endLocked ends the client under key. The caller must hold t.mu and release it
// with unlock. With reuse, the end comes before the key can be taken again, so
// that no connection of a successor is closed for it; otherwise it comes after
// t.mu is released, so that it holds up nobody.
func (t *table[T]) endLocked(key string) {
	v := t.byKey[key]
	delete(t.byKey, key)
	if t.reuse {
		v.end()
		return
	}
	t.ended = append(t.ended, v)
}

// unlock releases t.mu and ends the clients that endLocked has removed.
func (t *table[T]) unlock() {
	ended := t.ended
	t.ended = nil
	t.mu.Unlock()
	for _, v := range ended {
		v.end()
	}
}

// sweep ends the clients that have been idle for too long.
func (t *table[T]) sweep() {
	t.mu.Lock()
	defer t.unlock()
	for key, v := range t.byKey {
		if t.now().UnixNano()-v.ledger().used.Load() > int64(t.ttl) && !v.busy(true) {
			t.endLocked(key)
		}
	}
}

// endAll ends every client.
func (t *table[T]) endAll() {
	t.mu.Lock()
	defer t.unlock()
	for key := range t.byKey {
		t.endLocked(key)
	}
}

// all returns the clients.
func (t *table[T]) all() []T {
	t.mu.Lock()
	defer t.unlock()
	return slices.Collect(maps.Values(t.byKey))
}
