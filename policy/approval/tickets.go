package approval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/signal"
)

const (
	defaultTTL  = 15 * time.Minute
	defaultLive = 64
	// writeTimeout bounds a write that no caller can cancel.
	writeTimeout = 15 * time.Second
	// pollEvery is how soon Wait sees what another process decided.
	pollEvery = 250 * time.Millisecond
)

// Options are the settings of [Tickets]; the zero value is usable.
type Options struct {
	// Dir is where the processes that share the store show that they live;
	// "" = instances, beside the store's file.
	Dir string
	// TTL is how long a ticket lives when the policy does not say; 0 = 15 minutes.
	TTL time.Duration
	// MaxLive is how many calls of one principal may wait for a decision at
	// once; 0 = 64.
	MaxLive int
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Instance names this process among those that share the store. It must be
	// new in every process; "" = one is made.
	Instance string
}

// Tickets keeps the tickets of one store. It is safe for concurrent use, and
// any number of Tickets, in any number of processes on one machine, may share
// the file.
type Tickets struct {
	db    *store.DB
	opts  Options
	clock clock

	mu       sync.Mutex // protects the fields below
	instance *store.Instance
	running  map[string]struct{} // tickets granted here and neither finished nor released
	changed  chan struct{}       // closed and replaced when a ticket changed state here
}

// New gives the tickets in db, which has the migrations of [store.Migrations].
// It shows the other processes that this one lives, until Close, and turns
// what dead ones were running into unknown. Nothing is ever run again by it.
func New(ctx context.Context, db *store.DB, opts Options) (*Tickets, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.TTL = cmp.Or(max(0, opts.TTL), defaultTTL)
	opts.MaxLive = cmp.Or(max(0, opts.MaxLive), defaultLive)
	opts.Instance = cmp.Or(opts.Instance, signal.UniqueID("ins_"))
	opts.Dir = cmp.Or(opts.Dir, filepath.Join(filepath.Dir(db.Path()), "instances"))
	held, err := store.HoldInstance(opts.Dir, opts.Instance)
	if err != nil {
		return nil, fmt.Errorf("opening approvals: %w", err)
	}
	t := &Tickets{db: db, opts: opts, instance: held, running: map[string]struct{}{}, changed: make(chan struct{})}
	err = t.recover(ctx)
	if err == nil {
		err = store.SweepInstances(opts.Dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening approvals: %w", err), held.Close())
	}
	return t, nil
}

// Close ends the sign of life. What still runs here becomes unknown to the
// others, so callers finish it first. The store stays open.
func (t *Tickets) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.instance == nil {
		return nil
	}
	held := t.instance
	t.instance = nil
	if err := held.Close(); err != nil {
		return fmt.Errorf("closing approvals: %w", err)
	}
	return nil
}

func (t *Tickets) closed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.instance == nil
}

// recover settles the tickets that dead processes were running.
func (t *Tickets) recover(ctx context.Context) error {
	return t.write(ctx, func(w *writer) error {
		tickets, err := w.query(load{}, "WHERE state = ?", StateDispatching)
		if err != nil {
			return err
		}
		for _, k := range tickets {
			if err := t.settle(w, &k); err != nil {
				return err
			}
		}
		return nil
	})
}

// settle makes a dispatching ticket unknown when nobody runs it: its process
// is dead, or it is this one, which knows that it does not run it. Only a
// process that is certainly gone counts as dead.
func (t *Tickets) settle(w *writer, k *record) error {
	if k.instance == t.opts.Instance {
		if t.runs(k.ID) {
			return nil
		}
		return w.move(k, change{to: StateUnknown, reason: "its outcome could not be stored", note: "its outcome could not be stored"})
	}
	alive, err := store.InstanceAlive(t.opts.Dir, k.instance)
	if err != nil || alive {
		return err
	}
	return w.move(k, change{to: StateUnknown, reason: "the process that ran it died", note: "the process that ran it died before the outcome was stored"})
}

// runs reports whether a grant of this Tickets is out for the ticket.
func (t *Tickets) runs(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.running[id]
	return ok
}

func (t *Tickets) setRunning(id string, on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if on {
		t.running[id] = struct{}{}
		return
	}
	delete(t.running, id)
}

// changes gives a channel that is closed at the next change of state here.
func (t *Tickets) changes() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

func (t *Tickets) broadcast() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}
