package store

import (
	"context"
	"fmt"
	"time"
)

// Replica is a process that serves from a database on a server.
type Replica struct {
	ID            string // of its lease
	Who           string // as in "process 4711 on web-1"
	Version       string // of the program
	Policy        string // revision
	Configuration string // SHA-256 of its files
	Started       time.Time
}

// Report tells other processes what a process serves that holds a lease. Only a lease
// that holds has a report.
func (i *Instances) Report(ctx context.Context, r Replica) error {
	_, err := i.db.beats.ExecContext(ctx, "UPDATE instances SET version = ?, policy = ?, configuration = ?, started = ? WHERE id = ?",
		r.Version, r.Policy, r.Configuration, r.Started.UnixNano(), r.ID)
	if err != nil {
		return fmt.Errorf("reporting what is served: %w", err)
	}
	return nil
}

// Replicas returns the processes that have reported what they serve and whose leases hold,
// the oldest first.
func (i *Instances) Replicas(ctx context.Context) ([]Replica, error) {
	all, err := Select(ctx, i.db.Read, func(r *Replica) []any {
		return []any{&r.ID, &r.Who, &r.Version, &r.Policy, &r.Configuration, Time{To: &r.Started}}
	}, "SELECT id, who, version, policy, configuration, started FROM instances WHERE started > 0 AND "+leased+" ORDER BY started, id", i.db.lease)
	if err != nil {
		return nil, fmt.Errorf("reading what replicas serve: %w", err)
	}
	return all, nil
}
