package upstream

import (
	"context"
	"sync"
	"time"
)

// A deadline is the deadline of one request. It stands still while the request
// waits for a person's answer, which may take minutes. It is safe for
// concurrent use.
type deadline struct {
	cancel context.CancelCauseFunc

	mu    sync.Mutex // protects the fields below
	left  time.Duration
	since time.Time // when the time that is left began to run
	holds int       // questions that hold it still
	timer *time.Timer
}

// withDeadline returns a context that ends after d, not counting the time spent
// on questions. Its cause is then context.DeadlineExceeded. The caller calls
// done.
func withDeadline(ctx context.Context, d time.Duration) (context.Context, *deadline) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &deadline{cancel: cancel, left: d, since: time.Now()}
	p.timer = time.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, p
}

// done ends the context and frees its resources.
func (p *deadline) done() {
	p.mu.Lock()
	p.holds++ // so that no question sets the timer again
	p.timer.Stop()
	p.mu.Unlock()
	p.cancel(context.Canceled)
}

// hold stops the clock. Each hold has its release.
func (p *deadline) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds++; p.holds == 1 {
		p.timer.Stop()
		p.left -= time.Since(p.since)
	}
}

// release lets the clock run again when nothing else holds it.
func (p *deadline) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds--; p.holds == 0 {
		p.since = time.Now()
		p.timer.Reset(max(p.left, 0))
	}
}

// waiting is the requests of one downstream session. A question that belongs to
// none of them stops all of their clocks. The zero value is ready.
type waiting struct {
	mu    sync.Mutex // protects the fields below
	holds int
	all   map[*deadline]bool
}

// enter adds a request.
func (w *waiting) enter(p *deadline) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[*deadline]bool)
	}
	w.all[p] = true
	if w.holds > 0 {
		p.hold()
	}
}

// leave removes a request, whose clock is not used afterwards.
func (w *waiting) leave(p *deadline) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, p)
}

// hold stops all clocks. Each hold has its release.
func (w *waiting) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds++; w.holds == 1 {
		for p := range w.all {
			p.hold()
		}
	}
}

// release lets the clocks run again when no other question holds them.
func (w *waiting) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds--; w.holds == 0 {
		for p := range w.all {
			p.release()
		}
	}
}
