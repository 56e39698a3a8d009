package notice

import (
	"cmp"
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
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/approval"
)

// Outcome is the result of an attempt to deliver a notice.
type Outcome string

// The outcomes. A notice that is given up without a last attempt counts as Dead.
const (
	Sent   Outcome = "sent"
	Failed Outcome = "failed" // it is tried again
	Dead   Outcome = "dead"   // it is given up
)

// Options are the settings of a [Sender]. DB and Link are needed.
type Options struct {
	DB *store.DB
	// Link returns the address of a ticket's page, which every notice shows.
	Link func(ticket string) string
	// Poll is the pause between two looks for notices that are due or that other
	// processes wrote; 0 = 1 s. Notices whose time is over are given up within ten.
	Poll time.Duration
	// Roots are the certificate authorities of webhooks and mail servers; nil = the system's.
	Roots *x509.CertPool
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Observe counts the outcome of each attempt by channel name; nil = nothing is
	// counted. Several goroutines call it.
	Observe func(channel string, o Outcome)
	Log     hclog.Logger // nil = none
}

// A Sender keeps the outbox of one store and delivers its notices. It is safe for
// concurrent use, and any number of Senders, in any number of processes, may share
// the store: each delivers on the channels that it has.
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

// New returns a Sender for channels. Until Start it accepts notices and sends none.
func New(opts Options, channels []Channel) (*Sender, error) {
	opts.Poll = cmp.Or(opts.Poll, time.Second)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Observe == nil {
		opts.Observe = func(string, Outcome) {}
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	s := &Sender{opts: opts, applied: channels, dial: new(net.Dialer).DialContext}
	var err error
	s.channels, err = s.buildChannels(channels)
	return s, err
}

// Start starts delivering. The caller must Close the Sender.
func (s *Sender) Start() {
	s.life.Lock()
	defer s.life.Unlock()
	if !s.started {
		s.started = true
		s.startWorkers()
	}
}

// Apply replaces the channels, unless they are equal. After an error the channels are
// unchanged. Notices for a removed channel are delivered by another process that has
// it, or given up when their time is over.
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

// Close stops delivering and waits until the workers have ended. The next process
// that delivers repeats an interrupted attempt.
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

// sendOnce attempts to deliver n once, and records how the attempt ended, unless the end of ctx interrupted it.
func (s *Sender) sendOnce(ctx context.Context, c *channel, n *notice) {
	log := s.opts.Log.With("channel", c.name, "notice", n.id, "ticket", n.ticket, "try", n.tries)
	sending, stop := context.WithTimeout(ctx, delivery.Timeout)
	fault := c.send(sending, n)
	stop()
	var err error
	switch now, pause := s.opts.Now(), backoff.Pause(n.tries, fault); {
	case fault == nil:
		log.Debug("notice delivered")
		err = s.endAttempt(ctx, n, deleteNotice)
		s.opts.Observe(c.name, Sent)
	case ctx.Err() != nil:
		err = s.endAttempt(ctx, n, retryNotice, now.UnixNano(), "")
	case errors.Is(fault, errGone) || now.Add(pause).After(n.until):
		log.Error("notice given up", "error", fault)
		err = s.endAttempt(ctx, n, buryNotice, now.UnixNano(), fault.Error())
		s.opts.Observe(c.name, Dead)
	default:
		log.Warn("notice not delivered, it is tried again", "error", fault, "wait", pause.Round(time.Millisecond))
		err = s.endAttempt(ctx, n, retryNotice, now.Add(pause).UnixNano(), fault.Error())
		s.opts.Observe(c.name, Failed)
	}
	if err != nil { // the row comes due again by itself: at worst it is sent twice
		s.opts.Log.Error("delivering notices", "channel", c.name, "notice", n.id, "error", err)
	}
}

// expire gives up notices whose time is over, until ctx ends.
func (s *Sender) expire(ctx context.Context) {
	for wait.For(ctx, wait.Beat(10*s.opts.Poll)) {
		late, err := s.giveUpExpired(ctx)
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Error("sweeping notices", "error", err)
		}
		for _, n := range late {
			name := s.channelName(n.channel)
			s.opts.Log.Error("notice given up", "channel", name, "notice", n.id, "ticket", n.ticket, "tries", n.tries)
			s.opts.Observe(name, Dead)
		}
	}
}

// currentChannels returns the applied channels.
func (s *Sender) currentChannels() []*channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channels
}

// channelsFor returns the channels whose roles may decide t.
func (s *Sender) channelsFor(t approval.Ticket) (found []*channel) {
	for _, c := range s.currentChannels() {
		if len(c.roles) == 0 || slices.ContainsFunc(c.roles, func(r string) bool { return slices.Contains(t.Roles, r) }) {
			found = append(found, c)
		}
	}
	return found
}

// channelName returns the name of the channel with a key, "" when it is not
// configured.
func (s *Sender) channelName(key string) string {
	for _, c := range s.currentChannels() {
		if c.key == key {
			return c.name
		}
	}
	return ""
}
