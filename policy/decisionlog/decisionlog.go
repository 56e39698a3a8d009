// Package decisionlog tells decisions to whoever collects them, in the form of
// OPA's decision logs, so that what reads those reads these: one JSON object for
// each decision ([Event]), to a file as lines, to a collector over HTTP as chunks
// of gzipped JSON arrays.
//
// The audit trail is the outbox. Nothing is told that is not in the trail, and
// what is told is read from there, behind the back of the calls: a sink that is
// slow or away costs no call anything and no memory, the trail grows as it would
// anyway.
//
//	trail ──Follow──► event ──mask──► batch ──► sink ──► place in the store
//	                                    ▲         │
//	                                    └ back off┘
//
// How far a sink has got is kept in the store, and moved only when the sink has
// taken everything up to there. So an event is told at least once, in the order of
// its chain; a repeat, after a crash, has the same decision_id. Of all processes on
// one store one at a time ships to a sink, the chains of all of them, those of dead
// ones too; when it ends, however it ends, another takes its place.
//
// What of an event may be told the policy says (data.system.log.mask and .drop),
// and it fails closed: of a decision whose mask fails only the id is told. The trail
// itself is not masked.
package decisionlog

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/signal"
)

// Config says where decisions are told. It may hold secrets and is not for
// printing. The zero Config tells nobody.
type Config struct {
	File    string            // path that lines are appended to; "" = none
	URL     string            // http or https URL that chunks are posted to; "" = none
	Token   string            // bearer token for URL; "" = none
	Headers map[string]string // sent with every chunk
}

// Outcome is what came of an event.
type Outcome string

// The outcomes. An event that is Masked is Shipped later, without what it was to
// tell.
const (
	Shipped Outcome = "shipped"
	Dropped Outcome = "dropped" // the policy says that there is none
	Retried Outcome = "retried" // the sink did not take it, it is told again
	Parked  Outcome = "parked"  // the sink refused it and took others
	Masked  Outcome = "masked"  // its mask failed
	Lost    Outcome = "lost"    // its record cannot be read
)

// Options are the settings of a [Shipper]. DB, Trail, Instances and Mask are needed.
type Options struct {
	DB        *store.DB
	Trail     string // directory of the audit trail
	Instances string // directory of the locks of living processes
	Mask      Masker
	// Labels are told with every event, beside the id of the process that decided.
	Labels map[string]string
	// Poll is how soon new records, and a sink that its process has left, are
	// seen; 0 = 250 ms.
	Poll time.Duration
	// Retry is the pause after a failed try; it doubles with each further one, up to
	// a minute. 0 = 1 s.
	Retry time.Duration
	// Roots are the authorities that a collector is believed by; nil = the system's.
	Roots *x509.CertPool
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Observe is told what came of n events of a sink; nil = nobody is. It is called
	// by several goroutines.
	Observe func(sink string, o Outcome, n int)
	Log     hclog.Logger // nil = none
}

// Shipper tells decisions to the sinks of one Config. It is safe for concurrent
// use, and any number of processes may share its store and trail.
type Shipper struct {
	opts    Options
	held    *store.Instance // nil until there is somebody to tell
	life    sync.Mutex      // held by Apply and Close from beginning to end
	applied Config
	workers delivery.Workers // one for each lane, so that a slow sink delays no other

	mu    sync.Mutex // protects the fields below
	lanes []*lane
}

// Open gives a Shipper that tells nobody, until Apply says whom. The caller must
// Close it.
func Open(opts Options) (*Shipper, error) {
	if opts.DB == nil || opts.Trail == "" || opts.Instances == "" || opts.Mask == nil {
		return nil, errors.New("opening decision log: store, trail, instances and mask are needed")
	}
	if opts.Poll <= 0 {
		opts.Poll = 250 * time.Millisecond
	}
	if opts.Retry <= 0 {
		opts.Retry = time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Observe == nil {
		opts.Observe = func(string, Outcome, int) {}
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	return &Shipper{opts: opts}, nil
}

// Apply begins to tell the sinks of c, and no others any more. What is recorded
// after it returned is told. An error leaves what was.
func (s *Shipper) Apply(ctx context.Context, c Config) error {
	s.life.Lock()
	defer s.life.Unlock()
	if reflect.DeepEqual(c, s.applied) {
		return nil
	}
	lanes, err := s.build(c)
	if err != nil {
		return fmt.Errorf("opening decision log: %w", err)
	}
	if err := s.ready(ctx, lanes); err != nil {
		return fmt.Errorf("opening decision log: %w", err)
	}
	s.workers.Stop()
	s.mu.Lock()
	s.applied, s.lanes = c, lanes
	s.mu.Unlock()
	s.run(lanes)
	return nil
}

// ready makes this process and its sinks known to the others. The caller holds
// s.life.
func (s *Shipper) ready(ctx context.Context, lanes []*lane) (err error) {
	if s.held == nil && len(lanes) > 0 {
		if s.held, err = store.HoldInstance(s.opts.Instances, signal.UniqueID("dlg_")); err != nil {
			return err
		}
	}
	for _, l := range lanes {
		if err := s.enter(ctx, l.name); err != nil {
			return err
		}
	}
	return nil
}

// Close tells what the trail still has, as long as ctx lasts and nothing stands in
// the way, and ends the Shipper. What it leaves is told by the next process.
func (s *Shipper) Close(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	for _, l := range s.known() {
		s.finish(ctx, l)
	}
	s.workers.Stop()
	if s.held == nil {
		return nil
	}
	return s.held.Close()
}

// finish waits until a lane has nothing left, or cannot get on.
func (s *Shipper) finish(ctx context.Context, l *lane) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.getsOn() {
		if lag, err := s.Lag(ctx, l.name); err != nil || lag == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// run starts the lanes. The caller holds s.life.
func (s *Shipper) run(lanes []*lane) {
	var tasks []func(context.Context)
	for _, l := range lanes {
		tasks = append(tasks, l.run)
	}
	s.workers.Start(tasks...)
}

// known gives the lanes of now.
func (s *Shipper) known() []*lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes
}

// build makes the lanes of c.
func (s *Shipper) build(c Config) (lanes []*lane, err error) {
	if c.File != "" {
		lanes = append(lanes, newLane(s, "file", &file{path: c.File}))
	}
	if c.URL != "" {
		h, err := newCollector(c, s.opts.Roots)
		if err != nil {
			return nil, err
		}
		lanes = append(lanes, newLane(s, "http", h))
	}
	return lanes, nil
}
