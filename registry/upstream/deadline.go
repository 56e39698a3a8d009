package upstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// ErrMaxTimeout is the cause of a timeout that progress could not put off any
// longer. It is a context.DeadlineExceeded.
var ErrMaxTimeout = fmt.Errorf("max_timeout is over: %w", context.DeadlineExceeded)

// A deadline is the deadline of one request. Each progress notification starts
// its idle time again, within the total time (MCP basic/utilities/progress and
// basic/lifecycle, timeouts). Both stand still while the request waits for a
// person's answer, which may take minutes. It is safe for concurrent use.
type deadline struct {
	ender wait.Ender
	owned bool          // ender ends a context of this deadline's own
	idle  time.Duration // the whole idle time

	mu    sync.Mutex // protects the fields below
	holds int32      // questions that hold it still
	left  time.Duration
	total time.Duration // what is left of the total time
	since time.Time     // when the times that are left began to run
	timer *time.Timer
}

// begin returns a context that ends after idle without progress, or else
// after total, which is at least idle. Neither counts the time spent on
// questions. The cause is then context.DeadlineExceeded or ErrMaxTimeout. It is ctx
// itself where ender ends that. The caller calls done.
func (p *deadline) begin(ctx context.Context, ender wait.Ender, idle, total time.Duration) context.Context {
	if p.ender = ender; ender == nil {
		ctx, p.ender = wait.WithEnder(ctx)
		p.owned = true
	}
	p.idle, p.left, p.total, p.since = idle, idle, max(idle, total), time.Now()
	p.timer = time.AfterFunc(idle, p.expire)
	return ctx
}

// expire ends the context because its time is over, unless a question or the end of the
// request was faster.
func (p *deadline) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.holds > 0:
	case p.total < p.left:
		p.ender.End(ErrMaxTimeout)
	default:
		p.ender.End(context.DeadlineExceeded)
	}
}

// done ends the clock, and the context where withDeadline has made it.
func (p *deadline) done() {
	p.mu.Lock()
	p.holds++ // so that no question sets the timer again
	p.timer.Stop()
	p.mu.Unlock()
	if p.owned {
		p.ender.End(nil)
	}
}

// hold stops the clock. Each hold has its release.
func (p *deadline) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds++; p.holds == 1 {
		p.timer.Stop()
		p.spend()
	}
}

// spend takes the time since p.since from the times that are left. The caller
// must hold p.mu.
func (p *deadline) spend() {
	spent := time.Since(p.since)
	p.left -= spent
	p.total -= spent
}

// run lets the times that are left run from now. The caller must hold p.mu.
func (p *deadline) run() {
	p.since = time.Now()
	p.timer.Reset(max(min(p.left, p.total), 0))
}

// progress starts the idle time again. Nothing changes once the request is done.
func (p *deadline) progress() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds > 0 {
		p.left = p.idle
		return
	}
	p.spend()
	p.left = p.idle
	p.run()
}

// release lets the clock run again when nothing else holds it.
func (p *deadline) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds--; p.holds == 0 {
		p.run()
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
