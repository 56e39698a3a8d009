package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/semaphore"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/signal"
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

// Ledger is the tickets that are this process's to mind: its own, and those of
// processes that have died.
type Ledger interface {
	// Live gives those that wait for people or for their call.
	Live(ctx context.Context) ([]approval.Ticket, error)
	// Runnable gives those that are approved and run without their agent.
	Runnable(ctx context.Context) ([]approval.Ticket, error)
	// Follow tells changes of any process; after < 0 means from now on.
	Follow(ctx context.Context, after int64) iter.Seq2[approval.Event, error]
}

// TicketWorkerOptions are the parts of a TicketWorker. Gate, with a Book, and
// Ledger are required.
type TicketWorkerOptions struct {
	Gate   *Gate
	Ledger Ledger
	// OnDecided is called once for each ticket that leaves state proposed, in this
	// process or another, with its next state and how long it waited for people;
	// nil = not called.
	OnDecided func(ended approval.State, waited time.Duration)
	// OnCreated is called with the requester of each new ticket, of this process or
	// another; it must not block. nil = not called.
	OnCreated func(who policy.Principal)
	Log       hclog.Logger // nil = that of the gate
}

// TicketWorker works on tickets without their agents: it makes calls that run upon
// approval, and supersedes tickets whose calls would no longer be held on the same
// terms. No call is made twice: the worker claims a ticket like any call, and a
// ticket grants one run. It is safe for concurrent use.
type TicketWorker struct {
	opts  TicketWorkerOptions
	sweep chan struct{} // signals that all live tickets are to be reviewed
	news  chan struct{} // signals that a call may be ready to run

	stop   context.CancelFunc // ends the loops
	cancel context.CancelFunc // ends the calls under way
	life   context.Context    // of the calls
	loops  sync.WaitGroup     // ready when the loops have ended
	runs   sync.WaitGroup     // ready when no call is under way or waits for its time

	slots *semaphore.Weighted // for calls under way
	begun sync.Map            // ids of the tickets that have a run
}

// NewTicketWorker starts a TicketWorker that works until Close, first on what
// earlier processes left.
func NewTicketWorker(opts TicketWorkerOptions) (*TicketWorker, error) {
	if opts.Gate == nil || opts.Ledger == nil || opts.Gate.opts.Book == nil {
		return nil, errors.New("making the ticket worker: a gate with a book and a ledger are required")
	}
	opts.Log = cmp.Or(opts.Log, opts.Gate.opts.Log)
	w := &TicketWorker{opts: opts, sweep: make(chan struct{}, 1), news: make(chan struct{}, 1), slots: semaphore.NewWeighted(maxRuns)}
	w.life, w.cancel = context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(w.life)
	w.stop = stop
	w.Recheck()
	w.loops.Go(func() { w.work(ctx) })
	w.loops.Go(func() { w.follow(ctx) })
	return w, nil
}

// Recheck has the ticket worker look at all live tickets again, because policy,
// identities or the catalogue have changed. It does not block.
func (w *TicketWorker) Recheck() { wish(w.sweep) }

