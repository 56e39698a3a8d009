// Package telemetry sends traces and metrics to a collector by OTLP over HTTP. It is
// the only importer of OpenTelemetry.
//
// Telemetry is a tracer for the road (see internal/span for the spans):
//
//	t, err := telemetry.New(ctx, telemetry.Options{Endpoint: "http://127.0.0.1:4318", Ratio: 1, ...})
//	ctx = t.Start(ctx, span.Start{Kind: span.Server, Name: "tools/call"})
//	...
//	t.End(ctx, &span.End{Method: "tools/call", Tool: "search", Duration: took})
//
// The metrics are the histograms of the conventions and, through a bridge, everything
// in Options.Gatherer, so that a collector receives what /metrics shows.
//
// A collector that is away, slow or refuses delays nobody. Spans wait in a bounded
// queue; what does not fit and what could not be sent is dropped and counted, and
// logged once a minute. Attributes have no arguments, results, credentials and names
// of persons, and are cut to 256 bytes: names come from outside.
package telemetry

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolgate/toolgate/internal/delivery"
)

// Bounds of what waits for the collector.
const (
	maxQueue     = 2048 // spans that have ended and are not sent
	maxAttribute = 256  // bytes of a value
	maxSpan      = 32   // attributes, events and links of a span, each
	closeTime    = 5 * time.Second
)

// Signals that are sent, for Options.Dropped.
const (
	Traces  = "traces"  // in spans
	Metrics = "metrics" // in exports
)

// Options say what is sent where.
type Options struct {
	Endpoint    string            // base URL, to which /v1/traces and /v1/metrics are added
	Header      map[string]string // sent with every request; may hold secrets
	TLS         *tls.Config       // nil = the system's certificate authorities
	Ratio       float64           // share of traces that are recorded, from 0 to 1
	ParentBased bool              // a caller's decision to record, or not, takes precedence over Ratio
	Interval    time.Duration     // between two exports of metrics
	Version     string            // of toolgate
	Gatherer    prometheus.Gatherer
	// Upstream returns how a server is reached: its transport, and with a URL its host
	// and port; "" = not known.
	Upstream func(server string) (transport, host, port string)
	Dropped  func(signal string, n int) // counts what the collector did not receive
	Log      hclog.Logger
}

// Telemetry makes spans and metrics and sends them. Its methods are safe for concurrent
// use.
type Telemetry struct {
	opts           Options
	traces         *sdktrace.TracerProvider
	metrics        *sdkmetric.MeterProvider
	tracer         trace.Tracer
	server, client metric.Float64Histogram // seconds, of requests
	served, used   metric.Float64Histogram // seconds, of sessions with clients and with upstreams
	life           context.Context         // ends when requests to the collector have to
	stop           context.CancelFunc
	ended          chan struct{} // closed when no spans are sent any more
	queued         atomic.Int64  // spans that were handed on and not exported yet
	logged         atomic.Int64  // when a drop was last logged, Unix time in seconds
}

// New returns a Telemetry that sends in the background until Close. It does not wait for
// the collector.
func New(ctx context.Context, o Options) (*Telemetry, error) {
	t := &Telemetry{opts: o, ended: make(chan struct{})}
	t.life, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Log.Debug("telemetry", "error", err) }))
	client := &http.Client{
		Transport: &transport{Transport: http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: time.Minute}},
		Timeout:   delivery.Timeout,
		// A redirect would send the headers to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	base := strings.TrimSuffix(o.Endpoint, "/")
	spans, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(base+"/v1/traces"), otlptracehttp.WithHeaders(o.Header), otlptracehttp.WithHTTPClient(client))
	if err != nil {
		return nil, fmt.Errorf("making the exporter of traces: %w", err)
	}
	points, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(base+"/v1/metrics"), otlpmetrichttp.WithHeaders(o.Header), otlpmetrichttp.WithHTTPClient(client))
	if err != nil {
		return nil, fmt.Errorf("making the exporter of metrics: %w", err)
	}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithFromEnv(), resource.WithAttributes(
		attribute.String("service.name", serviceName), attribute.String("service.version", o.Version), attribute.String("service.instance.id", rand.Text())))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describing this process: %w", err)
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit, limits.AttributeCountLimit, limits.EventCountLimit, limits.LinkCountLimit = maxAttribute, maxSpan, maxSpan, maxSpan
	t.traces = sdktrace.NewTracerProvider(sdktrace.WithResource(from), sdktrace.WithRawSpanLimits(limits), sdktrace.WithIDGenerator(ids{}), sdktrace.WithSampler(o.sampler()),
		sdktrace.WithSpanProcessor(&queue{SpanProcessor: sdktrace.NewBatchSpanProcessor(&spanExporter{spans, t}, sdktrace.WithMaxQueueSize(maxQueue)), t: t}))
	t.tracer = t.traces.Tracer(scopeName, trace.WithInstrumentationVersion(o.Version))
	t.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(from), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(&pointExporter{points, t},
		sdkmetric.WithInterval(o.Interval), sdkmetric.WithTimeout(delivery.Timeout), sdkmetric.WithProducer(producer{bridge.NewMetricProducer(bridge.WithGatherer(o.Gatherer))}))))
	meter := t.metrics.Meter(scopeName, metric.WithInstrumentationVersion(o.Version))
	for name, made := range map[string]*metric.Float64Histogram{
		metricServer: &t.server, metricClient: &t.client, metricServerSession: &t.served, metricClientSession: &t.used,
	} {
		if *made, err = meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(buckets...)); err != nil {
			t.Close(ctx)
			return nil, fmt.Errorf("making the histogram %s: %w", name, err)
		}
	}
	return t, nil
}

