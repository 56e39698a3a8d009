package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry"
)

// The parts without which toolgate is not ready, as the metric toolgate_ready names them.
const (
	partUpstreams = "upstreams" // have had their first second
	partServing   = "serving"   // it is not draining
	partTrail     = "trail"     // can be written
	partStore     = "store"     // can be written
	partKeys      = "keys"      // of the issuers of tokens can be had
	partOwnKeys   = "own_keys"  // can be had
	partSigning   = "signing"   // the last checkpoint of the trail was signed and kept
	partDisk      = "disk"      // has its reserve
	partLimits    = "limits"    // the server of toolgate.shared has been reached, or need not be
	partStops     = "stops"     // what people stop at other replicas is known here
)

// A trial tries the parts whose state has to be found out, each in a goroutine of its own.
type trial struct {
	done chan struct{} // closed when all have answered

	mu     sync.Mutex        // protects the field below
	faults map[string]string // by part; one that has not answered is faulty
}

// health finds out which parts are ready. It is safe for concurrent use.
type health struct {
	*serving
	state  *state
	shared *fleet.Limits
	auth   *identity.Authenticator

	draining atomic.Bool
	trials   sync.WaitGroup

	mu    sync.Mutex // protects the fields below
	begun time.Time
	last  *trial    // nil before the first
	wrote time.Time // when the store was written to last
}

// busyFor is how long others may keep the store from being written to, before that is a fault.
const busyFor = 5 * time.Second

// readyWithin is the most that a question for readiness, or a scrape, waits for parts to answer.
const readyWithin = 900 * time.Millisecond

// tryParts returns the faults of the parts that have to be tried. Each is tried at most once a
// second, and counts as faulty while it has not answered when ctx ends.
func (h *health) tryParts(ctx context.Context) map[string]string {
	h.mu.Lock()
	again := h.last == nil
	if !again {
		select {
		case <-h.last.done:
			again = time.Since(h.begun) >= time.Second
		default:
		}
	}
	if again {
		h.last, h.begun = h.newTrial(), time.Now()
	}
	t := h.last
	h.mu.Unlock()
	select {
	case <-t.done:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.faults)
}

// newTrial begins a trial. Close waits for its end.
func (h *health) newTrial() *trial {
	t := &trial{done: make(chan struct{}), faults: make(map[string]string)}
	parts := map[string]struct {
		fault string
		try   func() error
	}{
		partTrail: {"the trail cannot be written", func() error { // next to it, what several records take
			if _, err := os.Stat(filepath.Join(trail.Dir(h.Config().State), h.state.trail.Instance())); err != nil {
				return err
			}
			return files.Probe(h.Config().State)
		}},
		partStore: {"the store cannot be used", h.tryStore},
		partOwnKeys: {"the keys of toolgate cannot be had", func() error { // that of tickets and votes
			if !h.state.keys.Has(keys.Tickets) {
				return fmt.Errorf("%s has no key %s", h.state.keys.Path(), keys.Tickets)
			}
			return nil
		}},
		partSigning: {"the last checkpoint of the trail was not signed", h.state.trail.Unsigned},
		partDisk: {"no call is made", func() error {
			if space := h.state.trail.Space(); space.Low() {
				return errors.New(space.String())
			}
			return nil
		}},
	}
	for part, p := range parts {
		t.faults[part] = p.fault + ": it does not answer"
	}
	var all sync.WaitGroup
	for part, p := range parts {
		all.Go(func() {
			err := p.try()
			t.mu.Lock()
			defer t.mu.Unlock()
			if delete(t.faults, part); err != nil {
				t.faults[part] = fmt.Sprintf("%s: %v", p.fault, err)
			}
		})
	}
	h.trials.Go(func() {
		all.Wait()
		close(t.done)
	})
	return t
}

