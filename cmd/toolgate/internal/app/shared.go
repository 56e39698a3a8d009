package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet/valkey"
	"github.com/toolgate/toolgate/registry/config"
)

// openShared joins the replicas of toolgate.shared, if it is configured. A server that
// cannot be reached is not an error.
func (a *App) openShared(ctx context.Context, cfg *config.Config) (err error) {
	if cfg.Shared == nil {
		return nil
	}
	if a.valkey, err = openValkey(cfg.Shared); err != nil {
		return configError(err)
	}
	a.shared = fleet.NewLimits(ctx, fleet.LimitOptions{Server: a.valkey, Open: cfg.Shared.WhenDown == "open", Log: a.log.Named("shared")})
	a.metrics.addValue("toolgate_shared_up", "Whether limits are shared: 1 = the server of toolgate.shared answers, 0 = it is away.",
		func(context.Context) float64 { return truth(a.shared.Status().Fault == nil) })
	a.metrics.addValue("toolgate_shared_replicas", "Replicas that the server of toolgate.shared last knew, this one included; 0 = it was never reached.",
		func(context.Context) float64 { return float64(a.shared.Status().Replicas) })
	a.metrics.addCount("toolgate_shared_trips_total", "Trips to the server of toolgate.shared for tokens of limits.",
		func() uint64 { return a.shared.Status().Trips })
	a.metrics.addCount("toolgate_shared_local_total", "Calls that were limited by this replica alone, because the server of toolgate.shared was away.",
		func() uint64 { return a.shared.Status().Local })
	return nil
}

func openValkey(s *config.Shared) (*valkey.Client, error) {
	secure, err := (&config.ClientTLS{CA: s.CA}).Open()
	if err == nil {
		var client *valkey.Client
		if client, err = valkey.Open(s.URL, secure.RootCAs); err == nil {
			return client, nil
		}
	}
	return nil, fmt.Errorf("toolgate.shared: %w", err)
}

// TryShared asks the server of toolgate.shared how many replicas it knows, and how long the
// answer takes.
func TryShared(ctx context.Context, s *config.Shared) (replicas int, took time.Duration, err error) {
	client, err := openValkey(s)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	for range 2 { // the first one connects
		began := time.Now()
		if replicas, err = fleet.Replicas(ctx, client); err != nil {
			return 0, 0, err
		}
		took = time.Since(began)
	}
	return replicas, took, nil
}
