package rego_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

func benchmarkDecide(b *testing.B, role, tool, arguments string, want policy.Effect) {
	e, err := rego.Load(b.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		b.Fatal(err)
	}
	in := input(role, tool, arguments)
	in.Tool.Annotations = json.RawMessage(`{"title":"Search","readOnlyHint":true,"openWorldHint":true}`)
	b.ReportAllocs()
	for b.Loop() {
		if d, err := e.Decide(b.Context(), in); err != nil || d.Effect != want {
			b.Fatalf("got %+v, %v", d, err)
		}
	}
}

// BenchmarkDecide is the cost of a verdict: one that is the same for every
// call, and the three that look at arguments.
func BenchmarkDecide(b *testing.B) {
	b.Run("constant", func(b *testing.B) {
		benchmarkDecide(b, "researcher", "search_internet", `{"query":"x","num_results":5}`, policy.Allow)
	})
	b.Run("model", func(b *testing.B) {
		benchmarkDecide(b, "creator", "generate_media", `{"prompt":"x","model":"card-1"}`, policy.Allow)
	})
	b.Run("transfer", func(b *testing.B) {
		benchmarkDecide(b, "treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"acme"}`, policy.Allow)
	})
	b.Run("hold", func(b *testing.B) {
		benchmarkDecide(b, "treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":500,"destination":"acme"}`, policy.Hold)
	})
}

// BenchmarkFirst is what a pair of principal and tool costs once.
func BenchmarkFirst(b *testing.B) {
	e, err := rego.Load(b.Context(), rego.Options{CacheSize: 1, Timeout: testTimeout})
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		in := input("treasurer", fmt.Sprint("tool-", i), `{}`)
		if _, err := e.Visible(b.Context(), in.Principal, in.Tool); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		if _, err := rego.Load(b.Context(), rego.Options{Timeout: testTimeout}); err != nil {
			b.Fatal(err)
		}
	}
}
