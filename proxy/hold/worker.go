// Package hold has what concerns held calls off the road. Text, Describe and Task say what agents
// read of their tickets. A Worker works without agents: it makes calls that run upon approval,
// through the gate, and supersedes tickets whose terms are gone:
//
//	w, err := hold.NewWorker(hold.Options{Gate: gate, Ledger: tickets, Shutdown: proxy.ErrShutdown})
//	defer w.Close(ctx)
//
// The stage of the road that holds a call is in proxy/approve.go.
package hold

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/semaphore"

	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

const (
	// grace is the head start of a call that waits for its own approval: the worker
	// would take its result.
	grace = 500 * time.Millisecond
	// A call of which nothing was sent is tried again after twice the wait before the
	// last try, but no later than lastRetry.
	lastRetry = time.Minute
	// lookOver is how soon the ticket worker finds what a process that died left behind.
	lookOver = 5 * time.Second
	// maxRuns is how many calls the ticket worker makes at once.
	maxRuns = 16
)

// Ledger has the tickets that this process is responsible for: its own, and those of
// processes that have died.
type Ledger interface {
	// Live returns the tickets that wait for people or for their call.
	Live(ctx context.Context) ([]approval.Ticket, error)
	// Runnable returns the approved tickets whose calls run without their agents.
	Runnable(ctx context.Context) ([]approval.Ticket, error)
	// Follow yields the changes of all processes after a number; < 0 means from now on.
	Follow(ctx context.Context, after int64) iter.Seq2[approval.Event, error]
}

// Gate judges held calls and makes them. It is a proxy.Gate.
type Gate interface {
	// Review supersedes a live ticket whose terms are gone, and reports whether the ticket stands.
	Review(ctx context.Context, t approval.Ticket) bool
	// Resume makes the call of an approved ticket, if the ticket stands and its requester is
	// connected as approved, and returns the ticket afterwards.
	Resume(ctx context.Context, t approval.Ticket) (approval.Ticket, error)
}

// Options are the parts of a Worker. Gate and Ledger are required.
type Options struct {
	Gate   Gate
	Ledger Ledger
	// Shutdown is the cause with which Close cancels calls; nil = context.Canceled.
	Shutdown error
	// OnDecided is called once for each ticket that leaves state proposed, in this
	// process or another, with its next state and how long it waited for people;
	// nil = not called.
	OnDecided func(ended approval.State, waited time.Duration)
	// OnCreated is called with the requester of each new ticket, of this process or
	// another; it must not block. nil = not called.
	OnCreated func(who policy.Principal)
	Log       hclog.Logger // nil = none
}

// Worker works on tickets without their agents: it makes calls that run upon
// approval, and supersedes tickets whose calls would no longer be held on the same
// terms. No call is made twice: the worker claims a ticket like any call, and a
// ticket grants one run. It is safe for concurrent use.
type Worker struct {
	opts  Options
	sweep chan struct{} // signals that all live tickets are to be reviewed
	news  chan struct{} // signals that a call may be ready to run

	stop   context.CancelFunc      // ends the loops
	cancel context.CancelCauseFunc // ends the calls under way
	life   context.Context         // of the calls
	loops  sync.WaitGroup          // ready when the loops have ended
	runs   sync.WaitGroup          // ready when no call is under way or waits for its time

	slots *semaphore.Weighted // for calls under way
	begun sync.Map            // ids of the tickets that have a run
}

// NewWorker starts a Worker that works until Close, first on what
// earlier processes left.
func NewWorker(opts Options) (*Worker, error) {
	if opts.Gate == nil || opts.Ledger == nil {
		return nil, errors.New("making the ticket worker: a gate and a ledger are required")
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	w := &Worker{opts: opts, sweep: make(chan struct{}, 1), news: make(chan struct{}, 1), slots: semaphore.NewWeighted(maxRuns)}
	w.life, w.cancel = context.WithCancelCause(context.Background())
	ctx, stop := context.WithCancel(w.life)
	w.stop = stop
	w.Recheck()
	w.loops.Go(func() { w.work(ctx) })
	w.loops.Go(func() { w.follow(ctx) })
	return w, nil
}

// Recheck has the ticket worker look at all live tickets again, because policy,
// identities or the catalogue have changed. It does not block.
func (w *Worker) Recheck() { wait.Signal(w.sweep) }

// Close begins no further call and waits for those under way; when ctx ends
// before, they are cancelled with Options.Shutdown, and its error is given. Closing again is
// allowed.
func (w *Worker) Close(ctx context.Context) error {
	w.stop()
	w.loops.Wait()
	cancel := func() { w.cancel(w.opts.Shutdown) }
	inTime := context.AfterFunc(ctx, cancel)
	w.runs.Wait()
	defer cancel()
	if !inTime() {
		return ctx.Err()
	}
	return nil
}

// work is the loop that sweeps and runs.
func (w *Worker) work(ctx context.Context) {
	for {
		w.dispatch(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.sweep:
			w.reviewLive(ctx)
		case <-w.news:
		case <-time.After(wait.Beat(lookOver)):
		}
	}
}

// follow reads every change. After a failure of the store it starts again.
func (w *Worker) follow(ctx context.Context) {
	for ctx.Err() == nil {
		for e, err := range w.opts.Ledger.Follow(ctx, -1) {
			if err != nil {
				w.opts.Log.Error("following tickets", "error", err)
				break
			}
			w.handleChange(e)
		}
		wait.For(ctx, lookOver)
	}
}

func (w *Worker) handleChange(e approval.Event) {
	c := e.Change
	if c.From == "" && w.opts.OnCreated != nil {
		w.opts.OnCreated(e.Ticket.Principal)
	}
	if c.From == approval.StateProposed && c.To != approval.StateProposed && w.opts.OnDecided != nil {
		w.opts.OnDecided(c.To, c.At.Sub(e.Ticket.Created))
	}
	if c.To == approval.StateApproved && e.Ticket.Execute {
		wait.Signal(w.news)
	}
}

// reviewLive supersedes the live tickets whose terms are gone.
func (w *Worker) reviewLive(ctx context.Context) {
	tickets, err := w.opts.Ledger.Live(ctx)
	if err != nil && ctx.Err() == nil {
		w.opts.Log.Error("looking at live tickets", "error", err)
	}
	for _, t := range tickets {
		w.opts.Gate.Review(ctx, t)
	}
}

// dispatch begins a run of each approved ticket that has none.
func (w *Worker) dispatch(ctx context.Context) {
	tickets, err := w.opts.Ledger.Runnable(ctx)
	if err != nil && ctx.Err() == nil {
		w.opts.Log.Error("looking for approved calls", "error", err)
	}
	for _, t := range tickets {
		if _, begun := w.begun.LoadOrStore(t.ID, true); !begun {
			w.runs.Go(func() { w.run(ctx, t) })
		}
	}
}

// run makes the call of an approved ticket, and makes it again as long as the ticket
// stays approved and ctx lasts. One that needs a connection is tried again with the next dispatch.
func (w *Worker) run(ctx context.Context, t approval.Ticket) {
	defer w.begun.Delete(t.ID)
	for after := grace; wait.For(ctx, after); after = min(lastRetry, 2*after) {
		if w.slots.Acquire(ctx, 1) != nil {
			return
		}
		next, err := w.opts.Gate.Resume(w.life, t)
		w.slots.Release(1)
		if err != nil || next.State != approval.StateApproved {
			return
		}
		t = next
	}
}