// faults returns what keeps toolgate from serving, or from serving all, by part.
func (h *health) faults(ctx context.Context) map[string]string {
	found := h.tryParts(ctx)
	if h.draining.Load() {
		found[partServing] = "toolgate is draining"
	}
	if fault := h.shared.Refuses(); fault != "" {
		found[partLimits] = fault
	}
	if d := h.state.stops.Unread(); d > 0 {
		found[partStops] = fmt.Sprintf("what is stopped could not be read from the store for %v: what was stopped before is", d.Round(time.Second))
	}
	if !h.upstreams.Settled() {
		found[partUpstreams] = "upstreams are starting"
	}
	for _, is := range h.auth.Issuers() {
		if is.Fault != "" && !is.Ready {
			found[partKeys] = fmt.Sprintf("the keys of issuer %s cannot be had: %s", is.Issuer, is.Fault)
		}
	}
	return found
}

// essential reports whether no call can be served without a part. Without any other part
// toolgate is degraded, and serves the calls that do not need it.
func (h *health) essential(part string) bool {
	switch part {
	case partUpstreams, partSigning, partStops:
		return false
	case partStore: // for the calls of tools that the policy counts
		tools, engine := h.upstreams.Catalogue().Tools(""), h.policy.current()
		return len(tools) > 0 && !slices.ContainsFunc(tools, func(t *registry.Tool) bool {
			return len(engine.Meters(policy.Tool{Exposed: t.Exposed})) == 0
		})
	case partLimits:
		return h.Config().Limits.Default != nil
	}
	return true
}

// assess returns whether calls are served, the names of the parts that are missing all the
// same, and all faults by part.
func (h *health) assess(ctx context.Context) (ready bool, degraded []string, faults map[string]string) {
	faults, ready = h.faults(ctx), true
	for part := range faults {
		if h.essential(part) {
			ready = false
		} else {
			degraded = append(degraded, part)
		}
	}
	slices.Sort(degraded)
	return ready, degraded, faults
}

// tryStore writes to the store, and changes nothing. Others may keep it waiting for a while.
// Approvals that are closed are a fault.
func (h *health) tryStore() error {
	statement, args := "UPDATE approvals SET id = id WHERE FALSE", []any{} // SQLite locks the file in any case
	if h.state.db.Shared() {
		statement, args = "UPDATE instances SET seen = seen WHERE id = ?", []any{h.state.instance}
	}
	err := h.state.db.UpdateWithin(context.Background(), time.Second, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
	now := time.Now()
	h.mu.Lock()
	if err == nil || h.wrote.IsZero() {
		h.wrote = now
	}
	busy := errors.Is(err, store.ErrBusy) && now.Sub(h.wrote) < busyFor
	h.mu.Unlock()
	if err != nil && !busy {
		return err
	}
	if closed := h.state.approvalsClosed(); closed != "" {
		return errors.New(closed)
	}
	return nil
}

// addGauges adds the gauges of readiness.
func (h *health) addGauges(m *metrics) {
	m.addGauge("toolgate_ready", "Parts of toolgate: 1 = ready, 0 = not.", "part", func(ctx context.Context) map[string]float64 {
		parts := map[string]float64{partUpstreams: 1, partServing: 1, partTrail: 1, partStore: 1, partKeys: 1, partOwnKeys: 1, partSigning: 1, partDisk: 1, partLimits: 1, partStops: 1}
		for part := range h.faults(ctx) {
			parts[part] = 0
		}
		return parts
	})
	m.addValue("toolgate_degraded", "1 while calls are served, and a part that some of them need is not ready.", func(ctx context.Context) float64 {
		ready, missing, _ := h.assess(ctx)
		return truth(ready && len(missing) > 0)
	})
	m.addValue("toolgate_store_unwritten_seconds", "How long the store could not be written to; 0 = it can be.", func(ctx context.Context) float64 {
		fault := h.faults(ctx)[partStore]
		h.mu.Lock()
		defer h.mu.Unlock()
		if fault == "" {
			return 0
		}
		return time.Since(h.wrote).Seconds()
	})
}
