package decisionlog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/wait"
)

const (
	// batchEvents and batchBytes bound a chunk; one event may be larger.
	batchEvents, batchBytes = 500, 256 << 10
	// linger is how long a chunk that is not full waits for more.
	linger = 50 * time.Millisecond
	// longestWait bounds the pause after a failed try.
	longestWait = time.Minute
	// idleRecords is how many records that are no decisions are passed before the
	// place is moved for their sake.
	idleRecords = 5000
)

// sink takes events.
type sink interface {
	// send tells events, each one line of JSON, all of them or none that count. Its
	// error is fit for people to read. errRefused in its chain means that they are
	// refused for what they are.
	send(ctx context.Context, events [][]byte) error
	// close lets go of what it holds.
	close()
}

// errRefused is in the chain of the error of a sink that takes others, perhaps.
var errRefused = errors.New("it refused the events")

// parcel is one record on its way to a sink.
type parcel struct {
	chain string
	seq   uint64
	id    string    // of the decision
	at    time.Time // of the record
	event []byte    // what is told, nil = nothing
}

// lane is one sink and what is on the way to it.
type lane struct {
	name string
	s    *Shipper
	sink sink
	log  hclog.Logger

	mu      sync.Mutex   // protects the fields below
	ours    bool         // this process ships
	fault   string       // why it cannot get on, "" = it can
	since   time.Time    // of the oldest event that waits; zero = none
	reached audit.Cursor // what is dealt with and need not be written down
}

func newLane(s *Shipper, name string, to sink) *lane {
	return &lane{name: name, s: s, sink: to, log: s.opts.Log.With("sink", name)}
}

// run ships whenever the sink is this process's, until ctx ends.
func (l *lane) run(ctx context.Context) {
	defer l.sink.close()
	for tries := 0; ; {
		ours, err := l.s.claim(ctx, l.name)
		if ours {
			l.set(func() { l.ours, l.fault, l.reached = true, "", audit.Cursor{} })
			err = l.ship(ctx)
			l.set(func() { l.ours, l.since, l.reached = false, time.Time{}, nil })
		}
		if ctx.Err() != nil {
			break
		}
		pause := l.s.opts.Poll
		if tries++; err == nil || errors.Is(err, errLost) {
			tries = 0
		} else {
			pause = max(pause, l.s.backoff().After(tries))
			l.log.Error("shipping decisions", "error", err, "wait", pause.Round(time.Millisecond))
			l.set(func() { l.fault = "its place in the state cannot be read or written" })
		}
		if !wait.For(ctx, pause) {
			break
		}
	}
	if err := l.s.release(ctx, l.name); err != nil {
		l.log.Error("leaving a sink of decisions", "error", err)
	}
}

// ship tells what the trail has after the sink's place, until ctx ends or the place
// cannot be kept.
func (l *lane) ship(ctx context.Context) error {
	place, err := l.s.place(ctx, l.name)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	parcels := make(chan parcel, 64)
	var reader sync.WaitGroup
	reader.Go(func() { l.read(ctx, place, parcels) })
	defer reader.Wait()
	defer stop()
	var idle []parcel
	for {
		batch, ok := gather(ctx, parcels)
		if !ok {
			return l.keep(ctx, idle)
		}
		batch = append(idle, batch...)
		if idle = nil; count(batch) == 0 && len(batch) < idleRecords {
			idle = batch
			l.reach(batch)
			continue
		}
		if err := l.deliver(ctx, batch, parcels); err != nil {
			return err
		}
	}
}

// read makes parcels of the records after place, until ctx ends.
func (l *lane) read(ctx context.Context, place audit.Cursor, to chan<- parcel) {
	said := ""
	for r, err := range audit.Follow(ctx, l.s.opts.Trail, place, l.s.opts.Poll) {
		if err != nil {
			if said != err.Error() { // what cannot be read comes again at every look
				said = err.Error()
				l.log.Error("reading the audit trail for the decision log", "error", err)
				l.s.opts.Observe(l.name, Lost, 1)
			}
			continue
		}
		p, ok := l.parcel(ctx, r)
		if !ok {
			return
		}
		select {
		case to <- p:
		case <-ctx.Done():
			return
		}
	}
}

