package fleet

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/text"
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

// Peers are the processes that serve from one store. The zero Peers know none. They are safe for
// concurrent use.
type Peers struct {
	mu    sync.Mutex // protects the fields below
	self  store.Replica
	all   []store.Replica      // as they were last read, this one included
	since map[string]time.Time // by the ID of a replica that differs: when it was first seen to
}

// Follow reports what this replica serves and reads what others do, until ctx ends. Nothing waits
// for it, and what cannot be read is as it was read last. With a store in a file it does nothing.
func (p *Peers) Follow(ctx context.Context, db *store.DB, log hclog.Logger, self func() store.Replica) {
	for more := db.Shared(); more; more = wait.For(ctx, reportEvery) {
		within, stop := context.WithTimeout(ctx, storeWithin)
		err := p.Look(within, db, self(), time.Now())
		stop()
		if err != nil && ctx.Err() == nil {
			log.Warn("the replicas are not known", "error", err)
		}
	}
}

// Look is one round of Follow, at a time.
func (p *Peers) Look(ctx context.Context, db *store.DB, self store.Replica, now time.Time) error {
	instances := db.Instances("")
	if err := instances.Report(ctx, self); err != nil {
		return err
	}
	all, err := instances.Replicas(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	since := map[string]time.Time{}
	for _, other := range all {
		if len(differences(self, other)) == 0 {
			continue
		}
		since[other.ID] = now
		if first, ok := p.since[other.ID]; ok {
			since[other.ID] = first
		}
	}
	p.self, p.all, p.since = self, all, since
	return nil
}

// differences says what other serves that self does not.
func differences(self, other store.Replica) (found []string) {
	for _, d := range []struct{ what, self, other string }{
		{"policy", text.ShortDigest(self.Policy), text.ShortDigest(other.Policy)},
		{"configuration", text.ShortDigest(self.Configuration), text.ShortDigest(other.Configuration)},
		{"version", self.Version, other.Version},
	} {
		if d.self != d.other {
			found = append(found, fmt.Sprintf("%s %s instead of %s", d.what, d.other, d.self))
		}
	}
	return found
}

// Warnings names the replicas that have served something else for more than a minute.
func (p *Peers) Warnings(now time.Time) (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.all {
		first, differs := p.since[other.ID]
		if !differs || now.Sub(first) < differFor {
			continue
		}
		for _, d := range differences(p.self, other) {
			lines = append(lines, fmt.Sprintf("replicas differ: %s has had %s for %s", other.Who, d, now.Sub(first).Round(time.Second)))
		}
	}
	return lines
}

// Count returns the number of replicas by whether they serve what this one does: same or other. It
// returns nil while none is known.
func (p *Peers) Count() map[string]float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) == 0 {
		return nil
	}
	other := float64(len(p.since))
	return map[string]float64{"same": float64(len(p.all)) - other, "other": other}
}

// storeAnchor keeps the last checkpoint of each chain of every replica in a store on a
// server. It shows that a chain is missing or was cut to whoever trusts the store; the
// signature in the note is that of the replica's own key.
type storeAnchor struct{ db *store.DB }

// AnchoredInStore returns the anchor in a store on a server, none for a store in a file or a nil db.
func AnchoredInStore(db *store.DB) []notary.Anchoring {
	if db == nil || !db.Shared() {
		return nil
	}
	return []notary.Anchoring{{Anchor: storeAnchor{db}, Kind: "store", Name: "the store", Every: anchorEvery}}
}

// Publish implements notary.Anchor. A chain never goes back. One that continues is not retired.
func (s storeAnchor) Publish(ctx context.Context, c notary.Checkpoint, signed []byte) error {
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
