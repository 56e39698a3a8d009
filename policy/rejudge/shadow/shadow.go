// Package shadow judges live decisions with a second policy, the candidate. Its
// verdicts are never enforced, and no call waits for them. A Worker reads the audit
// trail of all processes that share a state directory, stores the decisions that
// the candidate would change, and counts the rest.
//
// # Cost
//
// One goroutine judges. After a judgement of more than a millisecond it rests four
// times as long as the judgement took, so a candidate that loops uses a fifth of
// one core. Decisions older than a minute are skipped and counted, so that the
// Worker always judges recent ones. Differences are written once a second.
package shadow

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Outcome is how one decision came out.
type Outcome string

// The outcomes.
const (
	Same    Outcome = "same"    // the candidate decides as the policy did
	Changed Outcome = "changed" // it does not: another effect, rule or obligation
	Failed  Outcome = "failed"  // it could not judge, and would deny
	Skipped Outcome = "skipped" // it was not asked: see Worker.Run
)

// Bounds of a Worker.
const (
	restAfter = time.Millisecond // a judgement that takes longer is followed by a rest
	restFor   = 4                // times as long as it took
	mostRest  = time.Second      // at a time; no judgement of OPA's takes a quarter of it
	behind    = time.Minute      // a decision that is older is passed over
	flushAll  = time.Second      // disagreements are written so often
	pending   = 500              // disagreements that wait for that; more are only counted
)

// Options are what a Worker is made of. All but Poll, Now, Observe and Log are
// required.
type Options struct {
	DB    *store.DB
	Trail string // directory of the audit trail
	// Observe receives every decision; it must not block.
	Observe func(Outcome)
	Log     hclog.Logger
	Poll    time.Duration    // between two looks at the trail; 0 = that of audit.Follow
	Now     func() time.Time // nil = time.Now
}

// Worker judges what the gate decides by a candidate. It is safe for concurrent
// use.
type Worker struct {
	opts Options

	mu        sync.Mutex      // protects the fields below
	candidate judgement.Judge // nil = nobody is asked
	over      context.Context // ends when another candidate is set
	replace   context.CancelFunc
	status    Status
	listed    []Disagreement // not written yet
	totals    map[string]Total
	faults    map[string]string // by what goes wrong
}

// Status is how the shadow of a running process stands, since its candidate was
// set.
type Status struct {
	Candidate string    // its revision, "" = there is none
	Since     time.Time // when it was set
	Counts
	Unlisted int       // of Changed and Failed, those that were too many to keep
	Last     time.Time // of the last decision that was dealt with
	Faults   []string  // why disagreements are not kept or decisions not read
}

// New makes a worker without a candidate.
func New(o Options) *Worker {
	if o.Observe == nil {
		o.Observe = func(Outcome) {}
	}
	o.Log = cmp.Or(o.Log, hclog.NewNullLogger())
	if o.Now == nil {
		o.Now = time.Now
	}
	over, replace := context.WithCancel(context.Background())
	return &Worker{opts: o, over: over, replace: replace, totals: map[string]Total{}, faults: map[string]string{}}
}

// Set makes j the candidate, from the decisions of now on; nil = nobody is asked.
// One that is the candidate already stays it.
func (w *Worker) Set(j judgement.Judge) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j != nil && w.candidate != nil && w.candidate.Revision() == j.Revision() {
		return
	}
	w.replace()
	w.over, w.replace = context.WithCancel(context.Background())
	w.candidate, w.status = j, Status{}
	if j != nil {
		w.status = Status{Candidate: j.Revision(), Since: w.opts.Now()}
	}
}

// Status gives how it stands.
func (w *Worker) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	for _, doing := range slices.Sorted(maps.Keys(w.faults)) {
		s.Faults = append(s.Faults, doing+": "+w.faults[doing])
	}
	return s
}

