package app

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
)

const (
	// reportEvery is how often a replica reports what it serves and looks at the others,
	// and anchorEvery how often it stores the end of its chain of the trail.
	reportEvery, anchorEvery = 5 * time.Second, 5 * time.Second
	// storeWithin bounds one access to the store for either.
	storeWithin = 5 * time.Second
	// differFor is how long replicas may serve something else before it is a warning: in a
	// rollout they do for a while.
	differFor = time.Minute
)

// replicas are the processes that serve from the store of this one.
type replicas struct {
	mu    sync.Mutex // protects the fields below
	self  store.Replica
	all   []store.Replica      // as they were last read, this one included
	since map[string]time.Time // by the ID of a replica that differs: when it was first seen to
}

// followReplicas reports what this replica serves and reads what others do, until ctx
// ends. Nothing waits for it, and what cannot be read is as it was read last.
func (a *App) followReplicas(ctx context.Context) error {
	if !a.state.db.Shared() {
		return nil
	}
	instances, started := a.state.db.Instances(""), time.Now()
	for {
		self := store.Replica{ID: a.state.instance, Version: a.options.Version, Policy: a.Revision(), Configuration: a.Config().SHA256, Started: started}
		within, stop := context.WithTimeout(ctx, storeWithin)
		err := instances.Report(within, self)
		if err == nil {
			self.Who = store.Who()
			all, failed := instances.Replicas(within)
			if err = failed; err == nil {
				a.state.replicas.note(self, all, time.Now())
			}
		}
		stop()
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the replicas are not known", "error", err)
		}
		if !wait.For(ctx, reportEvery) {
			return nil
		}
	}
}

// note remembers what replicas serve at a time.
func (r *replicas) note(self store.Replica, all []store.Replica, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := map[string]time.Time{}
	for _, other := range all {
		if len(differences(self, other)) == 0 {
			continue
		}
		since[other.ID] = now
		if first, ok := r.since[other.ID]; ok {
			since[other.ID] = first
		}
	}
	r.self, r.all, r.since = self, all, since
}

// differences says what other serves that self does not.
func differences(self, other store.Replica) (found []string) {
	for _, d := range []struct{ what, self, other string }{
		{"policy", short(self.Policy), short(other.Policy)},
		{"configuration", short(self.Configuration), short(other.Configuration)},
		{"version", self.Version, other.Version},
	} {
		if d.self != d.other {
			found = append(found, fmt.Sprintf("%s %s instead of %s", d.what, d.other, d.self))
		}
	}
	return found
}

// warnings names the replicas that have served something else for more than a minute.
func (r *replicas) warnings(now time.Time) (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.all {
		first, differs := r.since[other.ID]
		if !differs || now.Sub(first) < differFor {
			continue
		}
		for _, d := range differences(r.self, other) {
			lines = append(lines, fmt.Sprintf("replicas differ: %s has had %s for %s", other.Who, d, now.Sub(first).Round(time.Second)))
		}
	}
	return lines
}

// count returns the replicas by whether they serve what this one does.
func (r *replicas) count() map[string]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return nil
	}
	other := float64(len(r.since))
	return map[string]float64{"same": float64(len(r.all)) - other, "other": other}
}

// addReplicaGauge adds the gauge of the replicas; with a store in a file it has no series.
func (a *App) addReplicaGauge() {
	a.metrics.addGauge("toolgate_replicas", "Processes that serve from the same store, this one included: same = policy, configuration and version of this one, other = one of these differs.", "serves",
		func(context.Context) map[string]float64 { return a.state.replicas.count() })
}

// storeAnchor keeps the last checkpoint of each chain of every replica in a store on a
// server. It shows that a chain is missing or was cut to whoever trusts the store; the
// signature in the note is that of the replica's own key.
type storeAnchor struct{ db *store.DB }

// anchoredInStore returns the anchor of a store, none for a store in a file.
func anchoredInStore(db *store.DB) []audit.Anchoring {
	if db == nil || !db.Shared() {
		return nil
	}
	return []audit.Anchoring{{Anchor: storeAnchor{db}, Name: "the store", Every: anchorEvery}}
}

// Publish implements audit.Anchor. A chain never goes back. One that continues is not retired.
func (s storeAnchor) Publish(ctx context.Context, c audit.Checkpoint, signed []byte) error {
	err := s.db.UpdateWithin(ctx, storeWithin, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO checkpoints AS c (chain, who, seq, hash, at, note) VALUES (?, ?, ?, ?, ?, ?)
 ON CONFLICT (chain) DO UPDATE SET who = excluded.who, seq = excluded.seq, hash = excluded.hash, at = excluded.at, note = excluded.note, retired = 0, retired_by = '' WHERE excluded.seq > c.seq`,
			c.Instance, store.Who(), c.Seq, c.Hash, c.Time.UnixNano(), signed)
		return err
	})
	if err != nil {
		return fmt.Errorf("storing checkpoint: %w", err)
	}
	return nil
}
