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
	list := e.printing("list", "list the replicas that the database has checkpoints of", "replicas", func(ctx context.Context, _ []string) (any, error) {
		return ofStore(ctx, e, knownReplicas)
	})
	retire := e.printing("retire REPLICA", "say that a replica is gone for good", "retired", func(ctx context.Context, args []string) (any, error) {
		return ofStore(ctx, e, func(ctx context.Context, db *store.DB) (fleet.KnownReplica, error) {
			return retire(ctx, e, db, args[0])
		})
	})
	return group("replica", "list the replicas of a PostgreSQL database, and retire one", list, retire)
}

func knownReplicas(ctx context.Context, db *store.DB) ([]fleet.KnownReplica, error) {
	all, err := fleet.KnownReplicas(ctx, db)
	if errors.Is(err, fleet.ErrNotShared) {
		return nil, usage(fmt.Errorf("%w\nhint: name the database of the replicas as toolgate.store", err))
	}
	return all, err
}

// retire retires a replica, by its name or the host of its last process. The trail of this
// replica has who did so before the store does.
func retire(ctx context.Context, e *env, db *store.DB, name string) (retired fleet.KnownReplica, err error) {
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
	live := usage(fmt.Errorf("replica %s is live: %s has a lease\nhint: stop it first; after a kill its lease runs out within 30 s", found.Name, found.Who))
	switch {
	case found.Name == trail.Signing().Ledger.Trail:
		return retired, usage(fmt.Errorf("replica %s is that of this state directory\nhint: retire it at another replica, whose trail keeps the record of it", found.Name))
	case found.State == fleet.Live:
		return retired, live
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
		err = live
	}
	return retired, err
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
