package app

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/rejudge/verify"
	"github.com/toolgate/toolgate/policy/stop"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/upstream"
)

// metrics are what /metrics shows. No label names a person, and tools appear
// only under the names of the catalogue, so that callers cannot add series.
type metrics struct {
	registry *prometheus.Registry

	calls, limited, warnings, hidden, credentials, crowded, deprecated *prometheus.CounterVec
	notices, shipped, unshipped, loads, verified, shadow, reloads      *prometheus.CounterVec
	dropped, handshakes, takenOver, passedOn                           *prometheus.CounterVec
	seconds, upstream, waits                                           *prometheus.HistogramVec
	evaluation                                                         prometheus.Histogram
	doubts                                                             prometheus.Counter

	latencies latencies
}

// callSeconds are the buckets of the time that calls take.
var callSeconds = []float64{.0005, .001, .005, .01, .05, .1, .5, 1, 5, 30}

func newMetrics(version string) *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help, label string, buckets ...float64) *prometheus.HistogramVec {
		return promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
	}
	m := &metrics{
		registry: registry,
		calls:    counter("toolgate_calls_total", "Tool calls that were closed, by the policy's effect and the kernel code of a refusal.", "server", "tool", "effect", "code"),
		seconds:  histogram("toolgate_call_duration_seconds", "Time from receiving a call to closing it.", "server", callSeconds...),
		notices:  counter("toolgate_notices_total", "Attempts to deliver a notice, by kind and host of the channel and by outcome.", "channel", "outcome"),
		waits: histogram("toolgate_approval_wait_seconds", "Time for which a held call waited for people, by the state that ended it, in all processes on this state.", "outcome",
			1, 5, 15, 45, 120, 300, 900, 3600, 14400, 86400),
		shipped: counter("toolgate_decision_log_shipped_total", "Decisions that a sink of the decision log has accepted.", "sink"),
		unshipped: counter("toolgate_decision_log_failed_total", "Decisions that were not sent as they are: retried or parked by the sink, masked to their id because the mask failed, "+
			"dropped by the policy, or lost because the record cannot be read.", "sink", "outcome"),
		loads:       counter("toolgate_policy_loads_total", "Attempts to exchange the policy: taken = it serves, refused = it was there and cannot serve, away = its server did not send it.", "outcome"),
		verified:    counter("toolgate_policy_verified_total", "Decisions sampled by policy.verify: same = OPA decides the same again, differed = it does not (an alarm), failed = it did not decide in time, dropped = the queue was full.", "outcome"),
		hidden:      counter("toolgate_hidden_text_total", "Results and questions with characters that a reader does not see, by kind: control, bidi, invisible, tag.", "server", "kind"),
		warnings:    counter("toolgate_warnings_total", "Calls that were made although they break the tool's schema, and results that break it or could not be kept whole, by kernel code.", "server", "code"),
		shadow:      counter("toolgate_shadow_total", "Decisions that the policy of policy.shadow was asked about: same, changed = it would decide otherwise, failed = it could not judge, skipped = it was not asked.", "outcome"),
		dropped:     counter("toolgate_connections_dropped_total", "Connections that were closed for another one, because a listener had as many as it may.", "listener"),
		deprecated:  counter("toolgate_deprecated_total", "Uses of what MCP 2026-07-28 has deprecated: http+sse (streams), roots and sampling (questions of servers), logging (levels set).", "feature"),
		crowded:     counter("toolgate_notifications_dropped_total", "Messages of a server that were dropped because the client did not read them in time; without a server they had left for the client's event stream.", "server"),
		passedOn:    counter("toolgate_requests_passed_on_total", "Requests that were passed on to the replica that has their session or call: answered, gone = it could not be reached, unknown = its answer did not come or broke off, left = the client has gone or this replica stops.", "result"),
		takenOver:   counter("toolgate_sessions_taken_over_total", "Sessions of replicas that are gone whose clients came here: taken = the session continues, told = it had subscriptions, and its client was told that it is lost.", "outcome"),
		handshakes:  counter("toolgate_tls_handshake_failures_total", "TLS handshakes that failed: clients without a certificate that is asked for, plain HTTP, and others.", "listener"),
		doubts:      counter("toolgate_state_doubts_total", "Times that the state could not be relied on: a row that toolgate did not write, or that is older than the audit trail (an alarm).").WithLabelValues(),
		credentials: counter("toolgate_credentials_refused_total", "Credentials that named nobody, on both listeners and the streams, by reason.", "reason"),
		upstream:    histogram("toolgate_upstream_duration_seconds", "Time from handing a call to a server to its answer.", "server", callSeconds...),
		evaluation: promauto.With(registry).NewHistogram(prometheus.HistogramOpts{
			Name: "toolgate_policy_evaluation_seconds", Help: "Time of evaluating the policy for a decision; decisions that are the same for all calls of a principal and a tool are not evaluated again.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25},
		}),
		limited: counter("toolgate_limited_total", "Calls that a rate limit refused, by the rule without its principal: default, refused = the limit of refused calls, policy = one that the policy asked for.", "rule"),
		reloads: counter("toolgate_reloads_total", "Attempts to reload the configuration: applied = it serves, refused = the old one stays.", "outcome"),
	}
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{Name: "toolgate_build_info", Help: "The program: 1, labelled with its version and that of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()}}).Set(1)
	for _, outcome := range []string{reloadApplied, reloadRefused} {
		m.reloads.WithLabelValues(outcome)
	}
	for _, o := range verify.Outcomes() {
		m.verified.WithLabelValues(string(o))
	}
	for _, o := range []shadow.Outcome{shadow.Same, shadow.Changed, shadow.Failed, shadow.Skipped} {
		m.shadow.WithLabelValues(string(o))
	}
	return m
}

