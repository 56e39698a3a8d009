package proxy

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

const (
	// grace is how long a call that waits for its own approval goes before the
	// steward, who would take its result away.
	grace = 500 * time.Millisecond
	// The steward tries again after firstRetry when nothing was sent, then after
	// twice that and so on, but no later than lastRetry.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// lookOver is how soon the steward finds what a process that died left behind.
	lookOver = 5 * time.Second
	// maxRuns is how many calls the steward makes at once.
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

// StewardOptions are what a Steward is made of. Gate and Ledger are required, and
// the gate needs its Book.
type StewardOptions struct {
	Gate   *Gate
	Ledger Ledger
	// Waited is told how long each ticket waited for people, in this process or
	// another, and which state ended that; nil = nobody wants to know.
	Waited func(ended approval.State, waited time.Duration)
	// Asked is told for whom each new ticket was made, in this process or
	// another; it must not block. nil = nobody wants to know.
	Asked func(who policy.Principal)
	Log   hclog.Logger
}

// Steward minds tickets whose agents are not there: it makes approved calls that
// run when they are approved, and supersedes tickets that would not be held on
// the same terms any more. What may have been sent is never made again: the
// steward claims a ticket like any call, and a ticket grants one run. It is safe
// for concurrent use.
type Steward struct {
	opts  StewardOptions
	sweep chan struct{} // holds a wish to look at all live tickets
	news  chan struct{} // holds word that something may be there to run

	stop   context.CancelFunc // ends the loops
	cancel context.CancelFunc // ends the calls under way
	life   context.Context    // of the calls
	loops  sync.WaitGroup     // ready when the loops have ended
	runs   sync.WaitGroup     // ready when no call is under way

	mu    sync.Mutex // protects the field below
	tries map[string]*try
}

// try is what is known of a ticket that is to run.
type try struct {
	running bool
	count   int
	due     time.Time
}

// NewSteward makes a Steward that works until Close, and begins with a look at
// what earlier processes left.
func NewSteward(opts StewardOptions) (*Steward, error) {
	if opts.Gate == nil || opts.Ledger == nil || opts.Gate.opts.Book == nil {
		return nil, errors.New("making the steward: a gate with a book and a ledger are required")
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	if opts.Waited == nil {
		opts.Waited = func(approval.State, time.Duration) {}
	}
	if opts.Asked == nil {
		opts.Asked = func(policy.Principal) {}
	}
	s := &Steward{opts: opts, sweep: make(chan struct{}, 1), news: make(chan struct{}, 1), tries: map[string]*try{}}
	s.life, s.cancel = context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(s.life)
	s.stop = stop
	s.Recheck()
	s.loops.Go(func() { s.work(ctx) })
	s.loops.Go(func() { s.follow(ctx) })
	return s, nil
}

// Recheck has the steward look at all live tickets again, because policy,
// identities or the catalogue have changed. It does not block.
func (s *Steward) Recheck() { wish(s.sweep) }

// wish leaves word in a channel that holds one.
func wish(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close begins no further call and waits for those under way; when ctx ends
// before, they are cancelled, and its error is given. Closing again is allowed.
func (s *Steward) Close(ctx context.Context) error {
	s.stop()
	s.loops.Wait()
	over := make(chan struct{})
	go func() {
		s.runs.Wait()
		close(over)
	}()
	var err error
	select {
	case <-over:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.cancel()
	<-over
	return err
}

// work is the loop that sweeps and runs.
func (s *Steward) work(ctx context.Context) {
	for {
		next := s.dispatch(ctx)
		select {
		case <-ctx.Done():
			return
		case <-s.sweep:
			s.lookThrough(ctx)
		case <-s.news:
		case <-time.After(next):
		}
	}
}

// follow hears of every change. A store that fails is asked again.
func (s *Steward) follow(ctx context.Context) {
	for ctx.Err() == nil {
		for e, err := range s.opts.Ledger.Follow(ctx, -1) {
			if err != nil {
				s.opts.Log.Error("following tickets", "error", err)
				break
			}
			s.heard(e)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookOver):
		}
	}
}

func (s *Steward) heard(e approval.Event) {
	c := e.Change
	if c.From == "" {
		s.opts.Asked(e.Ticket.Principal)
	}
	if c.From == approval.StateProposed && c.To != approval.StateProposed {
		s.opts.Waited(c.To, c.At.Sub(e.Ticket.Created))
	}
	if c.To == approval.StateApproved && e.Ticket.Execute {
		wish(s.news)
	}
}

// lookThrough supersedes the live tickets whose terms are gone.
func (s *Steward) lookThrough(ctx context.Context) {
	tickets, err := s.opts.Ledger.Live(ctx)
	if err != nil && ctx.Err() == nil {
		s.opts.Log.Error("looking at live tickets", "error", err)
	}
	for _, t := range tickets {
		s.stands(ctx, t)
	}
}

// stands reviews a ticket, and supersedes it when its terms are gone.
func (s *Steward) stands(ctx context.Context, t approval.Ticket) bool {
	ok, reason := s.opts.Gate.review(ctx, t)
	if reason != "" && s.opts.Gate.supersede(ctx, t.ID, reason) {
		s.opts.Log.Info("superseded a ticket", "ticket", t.ID, "reason", reason)
	}
	return ok
}

// dispatch begins the runs that are due, and says how long there is nothing to do.
func (s *Steward) dispatch(ctx context.Context) time.Duration {
	tickets, err := s.opts.Ledger.Runnable(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.opts.Log.Error("looking for approved calls", "error", err)
		}
		return lookOver
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(tickets)
	next, now := lookOver, time.Now()
	for _, t := range tickets {
		a := s.tries[t.ID]
		if a == nil {
			a = &try{due: now.Add(grace)}
			s.tries[t.ID] = a
		}
		wait := a.due.Sub(now)
		switch {
		case a.running:
		case wait > 0:
			next = min(next, wait)
		case s.runningLocked() < maxRuns:
			a.running = true
			s.runs.Go(func() { s.run(t, a) })
		}
	}
	return next
}

// forgetLocked drops what is known of tickets that are not to run any more.
func (s *Steward) forgetLocked(tickets []approval.Ticket) {
	there := make(map[string]bool, len(tickets))
	for _, t := range tickets {
		there[t.ID] = true
	}
	for id, a := range s.tries {
		if !there[id] && !a.running {
			delete(s.tries, id)
		}
	}
}

func (s *Steward) runningLocked() (n int) {
	for _, a := range s.tries {
		if a.running {
			n++
		}
	}
	return n
}

// run makes one call. If nothing was sent, the ticket is approved as before and
// its turn comes again; if something was, the ticket has its end state.
func (s *Steward) run(t approval.Ticket, a *try) {
	defer wish(s.news)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.running, a.due = false, time.Now().Add(min(lastRetry, firstRetry<<min(a.count, 10)))
		a.count++
	}()
	if !s.stands(s.life, t) {
		return
	}
	reply, err := s.opts.Gate.resume(s.life, t)
	switch {
	case err != nil:
		s.opts.Log.Warn("making an approved call", "ticket", t.ID, "tool", t.Exposed, "error", err)
	case reply.RetryAfter == 0: // otherwise somebody else is making it
		s.opts.Log.Info("made an approved call", "ticket", t.ID, "tool", t.Exposed, "decision", reply.DecisionID)
	}
}
