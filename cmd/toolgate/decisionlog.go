package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/decisionlog"
	"github.com/toolgate/toolgate/registry/config"
)

// lastWords is how long an end may take to tell what was decided just before it.
const lastWords = 3 * time.Second

// openDecisionLog begins to tell decisions, if anybody is to be told. The trail is
// there already.
func (in *instance) openDecisionLog(ctx context.Context, cfg *config.Config) (err error) {
	in.told, err = decisionlog.Open(decisionlog.Options{
		DB: in.db, Trail: filepath.Join(cfg.State, "audit"), Instances: filepath.Join(cfg.State, "instances"),
		Mask: in.mask, Labels: map[string]string{"app": "toolgate", "version": version},
		Observe: in.metrics.observeDecisions, Log: in.log.Named("decisions"),
	})
	if err != nil {
		return err
	}
	in.metrics.registry.MustRegister(decisionLag{in.told})
	return in.told.Apply(ctx, decisionSinks(cfg))
}

func (in *instance) closeDecisionLog() error {
	ctx, stop := context.WithTimeout(context.Background(), lastWords)
	defer stop()
	return in.told.Close(ctx)
}

func decisionSinks(cfg *config.Config) decisionlog.Config {
	l := cfg.Policy.Log
	return decisionlog.Config{File: l.File, URL: l.URL, Token: l.Token, Headers: l.Headers}
}

// mask asks the policy that serves now, whichever one decided.
func (in *instance) mask(ctx context.Context, event json.RawMessage) (policy.Mask, error) {
	in.mu.Lock()
	engine := in.engine
	in.mu.Unlock()
	return engine.Mask(ctx, event)
}

// notTold says which decisions nobody was told.
func (in *instance) notTold() (warnings []string) {
	const where = "toolgate.policy.log."
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	in.mu.Lock()
	bound := in.cfg.Policy.Log.MaxLag
	in.mu.Unlock()
	troubles, err := in.told.Troubles(ctx)
	if err != nil {
		return []string{"toolgate.policy.log: whether decisions were told cannot be read"}
	}
	for _, t := range troubles {
		var what []string
		if t.Fault != "" {
			what = append(what, fmt.Sprintf("not told, the trail is %d records ahead: %s", t.Lag, t.Fault))
		}
		if age := time.Since(t.Since); t.Fault == "" && !t.Since.IsZero() && age > bound {
			what = append(what, fmt.Sprintf("the oldest that is not told is %s old, the trail is %d records ahead", age.Round(time.Second), t.Lag))
		}
		if t.Parked > 0 {
			what = append(what, fmt.Sprintf("%d refused in the last week; the latest, %s: %s", t.Parked, t.Decision, t.Refusal))
		}
		if len(what) > 0 {
			warnings = append(warnings, where+sinkKeys[t.Sink]+": decisions: "+strings.Join(what, "; "))
		}
	}
	return warnings
}

// sinkKeys are the keys that configure sinks.
var sinkKeys = map[string]string{"file": "file", "http": "url"}

func (m *metrics) observeDecisions(sink string, o decisionlog.Outcome, n int) {
	if o == decisionlog.Shipped {
		m.told.WithLabelValues(sink).Add(float64(n))
		return
	}
	m.untold.WithLabelValues(sink, string(o)).Add(float64(n))
}

// decisionLag shows how far the sinks are behind the trail.
type decisionLag struct{ told *decisionlog.Shipper }

var lagDesc = prometheus.NewDesc("toolgate_decision_log_lag_records",
	"Records of the audit trail, of all processes on this state, that a sink of the decision log has not come to.", []string{"sink"}, nil)

// Describe implements prometheus.Collector.
func (decisionLag) Describe(to chan<- *prometheus.Desc) { to <- lagDesc }

// Collect implements prometheus.Collector. What cannot be read is not shown.
func (d decisionLag) Collect(to chan<- prometheus.Metric) {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	troubles, err := d.told.Troubles(ctx)
	if err != nil {
		return
	}
	for _, t := range troubles {
		to <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, float64(t.Lag), t.Sink)
	}
}
