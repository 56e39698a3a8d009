package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet/valkey"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/registry/config"
)

// sharedServer is the server of toolgate.shared, as a running toolgate uses it. A nil
// sharedServer is none.
type sharedServer struct {
	client *valkey.Client
	limits *fleet.Limits
}

// openShared joins the replicas of toolgate.shared, if it is configured. A server that
// cannot be reached is not an error.
func (a *App) openShared(ctx context.Context, cfg *config.Config) error {
	if cfg.Shared == nil {
		return nil
	}
	client, err := openValkey(cfg.Shared)
	if err != nil {
		return configError(err)
	}
	limits := fleet.NewLimits(ctx, fleet.LimitOptions{Server: client, Open: cfg.Shared.WhenDown == "open", Log: a.log.Named("shared")})
	a.shared = &sharedServer{client, limits}
	a.addSharedMetrics(limits)
	return nil
}

func openValkey(s *config.Shared) (*valkey.Client, error) {
	roots, err := readRoots(s.CA)
	if err == nil {
		var client *valkey.Client
		if client, err = valkey.Open(s.URL, roots); err == nil {
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

// limiter returns a limiter whose buckets all replicas share, if there are others.
func (s *sharedServer) limiter(name string, r limit.Rules) *limit.Limiter {
	if s == nil {
		return limit.New(r)
	}
	return s.limits.New(name, r)
}

// unknown says why calls with a limit are refused until the server has been reached, "" when
// they are not.
func (s *sharedServer) unknown() string {
	if s == nil {
		return ""
	}
	if st := s.limits.Status(); st.Replicas == 0 && !st.Open {
		return fmt.Sprintf("the server of toolgate.shared has not been reached, and calls with a rate limit are refused: %v", st.Fault)
	}
	return ""
}

// warnings say that the server is away.
func (s *sharedServer) warnings() []string {
	if s == nil || s.unknown() != "" {
		return nil
	}
	st := s.limits.Status()
	if st.Fault == nil {
		return nil
	}
	side := fmt.Sprintf("this replica allows 1/%d of each limit", max(1, st.Replicas))
	if st.Open {
		side = "each replica allows the whole rate of each limit"
	}
	return []string{fmt.Sprintf("the server of toolgate.shared is away for %s, and %s: %v", st.For.Round(time.Second), side, st.Fault)}
}

func (s *sharedServer) close() error {
	s.limits.Close()
	return s.client.Close()
}

// addSharedMetrics adds the metrics of the server of toolgate.shared.
func (a *App) addSharedMetrics(limits *fleet.Limits) {
	a.metrics.addValue("toolgate_shared_up", "Whether limits are shared: 1 = the server of toolgate.shared answers, 0 = it is away.",
		func(context.Context) float64 { return truth(limits.Status().Fault == nil) })
	a.metrics.addValue("toolgate_shared_replicas", "Replicas that the server of toolgate.shared last knew, this one included; 0 = it was never reached.",
		func(context.Context) float64 { return float64(limits.Status().Replicas) })
	for _, c := range []struct {
		name, help string
		read       func() uint64
	}{
		{"toolgate_shared_trips_total", "Trips to the server of toolgate.shared for tokens of limits.", func() uint64 { return limits.Status().Trips }},
		{"toolgate_shared_local_total", "Calls that were limited by this replica alone, because the server of toolgate.shared was away.", func() uint64 { return limits.Status().Local }},
	} {
		a.metrics.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help}, func() float64 { return float64(c.read()) }))
	}
}
