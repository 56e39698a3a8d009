package notice

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/approval"
)

// Outcome is how a try of a notice ended.
type Outcome string

// The outcomes. A notice that was given up without a last try counts as Dead.
const (
	Sent   Outcome = "sent"
	Failed Outcome = "failed" // it is tried again
	Dead   Outcome = "dead"   // it is not
)

// Options are the settings of a [Sender]. DB and Link are needed.
type Options struct {
	DB *store.DB
	// Link gives the address of the page of a ticket. It is for everybody who
	// gets a notice to see.
	Link func(ticket string) string
	// Poll is how soon what other processes wrote, and what has come due, is
	// seen; 0 = 1 s.
	Poll time.Duration
	// Roots are the authorities that webhooks and mail servers are believed by;
	// nil = the system's.
	Roots *x509.CertPool
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Observe is told how each try ended, on the channel of that name; nil =
	// nobody is. It is called by several goroutines.
	Observe func(channel string, o Outcome)
	Log     hclog.Logger // nil = none
}

// Sender keeps the outbox of one store and delivers what is in it. It is safe
// for concurrent use, and any number of them, in any number of processes, may
// share the store: each delivers for the channels that it knows.
type Sender struct {
	opts    Options
	dial    dialer           // of mail servers
	life    sync.Mutex       // held by Start, Apply and Close from beginning to end
	applied []Channel        // what channels were built from
	workers delivery.Workers // one for each channel, so that a slow one delays no other, and one for the clock
	started bool

	mu       sync.Mutex // protects the fields below
	channels []*channel
}

// New gives a Sender for channels. Until Start it takes notices and sends none.
func New(opts Options, channels []Channel) (*Sender, error) {
	if opts.DB == nil || opts.Link == nil {
		return nil, errors.New("making a sender of notices: store and link are needed")
	}
	if opts.Poll <= 0 {
		opts.Poll = time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Observe == nil {
		opts.Observe = func(string, Outcome) {}
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	s := &Sender{opts: opts, applied: channels, dial: new(net.Dialer).DialContext}
	var err error
	s.channels, err = s.build(channels)
	return s, err
}

// Start begins to deliver. Close ends it.
func (s *Sender) Start() {
	s.life.Lock()
	defer s.life.Unlock()
	if !s.started {
		s.started = true
		s.run()
	}
}

// Apply puts channels in the place of those that were, unless they are the same.
// An error leaves those.
// What waits for a channel that is gone is delivered by another process that
// knows it, or given up in time.
func (s *Sender) Apply(channels []Channel) error {
	built, err := s.build(channels)
	if err != nil {
		return err
	}
	s.life.Lock()
	defer s.life.Unlock()
	if reflect.DeepEqual(channels, s.applied) {
		return nil
	}
	s.applied = channels
	s.workers.Stop()
	s.mu.Lock()
	old := s.channels
	s.channels = built
	s.mu.Unlock()
	for _, c := range old {
		c.close()
	}
	if s.started {
		s.run()
	}
	return nil
}

// Close stops delivering and waits until that is so. A try that it breaks off
// is repeated by the next who delivers.
func (s *Sender) Close() {
	s.life.Lock()
	defer s.life.Unlock()
	s.workers.Stop()
	s.started = false
	for _, c := range s.known() {
		c.close()
	}
}

// run starts the workers. The caller holds s.life.
func (s *Sender) run() {
	tasks := []func(context.Context){s.tick}
	for _, c := range s.known() {
		tasks = append(tasks, func(ctx context.Context) { s.deliver(ctx, c) })
	}
	s.workers.Start(tasks...)
}

// deliver sends one notice of c after the other, until ctx ends.
func (s *Sender) deliver(ctx context.Context, c *channel) {
	poll := time.NewTicker(s.opts.Poll)
	defer poll.Stop()
	for {
		p, err := s.take(ctx, c.key)
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Error("delivering notices", "channel", c.name, "error", err)
		}
		if p != nil {
			s.try(ctx, c, p)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
		case <-poll.C:
		}
	}
}

// try sends p once and writes down what came of it.
func (s *Sender) try(ctx context.Context, c *channel, p *parcel) {
	sending, stop := context.WithTimeout(ctx, delivery.Timeout)
	fault := c.send(sending, p)
	stop()
	outcome, err := s.settle(ctx, c, p, fault)
	if err != nil {
		// The row comes due again by itself: at worst it is sent twice.
		s.opts.Log.Error("delivering notices", "channel", c.name, "notice", p.id, "error", err)
	}
	if outcome != "" {
		s.opts.Observe(c.name, outcome)
	}
}

// settle ends a try. The outcome is "" when the try was broken off from here.
func (s *Sender) settle(ctx context.Context, c *channel, p *parcel, fault error) (Outcome, error) {
	log := s.opts.Log.With("channel", c.name, "notice", p.id, "ticket", p.ticket, "try", p.tries)
	if fault == nil {
		log.Debug("notice delivered")
		return Sent, s.delivered(ctx, p)
	}
	if ctx.Err() != nil {
		return "", s.again(ctx, p, 0, "")
	}
	wait := backoff.Pause(p.tries, fault)
	if errors.Is(fault, errGone) || s.opts.Now().Add(wait).After(p.until) {
		log.Error("notice given up", "error", fault)
		return Dead, s.bury(ctx, p, fault.Error())
	}
	log.Warn("notice not delivered, it is tried again", "error", fault, "wait", wait.Round(time.Millisecond))
	return Failed, s.again(ctx, p, wait, fault.Error())
}

// tick watches the time pass, until ctx ends.
func (s *Sender) tick(ctx context.Context) {
	poll := time.NewTicker(s.opts.Poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
		late, keys, err := s.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Error("sweeping notices", "error", err)
		}
		for i, p := range late {
			s.opts.Log.Error("notice given up", "channel", s.name(keys[i]), "notice", p.id, "ticket", p.ticket, "tries", p.tries)
			s.opts.Observe(s.name(keys[i]), Dead)
		}
	}
}

// known gives the channels of now.
func (s *Sender) known() []*channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channels
}

// about gives the channels that are told of t.
func (s *Sender) about(t approval.Ticket) (found []*channel) {
	for _, c := range s.known() {
		if len(c.roles) == 0 || slices.ContainsFunc(c.roles, func(r string) bool { return slices.Contains(t.Roles, r) }) {
			found = append(found, c)
		}
	}
	return found
}

// name gives the name of the channel with a key, "" when there is none.
func (s *Sender) name(key string) string {
	for _, c := range s.known() {
		if c.key == key {
			return c.name
		}
	}
	return ""
}
