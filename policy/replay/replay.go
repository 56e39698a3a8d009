// Package replay judges recorded calls again by a policy that does not serve, and
// reports the decisions that change.
package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Options say what is replayed. The zero Options replay everything.
type Options struct {
	Until      time.Time // zero = to the end
	Roles      []string  // of principals that hold one of these; empty = of all
	Tools      []string  // of tools, as exposed, and methods that match one of these patterns (path.Match)
	Principals []string  // of these subjects
	Revision   string    // of the policy that judged then; "" = of any
	Examples   int       // kept of each group; 0 = none
	Workers    int       // that judge at once; 0 = one for each processor
	// Progress is told now and then how far it is; nil = nobody is. It is called
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

// chunk is what a worker is handed at once.
type chunk struct {
	first   int // number of the first record
	records []*audit.Record
}

const (
	chunkRecords  = 64
	progressEvery = 1024 // records
)

// Run judges what records hold again, several at a time, and reports what judge
// would have decided otherwise. records come by time, as audit.Read gives them: a
// fault that is audit.ErrNoRecord is counted, any other error ends the run, as
// does the end of ctx. Run holds no more of them than are being judged; what it
// keeps grows with the rules, principals and tools that changed.
func Run(ctx context.Context, records iter.Seq2[*audit.Record, error], judge judgement.Judge, o Options) (*Report, error) {
	for _, pattern := range o.Tools {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("reading the pattern %q: %w", pattern, err)
		}
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	r := run{judge: judge, opts: o, chunks: make(chan chunk, o.Workers), total: newTally(o.Examples)}
	group, inner := errgroup.WithContext(ctx)
	tallies := make([]*tally, o.Workers)
	for i := range tallies {
		tallies[i] = newTally(o.Examples)
		group.Go(func() error { return r.work(inner, tallies[i]) })
	}
	group.Go(func() error {
		defer close(r.chunks)
		return r.read(inner, records)
	})
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("replaying: %w", err)
	}
	for _, t := range tallies {
		r.total.add(t)
	}
	return r.total.report(judge.Revision()), nil
}

// run is one Run.
type run struct {
	judge           judgement.Judge
	opts            Options
	chunks          chan chunk
	total           *tally // of the reader, until the workers have ended
	judged, changed atomic.Int64
}

// read hands what is wanted of the records to the workers.
func (r *run) read(ctx context.Context, records iter.Seq2[*audit.Record, error]) error {
	next := chunk{first: 1}
	read := 0
	for rec, err := range records {
		switch {
		case errors.Is(err, audit.ErrNoRecord):
			r.total.skip(audit.ErrNoRecord, "")
			continue
		case err != nil:
			return err
		case !r.opts.Until.IsZero() && rec.Time.After(r.opts.Until):
			return r.hand(ctx, next)
		}
		if read++; read%progressEvery == 0 {
			r.tell(read, rec.Time)
		}
		if !r.wanted(rec) {
			continue
		}
		if next.records = append(next.records, rec); len(next.records) == chunkRecords {
			if err := r.hand(ctx, next); err != nil {
				return err
			}
			next = chunk{first: next.first + chunkRecords}
		}
	}
	return r.hand(ctx, next)
}

func (r *run) hand(ctx context.Context, c chunk) error {
	select {
	case r.chunks <- c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *run) tell(read int, at time.Time) {
	if r.opts.Progress != nil {
		r.opts.Progress(Progress{Records: read, Judged: int(r.judged.Load()), Changed: int(r.changed.Load()), At: at})
	}
}

// wanted reports whether the filters let rec pass.
func (r *run) wanted(rec *audit.Record) bool {
	o := &r.opts
	if len(o.Principals) > 0 && !slices.Contains(o.Principals, rec.Principal.Subject) {
		return false
	}
	if len(o.Roles) > 0 && !slices.ContainsFunc(rec.Principal.Roles, func(role string) bool { return slices.Contains(o.Roles, role) }) {
		return false
	}
	return len(o.Tools) == 0 || slices.ContainsFunc(o.Tools, func(pattern string) bool {
		tool, _ := path.Match(pattern, rec.Exposed)
		method, _ := path.Match(pattern, rec.Method)
		return tool && rec.Exposed != "" || method && rec.Method != ""
	})
}

func (r *run) work(ctx context.Context, t *tally) error {
	for c := range r.chunks {
		for i, rec := range c.records {
			if err := r.again(ctx, t, c.first+i, rec); err != nil {
				return err
			}
		}
	}
	return nil
}

// again judges one record again.
func (r *run) again(ctx context.Context, t *tally, number int, rec *audit.Record) error {
	if r.opts.Revision != "" && rec.Policy.Revision != "" && rec.Policy.Revision != r.opts.Revision {
		if _, _, err := judgement.Decode(rec); !judgement.Silent(err) {
			t.skip(fmt.Errorf("judged by another policy, %s", rec.Policy.Revision), rec.DecisionID)
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
		t.skip(err, rec.DecisionID)
		return nil
	}
	r.judged.Add(1)
	if t.count(number, rec, again) != judgement.Same {
		r.changed.Add(1)
	}
	return nil
}
