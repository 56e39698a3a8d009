package peers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// collector builds and starts the OTLP receiver of the OpenTelemetry Collector, which is
// a module of its own. Without the network it cannot be built.
func collector(t *testing.T) (url string, p *program.Process) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "collector")
	build := exec.Command("go", "build", "-o", file, ".")
	build.Dir = filepath.Join(corpus.Checkout(t), "testdata", "collector")
	if out, err := build.CombinedOutput(); err != nil {
		parts.Missing(t, "the collector cannot be built: %v\n%s", err, out)
	}
	address := program.FreeAddress(t)
	cmd := exec.Command(file, address)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close() })
	p = program.Launch(t, cmd)
	if !p.Await(t, "the collector listens", func() bool { return strings.Contains(p.Out.String(), `{"ready":true}`) }) {
		t.Fatalf("the collector ended: %v\n%s", p.Err, p.Log)
	}
	return "http://" + address, p
}

// collected is a span as the collector has it.
type collected struct {
	Service, Name        string
	TraceID, SpanID      string
	ParentSpanID         string
	ErrorType, Transport string
}

// collectedSpans reads the spans that the collector has received.
func collectedSpans(t *testing.T, out string) (found []collected) {
	t.Helper()
	type attributes []struct {
		Key   string
		Value struct{ StringValue string }
	}
	get := func(all attributes, key string) string {
		for _, a := range all {
			if a.Key == key {
				return a.Value.StringValue
			}
		}
		return ""
	}
	for line := range strings.Lines(out) {
		var m struct {
			Traces struct {
				ResourceSpans []struct {
					Resource   struct{ Attributes attributes }
					ScopeSpans []struct {
						Spans []struct {
							collected
							Attributes attributes
						}
					}
				}
			}
		}
		if !strings.HasPrefix(line, `{"traces"`) {
			continue
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		for _, from := range m.Traces.ResourceSpans {
			for _, scope := range from.ScopeSpans {
				for _, s := range scope.Spans {
					s.Service = get(from.Resource.Attributes, "service.name")
					s.ErrorType, s.Transport = get(s.Attributes, "error.type"), get(s.Attributes, "network.transport")
					found = append(found, s.collected)
				}
			}
		}
	}
	return found
}

// tracerOf makes spans for a service and sends each to the collector when it ends.
func tracerOf(t *testing.T, url, service string) trace.Tracer {
	t.Helper()
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(url+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service))))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return p.Tracer("test")
}

// tracedServer is an MCP server with OpenTelemetry. It remembers the last traceparent
// header and answers calls of fail with an error in the result.
type tracedServer struct {
	tracer trace.Tracer
	header chan string
}

func (s *tracedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name string
			Meta propagation.MapCarrier `json:"_meta"`
		}
	}
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &m) != nil || m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"clock","version":"1"}}`,
		"tools/list": `{"tools":[{"name":"now","inputSchema":{"type":"object"}},{"name":"fail","inputSchema":{"type":"object"}}]}`,
		"tools/call": `{"content":[{"type":"text","text":"s3cret-result"}]}`,
	}[m.Method]
	if m.Method == "tools/call" {
		_, span := s.tracer.Start(propagation.TraceContext{}.Extract(r.Context(), m.Params.Meta), "tools/call "+m.Params.Name, trace.WithSpanKind(trace.SpanKindServer))
		span.End()
		s.header <- r.Header.Get("Traceparent")
		if m.Params.Name == "fail" {
			result = `{"content":[],"isError":true}`
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

const telemetryPolicy = `package toolgate

import rego.v2

