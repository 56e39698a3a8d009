package app

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/decisionlog"
	"github.com/toolgate/toolgate/policy/notice"
	"github.com/toolgate/toolgate/proxy"
)

// metrics are what /metrics shows. No label names a person, and tools appear
// only under the names of the catalogue, so that callers cannot add series.
type metrics struct {
	registry  *prometheus.Registry
	calls     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	notices   *prometheus.CounterVec
	waits     *prometheus.HistogramVec
	shipped   *prometheus.CounterVec
	unshipped *prometheus.CounterVec
	loads     *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolgate_calls_total", Help: "Tool calls that were closed, by the policy's effect and the kernel code of a refusal.",
		}, []string{"server", "tool", "effect", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolgate_call_duration_seconds", Help: "Time from receiving a call to closing it.",
			Buckets: []float64{.0005, .001, .005, .01, .05, .1, .5, 1, 5, 30},
		}, []string{"server"}),
		notices: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolgate_notices_total", Help: "Tries to deliver a notice about a ticket, by kind and host of the channel and by how they ended.",
		}, []string{"channel", "outcome"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolgate_approval_wait_seconds", Help: "Time from a held call to the end of its waiting for people, by the state that ended it, in all processes on this state.",
			Buckets: []float64{1, 5, 15, 45, 120, 300, 900, 3600, 14400, 86400},
		}, []string{"outcome"}),
	}
	m.shipped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolgate_decision_log_shipped_total", Help: "Decisions that a sink of the decision log has taken.",
	}, []string{"sink"})
	m.unshipped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolgate_decision_log_failed_total", Help: "Decisions that were not told as they are: retried or parked by the sink, masked to their id because the mask failed, dropped by the policy, or lost because the record cannot be read.",
	}, []string{"sink", "outcome"})
	m.loads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolgate_policy_loads_total", Help: "Tries to exchange the policy: taken = it serves, refused = it was there and cannot serve, away = its server did not give it.",
	}, []string{"outcome"})
	m.registry.MustRegister(m.calls, m.loads, m.seconds, m.waits, m.notices, m.shipped, m.unshipped, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observe(o proxy.Observation) {
	m.calls.WithLabelValues(o.Server, o.Tool, string(o.Effect), o.Code).Inc()
	m.seconds.WithLabelValues(o.Server).Observe(o.Duration.Seconds())
}

func (m *metrics) observeNotice(channel string, o notice.Outcome) {
	m.notices.WithLabelValues(channel, string(o)).Inc()
}

// waited is called once for each ticket that leaves state proposed.
func (m *metrics) waited(ended approval.State, waited time.Duration) {
	m.waits.WithLabelValues(string(ended)).Observe(max(0, waited.Seconds()))
}

// pending shows how many calls wait for people. One that cannot be counted shows
// as -1.
func (m *metrics) pending(count func(context.Context) (int, error)) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "toolgate_approvals_pending", Help: "Calls that wait for people, of all processes on this state; -1 when they cannot be counted.",
	}, func() float64 {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		n, err := count(ctx)
		if err != nil {
			return -1
		}
		return float64(n)
	}))
}

// policy shows which revision serves, as the label of a 1.
func (m *metrics) policy(revision func() string) {
	m.registry.MustRegister(policyInfo(revision))
}

// policyInfo gives the revision of the policy that serves. There is one series
// of it at any time, whatever was served before.
type policyInfo func() string

var policyDesc = prometheus.NewDesc("toolgate_policy_info", "The policy that serves: 1, labelled with its revision.", []string{"revision"}, nil)

// Describe implements prometheus.Collector.
func (policyInfo) Describe(to chan<- *prometheus.Desc) { to <- policyDesc }

// Collect implements prometheus.Collector.
func (revision policyInfo) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(policyDesc, prometheus.GaugeValue, 1, revision())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) observeDecisions(sink string, o decisionlog.Outcome, n int) {
	if o == decisionlog.Shipped {
		m.shipped.WithLabelValues(sink).Add(float64(n))
		return
	}
	m.unshipped.WithLabelValues(sink, string(o)).Add(float64(n))
}

// decisionLag shows how far the sinks are behind the trail.
type decisionLag struct{ shipper *decisionlog.Shipper }

var lagDesc = prometheus.NewDesc("toolgate_decision_log_lag_records",
	"Records of the audit trail, of all processes on this state, that a sink of the decision log has not come to.", []string{"sink"}, nil)

// Describe implements prometheus.Collector.
func (decisionLag) Describe(to chan<- *prometheus.Desc) { to <- lagDesc }

// Collect implements prometheus.Collector. What cannot be read is not shown.
func (d decisionLag) Collect(to chan<- prometheus.Metric) {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	troubles, err := d.shipper.Troubles(ctx)
	if err != nil {
		return
	}
	for _, t := range troubles {
		to <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, float64(t.Lag), t.Sink)
	}
}
