package bundle_test

import (
	"context"
	"os"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	opabundle "github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"

	"github.com/toolgate/toolgate/policy/bundle"
)

// verdicts is what toolgate asks a policy that answers with sets.
const verdicts = "[data.toolgate.deny, data.toolgate.hold, data.toolgate.allow]"

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

// costs are calls that the benchmarks judge: with the data of the policy, or
// those of everything.
var costs = []struct {
	name, role, tool, arguments string
	everything                  bool
}{
	{"search", "researcher", "search_internet", `{"query":"x","num_results":5}`, false},
	{"lacks", "approver", "search_internet", `{"query":"x","num_results":5}`, false},
	{"lacks_arg", "researcher", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"acme"}`, false},
	{"model", "creator", "generate_media", `{"prompt":"x","model":"card-1"}`, false},
	{"transfer", "treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":50,"destination":"acme"}`, false},
	{"hold", "treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":500,"destination":"acme"}`, false},
	{"everything", "treasurer", "pay", `{"action":"transfer","asset":"USD","amount":50,"destination":"acct-1","memo":"rent"}`, true},
}

// BenchmarkPartial is the cost of what explain, matrix and check ask about one
// role and one tool.
func BenchmarkPartial(b *testing.B) {
	for _, call := range costs {
		b.Run(call.name, func(b *testing.B) {
			c, store := compiled(b)
			query := func(set string) *rego.Rego {
				return rego.New(rego.Compiler(c), rego.Store(store), rego.Query(set))
			}
			if call.everything {
				data, err := os.ReadFile("testdata/everything.json") // one tool with everything that data can have about a tool
				if err != nil {
					b.Fatal(err)
				}
				query = withData(b, c, string(data))
			}
			input := map[string]any{
				"action":    "tools/call",
				"principal": map[string]any{"subject": "agent-7", "roles": []any{call.role}},
				"tool":      map[string]any{"server": "standard", "name": call.tool, "exposed": call.tool, "risk": "", "fingerprint": ""},
			}
			for b.Loop() {
				for _, set := range []string{"data.toolgate.deny[v]", "data.toolgate.hold[v]", "data.toolgate.allow[v]"} {
					r := query(set)
					rego.Input(input)(r)
					rego.Unknowns([]string{"input.arguments", "input.request", "input.usage"})(r)
					if _, err := r.Partial(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
