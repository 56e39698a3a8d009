package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/telemetry"
	"github.com/toolgate/toolgate/registry/config"
)

// openTelemetry begins to send traces and metrics where cfg says, if it does.
func (a *App) openTelemetry(ctx context.Context, cfg *config.Config) error {
	t := cfg.Telemetry
	if t == nil || t.Endpoint == "" {
		return nil
	}
	secure, err := (&config.ClientTLS{Cert: t.Cert, Key: t.Key, CA: t.CA}).Open()
	if err != nil {
		return configError(err)
	}
	if t.Cert != "" {
		if _, err := tls.LoadX509KeyPair(t.Cert, t.Key); err != nil {
			return configError(fmt.Errorf("toolgate.telemetry.cert: %w", err))
		}
	}
	dropped := promauto.With(a.metrics.registry).NewCounterVec(prometheus.CounterOpts{
		Name: "toolgate_telemetry_dropped_total", Help: "What the collector of telemetry did not receive: spans, and exports of metrics.",
	}, []string{"signal"})
	for _, signal := range []string{telemetry.Traces, telemetry.Metrics} {
		dropped.WithLabelValues(signal)
	}
	a.telemetry, err = telemetry.New(ctx, telemetry.Options{
		Endpoint: t.Endpoint, Header: t.Headers, TLS: secure,
		Ratio: t.Traces.Ratio, ParentBased: t.Traces.ParentBased, Interval: t.Metrics.Interval,
		Version: a.options.Version, Gatherer: a.metrics.registry, Log: a.log.Named("telemetry"),
		Upstream: func(server string) (transport, host, port string) { // how a server is reached
			s := a.Config().Server(server)
			if s == nil {
				return "", "", ""
			}
			u, err := url.Parse(s.URL)
			if err != nil {
				return s.Type, "", ""
			}
			return s.Type, u.Hostname(), u.Port()
		},
		Dropped: func(signal string, n int) { dropped.WithLabelValues(signal).Add(float64(n)) },
	})
	return configError(err)
}

// measureSession adds a session that is over to the metrics that are sent.
func (a *App) measureSession(s span.Session) {
	if a.telemetry != nil {
		a.telemetry.EndSession(s)
	}
}