// Run asks the candidate until ctx ends, and has then written what it found. A
// decision is passed over that is more than a minute old when its turn comes, that
// the policy of the time failed to make, that was counted otherwise than the
// candidate counts, or whose record holds too little.
func (w *Worker) Run(ctx context.Context) error {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		w.ask(ctx)
	}()
	tick := time.NewTicker(wait.Beat(flushAll))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.flush(ctx)
			tick.Reset(wait.Beat(flushAll))
		case <-asked:
			last, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer stop()
			w.flush(last)
			return nil
		}
	}
}

// ask asks one candidate after the other until ctx ends.
func (w *Worker) ask(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		c, over := w.candidate, w.over
		w.mu.Unlock()
		if c != nil {
			w.follow(ctx, c, over)
			continue
		}
		select {
		case <-ctx.Done():
		case <-over.Done():
		}
	}
}

// follow asks c about what is recorded from now on, until ctx ends or another one
// is the candidate.
func (w *Worker) follow(ctx context.Context, c judgement.Judge, over context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(over, stop)()
	ends, err := audit.Ends(w.opts.Trail)
	if err != nil {
		w.fault("reading the audit trail", err)
		wait.For(ctx, flushAll)
		return
	}
	for r, err := range audit.Follow(ctx, w.opts.Trail, ends, w.opts.Poll) {
		if w.fault("reading the audit trail", err); err != nil {
			continue
		}
		began := time.Now()
		w.judge(ctx, c, r)
		if took := time.Since(began); took > restAfter {
			wait.For(ctx, min(restFor*took, mostRest))
		}
	}
}

// judge asks c about one record.
func (w *Worker) judge(ctx context.Context, c judgement.Judge, r *audit.Record) {
	if r.Policy.Rule == judgement.RuleFailed || w.opts.Now().Sub(r.Time) > behind {
		if _, _, err := judgement.Decode(r); !judgement.Silent(err) {
			w.note(c, r, Skipped, nil)
		}
		return
	}
	again, err := judgement.Again(ctx, c, r)
	if ctx.Err() != nil || judgement.Silent(err) {
		return
	}
	if err != nil {
		w.note(c, r, Skipped, nil)
		return
	}
	result, found := Same, (*Disagreement)(nil)
	if again.Difference != judgement.Same {
		result, found = Changed, &Disagreement{
			Candidate: c.Revision(), DecisionID: r.DecisionID, At: r.Time, Serving: again.Was.Revision,
			Principal: judgement.PrincipalName(&again.Input.Principal), Tool: judgement.SubjectName(again.Input), Difference: again.Difference,
			Was: judgement.VerdictOf(again.Was), Now: judgement.VerdictOf(&again.Now), Reason: again.Now.Reason,
		}
	}
	if again.Failed != nil {
		result = Failed
	}
	w.note(c, r, result, found)
}

// note counts, and keeps a disagreement until it is written.
func (w *Worker) note(c judgement.Judge, r *audit.Record, o Outcome, d *Disagreement) {
	w.opts.Observe(o)
	w.mu.Lock()
	defer w.mu.Unlock()
	revision := c.Revision()
	t := w.totals[revision]
	t.Candidate, t.Last = revision, r.Time
	if t.First.IsZero() {
		t.First = r.Time
	}
	t.count(o)
	w.totals[revision] = t
	keep := d != nil && len(w.listed) < pending
	if keep {
		w.listed = append(w.listed, *d)
	}
	if w.status.Candidate != revision {
		return
	}
	s := &w.status
	s.Last = r.Time
	if d != nil && !keep {
		s.Unlisted++
	}
	s.count(o)
}

// fault notes what goes wrong with doing something, nil when it goes well again.
func (w *Worker) fault(doing string, err error) {
	w.mu.Lock()
	before := w.faults[doing]
	delete(w.faults, doing)
	if err != nil {
		w.faults[doing] = err.Error()
	}
	w.mu.Unlock()
	if err != nil && err.Error() != before {
		w.opts.Log.Error(doing, "error", err)
	}
}
