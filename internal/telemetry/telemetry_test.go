package telemetry_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/telemetry"
	"github.com/toolgate/toolgate/internal/testkit/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sender is a Telemetry with what it dropped and logged.
type sender struct {
	*telemetry.Telemetry
	spans, exports atomic.Int64
	log            lines
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

const (
	secret   = "s3cret-token"
	exemplar = "4bf92f3577b34da6a3ce929d0e0e4736"
)

func newSender(t *testing.T, endpoint string) *sender {
	t.Helper()
	s := &sender{}
	metrics := prometheus.NewRegistry()
	promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{Name: "toolgate_calls_total", Help: "x"}, []string{"server"}).WithLabelValues("web").Add(3)
	promauto.With(metrics).NewHistogram(prometheus.HistogramOpts{Name: "toolgate_seconds", Help: "x"}).(prometheus.ExemplarObserver).
		ObserveWithExemplar(1, prometheus.Labels{"trace_id": exemplar})
	tel, err := telemetry.New(t.Context(), telemetry.Options{
		Endpoint: endpoint, Header: map[string]string{"Authorization": "Bearer " + secret}, Ratio: 1, Interval: time.Hour, Gatherer: metrics,
		Upstream: func(string) (_, _, _ string) { return "stdio", "", "" },
		Dropped: func(signal string, n int) {
			if signal == telemetry.Traces {
				s.spans.Add(int64(n))
			} else {
				s.exports.Add(int64(n))
			}
		},
		Log: hclog.New(&hclog.LoggerOptions{Output: &s.log}),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Telemetry = tel
	return s
}

// make makes n spans.
func (s *sender) make(n int) {
	for range n {
		ctx := s.Start(context.Background(), span.Start{Kind: span.Server, Name: "tools/call"})
		s.End(ctx, &span.End{Kind: span.Server, Method: "tools/call"})
	}
}

// within ends s within a deadline.
func (s *sender) within(t *testing.T, most time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), most)
	defer stop()
	s.Close(ctx)
}

// A collector that receives nothing costs nobody anything: what waits for it is bounded,
// what it did not receive is counted and logged once, and the end does not wait for it.
func TestFaultyCollectors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		made   int              // more than 2048 do not fit
		answer http.HandlerFunc // nil = nobody listens
		cause  string
	}{
		{"away", 9, nil, "no connection: connect: connection refused"},
		{"hanging", 2600, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "the queue is full"},
		{"overloaded", 9, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusServiceUnavailable) }, "it answered with status 503"},
		{"refusing", 9, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusUnauthorized) }, "it answered with status 401"},
		{"redirecting", 9, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/"+secret, http.StatusTemporaryRedirect)
		}, "it answered with status 307"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			endpoint := "http://127.0.0.1:1"
			if tt.answer != nil {
				r := otlp.New(t)
				r.Fail(tt.answer)
				endpoint = r.URL
			}
			s := newSender(t, endpoint)
			began := time.Now()
			s.make(tt.made)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("making spans took %v", took)
			}
			s.within(t, time.Second)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the end took %v", took)
			}
			if n := s.spans.Load(); n != int64(tt.made) {
				t.Errorf("%d spans were counted as dropped, want %d", n, tt.made)
			}
			if n := s.exports.Load(); n != 1 {
				t.Errorf("%d exports of metrics were counted as dropped, want 1", n)
			}
			log := s.log.String()
			if strings.Count(log, "\n") != 1 || strings.Contains(log, secret) {
				t.Errorf("logged %q, want one line without a secret", log)
			}
			if !strings.Contains(log, tt.cause) {
				t.Errorf("logged %q, want %q", log, tt.cause)
			}
		})
	}
}

