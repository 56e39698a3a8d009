package rego_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/bundle"
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

// BenchmarkWhole is the cost of one evaluation of the default policy for an input that
// was read before, in every call of a principal and a tool but the first two.
func BenchmarkWhole(b *testing.B) {
	for _, c := range []struct{ name, role, tool, arguments string }{
		{"search", "researcher", "search_internet", `{"query":"x","num_results":5}`},
		{"lacks", "approver", "search_internet", `{"query":"x","num_results":5}`},
		{"lacks_arg", "researcher", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"acme"}`},
		{"model", "creator", "generate_media", `{"prompt":"x","model":"card-1"}`},
		{"transfer", "treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"acme"}`},
		{"hold", "treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":500,"destination":"acme"}`},
		{"balance", "treasurer", "manage_wallet", `{"action":"balance","asset":"USD"}`},
		{"everything", "treasurer", "pay", `{"action":"transfer","asset":"USD","amount":50,"destination":"acct-1","memo":"rent"}`},
	} {
		o := rego.Options{Timeout: testTimeout}
		if c.name == "everything" {
			o.Path = b.TempDir()
			if err := os.CopyFS(o.Path, bundle.Files); err != nil {
				b.Fatal(err)
			}
			data, err := os.ReadFile("../bundle/testdata/everything.json")
			if err == nil {
				err = os.WriteFile(filepath.Join(o.Path, "data.json"), data, 0o600)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		e, err := rego.Load(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		input := ast.MustParseTerm(fmt.Sprintf(`{"action": "tools/call", "principal": {"subject": "agent-7", "roles": [%q]},
			"tool": {"server": "standard", "name": %[2]q, "exposed": %[2]q, "risk": "high", "fingerprint": "sha256:0"}, "arguments": %s,
			"request": {"id": "1", "transport": "http", "era": "2025-11-25", "trace_id": "", "time": "2026-11-20T12:00:00Z"},
			"usage": {"day": {"calls": 3, "sum": 300}}}`, c.role, c.tool, c.arguments)).Value
		whole := e.Whole(context.Background(), policy.Principal{Subject: "agent-7", Roles: []string{c.role}},
			policy.Tool{Server: "standard", Name: c.tool, Exposed: c.tool, Risk: "high", Fingerprint: "sha256:0"}, input)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := whole(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
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
