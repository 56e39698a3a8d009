// Package bus tells listeners of the Signals that calls produce, as they are
// produced. A principal hears the signals of its own calls, which are those of
// the same subject of the same tenant, and no others. The bus never makes a
// call wait: a listener that does not keep up is dropped, and told so.
package bus

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// Errors of a [Bus] and its subscriptions, for errors.Is.
var (
	// ErrDropped: the subscription's queue was full, so that what came after it
	// is lost. A new subscription starts with what comes then.
	ErrDropped = errors.New("the listener was too slow and was dropped")
	// ErrClosed: the subscription or the bus was closed.
	ErrClosed = errors.New("the signal bus is closed")
	// ErrTooMany: one principal, or all of them, have as many subscriptions as
	// they may.
	ErrTooMany = errors.New("too many listeners")
	// ErrNobody: a subscription for a principal without a subject.
	ErrNobody = errors.New("nobody may listen without a name")
)

const (
	defaultDepth        = 256
	defaultBytes        = 4 << 20
	defaultPerPrincipal = 16
	defaultTotal        = 1024
)

// Options are the settings of a [Bus]; the zero value is usable.
type Options struct {
	Depth        int   // notifications that wait for one subscription; 0 = 256
	Bytes        int64 // bytes of their params, one notification being let in at any size; 0 = 4 MiB
	PerPrincipal int   // subscriptions of one principal; 0 = 16
	Total        int   // subscriptions of all; 0 = 1024
}

// Bus carries signals from calls to listeners. It is safe for concurrent use.
type Bus struct {
	opts Options
	live atomic.Int64 // subscriptions that are published to

	mu     sync.RWMutex // protects the fields below
	groups map[owner]*group
	held   int // subscriptions not closed, the dropped ones too
	closed bool
}

// owner is what of a principal decides whose signals are its own.
type owner struct{ tenant, subject string }

func ownerOf(p policy.Principal) owner { return owner{p.Tenant, p.Subject} }

// group is the subscriptions of one principal.
type group struct {
	live []*Subscription // appended to or replaced: who reads it keeps what it was
	held int             // as of Bus
}

// New gives a bus without listeners.
func New(opts Options) *Bus {
	opts.Depth = cmp.Or(max(0, opts.Depth), defaultDepth)
	opts.Bytes = cmp.Or(max(0, opts.Bytes), defaultBytes)
	opts.PerPrincipal = cmp.Or(max(0, opts.PerPrincipal), defaultPerPrincipal)
	opts.Total = cmp.Or(max(0, opts.Total), defaultTotal)
	return &Bus{opts: opts, groups: map[owner]*group{}}
}

// Publish tells who's listeners of s, a signal of a call of who. It never
// blocks and never fails. The notification is made once for all of them, and
// not at all when there are none; without any listener on the bus, Publish is
// one atomic load. Signals published one after the other arrive in that order.
func (b *Bus) Publish(who policy.Principal, s signal.Signal) {
	listeners := b.listeners(who)
	if len(listeners) == 0 {
		return
	}
	n := signal.SignalToNotification(s)
	for _, l := range listeners {
		l.push(n)
	}
}

// Listening reports whether somebody hears the signals of who's calls, for
// callers that make signals only to publish them.
// Without any subscription on the bus, Listening is one atomic load.
func (b *Bus) Listening(who policy.Principal) bool {
	return b.live.Load() > 0 && len(b.listeners(who)) > 0
}

func (b *Bus) listeners(who policy.Principal) []*Subscription {
	if b.live.Load() == 0 {
		return nil
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if g := b.groups[ownerOf(who)]; g != nil {
		return g.live
	}
	return nil
}

// Subscribe begins to listen to the signals of who's calls. The caller closes
// the subscription, also after an error of Next: until then it counts.
// ErrTooMany, ErrClosed, ErrNobody.
func (b *Bus) Subscribe(who policy.Principal) (*Subscription, error) {
	if !who.Valid() {
		return nil, ErrNobody
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	key := ownerOf(who)
	g := b.groups[key]
	if b.held >= b.opts.Total || g != nil && g.held >= b.opts.PerPrincipal {
		return nil, ErrTooMany
	}
	if g == nil {
		g = &group{}
		b.groups[key] = g
	}
	s := newSubscription(b, key)
	g.live = append(g.live, s)
	g.held++
	b.held++
	b.live.Add(1)
	return s, nil
}

// Close ends all subscriptions: each still gives what is queued, then
// ErrClosed. Publish does nothing any more.
func (b *Bus) Close() {
	b.mu.Lock()
	var all []*Subscription
	for _, g := range b.groups {
		all = append(all, g.live...)
		g.live = nil
	}
	b.closed = true
	b.live.Store(0)
	b.mu.Unlock()
	for _, s := range all {
		s.end(ErrClosed)
	}
}

// mute stops publishing to s.
func (b *Bus) mute(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.muteLocked(s)
}

func (b *Bus) muteLocked(s *Subscription) {
	g := b.groups[s.owner]
	if g == nil {
		return // s was closed by another
	}
	rest := make([]*Subscription, 0, len(g.live))
	for _, l := range g.live {
		if l != s {
			rest = append(rest, l)
		}
	}
	b.live.Add(int64(len(rest) - len(g.live)))
	g.live = rest
}

// release forgets s altogether. It is called once for each subscription.
func (b *Bus) release(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.muteLocked(s)
	g := b.groups[s.owner]
	g.held--
	b.held--
	if g.held == 0 {
		delete(b.groups, s.owner)
	}
}