func (m *metrics) observe(o proxy.Observation) {
	m.calls.WithLabelValues(o.Server, o.Tool, string(o.Effect), o.Code).Inc()
	for _, code := range o.Warnings {
		m.warnings.WithLabelValues(o.Server, code).Inc()
	}
	for _, kind := range o.Hidden {
		m.hidden.WithLabelValues(o.From, kind).Inc()
	}
	observeSeconds(m.seconds.WithLabelValues(o.Server), o.Duration, o.TraceID)
	if o.Upstream > 0 {
		observeSeconds(m.upstream.WithLabelValues(o.Server), o.Upstream, o.TraceID)
		m.latencies.note(o.Server, o.Upstream)
	}
	if o.Limit != "" {
		m.limited.WithLabelValues(ruleLabel(o.Limit)).Inc()
	}
}

// A callLog is a Recorder that also logs each call whose outcome has been recorded: who called
// what, and the result. Arguments and answers are only in the trail, by the decision id.
type callLog struct {
	trail.Recorder
	log hclog.Logger
}

// Write implements proxy.Recorder.
func (l callLog) Write(kind audit.Kind, r *audit.Record) error {
	err := l.Recorder.Write(kind, r)
	if err == nil && kind == audit.KindOutcome {
		l.log.Info("call", "principal", r.Principal.Subject, "called", cmp.Or(r.Method, r.Exposed), "outcome", string(r.Outcome), "code", r.Code,
			"server", r.Server, "ms", r.DurationMS, "decision", r.DecisionID)
	}
	return err
}

// observeSeconds adds a duration to a histogram, with an exemplar of a trace unless that
// is "".
func observeSeconds(to prometheus.Observer, took time.Duration, traceID string) {
	if traced, ok := to.(prometheus.ExemplarObserver); ok && traceID != "" {
		traced.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": traceID})
		return
	}
	to.Observe(took.Seconds())
}

// ruleLabel returns the label of a limit, which names no principal. A rule of the
// configuration is named by its other selectors. Every limit of the policy has the label
// policy, because its key may be anything.
func ruleLabel(rule string) string {
	if strings.HasPrefix(rule, "policy ") {
		return "policy"
	}
	rule, _, _ = strings.Cut(rule, "principal=")
	return cmp.Or(strings.TrimSpace(rule), "principal")
}

func (m *metrics) observeDecisions(sink string, o decisionlog.Outcome, n int) {
	if o == decisionlog.Shipped {
		m.shipped.WithLabelValues(sink).Add(float64(n))
		return
	}
	m.unshipped.WithLabelValues(sink, string(o)).Add(float64(n))
}

// gauge is gauges that are read together at each scrape, within readyWithin.
type gauge struct {
	descs []*prometheus.Desc
	read  func(context.Context, chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (g gauge) Describe(to chan<- *prometheus.Desc) {
	for _, d := range g.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauge) Collect(to chan<- prometheus.Metric) {
	ctx, stop := context.WithTimeout(context.Background(), readyWithin)
	defer stop()
	g.read(ctx, to)
}

// addGauge adds a gauge whose series are read by the value of its one label.
func (m *metrics) addGauge(name, help, label string, read func(context.Context) map[string]float64) {
	desc := prometheus.NewDesc(name, help, []string{label}, nil)
	m.registry.MustRegister(gauge{[]*prometheus.Desc{desc}, func(ctx context.Context, to chan<- prometheus.Metric) {
		for of, value := range read(ctx) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, of)
		}
	}})
}

