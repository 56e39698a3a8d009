package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/internal/store"
)

func replicaCommand(e *env) *cobra.Command {
	return group("replica", "list the replicas of a PostgreSQL database, and retire one", replicaList(e), replicaRetire(e))
}

func replicaList(e *env) *cobra.Command {
	return command("list", "list the replicas that the database has checkpoints of", func(ctx context.Context, _ []string) error {
		return e.withStore(ctx, func(db *store.DB) error {
			all, err := knownReplicas(ctx, db)
			if err != nil {
				return err
			}
			return e.Print("replicas", all)
		})
	})
}

func knownReplicas(ctx context.Context, db *store.DB) ([]fleet.KnownReplica, error) {
	all, err := fleet.KnownReplicas(ctx, db)
	if errors.Is(err, fleet.ErrNotShared) {
		return nil, usage(fmt.Errorf("%w\nhint: name the database of the replicas as toolgate.store", err))
	}
	return all, err
}

func replicaRetire(e *env) *cobra.Command {
	return command("retire REPLICA", "say that a replica is gone for good", func(ctx context.Context, args []string) error {
		return e.withStore(ctx, func(db *store.DB) error {
			retired, err := e.retire(ctx, db, args[0])
			if err != nil {
				return err
			}
			return e.Print("retired", retired)
		})
	})
}

// retire retires a replica, by its name or the host of its last process. The trail of this
// replica has who did so before the store does.
func (e *env) retire(ctx context.Context, db *store.DB, name string) (retired fleet.KnownReplica, err error) {
	all, err := knownReplicas(ctx, db)
	if err != nil {
		return retired, err
	}
	found, err := oneReplica(all, name)
	if err != nil {
		return retired, err
	}
	trail, err := e.openTrail()
	if err != nil {
		return retired, err
	}
	defer func() { err = errors.Join(err, trail.Close()) }()
	switch {
	case found.Name == trail.Signing().Ledger.Trail:
		return retired, usage(fmt.Errorf("replica %s is that of this state directory\nhint: retire it at another replica, whose trail keeps the record of it", found.Name))
	case found.State == fleet.Live:
		return retired, stillLive(found)
	}
	gone := []string{"replica " + found.Name}
	for _, c := range found.Chains {
		gone = append(gone, c.String())
	}
	by := systemUser()
	if err := trail.Write(audit.KindEvent, &audit.Record{Principal: audit.Principal{Subject: by}, Event: &audit.Event{Name: audit.EventRetired, Removed: gone}}); err != nil {
		return retired, err
	}
	if retired, err = fleet.Retire(ctx, db, found.Name, by, time.Now()); errors.Is(err, fleet.ErrLive) {
		return retired, stillLive(found)
	}
	return retired, err
}

func stillLive(r fleet.KnownReplica) error {
	return usage(fmt.Errorf("replica %s is live: %s has a lease\nhint: stop it first; after a kill its lease runs out within 30 s", r.Name, r.Who))
}

// oneReplica returns the replica with a name, or the only one whose last process was on the
// host of that name and that is not retired.
func oneReplica(all []fleet.KnownReplica, name string) (found fleet.KnownReplica, err error) {
	var known []string
	for _, r := range all {
		if r.Name == name {
			return r, nil
		}
		known = append(known, r.Name)
	}
	onHost := slices.DeleteFunc(slices.Clone(all), func(r fleet.KnownReplica) bool {
		return r.State == fleet.Retired || !strings.HasSuffix(r.Who, " on "+name)
	})
	switch len(onHost) {
	case 0:
		return found, unknown("replica", name, known)
	case 1:
		return onHost[0], nil
	}
	return found, usage(fmt.Errorf("%d replicas were on host %s\nhint: toolgate replica list shows their names", len(onHost), name))
}
