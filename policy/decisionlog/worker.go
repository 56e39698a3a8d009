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
	// longestWait bounds the pause after a failed attempt.
	longestWait = time.Minute
	// idleRecords is how many records that are no decisions are skipped before the
	// cursor is saved for their sake.
	idleRecords = 5000
)

// A sink accepts events.
type sink interface {
	// send delivers events, each one line of JSON, all of them or none. Its error is
	// fit for people to read. errRefused in its chain means that the sink refuses
	// the events for what they are.
	send(ctx context.Context, events [][]byte) error
	// close releases what the sink holds open.
	close()
}

// errRefused is in the chain of the error of a sink that may accept other events.
var errRefused = errors.New("it refused the events")

// An event is one record of the trail on its way to a sink.
type event struct {
	chain string
	seq   uint64
	id    string    // of the decision
	at    time.Time // of the record
	body  []byte    // what is shipped, nil = nothing
}

// A worker ships to one sink.
type worker struct {
	name    string
	shipper *Shipper
	sink    sink
	log     hclog.Logger

	mu       sync.Mutex   // protects the fields below
	shipping bool         // this process ships
	fault    string       // why it cannot continue, "" = it can
	since    time.Time    // of the oldest event that waits; zero = none
	reached  audit.Cursor // what is done and is not saved
}

func newWorker(s *Shipper, name string, to sink) *worker {
	return &worker{name: name, shipper: s, sink: to, log: s.opts.Log.With("sink", name)}
}

// run ships whenever this process holds the sink, until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer w.sink.close()
	for tries := 0; ; {
		ours, err := w.shipper.claimSink(ctx, w.name)
		if ours {
			w.update(func() { w.shipping, w.fault, w.reached = true, "", audit.Cursor{} })
			err = w.ship(ctx)
			w.update(func() { w.shipping, w.since, w.reached = false, time.Time{}, nil })
		}
		if ctx.Err() != nil {
			break
		}
		pause := w.shipper.opts.Poll
		if tries++; err == nil || errors.Is(err, errLost) {
			tries = 0
		} else {
			pause = max(pause, w.shipper.backoff().After(tries))
			w.log.Error("shipping decisions", "error", err, "wait", pause.Round(time.Millisecond))
			w.update(func() { w.fault = "its cursor in the state file cannot be read or written" })
		}
		if !wait.For(ctx, pause) {
			break
		}
	}
	if err := w.shipper.releaseSink(ctx, w.name); err != nil {
		w.log.Error("releasing a sink of decisions", "error", err)
	}
}

// ship ships the events after the sink's cursor until ctx ends or the cursor
// cannot be saved.
func (w *worker) ship(ctx context.Context) error {
	cursor, err := w.shipper.loadCursor(ctx, w.name)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	events := make(chan event, 64)
	var reader sync.WaitGroup
	reader.Go(func() { w.readTrail(ctx, cursor, events) })
	defer reader.Wait()
	defer stop()
	var idle []event
	for {
		batch, ok := gatherBatch(ctx, events)
		if !ok {
			return w.skip(ctx, idle)
		}
		batch = append(idle, batch...)
		if idle = nil; countEvents(batch) == 0 && len(batch) < idleRecords {
			idle = batch
			w.noteReached(batch)
			continue
		}
		if err := w.shipBatch(ctx, batch, events); err != nil {
			return err
		}
	}
}

