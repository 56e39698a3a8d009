package bus

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/signal"
)

// Subscription is one listener's queue. It is safe for concurrent use; each
// notification goes to one caller of Next.
type Subscription struct {
	bus    *Bus
	owner  owner
	queue  chan signal.JSONRPCNotification
	bytes  atomic.Int64 // of the params in the queue
	closed sync.Once

	mu  sync.Mutex // protects the fields below, and that queue is open while err is nil
	err error      // what comes after the queue
}

func newSubscription(b *Bus, key owner) *Subscription {
	return &Subscription{bus: b, owner: key, queue: make(chan signal.JSONRPCNotification, b.opts.Depth)}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return signal.JSONRPCNotification{}, s.err
}

// Close stops listening. A Next that waits returns ErrClosed; what is queued
// may still be had. Closing again does nothing.
func (s *Subscription) Close() {
	s.closed.Do(func() {
		s.end(ErrClosed)
		s.bus.release(s)
	})
}

// push queues n, or drops the listener when there is no room.
func (s *Subscription) push(n signal.JSONRPCNotification) {
	if !s.offer(n) {
		s.end(ErrDropped)
		s.bus.mute(s)
	}
}

// offer reports whether s needs nothing more: n is queued, or s has ended.
func (s *Subscription) offer(n signal.JSONRPCNotification) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return true
	}
	size := int64(len(n.Params))
	if waiting := s.bytes.Load(); waiting > 0 && waiting+size > s.bus.opts.Bytes {
		return false
	}
	s.bytes.Add(size) // before the send: Next takes it off again
	select {
	case s.queue <- n:
		return true
	default:
		return false
	}
}

// end closes the queue; the first reason stays.
func (s *Subscription) end(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = reason
		close(s.queue)
	}
}