// addValue adds a gauge without labels.
func (m *metrics) addValue(name, help string, read func(context.Context) float64) {
	desc := prometheus.NewDesc(name, help, nil, nil)
	m.registry.MustRegister(gauge{[]*prometheus.Desc{desc}, func(ctx context.Context, to chan<- prometheus.Metric) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, read(ctx))
	}})
}

// addCount adds a counter that is read at each scrape.
func (m *metrics) addCount(name, help string, read func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
}

// addGauges adds the gauges that read the state and the policy of a.
func (a *App) addGauges() {
	a.metrics.addGauge("toolgate_issuer_keys", "Whether the keys of an issuer of JWTs could be fetched the last time.", "issuer",
		func(context.Context) map[string]float64 {
			reachable := make(map[string]float64)
			for _, is := range a.auth.Issuers() {
				reachable[is.Issuer] = truth(is.Ready && is.Fault == "")
			}
			return reachable
		})
	a.metrics.addGauge("toolgate_policy_info", "The policy that serves: 1, labelled with its revision.", "revision",
		func(context.Context) map[string]float64 { return map[string]float64{a.Revision(): 1} })
	a.metrics.addGauge("toolgate_disk_bytes", "Free space of the disk of the state directory, and the reserve that no new call may use.", "kind",
		func(context.Context) map[string]float64 {
			space := a.state.trail.Space()
			return map[string]float64{"free": float64(space.Free), "reserve": float64(space.Reserve)}
		})
	a.metrics.addGauge("toolgate_decision_log_lag_records", "Records of the audit trail, of all processes on this state, that a sink of the decision log has not read.", "sink",
		func(ctx context.Context) map[string]float64 {
			troubles, _ := a.state.decisions.Troubles(ctx) // what cannot be read is not shown
			lags := make(map[string]float64)
			for _, t := range troubles {
				lags[t.Sink] = float64(t.Lag)
			}
			return lags
		})
	a.metrics.addGauge("toolgate_secrets_redacted", "Messages of a server that had a secret which toolgate gave it, since the server was started; agents do not see it.", "server",
		func(context.Context) map[string]float64 { return a.upstreams.Redacted() })
	byServer := func(name, help string, of func(registry.ServerStatus) float64) {
		a.metrics.addGauge(name, help, "server", func(context.Context) map[string]float64 {
			values := make(map[string]float64)
			for _, u := range a.upstreams.Status() {
				if u.State != "disabled" {
					values[u.Name] = of(u)
				}
			}
			return values
		})
	}
	byServer("toolgate_upstream_up", "Whether a server that is not disabled is ready: 1 = calls can be made, 0 = not.",
		func(u registry.ServerStatus) float64 { return truth(u.State == string(upstream.StateReady)) })
	byServer("toolgate_quarantined_tools", "Tools of a server that do not serve: their definition has changed or is new and nobody has accepted it, or it cannot be used.",
		func(u registry.ServerStatus) float64 { return float64(u.Quarantined) })
	a.metrics.addGauge("toolgate_stops", "Stops in force, by what they stop.", "kind", func(context.Context) map[string]float64 {
		counts := make(map[string]float64)
		for _, kind := range stop.Kinds {
			counts[string(kind)] = 0
		}
		for _, s := range a.state.stops.InForce() {
			counts[string(s.Kind)]++
		}
		return counts
	})
	a.metrics.addValue("toolgate_calls_in_flight", "Calls and other requests under way, those that wait for people included.",
		func(context.Context) float64 { return float64(a.gate.InFlight()) })
	a.metrics.addGauge("toolgate_message_bytes_in_flight", "Bytes of the bodies of requests, and of large answers of servers, that are held.", "kind",
		func(context.Context) map[string]float64 {
			requests, answers := a.budget.Held()
			return map[string]float64{"request": float64(requests), "answer": float64(answers)}
		})
	a.metrics.addCount("toolgate_bodies_refused_total", "Requests that were refused before their body was read, because limits.in_flight_mib or the principal's part was used up.", a.budget.Refused)
	a.metrics.addValue("toolgate_audit_last_write_timestamp_seconds", "When the audit trail last wrote records, in seconds since 1970.",
		func(context.Context) float64 { return float64(a.state.trail.LastWrite().UnixMilli()) / 1000 })
	a.metrics.addCount("toolgate_audit_write_errors_total", "Records that the audit trail could not write in time, and failures to note its head.", a.state.trail.WriteErrors)
	a.metrics.addValue("toolgate_config_last_reload_successful", "1 when the last reload went well, or none was needed yet; 0 when it was refused and the old configuration serves.",
		func(context.Context) float64 {
			failed, _ := a.reloads.last()
			return truth(failed == "")
		})
	a.metrics.addValue("toolgate_approvals_open", "1 when held calls and votes are accepted, 0 when they are refused: /readyz says why.",
		func(context.Context) float64 { return truth(a.state.approvalsClosed() == "") })
	a.health.addGauges(a.metrics)
	a.metrics.addQueue(a.state.tickets)
	a.metrics.addGauge("toolgate_replicas", "Processes that serve from the same store, this one included: same = policy, configuration and version of this one, other = one of these differs.", "serves",
		func(context.Context) map[string]float64 { return a.state.peers.Count() }) // none with a store in a file
}

