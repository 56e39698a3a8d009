// Package decisionlog ships decisions to whoever collects them, in the form of
// OPA's decision logs, so that OPA's parsers and dashboards read them: one JSON
// object for each decision ([Event]), as lines of a file, or over HTTP as gzipped
// JSON arrays.
//
// The audit trail is the outbox. Every event is read from there, outside of calls:
// a sink that is slow or away delays no call and takes no memory.
//
//	trail ──Follow──► event ──mask──► batch ──► sink ──► cursor in the store
//	                                    ▲         │
//	                                    └ backoff ┘
//
// The cursor of a sink is kept in the store and moves only when the sink has
// accepted everything up to there. So an event is shipped at least once, in the
// order of its chain; a repeat, after a crash, has the same decision_id. Of all
// processes on one store one at a time ships to a sink, the chains of all of them,
// including those of dead processes; when it ends, another one takes over.
//
// The policy's masks (data.system.log.mask and .drop) remove parts of events, and
// fail closed: when the mask of a decision fails, only the decision's id is
// shipped. The trail itself is not masked.
package decisionlog

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
)

// Config lists the destinations of decisions. It may hold secrets and is not for
// printing. The zero Config ships nothing.
type Config struct {
	File    string            // path of the file that lines are appended to; "" = none
	URL     string            // http or https URL that chunks are posted to; "" = none
	Token   string            // bearer token for URL; "" = none
	Headers map[string]string // sent with every chunk
}

// Outcome is the result of shipping an event.
type Outcome string

// The outcomes. An event that is Masked is Shipped later, with its id only.
const (
	Shipped Outcome = "shipped"
	Dropped Outcome = "dropped" // the policy drops it
	Retried Outcome = "retried" // the sink did not accept it; it is sent again
	Parked  Outcome = "parked"  // the sink refused it and accepted others
	Masked  Outcome = "masked"  // its mask failed
	Lost    Outcome = "lost"    // its record cannot be read
)

// Options are the settings of a [Shipper]. DB, Trail, Instances and Mask are needed.
type Options struct {
	DB        *store.DB
	Trail     string // directory of the audit trail
	Instances string // directory of the locks of living processes; a sink has one, too
	Mask      Masker
	// Labels are in every event, in addition to the id of the process that decided.
	Labels map[string]string
	// Poll is the pause between two looks for new records, and for a sink that its
	// process has released; 0 = 250 ms.
	Poll time.Duration
	// Retry is the pause after the first failed attempt; it doubles with each further
	// one, up to a minute. 0 = 1 s.
	Retry time.Duration
	// Roots are the certificate authorities of collectors; nil = the system's.
	Roots *x509.CertPool
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Observe counts n events of a sink by their outcome; nil = nothing is counted.
	// Several goroutines call it.
	Observe func(sink string, o Outcome, n int)
	Log     hclog.Logger // nil = none
}

// A Shipper ships decisions to the sinks of one Config. It is safe for
// concurrent use, and any number of processes may share its store and trail.
type Shipper struct {
	opts    Options
	life    sync.Mutex // held by Apply and Close from beginning to end
	applied Config
	tasks   delivery.Workers // one for each sink, so that a slow one delays no other

	mu      sync.Mutex // protects the fields below
	workers []*worker
}

// Open returns a Shipper that ships nothing until Apply. The caller must Close it.
func Open(opts Options) *Shipper {
	opts.Poll = cmp.Or(opts.Poll, 250*time.Millisecond)
	opts.Retry = cmp.Or(opts.Retry, time.Second)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Observe == nil {
		opts.Observe = func(string, Outcome, int) {}
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	return &Shipper{opts: opts}
}

// Apply ships to the sinks of c from now on, and to no others. Records that are
// written after it returns are shipped. After an error the sinks are unchanged.
func (s *Shipper) Apply(ctx context.Context, c Config) error {
	s.life.Lock()
	defer s.life.Unlock()
	if reflect.DeepEqual(c, s.applied) {
		return nil
	}
	workers, err := s.buildWorkers(c)
	if err != nil {
		return fmt.Errorf("opening decision log: %w", err)
	}
	for _, w := range workers {
		if err := s.registerSink(ctx, w.name); err != nil {
			return fmt.Errorf("opening decision log: %w", err)
		}
	}
	s.tasks.Stop()
	s.mu.Lock()
	s.applied, s.workers = c, workers
	s.mu.Unlock()
	var tasks []func(context.Context)
	for _, w := range workers {
		tasks = append(tasks, w.run)
	}
	s.tasks.Start(tasks...)
	return nil
}

// Close ships the rest of the trail, unless ctx ends or a fault stops it, and ends
// the Shipper. The next process ships the remaining events.
func (s *Shipper) Close(ctx context.Context) {
	s.life.Lock()
	defer s.life.Unlock()
	for _, w := range s.currentWorkers() {
		for more := true; more; {
			now := w.status()
			lag, err := s.Lag(ctx, w.name)
			more = now.shipping && now.fault == "" && err == nil && lag > 0 && wait.For(ctx, 10*time.Millisecond)
		}
	}
	s.tasks.Stop()
}

// currentWorkers returns the workers of the applied Config.
func (s *Shipper) currentWorkers() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers
}

// buildWorkers returns the workers of c.
func (s *Shipper) buildWorkers(c Config) (workers []*worker, err error) {
	if c.File != "" {
		workers = append(workers, newWorker(s, "file", &file{path: c.File}))
	}
	if c.URL != "" {
		h, err := newCollector(c, s.opts.Roots)
		if err != nil {
			return nil, err
		}
		workers = append(workers, newWorker(s, "http", h))
	}
	return workers, nil
}
