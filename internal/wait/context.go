package wait

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A Context is a context.Context that its owner ends for a cause. It is a field of the object
// whose work it bounds, and allocates less than context.WithCancelCause: one channel, and only
// when Done is called. Begin must be called before any other method, and End last. When End has
// returned and nobody else refers to the Context, it may begin again. It has no deadline and no
// values. The other methods are safe for concurrent use.
type Context struct {
	parent *Context // nil = none
	up     Watcher  // of parent

	cause atomic.Pointer[error] // nil = not over
	mu    sync.Mutex            // protects the fields below; a child's may be locked under it
	done  chan struct{}         // nil = nobody has asked
	first *Watcher
}

// Watchable is implemented by a Context, and by a context that embeds one.
type Watchable interface {
	Watch(w *Watcher) bool
	Unwatch(w *Watcher) bool
}

// A Watcher is notified once when a Context ends. It watches one Context at a time.
type Watcher struct {
	Ended      func() // must not block, and must not call a method of the Context but Err
	child      *Context
	next, prev *Watcher
	watching   bool
}

// over is the channel of a Context that ended before Done was called.
var over = make(chan struct{})

func init() { close(over) }

// Begin makes c ready for use. It ends when parent does, for the same cause; nil = no parent.
func (c *Context) Begin(parent *Context) {
	c.parent, c.done = parent, nil
	c.cause.Store(nil)
	if c.up.child = c; parent != nil && !parent.Watch(&c.up) {
		c.end(parent.cause.Load())
	}
}

// End ends c for cause, nil = context.Canceled. Only the first cause counts.
func (c *Context) End(cause error) {
	if cause == nil || cause == context.Canceled { //nolint:errorlint // this very value
		c.end(&canceled)
	} else {
		own := cause // so that only this one is allocated
		c.end(&own)
	}
	if c.parent != nil {
		c.parent.Unwatch(&c.up)
	}
}

// canceled is the usual cause.
var canceled = context.Canceled

// end is End, but for what ties c to parent.
func (c *Context) end(cause *error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.cause.CompareAndSwap(nil, cause) {
		return
	}
	if c.done != nil {
		close(c.done)
	}
	for w := c.first; w != nil; w = c.first {
		c.removeLocked(w)
		if w.child != nil {
			w.child.end(cause)
		} else {
			w.Ended()
		}
	}
}

// Watch has w notified when c ends. It returns false, and w is not notified, when c has ended
// already.
func (c *Context) Watch(w *Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause.Load() != nil {
		return false
	}
	w.next, w.prev, w.watching = c.first, nil, true
	if c.first != nil {
		c.first.prev = w
	}
	c.first = w
	return true
}

// Unwatch undoes Watch. It returns false when w was notified, and w.Ended has returned then, or
// when w does not watch c.
func (c *Context) Unwatch(w *Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.watching {
		return false
	}
	c.removeLocked(w)
	return true
}

// removeLocked removes w. The caller must hold c.mu.
func (c *Context) removeLocked(w *Watcher) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		c.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.next, w.prev, w.watching = nil, nil, false
}

// AfterFunc calls f on a goroutine of its own once c has ended, unless stop is called before.
// It is how package context ties children to c.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	w := &Watcher{Ended: func() { go f() }}
	if !c.Watch(w) {
		go f()
	}
	return func() bool { return c.Unwatch(w) }
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		if c.cause.Load() != nil {
			return over
		}
		c.done = make(chan struct{})
	}
	return c.done
}

// Err implements context.Context. The error is the cause, and context.Canceled unless the
// cause is context.DeadlineExceeded. So context.Cause returns it too.
func (c *Context) Err() error {
	cause := c.cause.Load()
	switch {
	case cause == nil:
		return nil
	case errors.Is(*cause, context.Canceled), errors.Is(*cause, context.DeadlineExceeded):
		return *cause
	}
	return ended{*cause}
}

// ended is the error of a Context that has ended for a cause of its owner's.
type ended struct{ error }

// Unwrap implements what errors.Is and errors.As look for.
func (e ended) Unwrap() []error { return []error{e.error, context.Canceled} }

// Deadline implements context.Context: there is none.
func (c *Context) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context: there is none.
func (c *Context) Value(any) any { return nil }

// An Ender ends a context for a cause, nil = context.Canceled.
type Ender interface{ End(cause error) }

// WithEnder returns a child of parent, and what ends it. The caller ends it at last.
func WithEnder(parent context.Context) (context.Context, Ender) {
	ctx, cancel := context.WithCancelCause(parent)
	return ctx, endFunc(cancel)
}

// endFunc is the Ender of a context of package context.
type endFunc context.CancelCauseFunc

// End implements Ender.
func (f endFunc) End(cause error) { f(cause) }
