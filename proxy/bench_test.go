package proxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/telemetry"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// The whole road in process with its real controls: identity, the default
// policy, limits, schema, a trail on disk. Only the upstream answers from
// memory. "constant" is a verdict that no argument changes, "conditional" one
// that the policy has to work out.
func BenchmarkGateCall(b *testing.B) {
	for _, bb := range []struct{ name, token, params string }{
		{"constant", "search", `{"name":"search_internet","arguments":{"query":"model context protocol","num_results":5}}`},
		{"conditional", "pay", `{"name":"manage_wallet","arguments":{"action":"balance","asset":"USD"}}`},
	} {
		for _, durability := range []audit.Durability{audit.OS, audit.Sync} {
			b.Run(bb.name+"/"+string(durability), func(b *testing.B) {
				g := benchGate(b, durability, nil)
				in := request(b, bb.params)
				in.Credential = identity.Credential{Bearer: "t"}
				b.ReportAllocs()
				for b.Loop() {
					if _, f := g.Call(context.Background(), in); f != nil {
						b.Fatal(f)
					}
				}
			})
		}
	}
}

// The same road with traces, of which a share is recorded. The collector answers at once.
func BenchmarkTracedCall(b *testing.B) {
	for _, ratio := range []float64{0, .01, 1} {
		b.Run(fmt.Sprint(ratio), func(b *testing.B) {
			collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			defer collector.Close()
			tracer, err := telemetry.New(b.Context(), telemetry.Options{
				Endpoint: collector.URL, Ratio: ratio, Interval: time.Minute, Gatherer: prometheus.NewRegistry(), Log: hclog.NewNullLogger(),
				Upstream: func(string) (_, _, _ string) { return "stdio", "", "" }, Dropped: func(string, int) {},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer tracer.Close(b.Context())
			g := benchGate(b, audit.OS, tracer)
			in := request(b, `{"name":"search_internet","arguments":{"query":"model context protocol","num_results":5}}`)
			in.Credential = identity.Credential{Bearer: "t"}
			b.ReportAllocs()
			for b.Loop() {
				if _, f := g.Call(context.Background(), in); f != nil {
					b.Fatal(f)
				}
			}
		})
	}
}

// TestCallAllocations: the allocations of one call with a constant verdict. A change
// that needs more of them says why.
func TestCallAllocations(t *testing.T) {
	g := benchGate(t, audit.OS, nil)
	in := request(t, `{"name":"search_internet","arguments":{"query":"model context protocol","num_results":5}}`)
	in.Credential = identity.Credential{Bearer: "t"}
	least := math.Inf(1)
	for range 300 { // the trail's writer has its own now and then
		least = min(least, testing.AllocsPerRun(1, func() {
			if _, f := g.Call(t.Context(), in); f != nil {
				t.Fatal(f)
			}
		}))
	}
	const want = 16 // 2 are the context that a stop cancels
	if least != want {
		t.Errorf("%v allocations, want %v", least, want)
	}
}

func benchGate(b testing.TB, durability audit.Durability, tracer proxy.Tracer) *proxy.Gate {
	b.Helper()
	engine, err := rego.Load(b.Context(), rego.Options{Timeout: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	auth, err := identity.New(identity.Config{Tokens: []identity.Token{{Subject: "ann", Roles: []string{"treasurer"},
		SHA256: "e3b98a4da31a127d4bde6e43033f66ba274cab0eb7eb1c70ec41402bf6273dd8"}}})
	if err != nil {
		b.Fatal(err)
	}
	trail, err := audit.Open(b.TempDir(), audit.Options{Durability: durability})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { trail.Close() })
	db, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	rate := limit.Rate{Count: 1e9, Per: time.Second, Burst: 1e9}
	schema := mustSchema(`{"type":"object","properties":{"query":{"type":"string"},"num_results":{"type":"integer","maximum":10},
		"action":{"enum":["balance","transfer"]},"asset":{"type":"string"},"amount":{"type":"number","exclusiveMinimum":0},"destination":{"type":"string"}}}`)
	tool := func(name string) *registry.Tool {
		return &registry.Tool{Server: "standard", Name: name, Exposed: name, Fingerprint: "sha256:" + name, Input: schema, OutputMode: "warn"}
	}
	g, err := proxy.New(proxy.Options{
		Identifier: auth, Policy: engine, Limiter: limit.New(limit.Rules{Default: &rate}), Usage: limit.NewUsage(db, time.Now), Tickets: &bench{}, Recorder: trail, Tracer: tracer,
		Upstreams: memory{registry.NewCatalogue([]string{"standard"}, tool("search_internet"), tool("manage_wallet"))},
	})
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// memory answers every call at once.
type memory struct{ catalogue *registry.Catalogue }

func (m memory) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return m.catalogue.View(route)
}

func (m memory) Forward(context.Context, *registry.Tool, registry.Outgoing) (json.RawMessage, error) {
	return json.RawMessage(`{"content":[{"type":"text","text":"hello"}]}`), nil
}