deny contains {"rule": "MOON", "reason": "the moon is closed"} if input.arguments.zone == "moon"
allow contains {"rule": "EARTH", "reason": "clocks on Earth are free"} if true
`

// TestTelemetry: the receiver of the OpenTelemetry Collector gets one trace of client,
// toolgate and upstream, and the metrics of /metrics with exemplars of that trace. Nothing
// secret is in what is sent.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	url, otel := collector(t)
	upstream := &tracedServer{tracer: tracerOf(t, url, "clock"), header: make(chan string, 9)}
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"policy/policy.rego": telemetryPolicy,
		"mcp.json": fmt.Sprintf(`{"mcpServers": {"clock": {"url": %q, "headers": {"X-Api-Key": "s3cret-upstream"}}},
			"toolgate": {"policy": {"path": "policy"}, "telemetry": {"endpoint": %q, "headers": {"X-Otlp-Key": "s3cret-collector"}, "metrics": {"interval": "1s"}}}}`, server.URL, url),
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	g := program.ServeReady(t, dir)
	client := tracerOf(t, url, "agent")
	door := openHTTP(t, g.Agents+"/mcp", "")
	call := func(tool, zone string) (trace.TraceID, []byte) {
		ctx, span := client.Start(t.Context(), "tools/call "+tool, trace.WithSpanKind(trace.SpanKindClient))
		defer span.End()
		meta := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, meta)
		text, _ := json.Marshal(meta)
		return span.SpanContext().TraceID(), door.exchange(t, fmt.Appendf(nil,
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"clock__%s","arguments":{"zone":%q,"q":"s3cret-argument"},"_meta":%s}}`, tool, zone, text))
	}
	good, answer := call("now", "UTC")
	if !strings.Contains(string(answer), "s3cret-result") || !strings.Contains(string(answer), good.String()) {
		t.Fatalf("got %s", answer)
	}
	header := <-upstream.header
	denied, _ := call("now", "moon")
	failed, _ := call("fail", "UTC")
	ends := map[trace.TraceID]int{good: 16, denied: 7, failed: 16} // spans of client, call, stages, request to the upstream, upstream
	got := map[trace.TraceID][]collected{}
	otel.Await(t, "the collector has three traces", func() bool {
		clear(got)
		for _, s := range collectedSpans(t, otel.Out.String()) {
			id, _ := trace.TraceIDFromHex(s.TraceID)
			got[id] = append(got[id], s)
		}
		for c, n := range ends {
			if len(got[c]) < n {
				return false
			}
		}
		return true
	})
	for c, n := range ends {
		if spans := got[c]; len(spans) != n {
			t.Errorf("%d spans, want %d: %+v", len(spans), n, spans)
		}
	}
	chain := chainTo(got[good], "clock")
	want := "agent tools/call now > toolgate tools/call clock__now > toolgate toolgate.forward > toolgate tools/call now > clock tools/call now"
	if names := strings.Join(chain.names, " > "); names != want {
		t.Errorf("the trace is\n%s, want\n%s", names, want)
	}
	if header != "00-"+good.String()+"-"+chain.parent+"-01" {
		t.Errorf("the upstream got the header %q, want the span %s", header, chain.parent)
	}
	for c, want := range map[trace.TraceID]string{good: "", denied: "policy_denied", failed: "tool_error"} {
		for _, s := range got[c] {
			if strings.HasPrefix(s.Name, "tools/call clock__") && (s.ErrorType != want || s.Transport != "tcp") {
				t.Errorf("%s ended with %q over %q, want %q", s.Name, s.ErrorType, s.Transport, want)
			}
		}
	}
	otel.Await(t, "the collector has metrics with exemplars", func() bool {
		out := otel.Out.String()
		return strings.Contains(out, `"name":"toolgate_calls_total"`) && strings.Contains(out, `"name":"mcp.client.operation.duration"`) &&
			strings.Contains(out, `"exemplars":[{`) && strings.Contains(out, `"name":"toolgate_call_duration_seconds"`)
	})
	res := program.Get(t, g.Admin+"/metrics", "application/openmetrics-text")
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(text), `# {trace_id="`+failed.String()+`"}`) {
		t.Errorf("/metrics has no exemplar of the last trace: %v\n%s", err, text)
	}
	if strings.Contains(otel.Out.String()+g.Log.String(), "s3cret") {
		t.Error("a secret was sent or logged")
	}
}

// traced is the way from the first span of a trace to the span of a service.
type traced struct {
	names  []string
	parent string // id of the span above the last
}

func chainTo(spans []collected, service string) (c traced) {
	byID := map[string]collected{}
	at := collected{}
	for _, s := range spans {
		byID[s.SpanID] = s
		if s.Service == service {
			at = s
		}
	}
	c.parent = at.ParentSpanID
	for ok := at.SpanID != ""; ok; at, ok = byID[at.ParentSpanID] {
		c.names = append([]string{at.Service + " " + at.Name}, c.names...)
	}
	return c
}