// readTrail makes events of the records after cursor until ctx ends.
func (w *worker) readTrail(ctx context.Context, cursor audit.Cursor, to chan<- event) {
	last := ""
	for r, err := range audit.Follow(ctx, w.shipper.opts.Trail, cursor, w.shipper.opts.Poll) {
		if err != nil {
			if last != err.Error() { // Follow repeats what it cannot read
				last = err.Error()
				w.log.Error("reading the audit trail for the decision log", "error", err)
				w.shipper.opts.Observe(w.name, Lost, 1)
			}
			continue
		}
		p, ok := w.makeEvent(ctx, r)
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

// makeEvent makes the event of a record. ok is false when ctx ended while the
// mask was evaluated: its answer is then not known.
func (w *worker) makeEvent(ctx context.Context, r *audit.Record) (event, bool) {
	p := event{chain: r.Instance, seq: r.Seq, id: r.DecisionID, at: r.Time}
	if !isDecision(r) {
		return p, true
	}
	e, err := eventOf(r, w.shipper.opts.Labels)
	if err != nil {
		w.log.Error("making the event of a decision", "chain", r.Instance, "record", r.Seq, "error", err)
		w.shipper.opts.Observe(w.name, Lost, 1)
		return p, true
	}
	p.body, err = masked(ctx, w.shipper.opts.Mask, e)
	switch {
	case ctx.Err() != nil:
		return p, false
	case err != nil:
		w.log.Error("masking a decision: only its id is shipped", "decision", r.DecisionID, "error", err)
		w.shipper.opts.Observe(w.name, Masked, 1)
	case p.body == nil:
		w.shipper.opts.Observe(w.name, Dropped, 1)
	}
	return p, true
}

// gatherBatch takes events until they fill a chunk or none has come for a
// while.
func gatherBatch(ctx context.Context, from <-chan event) (batch []event, ok bool) {
	var quiet <-chan time.Time
	size := 0
	for len(batch) < batchEvents && size < batchBytes {
		select {
		case p := <-from:
			batch = append(batch, p)
			size += len(p.body)
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

// countEvents gives the number of events in batch that have a body.
func countEvents(batch []event) (n int) {
	for _, p := range batch {
		if p.body != nil {
			n++
		}
	}
	return n
}

// shipBatch ships batch, with as many of more as it needs to find out whether
// an event or the sink is at fault. It returns when everything is shipped, ctx
// has ended, or the cursor cannot be saved.
func (w *worker) shipBatch(ctx context.Context, batch []event, more <-chan event) error {
	d := attempt{worker: w, remaining: batch, size: len(batch)}
	for tries := 0; len(d.remaining) > 0; {
		w.noteWaiting(d.remaining)
		before := len(d.remaining)
		fault, err := d.sendNext(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if len(d.remaining) < before {
			tries = 0
		}
		if fault == nil {
			continue
		}
		tries++
		pause := w.shipper.backoff().Pause(tries, fault)
		w.update(func() { w.fault = fault.Error() })
		w.log.Warn("decisions not shipped, retrying", "events", len(d.remaining), "error", fault, "wait", pause.Round(time.Millisecond))
		w.shipper.opts.Observe(w.name, Retried, countEvents(d.remaining[:d.size]))
		if !wait.For(ctx, pause) {
			return nil
		}
		d.fill(more)
	}
	return nil
}

// An attempt is what a sink is sent now.
type attempt struct {
	worker    *worker
	remaining []event
	size      int // how many of them are tried together
}

// sendNext sends the next events. fault says why the sink did not accept them,
// and is nil when fewer are to be tried next; err says why the cursor could not
// be saved.
func (d *attempt) sendNext(ctx context.Context) (fault, err error) {
	d.size = min(d.size, len(d.remaining))
	next := d.remaining[:d.size]
	fault = d.sendEvents(ctx, next)
	switch {
	case fault == nil:
		return nil, d.finish(ctx, next, nil, "")
	case !errors.Is(fault, errRefused):
		return fault, nil
	case d.size > 1:
		d.size /= 2
		return nil, nil
	}
	return d.sendAlone(ctx, fault)
}

// sendAlone parks an event that the sink refuses by itself, if the sink accepts
// another one and refuses this one again. Otherwise the sink is at fault, and
// nothing is parked.
func (d *attempt) sendAlone(ctx context.Context, refusal error) (fault, err error) {
	if !d.probeOthers(ctx) {
		return refusal, nil
	}
	head := d.remaining[:1]
	switch again := d.sendEvents(ctx, head); {
	case again == nil:
		return nil, d.finish(ctx, head, nil, "")
	case !errors.Is(again, errRefused):
		return again, nil
	}
	d.worker.shipper.opts.Observe(d.worker.name, Parked, 1)
	d.worker.log.Error("decision parked: the sink refuses it and accepts others", "decision", head[0].id, "error", refusal)
	return nil, d.finish(ctx, head, &head[0], refusal.Error())
}

// probeOthers looks for an event that the sink accepts among those after the
// first, in steps that double, because a fault may be in several. That event is
// shipped before its turn.
func (d *attempt) probeOthers(ctx context.Context) bool {
	for i := 1; i < len(d.remaining); i *= 2 {
		if p := &d.remaining[i]; p.body != nil && d.sendEvents(ctx, d.remaining[i:i+1]) == nil {
			p.body = nil
			d.worker.shipper.opts.Observe(d.worker.name, Shipped, 1)
			return true
		}
	}
	return false
}

// sendEvents sends the bodies in batch, if there are any.
func (d *attempt) sendEvents(ctx context.Context, batch []event) error {
	var events [][]byte
	for _, p := range batch {
		if p.body != nil {
			events = append(events, p.body)
		}
	}
	if len(events) == 0 {
		return nil
	}
	return d.worker.sink.send(ctx, events)
}

// finish saves that batch, the first of what remains, needs no further attempt.
// The fault and the waiting events are cleared before that: a sink without lag has
// neither.
func (d *attempt) finish(ctx context.Context, batch []event, refused *event, fault string) error {
	d.worker.update(func() { d.worker.fault = "" })
	d.worker.noteWaiting(d.remaining[len(batch):])
	var parked []event
	shipped := countEvents(batch)
	if refused != nil {
		parked = append(parked, *refused)
		shipped--
	}
	if err := d.worker.shipper.saveCursor(ctx, d.worker.name, batch, parked, fault); err != nil {
		return err
	}
	d.worker.shipper.opts.Observe(d.worker.name, Shipped, shipped)
	d.worker.noteReached(batch)
	d.remaining = d.remaining[len(batch):]
	d.size = len(d.remaining)
	return nil
}

// fill adds events that have come meanwhile, up to a full chunk.
func (d *attempt) fill(more <-chan event) {
	for len(d.remaining) < batchEvents {
		select {
		case p := <-more:
			d.remaining = append(d.remaining, p)
		default:
			return
		}
	}
}

// skip saves the cursor behind records that are no decisions.
func (w *worker) skip(ctx context.Context, idle []event) error {
	if len(idle) == 0 {
		return nil
	}
	return w.shipper.saveCursor(ctx, w.name, idle, nil, "")
}

// update changes the fields that w.mu protects.
func (w *worker) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// noteWaiting records the time of the oldest event that waits.
func (w *worker) noteWaiting(left []event) {
	w.update(func() {
		w.since = time.Time{}
		for _, p := range left {
			if p.body != nil && (w.since.IsZero() || p.at.Before(w.since)) {
				w.since = p.at
			}
		}
	})
}

// noteReached records how far the worker has come without saving it.
func (w *worker) noteReached(batch []event) {
	w.update(func() {
		for _, p := range batch {
			w.reached[p.chain] = max(w.reached[p.chain], p.seq)
		}
	})
}

// addReached moves a cursor to where the worker has come without saving it.
func (w *worker) addReached(at audit.Cursor) {
	w.update(func() {
		for chain, seq := range w.reached {
			at[chain] = max(at[chain], seq)
		}
	})
}

// status gives the time of the oldest event that waits, and the fault that
// stops the worker.
func (w *worker) status() (since time.Time, fault string) {
	w.update(func() { since, fault = w.since, w.fault })
	return since, fault
}

// isShipping reports whether this process ships to the sink and nothing stops
// it.
func (w *worker) isShipping() (on bool) {
	w.update(func() { on = w.shipping && w.fault == "" })
	return on
}

// backoff is the pause between attempts.
func (s *Shipper) backoff() delivery.Backoff {
	return delivery.Backoff{First: s.opts.Retry, Longest: longestWait}
}
