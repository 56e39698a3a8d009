package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/toolgate/toolgate/policy/notice"
	"github.com/toolgate/toolgate/proxy"
)

// metrics are what /metrics shows. No label names a person, and tools appear
// only under the names of the catalogue, so that callers cannot add series.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	notices  *prometheus.CounterVec
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
	}
	m.registry.MustRegister(m.calls, m.seconds, m.notices, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observe(o proxy.Observation) {
	m.calls.WithLabelValues(o.Server, o.Tool, string(o.Effect), o.Code).Inc()
	m.seconds.WithLabelValues(o.Server).Observe(o.Duration.Seconds())
}

func (m *metrics) observeNotice(channel string, o notice.Outcome) {
	m.notices.WithLabelValues(channel, string(o)).Inc()
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
