package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

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
)

// health is what was found out about the state directory.
type health struct {
	draining atomic.Bool

	mu     sync.Mutex // protects the fields below
	at     time.Time
	faults map[string]string // by part
}

// faults returns what keeps toolgate from serving, by part. State is tried at most once
// a second.
func (a *App) faults() map[string]string {
	h := &a.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) >= time.Second {
		h.faults = make(map[string]string)
		for part, try := range map[string]func() error{partTrail: a.tryTrail, partStore: a.tryStore} {
			if err := try(); err != nil {
				h.faults[part] = fmt.Sprintf("the %s cannot be written: %v", part, err)
			}
		}
		h.at = time.Now()
	}
	found := make(map[string]string)
	for part, fault := range h.faults {
		found[part] = fault
	}
	if h.draining.Load() {
		found[partServing] = "toolgate is draining"
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

// tryStore begins to write to the store, and changes nothing. A store that others write
// to is fine.
func (a *App) tryStore() error {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	err := a.state.db.UpdateWithin(ctx, time.Second, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE approvals SET id = id WHERE 0")
		return err
	})
	if errors.Is(err, store.ErrBusy) {
		return nil
	}
	return err
}

// readiness is the metric toolgate_ready: 1 for each part that is, 0 for others.
func (a *App) readiness(context.Context) map[string]float64 {
	parts := map[string]float64{partUpstreams: 1, partServing: 1, partTrail: 1, partStore: 1, partKeys: 1}
	for part := range a.faults() {
		parts[part] = 0
	}
	return parts
}
