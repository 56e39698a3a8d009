package bundle_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	opabundle "github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy/bundle"
)

// compiled is the default policy without its tests, its data on an AST store.
func compiled(t testing.TB) (*ast.Compiler, storage.Store) {
	t.Helper()
	loader, err := opabundle.NewFSLoader(bundle.Files)
	if err != nil {
		t.Fatal(err)
	}
	b, err := opabundle.NewCustomReader(loader).WithSkipBundleVerification(true).WithProcessAnnotations(true).Read()
	if err != nil {
		t.Fatal(err)
	}
	modules := make(map[string]*ast.Module)
	for _, m := range b.Modules {
		if !isTest(m.Path) {
			modules[m.Path] = m.Parsed
		}
	}
	c := ast.NewCompiler().WithStrict(true)
	if c.Compile(modules); c.Failed() {
		t.Fatal(c.Errors)
	}
	return c, inmem.NewFromObjectWithOpts(b.Data, inmem.OptReturnASTValuesOnRead(true), inmem.OptRoundTripOnWrite(false))
}

// BenchmarkWhole is the cost of one full evaluation, nothing known before.
func BenchmarkWhole(b *testing.B) {
	c, store := compiled(b)
	q, err := rego.New(rego.Compiler(c), rego.Store(store), rego.Query("data.toolgate.decision"), rego.StrictBuiltinErrors(true),
		rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t, nil })).PrepareForEval(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]struct{ role, tool, arguments string }{
		"search":    {"researcher", "search_internet", `{"query":"x","num_results":5}`},
		"lacks":     {"approver", "search_internet", `{"query":"x","num_results":5}`},
		"lacks_arg": {"researcher", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"a"}`},
		"model":     {"creator", "generate_media", `{"prompt":"x","model":"card-1"}`},
		"transfer":  {"treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"a"}`},
		"hold":      {"treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":500,"destination":"a"}`},
	} {
		input := ast.MustParseTerm(fmt.Sprintf(`{"action": "tools/call", "principal": {"subject": "agent-7", "roles": [%q]},
			"tool": {"server": "standard", "name": %[2]q, "exposed": %[2]q, "risk": "high", "fingerprint": "sha256:0"}, "arguments": %s,
			"request": {"id": "1", "transport": "http", "era": "2025-11-25", "trace_id": "", "time": "2026-11-20T12:00:00Z"}}`, c.role, c.tool, c.arguments)).Value
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rs, err := q.Eval(context.Background(), rego.EvalParsedInput(input), rego.EvalExternalCancel(topdown.NewCancel()), rego.EvalMetrics(metrics.NoOp()))
				if err != nil || len(rs) != 1 {
					b.Fatal(rs, err)
				}
			}
		})
	}
}
