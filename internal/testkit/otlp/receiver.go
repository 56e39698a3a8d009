// Package otlp is a receiver of OTLP over HTTP for tests. It stores what it receives, and
// it can be made to fail as collectors do:
//
//	r := otlp.New(t)
//	// … telemetry is sent to r.URL and flushed …
//	for _, s := range r.Spans() { … }
package otlp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	point "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one span as it was received.
type Span struct {
	Name                string
	Kind                string // server, client or internal
	Trace, ID, Parent   string // hexadecimal; Parent is "" for none
	State               string // tracestate
	Failed              bool   // its status is ERROR
	Attributes          map[string]string
	Events              []string
	Links               []string // ids of spans
	Started, Ended      uint64   // Unix time in nanoseconds
	Service, ServiceVer string
}

// Receiver is a running receiver. It is safe for concurrent use.
type Receiver struct {
	URL string

	mu      sync.Mutex // protects the fields below
	spans   []Span
	metrics map[string]*point.Metric // the last of each name
	raw     bytes.Buffer             // heads' values and bodies, uncompressed
	fail    http.HandlerFunc         // answers in place of the receiver, nil = it works
	asked   int
}

// New starts a receiver on the loopback interface; it stops with the test.
func New(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{metrics: map[string]*point.Metric{}}
	server := httptest.NewServer(r)
	r.URL = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return r
}

// Fail makes the receiver answer with h, nil = it works again.
func (r *Receiver) Fail(h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = h
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r.mu.Lock()
	r.asked++
	fail := r.fail
	if fail == nil && err == nil {
		err = r.take(req, body)
	}
	r.mu.Unlock()
	switch {
	case fail != nil:
		fail(w, req)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		w.Header().Set("Content-Type", "application/x-protobuf")
	}
}

// take stores one request. The caller must hold r.mu.
func (r *Receiver) take(req *http.Request, body []byte) error {
	r.raw.Write(body)
	if req.URL.Path == "/v1/metrics" {
		var m metrics.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &m); err != nil {
			return err
		}
		for _, from := range m.ResourceMetrics {
			for _, scope := range from.ScopeMetrics {
				for _, one := range scope.Metrics {
					if err := check(one); err != nil {
						return err
					}
					r.metrics[one.Name] = one
				}
			}
		}
		return nil
	}
	var m traces.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &m); err != nil {
		return err
	}
	for _, from := range m.ResourceSpans {
		of := texts(from.Resource.Attributes)
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				one := read(s)
				one.Service, one.ServiceVer = of["service.name"], of["service.version"]
				r.spans = append(r.spans, one)
			}
		}
	}
	return nil
}

// check refuses exemplars that the OpenTelemetry Collector refuses.
func check(m *point.Metric) error {
	for _, p := range m.GetHistogram().GetDataPoints() {
		for _, e := range p.Exemplars {
			if len(e.TraceId) != 16 && len(e.TraceId) != 0 {
				return fmt.Errorf("%s: a trace id of %d bytes", m.Name, len(e.TraceId))
			}
		}
	}
	return nil
}

func read(s *trace.Span) Span {
	kinds := map[trace.Span_SpanKind]string{trace.Span_SPAN_KIND_SERVER: "server", trace.Span_SPAN_KIND_CLIENT: "client", trace.Span_SPAN_KIND_INTERNAL: "internal"}
	out := Span{
		Name: s.Name, Kind: kinds[s.Kind], Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
		State: s.TraceState, Failed: s.Status.GetCode() == trace.Status_STATUS_CODE_ERROR, Attributes: texts(s.Attributes), Started: s.StartTimeUnixNano, Ended: s.EndTimeUnixNano,
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, e.Name+" "+texts(e.Attributes)["toolgate.approval.state"])
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, hex.EncodeToString(l.SpanId))
	}
	return out
}

// texts returns attributes as texts.
func texts(attributes []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range attributes {
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			out[a.Key] = strconv.FormatInt(v.IntValue, 10)
		default:
			out[a.Key] = a.Value.String()
		}
	}
	return out
}

// Spans returns what was received, by the time of its start.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.spans)
	slices.SortStableFunc(out, func(a, b Span) int { return int(int64(a.Started) - int64(b.Started)) })
	return out
}

// Metric returns the metric of a name as it was received last, nil for none.
func (r *Receiver) Metric(name string) *point.Metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.metrics[name]
}

// Raw returns the bodies of all requests.
func (r *Receiver) Raw() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.raw.Bytes())
}

// Asked returns the number of requests, failed ones included.
func (r *Receiver) Asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}
