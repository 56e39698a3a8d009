package rego_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy"
	defaults "github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
)

// sizes are roles and tools; each role has every tool.
var sizes = []struct{ roles, tools int }{{10, 10}, {100, 100}, {1000, 1000}, {10_000, 100}, {100, 10_000}}

// grown writes a policy with so many roles and tools in its data. The last tool
// has a threshold.
func grown(tb testing.TB, files fs.FS, roles, tools int) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "policy")
	if err := os.CopyFS(dir, files); err != nil {
		tb.Fatal(err)
	}
	tool := make(map[string]bool, tools)
	for i := range tools {
		tool[fmt.Sprintf("server__tool-%d", i)] = true
	}
	role := make(map[string]any, roles)
	for i := range roles {
		role[fmt.Sprintf("role-%d", i)] = map[string]any{"tools": tool}
	}
	raw, err := json.Marshal(map[string]any{
		"roles":      role,
		"thresholds": map[string]any{fmt.Sprintf("server__tool-%d", tools-1): map[string]any{"amount": 100}},
		"approval":   map[string]any{"roles": []string{"approver"}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data.json"), raw, 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// BenchmarkScale is the cost of one decision, of the first one for a principal
// and a tool, and of loading, by the number of roles and tools.
func BenchmarkScale(b *testing.B) {
	for name, files := range map[string]fs.FS{"default": defaults.Files, "reference": os.DirFS("testdata/reference")} {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("%s/%dx%d", name, size.roles, size.tools), func(b *testing.B) {
				benchmarkScale(b, grown(b, files, size.roles, size.tools), size.roles, size.tools)
			})
		}
	}
}

func benchmarkScale(b *testing.B, dir string, roles, tools int) {
	before := heap()
	start := time.Now()
	e, err := rego.Load(b.Context(), rego.Options{Path: dir, Timeout: testTimeout})
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	b.Run("load", func(b *testing.B) { // once: the engine that the others use
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(took.Milliseconds()), "ms")
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
	})
	role := fmt.Sprintf("role-%d", roles-1)
	constant := input(role, fmt.Sprintf("server__tool-%d", tools-2), `{"query":"x"}`)
	conditional := input(role, fmt.Sprintf("server__tool-%d", tools-1), `{"action":"transfer","amount":50,"destination":"a"}`)
	decide := func(b *testing.B, in *policy.Input, constant bool, decide func(in *policy.Input) (policy.Decision, error)) {
		if got := e.Constant(b.Context(), in.Principal, in.Tool); got != constant {
			b.Fatalf("constant is %v, want %v", got, constant)
		}
		b.ReportAllocs()
		for b.Loop() {
			if d, err := decide(in); err != nil || d.Effect != policy.Allow {
				b.Fatalf("got %+v, %v", d, err)
			}
		}
	}
	quick := func(in *policy.Input) (policy.Decision, error) { return e.Decide(b.Context(), in) }
	b.Run("constant", func(b *testing.B) { decide(b, constant, true, quick) })
	b.Run("conditional", func(b *testing.B) { decide(b, conditional, false, quick) })
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			in := *conditional
			in.Tool.Fingerprint = fmt.Sprint("sha256:", i)
			e.Constant(b.Context(), in.Principal, in.Tool)
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