func (o *Options) sampler() sdktrace.Sampler {
	s := sdktrace.TraceIDRatioBased(o.Ratio)
	if o.ParentBased {
		s = sdktrace.ParentBased(s)
	}
	return s
}

// Close sends what is queued, for at most five seconds, and ends.
func (t *Telemetry) Close(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, closeTime)
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { _ = t.traces.Shutdown(ctx) }) // what is lost is counted by the exporter
	both.Go(func() { _ = t.metrics.Shutdown(ctx) })
	both.Wait()
	t.stop()
	<-t.ended
}

// statusKey is the key under which the context of an export has an *int for the status of
// the last answer, 0 = there was none.
type statusKey struct{}

// transport notes the status of each answer in the context of its request.
type transport struct{ http.Transport }

// RoundTrip implements http.RoundTripper.
func (r *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := r.Transport.RoundTrip(req)
	if status, ok := req.Context().Value(statusKey{}).(*int); ok {
		if *status = 0; err == nil {
			*status = res.StatusCode
		}
	}
	return res, err
}

// queue counts the spans between their end and their export, and drops those beyond
// maxQueue. The processor behind it would drop them too, and not say so.
type queue struct {
	sdktrace.SpanProcessor
	t *Telemetry
}

// OnEnd implements sdktrace.SpanProcessor.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.t.queued.Add(1) > maxQueue {
		q.t.queued.Add(-1)
		q.t.drop(Traces, 1, errFull)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

var errFull = errors.New("the queue is full")

// spanExporter counts what it cannot send.
type spanExporter struct {
	sdktrace.SpanExporter
	t *Telemetry
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer e.t.queued.Add(-int64(len(spans)))
	e.t.export(ctx, Traces, len(spans), func(ctx context.Context) error { return e.SpanExporter.ExportSpans(ctx, spans) })
	return nil
}

// Shutdown implements sdktrace.SpanExporter. The processor calls it last.
func (e *spanExporter) Shutdown(ctx context.Context) error {
	defer close(e.t.ended)
	return e.SpanExporter.Shutdown(ctx)
}

// pointExporter counts what it cannot send.
type pointExporter struct {
	sdkmetric.Exporter
	t *Telemetry
}

// Export implements sdkmetric.Exporter.
func (e *pointExporter) Export(ctx context.Context, data *metricdata.ResourceMetrics) error {
	e.t.export(ctx, Metrics, 1, func(ctx context.Context) error { return e.Exporter.Export(ctx, data) })
	return nil
}

// producer is the bridge, which leaves the trace ids of exemplars as hexadecimal text.
// Collectors refuse these.
type producer struct{ sdkmetric.Producer }

// Produce implements sdkmetric.Producer.
func (p producer) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	scopes, err := p.Producer.Produce(ctx)
	for _, scope := range scopes {
		for _, m := range scope.Metrics {
			h, _ := m.Data.(metricdata.Histogram[float64])
			for _, point := range h.DataPoints {
				for i, e := range point.Exemplars {
					id, _ := trace.TraceIDFromHex(string(e.TraceID)) // no other text is put there
					point.Exemplars[i].TraceID = id[:]
				}
			}
		}
	}
	return scopes, err
}

// export sends n items, and counts them as dropped when that fails.
func (t *Telemetry) export(ctx context.Context, signal string, n int, send func(context.Context) error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(t.life, stop)()
	var status int
	if err := send(context.WithValue(ctx, statusKey{}, &status)); err != nil {
		cause := delivery.Explain(ctx, err)
		if status >= 300 {
			cause = &delivery.StatusError{Status: status}
		}
		t.drop(signal, n, cause)
	}
}

// drop counts n items that the collector does not receive, and logs it once a minute.
// The cause must hold no secret.
func (t *Telemetry) drop(signal string, n int, cause error) {
	t.opts.Dropped(signal, n)
	now, last := time.Now().Unix(), t.logged.Load()
	if now-last >= 60 && t.logged.CompareAndSwap(last, now) {
		t.opts.Log.Warn("telemetry was not sent", "signal", signal, "dropped", strconv.Itoa(n), "cause", cause)
	}
}
