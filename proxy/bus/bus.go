// Package bus sends the Signals that calls produce to listeners, as they are
// produced. A principal receives the signals of its own calls, which are those of
// the same subject of the same tenant, and no others. The bus never makes a
// call wait: a listener that does not keep up is dropped and gets ErrDropped.
package bus

import (
	"cmp"
	"context"
	"errors"
	"slices"
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
	live atomic.Int64 // subscriptions that have not ended

	mu     sync.Mutex      // protects the fields below, and the ends of subscriptions
	subs   []*Subscription // those not closed, the dropped ones too
	closed bool
}

// owner is the part of a principal that decides which signals are its own.
type owner struct{ tenant, subject string }

func ownerOf(p policy.Principal) owner { return owner{p.Tenant, p.Subject} }

// New returns a bus without listeners.
func New(opts Options) *Bus {
	opts.Depth = cmp.Or(max(0, opts.Depth), 256)
	opts.Bytes = cmp.Or(max(0, opts.Bytes), 4<<20)
	opts.PerPrincipal = cmp.Or(max(0, opts.PerPrincipal), 16)
	opts.Total = cmp.Or(max(0, opts.Total), 1024)
	return &Bus{opts: opts}
}

// Publish sends s, a signal of a call of who, to who's listeners. It never
// blocks and never fails. The notification is made once for all of them, and
// not at all when there are none; without any listener on the bus, Publish is
// one atomic load. Signals published one after the other arrive in that order.
func (b *Bus) Publish(who policy.Principal, s signal.Signal) {
	if !b.Listening(who) {
		return
	}
	n := signal.SignalToNotification(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.subs {
		if l.owner == ownerOf(who) {
			l.pushLocked(n)
		}
	}
}

// Listening reports whether somebody receives the signals of who's calls, for
// callers that make signals only to publish them.
// Without any subscription on the bus, Listening is one atomic load.
func (b *Bus) Listening(who policy.Principal) bool {
	if b.live.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.subs, func(s *Subscription) bool { return s.owner == ownerOf(who) && s.err == nil })
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
	s := &Subscription{bus: b, owner: ownerOf(who), queue: make(chan signal.JSONRPCNotification, b.opts.Depth)}
	own := 0
	for _, other := range b.subs {
		if other.owner == s.owner {
			own++
		}
	}
	switch {
	case b.closed:
		return nil, ErrClosed
	case len(b.subs) >= b.opts.Total || own >= b.opts.PerPrincipal:
		return nil, ErrTooMany
	}
	b.subs = append(b.subs, s)
	b.live.Add(1)
	return s, nil
}

// Close ends all subscriptions: each still returns what is queued, then
// ErrClosed. Publish does nothing any more.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.subs {
		s.endLocked(ErrClosed)
	}
}

// Subscription is one listener's queue. It is safe for concurrent use; each
// notification goes to one caller of Next.
type Subscription struct {
	bus   *Bus
	owner owner
	queue chan signal.JSONRPCNotification // closed once err is set
	bytes atomic.Int64                    // of the params in the queue
	err   error                           // what comes after the queue; protected by bus.mu
}

// Next waits for the next notification. After the last one it returns, now and
// forever, ErrDropped or ErrClosed; when ctx ends first, ctx's error.
func (s *Subscription) Next(ctx context.Context) (signal.JSONRPCNotification, error) {
	if err := ctx.Err(); err != nil {
		return signal.JSONRPCNotification{}, err
	}
	select {
	case <-ctx.Done():
		return signal.JSONRPCNotification{}, ctx.Err()
	case n, open := <-s.queue:
		if open {
			s.bytes.Add(-int64(len(n.Params)))
			return n, nil
		}
	}
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	return signal.JSONRPCNotification{}, s.err
}

// Close stops listening. A Next that waits returns ErrClosed; what is queued
// may still be had. Closing again does nothing.
func (s *Subscription) Close() {
	b := s.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	s.endLocked(ErrClosed)
	b.subs = slices.DeleteFunc(b.subs, func(other *Subscription) bool { return other == s })
}

// pushLocked queues n, or drops the listener when there is no room. The caller must
// hold bus.mu.
func (s *Subscription) pushLocked(n signal.JSONRPCNotification) {
	if s.err != nil {
		return
	}
	size := int64(len(n.Params))
	if waiting := s.bytes.Load(); waiting == 0 || waiting+size <= s.bus.opts.Bytes {
		s.bytes.Add(size) // before the send: Next takes it off again
		select {
		case s.queue <- n:
			return
		default:
		}
	}
	s.endLocked(ErrDropped)
}

// endLocked closes the queue; the first reason stays. The caller must hold bus.mu.
func (s *Subscription) endLocked(reason error) {
	if s.err == nil {
		s.err = reason
		close(s.queue)
		s.bus.live.Add(-1)
	}
}
