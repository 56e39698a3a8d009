// Package replay judges recorded calls again by a policy that does not serve, and
// reports the decisions that change.
package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Options say what is replayed. The zero Options replay everything.
type Options struct {
	Until    time.Time    // zero = to the end
	Records  audit.Filter // of the calls
	Revision string       // of the policy that judged then; "" = of any
	Examples int          // kept of each group; 0 = none
	Bare     bool         // examples have no arguments
	Workers  int          // that judge at once; 0 = one for each processor
	// Progress, unless nil, receives the progress now and then. It is called
	// by one goroutine at a time and must not block.
	Progress func(Progress)
}

// Progress is how far a replay has come.
type Progress struct {
	Records int       // read
	Judged  int       // decisions judged again
	Changed int       // of them otherwise than recorded
	At      time.Time // of the last record
}

// entry is one record to judge again.
type entry struct {
	number int // of the record, from 1
	record *audit.Record
}

const (
	queued        = 256  // entries that wait for a worker
	progressEvery = 1024 // records
)

// Run judges what records hold again, several at a time, and reports what judge
// would have decided otherwise. records come by time, as audit.Read gives them: a
// fault that is audit.ErrNoRecord is counted, any other error ends the run, as
// does the end of ctx. Run holds no more of them than are being judged; what it
// keeps grows with the rules, principals and tools that changed.
func Run(ctx context.Context, records iter.Seq2[*audit.Record, error], judge judgement.Judge, o Options) (*Report, error) {
	if err := o.Records.Check(); err != nil {
		return nil, err
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	r := run{judge: judge, opts: o, entries: make(chan entry, queued), report: newReport(judge.Revision(), o)}
	group, inner := errgroup.WithContext(ctx)
	for range o.Workers {
		group.Go(func() error {
			for e := range r.entries {
				if err := r.again(inner, e.number, e.record); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(r.entries)
		return r.read(inner, records)
	})
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("replaying: %w", err)
	}
	return r.report.finish(), nil
}

// run is one Run.
type run struct {
	judge   judgement.Judge
	opts    Options
	entries chan entry

	mu       sync.Mutex // protects the fields below
	report   *Report
	progress Progress
}

// read sends the wanted records to the workers.
func (r *run) read(ctx context.Context, records iter.Seq2[*audit.Record, error]) error {
	read, number := 0, 0
	for rec, err := range records {
		switch {
		case errors.Is(err, audit.ErrNoRecord):
			r.skip(audit.ErrNoRecord, "")
			continue
		case err != nil:
			return err
		case !r.opts.Until.IsZero() && rec.Time.After(r.opts.Until):
			return nil
		}
		if read++; read%progressEvery == 0 {
			r.reportProgress(read, rec.Time)
		}
		if !r.opts.Records.Match(rec) {
			continue
		}
		number++
		select {
		case r.entries <- entry{number, rec}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *run) reportProgress(read int, at time.Time) {
	if r.opts.Progress == nil {
		return
	}
	r.mu.Lock()
	p := r.progress
	r.mu.Unlock()
	p.Records, p.At = read, at
	r.opts.Progress(p)
}

// skip counts a record that cannot be judged again.
func (r *run) skip(err error, decision string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note(r.report.unjudged, err.Error(), decision)
}

// again judges one record again.
func (r *run) again(ctx context.Context, number int, rec *audit.Record) error {
	if r.opts.Revision != "" && rec.Policy.Revision != "" && rec.Policy.Revision != r.opts.Revision {
		if _, _, err := judgement.Decode(rec); !judgement.Silent(err) {
			r.skip(fmt.Errorf("judged by another policy, %s", rec.Policy.Revision), rec.DecisionID)
		}
		return nil
	}
	again, err := judgement.Again(ctx, r.judge, rec)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case judgement.Silent(err):
		return nil
	case err != nil:
		r.skip(err, rec.DecisionID)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Judged++
	if r.report.count(number, rec, again) != judgement.Same {
		r.progress.Changed++
	}
	return nil
}
