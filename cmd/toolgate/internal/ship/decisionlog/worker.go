package decisionlog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/wait"
)

const (
	// batchEvents and batchBytes bound a chunk; one event may be larger.
	batchEvents, batchBytes = 500, 256 << 10
	// linger is how long a chunk that is not full waits for more.
	linger = 50 * time.Millisecond
	// longestWait bounds the pause after a failed attempt.
	longestWait = time.Minute
)

// A sink accepts events.
type sink interface {
	// send delivers events, each one line of JSON, all of them or none. Its error is
	// fit for people to read; see isRefusal.
	send(ctx context.Context, events [][]byte) error
	// close releases what the sink holds open.
	close()
}

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

	mu  sync.Mutex // protects now
	now status
}

// status is the state of a worker.
type status struct {
	shipping bool      // this process ships
	fault    string    // why it cannot continue, "" = it can
	since    time.Time // of the oldest event that waits; zero = none
}

func newWorker(s *Shipper, name string, to sink) *worker {
	return &worker{name: name, shipper: s, sink: to, log: s.opts.Log.With("sink", name)}
}

// run ships whenever this process holds the sink, until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer w.sink.close()
	for tries, pause := 0, time.Duration(0); wait.For(ctx, pause); {
		err := w.shipLocked(ctx)
		pause = w.shipper.opts.Poll
		if tries++; err == nil || ctx.Err() != nil {
			tries = 0
			continue
		}
		pause = max(pause, w.shipper.backoff().After(tries))
		w.log.Error("shipping decisions", "error", err, "wait", pause.Round(time.Millisecond))
		w.update(func(s *status) { s.fault = "its cursor in the state cannot be read or written" })
	}
}