// wish leaves word in a channel that holds one.
func wish(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close begins no further call and waits for those under way; when ctx ends
// before, they are cancelled, and its error is given. Closing again is allowed.
func (w *TicketWorker) Close(ctx context.Context) error {
	w.stop()
	w.loops.Wait()
	inTime := context.AfterFunc(ctx, w.cancel)
	w.runs.Wait()
	defer w.cancel()
	if !inTime() {
		return ctx.Err()
	}
	return nil
}

// work is the loop that sweeps and runs.
func (w *TicketWorker) work(ctx context.Context) {
	for {
		w.dispatch(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.sweep:
			w.lookThrough(ctx)
		case <-w.news:
		case <-time.After(lookOver):
		}
	}
}

// follow hears of every change. A store that fails is asked again.
func (w *TicketWorker) follow(ctx context.Context) {
	for ctx.Err() == nil {
		for e, err := range w.opts.Ledger.Follow(ctx, -1) {
			if err != nil {
				w.opts.Log.Error("following tickets", "error", err)
				break
			}
			w.heard(e)
		}
		wait.For(ctx, lookOver)
	}
}

func (w *TicketWorker) heard(e approval.Event) {
	c := e.Change
	if c.From == "" && w.opts.OnCreated != nil {
		w.opts.OnCreated(e.Ticket.Principal)
	}
	if c.From == approval.StateProposed && c.To != approval.StateProposed && w.opts.OnDecided != nil {
		w.opts.OnDecided(c.To, c.At.Sub(e.Ticket.Created))
	}
	if c.To == approval.StateApproved && e.Ticket.Execute {
		wish(w.news)
	}
}

// lookThrough supersedes the live tickets whose terms are gone.
func (w *TicketWorker) lookThrough(ctx context.Context) {
	tickets, err := w.opts.Ledger.Live(ctx)
	if err != nil && ctx.Err() == nil {
		w.opts.Log.Error("looking at live tickets", "error", err)
	}
	for _, t := range tickets {
		w.stands(ctx, t)
	}
}

// stands reviews a ticket, and supersedes it when its terms are gone.
func (w *TicketWorker) stands(ctx context.Context, t approval.Ticket) bool {
	ok, reason := w.opts.Gate.review(ctx, t)
	if reason != "" && w.opts.Gate.supersede(ctx, t.ID, reason) {
		w.opts.Log.Info("superseded a ticket", "ticket", t.ID, "reason", reason)
	}
	return ok
}

// dispatch begins a run of each approved ticket that has none.
func (w *TicketWorker) dispatch(ctx context.Context) {
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
// stays approved and ctx lasts.
func (w *TicketWorker) run(ctx context.Context, t approval.Ticket) {
	defer w.begun.Delete(t.ID)
	var err error
	for after := grace; err == nil && t.State == approval.StateApproved && wait.For(ctx, after); after = min(lastRetry, 2*after) {
		if w.slots.Acquire(ctx, 1) != nil {
			return
		}
		w.call(t)
		w.slots.Release(1)
		t, err = w.opts.Gate.opts.Book.Get(ctx, t.ID)
	}
}

// call takes one call, of an approved ticket, down the road of every call; it may
// spend this ticket only. If nothing was sent, the ticket is approved as before and
// is tried again; if something was, the ticket has its end state.
func (w *TicketWorker) call(t approval.Ticket) {
	if !w.stands(w.life, t) {
		return
	}
	var reply *Reply
	in, err := callOf(t)
	if err == nil {
		var f *Failure
		if reply, f = w.opts.Gate.Call(w.life, in); f != nil {
			err = f
		}
	}
	switch {
	case err != nil:
		w.opts.Log.Warn("making an approved call", "ticket", t.ID, "tool", t.Exposed, "error", err)
	case signal.Compose(reply.Kernel).Retry: // somebody else is making it
	default:
		w.opts.Log.Info("made an approved call", "ticket", t.ID, "tool", t.Exposed, "decision", reply.DecisionID)
	}
}

// callOf returns the call that a ticket was made for: the stored bytes, and the
// requester to be identified again. It belongs to no session, which may be over.
func callOf(ticket approval.Ticket) (*Call, error) {
	params := fmt.Appendf(nil, `{"name":%s,"arguments":%s}`, jsonrpc.Quote(ticket.Exposed), ticket.Arguments)
	m, err := jsonrpc.Decode(jsonrpc.NewRequest(jsonrpc.Quote(ticket.ID), "tools/call", params), jsonrpc.Limits{})
	if err != nil {
		return nil, err
	}
	return &Call{
		Message: m, Credential: identity.Credential{Earlier: &ticket.Principal}, Client: ticket.Principal.Client,
		Transport: ticket.Transport, Era: ticket.Era, TraceID: ticket.TraceID, resumed: &ticket,
	}, nil
}

// onlyFor refuses a resumed call that could not continue with its own ticket:
// otherwise it would ask people for something that no agent has asked for.
func (t *toolCall) onlyFor(ticket approval.Ticket) *Failure {
	reason := "the call needs no approval any more"
	if t.decision.Effect == policy.Hold {
		reason = t.differs(ticket)
	}
	if reason == "" {
		return nil
	}
	return t.fail(signal.CodeApprovalExpired, reason).with("ticket", ticket.ID)
}

// review judges the call of a live ticket by what holds now. The ticket stands
// when the call would be held on the same terms. Otherwise reason says why it is
// to be superseded, "" when that cannot be said at this moment. A review leaves
// no record and costs no quota.
func (g *Gate) review(ctx context.Context, ticket approval.Ticket) (stands bool, reason string) {
	in, err := callOf(ticket)
	if err != nil {
		return false, ""
	}
	t := &toolCall{call: g.newCall(in)}
	t.decisionID, t.principal = ticket.DecisionID, ticket.Principal
	f := t.receive(ctx)
	if f == nil {
		f = t.rejudge(ctx)
	}
	// The local principal of a process with another role is somebody else, and a
	// requester whose token has expired may come back with another.
	p := ticket.Principal
	switch {
	case p.Subject == identity.LocalSubject && p.Until.IsZero() && !slices.Equal(p.Roles, t.principal.Roles):
	case f == nil:
		f = t.onlyFor(ticket)
		if f == nil {
			return true, ""
		}
		return false, f.Reason
	case f.Kernel.Code == signal.CodeUnauthenticated && (p.Until.IsZero() || t.asOf.Before(p.Until)):
		return false, "the requester is not known any more"
	case t.contradicts(ctx, f):
		return false, "the call would be refused by now: " + f.Reason
	}
	return false, ""
}