// addQueue adds the gauges of the calls that wait for people.
func (m *metrics) addQueue(tickets *approval.Tickets) {
	pending := prometheus.NewDesc("toolgate_approvals_pending", "Calls that wait for people, of all processes on this state; -1 when they cannot be counted.", nil, nil)
	oldest := prometheus.NewDesc("toolgate_approvals_oldest_seconds", "How long the oldest call that waits for people has waited, of all processes on this state; 0 when none waits, -1 when that cannot be read.", nil, nil)
	m.registry.MustRegister(gauge{[]*prometheus.Desc{pending, oldest}, func(ctx context.Context, to chan<- prometheus.Metric) {
		count, waited := -1.0, -1.0
		if n, since, err := tickets.Queue(ctx); err == nil {
			count, waited = float64(n), 0
			if n > 0 {
				waited = max(0, time.Since(since).Seconds())
			}
		}
		to <- prometheus.MustNewConstMetric(pending, prometheus.GaugeValue, count)
		to <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, waited)
	}})
}

// addDoorGauges adds the gauges of what Run serves.
func (a *App) addDoorGauges(door *mcp.Door) {
	a.metrics.addGauge("toolgate_sessions", "Open sessions of MCP clients; clients of revisions without sessions have none.", "transport",
		func(context.Context) map[string]float64 { return door.Sessions() })
	negotiated := prometheus.NewDesc("toolgate_negotiated", "Clients and servers that declare an extension of MCP; other = one that toolgate does not know.", []string{"side", "extension"}, nil)
	a.metrics.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		for side, counts := range map[string]map[string]float64{"client": door.Negotiated(), "server": a.upstreams.Negotiated()} {
			for _, name := range append(slices.Clone(registry.Extensions), registry.OtherExtension) {
				to <- prometheus.MustNewConstMetric(negotiated, prometheus.GaugeValue, counts[name], side, name)
			}
		}
	}))
	a.metrics.addValue("toolgate_calls_parked", "Multi-round calls that wait for the next request of their clients.",
		func(context.Context) float64 { return float64(door.Parked()) })
	a.metrics.addGauge("toolgate_certificate_expiry_timestamp_seconds", "When the certificate of a listener expires, in seconds since 1970.", "listener",
		func(context.Context) map[string]float64 {
			ends := make(map[string]float64)
			l := a.listeners.Load()
			for listener, c := range map[string]*certificate{"agents": l.agents, "people": l.people, "replicas": l.replicas} {
				if c != nil {
					ends[listener] = float64(c.current().Certificates[0].Leaf.NotAfter.Unix())
				}
			}
			return ends
		})
}

// truth is 1 for true, 0 for false.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// sampled is an engine whose decisions are sampled. Decisions that the engine failed
// to make are denials and are not sampled.
type sampled struct {
	*rego.Engine
	reference *rego.Reference
	sampler   *verify.Sampler
}

// The gate uses more of an engine than proxy.Policy.
var _ proxy.Metered = (*sampled)(nil)

func (a *App) sample(engine *rego.Engine) *sampled {
	engine.Observe(func(took time.Duration) { a.metrics.evaluation.Observe(took.Seconds()) })
	return &sampled{Engine: engine, reference: engine.Reference(), sampler: a.sampler}
}

// Decide implements proxy.Policy.
func (s *sampled) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	d, err := s.Engine.Decide(ctx, in)
	if err == nil {
		s.sampler.Offer(in, &d, s.reference)
	}
	return d, err
}