// shipLocked ships, unless another living process does. The lock ends with the process;
// exactly one of the other processes then takes it.
func (w *worker) shipLocked(ctx context.Context) error {
	if err := os.MkdirAll(w.shipper.opts.Instances, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(w.shipper.opts.Instances, "decisions-"+w.name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err = files.TryLock(lock); err == nil {
		w.update(func(s *status) { *s = status{shipping: true} })
		err = w.ship(ctx)
		w.update(func(s *status) { *s = status{fault: s.fault} })
	}
	if errors.Is(err, files.ErrHeld) {
		return nil
	}
	return err
}

// ship ships the events after the sink's cursor until ctx ends or the cursor cannot
// be saved.
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
	for {
		batch, ok := gatherBatch(ctx, events)
		if !ok {
			return nil
		}
		if err := w.shipBatch(ctx, batch, events); err != nil {
			return err
		}
	}
}

// readTrail sends the events of the records after cursor until ctx ends.
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

// makeEvent returns the event of a record. ok is false when ctx ended while the mask
// was evaluated: its result is then unknown.
func (w *worker) makeEvent(ctx context.Context, r *audit.Record) (event, bool) {
	p := event{chain: r.Instance, seq: r.Seq, id: r.DecisionID, at: r.Time}
	if r.Kind != audit.KindDecision && r.Kind != audit.KindOutcome || r.Policy.Effect == "" || len(r.Input) == 0 {
		return p, true // one record of each decision holds the policy's input
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

// gatherBatch takes events until they fill a chunk or linger has passed since the
// first. ok is false when ctx has ended.
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

// countEvents returns the number of events in batch that have a body.
func countEvents(batch []event) (n int) {
	for _, p := range batch {
		if p.body != nil {
			n++
		}
	}
	return n
}

// shipBatch ships the remaining events, and takes more when it needs them to find
// out whether an event or the sink is at fault. A batch that the sink refuses is
// halved until the refused event is found. shipBatch returns when everything is
// shipped, ctx has ended, or the cursor cannot be saved.
func (w *worker) shipBatch(ctx context.Context, remaining []event, more <-chan event) error {
	for tries, size := 0, len(remaining); len(remaining) > 0; {
		size = min(size, len(remaining))
		w.noteWaiting(remaining)
		fault := w.send(ctx, remaining[:size])
		refused := isRefusal(fault)
		if refused && size > 1 {
			size /= 2
			continue
		}
		refusal := ""
		if refused {
			refusal, fault = w.judgeRefusal(ctx, remaining, fault)
		}
		if fault == nil {
			if err := w.finish(ctx, remaining, size, refusal); err != nil {
				return err
			}
			remaining = remaining[size:]
			tries, size = 0, len(remaining)
			continue
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the worker ends
		}
		tries++
		pause := w.shipper.backoff().Pause(tries, fault)
		w.update(func(s *status) { s.fault = fault.Error() })
		w.log.Warn("decisions not shipped, retrying", "events", len(remaining), "error", fault, "wait", pause.Round(time.Millisecond))
		w.shipper.opts.Observe(w.name, Retried, countEvents(remaining[:size]))
		if !wait.For(ctx, pause) {
			return nil
		}
		for n := min(len(more), batchEvents-len(remaining)); n > 0; n-- { // nothing else receives
			remaining = append(remaining, <-more)
		}
	}
	return nil
}

// send sends the bodies in batch, if there are any.
func (w *worker) send(ctx context.Context, batch []event) error {
	var bodies [][]byte
	for _, e := range batch {
		if e.body != nil {
			bodies = append(bodies, e.body)
		}
	}
	if len(bodies) == 0 {
		return nil
	}
	return w.sink.send(ctx, bodies)
}

// judgeRefusal decides about an event, the first of remaining, that the sink refuses
// by itself. It returns the refusal, and no fault, when the event is to be parked:
// the sink accepts another event and refuses this one again. Otherwise the sink is at
// fault, and nothing is parked.
//
// It looks for an event that the sink accepts among those after the first, in steps that double,
// because several may be at fault. That event is shipped before its turn.
func (w *worker) judgeRefusal(ctx context.Context, remaining []event, refused error) (refusal string, fault error) {
	i := 1
	for i < len(remaining) && (remaining[i].body == nil || w.send(ctx, remaining[i:i+1]) != nil) {
		i *= 2
	}
	if i >= len(remaining) {
		return "", refused
	}
	remaining[i].body = nil
	w.shipper.opts.Observe(w.name, Shipped, 1)
	if again := w.send(ctx, remaining[:1]); !isRefusal(again) {
		return "", again
	}
	w.shipper.opts.Observe(w.name, Parked, 1)
	w.log.Error("decision parked: the sink refuses it and accepts others", "decision", remaining[0].id, "error", refused)
	return refused.Error(), nil
}

// finish saves that the first events of remaining need no further attempt; with a
// refusal, that the first is parked. It clears the fault and the waiting events
// before: a sink without lag has neither.
func (w *worker) finish(ctx context.Context, remaining []event, size int, refusal string) error {
	w.update(func(s *status) { s.fault = "" })
	w.noteWaiting(remaining[size:])
	done, shipped := remaining[:size], countEvents(remaining[:size])
	var parked *event
	if refusal != "" {
		parked, shipped = &done[0], shipped-1
	}
	if err := w.shipper.saveCursor(ctx, w.name, done, parked, refusal); err != nil {
		return err
	}
	w.shipper.opts.Observe(w.name, Shipped, shipped)
	return nil
}

// update changes the status.
func (w *worker) update(change func(*status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.now)
}

// status returns the status.
func (w *worker) status() status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// noteWaiting records the time of the oldest event that waits.
func (w *worker) noteWaiting(remaining []event) {
	w.update(func(s *status) {
		s.since = time.Time{}
		for _, e := range remaining {
			if e.body != nil && (s.since.IsZero() || e.at.Before(s.since)) {
				s.since = e.at
			}
		}
	})
}

// backoff is the pause between attempts.
func (s *Shipper) backoff() delivery.Backoff {
	return delivery.Backoff{First: s.opts.Retry, Longest: longestWait}
}