// parcel makes what is told of a record. It is false when ctx has ended: then it
// is not known what a mask would have said.
func (l *lane) parcel(ctx context.Context, r *audit.Record) (parcel, bool) {
	p := parcel{chain: r.Instance, seq: r.Seq, id: r.DecisionID, at: r.Time}
	if !decided(r) {
		return p, true
	}
	e, err := eventOf(r, l.s.opts.Labels)
	if err != nil {
		l.log.Error("telling a decision", "chain", r.Instance, "record", r.Seq, "error", err)
		l.s.opts.Observe(l.name, Lost, 1)
		return p, true
	}
	p.event, err = masked(ctx, l.s.opts.Mask, e)
	switch {
	case ctx.Err() != nil:
		return p, false
	case err != nil:
		l.log.Error("masking a decision: only its id is told", "decision", r.DecisionID, "error", err)
		l.s.opts.Observe(l.name, Masked, 1)
	case p.event == nil:
		l.s.opts.Observe(l.name, Dropped, 1)
	}
	return p, true
}

// gather takes parcels until they are a chunk or none has come for a while.
func gather(ctx context.Context, from <-chan parcel) (batch []parcel, ok bool) {
	var quiet <-chan time.Time
	size := 0
	for len(batch) < batchEvents && size < batchBytes {
		select {
		case p := <-from:
			batch = append(batch, p)
			size += len(p.event)
			if quiet == nil {
				quiet = time.After(linger)
			}
		case <-quiet:
			return batch, true
		case <-ctx.Done():
			return batch, false
		}
	}
	return batch, true
}

// count gives how many events are in batch.
func count(batch []parcel) (n int) {
	for _, p := range batch {
		if p.event != nil {
			n++
		}
	}
	return n
}

