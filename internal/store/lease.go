package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	leaseTTL   = 30 * time.Second // how long a process may be away from the server before it counts as ended
	leaseEvery = 5 * time.Second  // how often a process renews its lease
	relisten   = time.Second      // the pause before LISTEN on a new connection
)

// Instances are the processes that share a DB. Processes that share a file hold locks in
// a directory of their machine. Processes that share a server hold leases there: one that
// was killed, or that has not reached the server for 30 s, counts as ended. After the
// server itself was away, all leases have this time to be renewed. With a directory, they hold
// locks there as well, by which the other processes of the directory find at once, and for
// certain, that one has ended: see [Instances.Ended].
type Instances struct {
	db  *DB
	dir string
}

// Instances returns the processes that share db; dir holds the locks. "" is the directory
// instances next to a file, and none with a server.
func (db *DB) Instances(dir string) *Instances {
	if dir == "" && !db.Shared() {
		dir = filepath.Join(filepath.Dir(db.path), instancesDir)
	}
	return &Instances{db, dir}
}

// Hold shows that this process lives, as [HoldInstance] does, until Close.
func (i *Instances) Hold(ctx context.Context, id string) (*Instance, error) {
	if i.db.beats == nil {
		return HoldInstance(i.dir, id)
	}
	who, unlock := Who(), func() error { return nil }
	if i.dir != "" {
		lock, err := HoldInstance(i.dir, id)
		if err != nil {
			return nil, err
		}
		unlock = lock.Close
	}
	if _, err := i.db.beats.ExecContext(ctx, insertLease, id, who); err != nil {
		return nil, errors.Join(fmt.Errorf("holding instance lease: %w", err), unlock())
	}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { i.renew(beating, id, who) })
	return &Instance{end: func() error {
		stop()
		beat.Wait()
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), leaseEvery)
		defer stop()
		_, err := i.db.beats.ExecContext(ctx, "DELETE FROM instances WHERE id = ?", id)
		return errors.Join(err, unlock())
	}}, nil
}

const insertLease = "INSERT INTO instances (id, who, seen) VALUES (?, ?, " + serverTime + ")"

// renew renews a lease until ctx ends. A lease that ran out while the server could not be
// reached holds again, also after a Sweep, and what others concluded meanwhile stays.
func (i *Instances) renew(ctx context.Context, id, who string) {
	tick := time.NewTicker(leaseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		within, stop := context.WithTimeout(ctx, leaseEvery)
		_, _ = i.db.beats.ExecContext(within, insertLease+" ON CONFLICT (id) DO UPDATE SET seen = excluded.seen", id, who) // tried again
		stop()
	}
}

// Alive reports whether a process lives, as [InstanceAlive] does.
func (i *Instances) Alive(ctx context.Context, id string) (alive bool, err error) {
	if i.db.beats == nil {
		return InstanceAlive(i.dir, id)
	}
	if ended, err := i.Ended(id); ended && err == nil {
		return false, nil
	}
	err = i.db.Read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM instances WHERE id = ? AND "+leased+")", id, i.db.lease).Scan(&alive)
	if err != nil {
		return false, fmt.Errorf("looking for instance %s: %w", id, err)
	}
	return alive, nil
}

// Ended reports whether a process has ended for certain: the kernel has released its lock.
// With a server, it reports false for a process whose lock was never in the directory, and for
// one that has closed: a lease that ran out does not prove it, because a process that was
// frozen or could not reach the server goes on.
func (i *Instances) Ended(id string) (bool, error) {
	if i.db.Shared() {
		if _, err := os.Stat(filepath.Join(i.dir, id+".lock")); i.dir == "" || err != nil {
			return false, nil //nolint:nilerr // without a lock nothing is proved
		}
	}
	alive, err := InstanceAlive(i.dir, id)
	return err == nil && !alive, err
}

// Sweep removes what ended processes left, as [SweepInstances] does.
func (i *Instances) Sweep(ctx context.Context) (alive []string, err error) {
	if i.db.beats == nil {
		return SweepInstances(i.dir)
	}
	if i.dir != "" {
		if _, err := SweepInstances(i.dir); err != nil {
			return nil, err
		}
	}
	err = i.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		alive, err = i.db.sweepLeases(ctx, tx)
		return err
	})
	return alive, err
}

const serverTime = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"

// leased selects the leases that hold; its parameter is how long they do.
const leased = "greatest(seen, (extract(epoch FROM pg_postmaster_start_time()) * 1000000000)::bigint) > " + serverTime + " - ?"

func (db *DB) sweepLeases(ctx context.Context, tx *sql.Tx) ([]string, error) {
	_, err := tx.ExecContext(ctx, "DELETE FROM instances WHERE NOT "+leased, db.lease)
	if err != nil {
		return nil, fmt.Errorf("sweeping instance leases: %w", err)
	}
	return db.Instances("").Living(ctx, tx)
}

// Living returns the processes that hold leases in a server, by their [Who].
func (i *Instances) Living(ctx context.Context, q Querier) ([]string, error) {
	return Select(ctx, q, func(who *string) []any { return []any{who} }, "SELECT who FROM instances WHERE "+leased+" ORDER BY who", i.db.lease)
}

// Present returns the processes that live, by ID and Who alone. One that cannot be asked counts
// as alive until its lease has run out.
func (i *Instances) Present(ctx context.Context) ([]Replica, error) {
	if !i.db.Shared() {
		return sweepInstances(i.dir)
	}
	return Select(ctx, i.db.Read, func(r *Replica) []any { return []any{&r.ID, &r.Who} }, "SELECT id, who FROM instances WHERE "+leased+" ORDER BY who, id", i.db.lease)
}
