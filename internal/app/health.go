package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wholefile"
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
)

// health is what was found out about the state directory.
type health struct {
	draining atomic.Bool

	mu     sync.Mutex // protects the fields below
	at     time.Time
	faults map[string]string // by part
	wrote  time.Time         // when the store was written to last
}

// busyFor is how long others may keep the store from being written to, before that is a fault.
const busyFor = 5 * time.Second

// faults returns what keeps toolgate from serving, by part. State is tried at most once
// a second.
func (a *App) faults() map[string]string {
	h := &a.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) >= time.Second {
		h.faults = make(map[string]string)
		for part, try := range map[string]struct {
			fault string
			err   func() error
		}{
			partTrail:   {"the trail cannot be written", a.tryTrail},
			partStore:   {"the store cannot be written", a.tryStore},
			partOwnKeys: {"the keys of toolgate cannot be had", a.tryKeys},
			partSigning: {"the last checkpoint of the trail was not signed", a.state.trail.Unsigned},
			partDisk:    {"no call is made", a.tryDisk},
		} {
			if err := try.err(); err != nil {
				h.faults[part] = fmt.Sprintf("%s: %v", try.fault, err)
			}
		}
		h.at = time.Now()
	}
	found := maps.Clone(h.faults)
	if h.draining.Load() {
		found[partServing] = "toolgate is draining"
	}
	if fault := a.shared.unknown(); fault != "" {
		found[partLimits] = fault
	}
	if !a.upstreams.Settled() {
		found[partUpstreams] = "upstreams are starting"
	}
	for _, is := range a.auth.Issuers() {
		if is.Fault != "" && !is.Ready {
			found[partKeys] = fmt.Sprintf("the keys of issuer %s cannot be had: %s", is.Issuer, is.Fault)
		}
	}
	return found
}

// tryTrail writes next to the trail what several records take.
func (a *App) tryTrail() error {
	dir := a.Config().State
	if _, err := os.Stat(filepath.Join(dir, "audit", a.state.trail.Instance())); err != nil {
		return err
	}
	return wholefile.Probe(dir)
}

// tryKeys looks for the key that tickets and votes are authenticated with.
func (a *App) tryKeys() error {
	if !a.state.keys.Has(keys.Tickets) {
		return fmt.Errorf("%s has no key %s", a.state.keys.Path(), keys.Tickets)
	}
	return nil
}

// tryDisk looks for the reserve of the disk.
func (a *App) tryDisk() error {
	if space := a.state.trail.Space(); space.Low() {
		return errors.New(space.String())
	}
	return nil
}

// scarceDisk warns when the disk is nearly at its reserve, or cannot be watched.
func (a *App) scarceDisk() (warnings []string) {
	switch space := a.state.trail.Space(); {
	case space.Err != nil:
		return []string{fmt.Sprintf("toolgate.audit.reserve_mib has no effect: the free space of the disk cannot be read: %v", space.Err)}
	case space.Scarce() && !space.Low():
		return []string{space.String()}
	}
	return nil
}

// tryStore writes to the store, and changes nothing. Others may keep it waiting for a while.
func (a *App) tryStore() error {
	statement, args := "UPDATE approvals SET id = id WHERE FALSE", []any{} // SQLite locks the file in any case
	if a.state.db.Shared() {
		statement, args = "UPDATE instances SET seen = seen WHERE id = ?", []any{a.state.instance}
	}
	err := a.state.db.UpdateWithin(context.Background(), time.Second, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
	now := time.Now()
	switch {
	case err == nil, a.health.wrote.IsZero():
		a.health.wrote = now
	case errors.Is(err, store.ErrBusy) && now.Sub(a.health.wrote) < busyFor:
		return nil
	}
	return err
}

// unwritten is the metric toolgate_store_unwritten_seconds.
func (a *App) unwritten(context.Context) float64 {
	fault := a.faults()[partStore]
	a.health.mu.Lock()
	defer a.health.mu.Unlock()
	if fault == "" {
		return 0
	}
	return time.Since(a.health.wrote).Seconds()
}

// readiness is the metric toolgate_ready: 1 for each part that is, 0 for others.
func (a *App) readiness(context.Context) map[string]float64 {
	parts := map[string]float64{partUpstreams: 1, partServing: 1, partTrail: 1, partStore: 1, partKeys: 1, partOwnKeys: 1, partSigning: 1, partDisk: 1, partLimits: 1}
	for part := range a.faults() {
		parts[part] = 0
	}
	return parts
}