// deliver tells batch, and what it has to take from more to find out whether it is
// an event or the sink that is at fault. It returns when all is told, ctx has ended,
// or the place cannot be kept.
func (l *lane) deliver(ctx context.Context, batch []parcel, more <-chan parcel) error {
	d := attempt{lane: l, left: batch, size: len(batch)}
	for tries := 0; len(d.left) > 0; {
		l.waits(d.left)
		before := len(d.left)
		fault, err := d.step(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if len(d.left) < before {
			tries = 0
		}
		if fault == nil {
			continue
		}
		tries++
		pause := l.s.backoff().Pause(tries, fault)
		l.set(func() { l.fault = fault.Error() })
		l.log.Warn("decisions not shipped, they are told again", "events", len(d.left), "error", fault, "wait", pause.Round(time.Millisecond))
		l.s.opts.Observe(l.name, Retried, count(d.left[:d.size]))
		if !wait.For(ctx, pause) {
			return nil
		}
		d.top(more)
	}
	l.waits(nil)
	return nil
}

// attempt is what a sink is to be told now.
type attempt struct {
	lane *lane
	left []parcel
	size int // how many of them are tried together
}

// step tries the next of them. fault says why the sink did not take them, nil also
// when fewer are to be tried; err, why the place could not be kept.
func (d *attempt) step(ctx context.Context) (fault, err error) {
	d.size = min(d.size, len(d.left))
	next := d.left[:d.size]
	fault = d.send(ctx, next)
	switch {
	case fault == nil:
		return nil, d.done(ctx, next, nil, "")
	case !errors.Is(fault, errRefused):
		return fault, nil
	case d.size > 1:
		d.size /= 2
		return nil, nil
	}
	return d.alone(ctx, fault)
}

// alone parks an event that is refused by itself, if the sink takes another one and
// refuses this one still. Else it is the sink that is at fault, and nothing is given
// up.
func (d *attempt) alone(ctx context.Context, refusal error) (fault, err error) {
	if !d.probe(ctx) {
		return refusal, nil
	}
	head := d.left[:1]
	switch again := d.send(ctx, head); {
	case again == nil:
		return nil, d.done(ctx, head, nil, "")
	case !errors.Is(again, errRefused):
		return again, nil
	}
	d.lane.s.opts.Observe(d.lane.name, Parked, 1)
	d.lane.log.Error("a decision is shipped no more: it is refused, and others are not", "decision", head[0].id, "error", refusal)
	return nil, d.done(ctx, head, &head[0], refusal.Error())
}

// probe finds an event that the sink takes, of those that follow the first, ever
// further away, for a fault may be in several. It is told before its turn.
func (d *attempt) probe(ctx context.Context) bool {
	for i := 1; i < len(d.left); i *= 2 {
		if p := &d.left[i]; p.event != nil && d.send(ctx, d.left[i:i+1]) == nil {
			p.event = nil
			d.lane.s.opts.Observe(d.lane.name, Shipped, 1)
			return true
		}
	}
	return false
}

func (d *attempt) send(ctx context.Context, batch []parcel) error {
	var events [][]byte
	for _, p := range batch {
		if p.event != nil {
			events = append(events, p.event)
		}
	}
	if len(events) == 0 {
		return nil
	}
	return d.lane.sink.send(ctx, events)
}

// done writes down that batch, the first of what is left, is dealt with. The sink's
// fault is over before that: a sink without lag has none.
func (d *attempt) done(ctx context.Context, batch []parcel, refused *parcel, fault string) error {
	d.lane.set(func() { d.lane.fault = "" })
	var parked []parcel
	shipped := count(batch)
	if refused != nil {
		parked = append(parked, *refused)
		shipped--
	}
	if err := d.lane.s.advance(ctx, d.lane.name, batch, parked, fault); err != nil {
		return err
	}
	d.lane.s.opts.Observe(d.lane.name, Shipped, shipped)
	d.lane.reach(batch)
	d.left = d.left[len(batch):]
	d.size = len(d.left)
	return nil
}

// top adds what has come meanwhile, as far as a chunk has room.
func (d *attempt) top(more <-chan parcel) {
	for len(d.left) < batchEvents {
		select {
		case p := <-more:
			d.left = append(d.left, p)
		default:
			return
		}
	}
}

// keep moves the place over what needs not be told.
func (l *lane) keep(ctx context.Context, idle []parcel) error {
	if len(idle) == 0 {
		return nil
	}
	return l.s.advance(ctx, l.name, idle, nil, "")
}

func (l *lane) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// waits notes since when something waits.
func (l *lane) waits(left []parcel) {
	l.set(func() {
		l.since = time.Time{}
		for _, p := range left {
			if p.event != nil && (l.since.IsZero() || p.at.Before(l.since)) {
				l.since = p.at
			}
		}
	})
}

func (l *lane) reach(batch []parcel) {
	l.set(func() {
		for _, p := range batch {
			l.reached[p.chain] = max(l.reached[p.chain], p.seq)
		}
	})
}

// ahead moves at to what this process has dealt with and needed not write down.
func (l *lane) ahead(at audit.Cursor) {
	l.set(func() {
		for chain, seq := range l.reached {
			at[chain] = max(at[chain], seq)
		}
	})
}

// standing says since when something waits here, and why it cannot get on.
func (l *lane) standing() (since time.Time, fault string) {
	l.set(func() { since, fault = l.since, l.fault })
	return since, fault
}

// getsOn reports whether this process ships and nothing stands in the way.
func (l *lane) getsOn() (on bool) {
	l.set(func() { on = l.ours && l.fault == "" })
	return on
}

// backoff is the pause between attempts.
func (s *Shipper) backoff() delivery.Backoff {
	return delivery.Backoff{First: s.opts.Retry, Longest: longestWait}
}