// The collector receives what /metrics shows, and no header in a body. Long names are
// cut.
func TestWhatIsSent(t *testing.T) {
	r := otlp.New(t)
	s := newSender(t, r.URL+"/")
	long := strings.Repeat("é", 1000)
	ctx := s.Start(t.Context(), span.Start{Kind: span.Server, Name: "tools/call"})
	s.End(ctx, &span.End{Kind: span.Server, Method: "tools/call", Tool: long, Known: true, RequestID: long})
	s.EndSession(span.Session{Protocol: "2025-11-25", Transport: "http", Duration: time.Minute})
	s.EndSession(span.Session{Server: "web", Duration: time.Hour})
	s.within(t, 10*time.Second)
	for name, want := range map[string]string{
		"mcp.server.session.duration": "60 mcp.protocol.version=2025-11-25 network.transport=tcp",
		"mcp.client.session.duration": "3600 network.transport=pipe toolgate.server=web",
	} {
		p := r.Metric(name).GetHistogram().GetDataPoints()[0]
		got := []string{fmt.Sprint(p.GetSum())}
		for _, a := range p.Attributes {
			got = append(got, a.Key+"="+a.Value.GetStringValue())
		}
		if slices.Sort(got[1:]); strings.Join(got, " ") != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	spans := r.Spans()
	if len(spans) != 1 || len(spans[0].Name) > 300 || len(spans[0].Attributes["jsonrpc.request.id"]) > 512 {
		t.Errorf("got %+v", spans)
	}
	if points := r.Metric("toolgate_calls_total").GetSum().GetDataPoints(); len(points) != 1 || points[0].GetAsDouble() != 3 {
		t.Errorf("toolgate_calls_total is %v", points)
	}
	var ids []string
	for _, p := range r.Metric("toolgate_seconds").GetHistogram().GetDataPoints() {
		for _, e := range p.Exemplars {
			ids = append(ids, hex.EncodeToString(e.TraceId))
		}
	}
	if !slices.Equal(ids, []string{exemplar}) {
		t.Errorf("exemplars of traces %q", ids)
	}
	if bytes.Contains(r.Raw(), []byte(secret)) {
		t.Error("a header is in a body")
	}
	if n := s.spans.Load() + s.exports.Load(); n != 0 || s.log.String() != "" {
		t.Errorf("%d dropped, logged %q", n, s.log.String())
	}
}

// A call that runs later joins the trace of the call that asked for it.
func TestWantedTrace(t *testing.T) {
	r := otlp.New(t)
	s := newSender(t, r.URL)
	const want = "0af7651916cd43dd8448eb211c80319c"
	for _, id := range []string{want, "trc_01J"} {
		ctx := s.Start(t.Context(), span.Start{Kind: span.Server, Name: "tools/call", TraceID: id})
		if got := s.Carry(ctx).TraceID(); (got == want) != (id == want) || len(got) != 32 {
			t.Errorf("the trace is %s, wanted %s", got, id)
		}
		s.End(ctx, &span.End{Kind: span.Server, Method: "tools/call"})
	}
	s.within(t, 10*time.Second)
	if spans := r.Spans(); len(spans) != 2 || spans[0].Parent != "" {
		t.Errorf("got %+v", spans)
	}
}

// A question in the course of a call continues the call: of the context that the server
// wrote, only one of the same trace is the parent.
func TestQuestionOfAnotherTrace(t *testing.T) {
	r := otlp.New(t)
	s := newSender(t, r.URL)
	ctx := s.Start(t.Context(), span.Start{Kind: span.Server, Name: "tools/call"})
	own := s.Carry(ctx)
	same := span.Carrier{"traceparent": "00-" + own.TraceID() + "-b7ad6b7169203331-01"}
	other := span.Carrier{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}
	for _, from := range []span.Carrier{same, other} {
		s.End(s.Start(ctx, span.Start{Kind: span.Server, Name: "sampling/createMessage", Parent: from}), &span.End{Kind: span.Server, Method: "sampling/createMessage"})
	}
	s.End(ctx, &span.End{Kind: span.Server, Method: "tools/call"})
	s.within(t, 10*time.Second)
	for i, want := range []struct{ parent, link string }{{"b7ad6b7169203331", ""}, {own["traceparent"][36:52], "00f067aa0ba902b7"}} {
		got := r.Spans()[i+1]
		if got.Parent != want.parent || strings.Join(got.Links, "") != want.link || got.Trace != own.TraceID() {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
