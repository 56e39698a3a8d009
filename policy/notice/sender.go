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

// Outcome is how an attempt to deliver a notice ended.
type Outcome string

// The outcomes. A notice that is given up without a last attempt counts as Dead.
const (
	Sent   Outcome = "sent"
	Failed Outcome = "failed" // it is retried
	Dead   Outcome = "dead"   // it is not
)

// Options are the settings of a [Sender]. DB and Link are needed.
type Options struct {
	DB *store.DB
	// Link gives the address of the page of a ticket, which every notice shows.
	Link func(ticket string) string
	// Poll is how soon what other processes wrote, and what has come due, is
	// seen; 0 = 1 s.
	Poll time.Duration
	// Roots are the certificate authorities of webhooks and mail servers; nil = the system's.
	Roots *x509.CertPool
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Observe counts how each attempt on a named channel ended; nil = nothing
	// does. It is called by several goroutines.
	Observe func(channel string, o Outcome)
	Log     hclog.Logger // nil = none
}

// A Sender keeps the outbox of one store and delivers what is in it. It is safe
// for concurrent use, and any number of Senders, in any number of processes,
// may share the store: each delivers for the channels that it knows.
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

// New gives a Sender for channels. Until Start it accepts notices and sends
// none.
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
	s.channels, err = s.buildChannels(channels)
	return s, err
}

// Start begins to deliver. Close ends it.
func (s *Sender) Start() {
	s.life.Lock()
	defer s.life.Unlock()
	if !s.started {
		s.started = true
		s.startWorkers()
	}
}

// Apply replaces the channels, unless they are the same. After an error the
// channels are those of before. Notices for a removed channel are delivered by
// another process that has it, or given up in time.
func (s *Sender) Apply(channels []Channel) error {
	built, err := s.buildChannels(channels)
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
		s.startWorkers()
	}
	return nil
}

// Close stops delivering and waits for the end of it. An attempt that it breaks
// off is repeated by the next process that delivers.
func (s *Sender) Close() {
	s.life.Lock()
	defer s.life.Unlock()
	s.workers.Stop()
	s.started = false
	for _, c := range s.currentChannels() {
		c.close()
	}
}

// startWorkers starts the workers. The caller holds s.life.
func (s *Sender) startWorkers() {
	tasks := []func(context.Context){s.expire}
	for _, c := range s.currentChannels() {
		tasks = append(tasks, func(ctx context.Context) { s.deliverAll(ctx, c) })
	}
	s.workers.Start(tasks...)
}

// deliverAll sends the notices of c one after the other until ctx ends.
func (s *Sender) deliverAll(ctx context.Context, c *channel) {
	poll := time.NewTicker(s.opts.Poll)
	defer poll.Stop()
	for {
		n, err := s.claimNext(ctx, c.key)
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Error("delivering notices", "channel", c.name, "error", err)
		}
		if n != nil {
			s.sendOnce(ctx, c, n)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		case <-poll.C:
		}
	}
}

// sendOnce attempts to deliver n once, and records how the attempt ended.
func (s *Sender) sendOnce(ctx context.Context, c *channel, n *notice) {
	sending, stop := context.WithTimeout(ctx, delivery.Timeout)
	fault := c.send(sending, n)
	stop()
	outcome, err := s.recordAttempt(ctx, c, n, fault)
	if err != nil {
		// The row comes due again by itself: at worst it is sent twice.
		s.opts.Log.Error("delivering notices", "channel", c.name, "notice", n.id, "error", err)
	}
	if outcome != "" {
		s.opts.Observe(c.name, outcome)
	}
}

// recordAttempt ends an attempt. The outcome is "" when this process broke the
// attempt off.
func (s *Sender) recordAttempt(ctx context.Context, c *channel, n *notice, fault error) (Outcome, error) {
	log := s.opts.Log.With("channel", c.name, "notice", n.id, "ticket", n.ticket, "try", n.tries)
	if fault == nil {
		log.Debug("notice delivered")
		return Sent, s.deleteNotice(ctx, n)
	}
	if ctx.Err() != nil {
		return "", s.retry(ctx, n, 0, "")
	}
	wait := backoff.Pause(n.tries, fault)
	if errors.Is(fault, errGone) || s.opts.Now().Add(wait).After(n.until) {
		log.Error("notice given up", "error", fault)
		return Dead, s.giveUp(ctx, n, fault.Error())
	}
	log.Warn("notice not delivered, it is tried again", "error", fault, "wait", wait.Round(time.Millisecond))
	return Failed, s.retry(ctx, n, wait, fault.Error())
}

// expire gives up notices whose time is over, until ctx ends.
func (s *Sender) expire(ctx context.Context) {
	poll := time.NewTicker(s.opts.Poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
		late, keys, err := s.giveUpExpired(ctx)
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Error("sweeping notices", "error", err)
		}
		for i, n := range late {
			s.opts.Log.Error("notice given up", "channel", s.channelName(keys[i]), "notice", n.id, "ticket", n.ticket, "tries", n.tries)
			s.opts.Observe(s.channelName(keys[i]), Dead)
		}
	}
}

// currentChannels gives the applied channels.
func (s *Sender) currentChannels() []*channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channels
}

// channelsFor gives the channels whose roles may decide t.
func (s *Sender) channelsFor(t approval.Ticket) (found []*channel) {
	for _, c := range s.currentChannels() {
		if len(c.roles) == 0 || slices.ContainsFunc(c.roles, func(r string) bool { return slices.Contains(t.Roles, r) }) {
			found = append(found, c)
		}
	}
	return found
}

// channelName gives the name of the channel with a key, "" when it is not
// configured.
func (s *Sender) channelName(key string) string {
	for _, c := range s.currentChannels() {
		if c.key == key {
			return c.name
		}
	}
	return ""
}
