package bundle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

func withData(t testing.TB, c *ast.Compiler, data string) func(query string) *rego.Rego {
	t.Helper()
	var d map[string]any
	dec := json.NewDecoder(strings.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&d); err != nil {
		t.Fatal(err)
	}
	store := inmem.NewFromObjectWithOpts(d, inmem.OptReturnASTValuesOnRead(true), inmem.OptRoundTripOnWrite(false))
	return func(query string) *rego.Rego {
		return rego.New(rego.Compiler(c), rego.Store(store), rego.Query(query), rego.StrictBuiltinErrors(true))
	}
}

func document(tool, rest string) *ast.Term {
	return ast.MustParseTerm(fmt.Sprintf(`{"action": "tools/call", "principal": {"subject": "agent-7", "roles": ["r"]},
		"tool": {"server": "s", "name": %[1]q, "exposed": %[1]q, "risk": "", "fingerprint": "sha256:0"}%[2]s}`, tool, rest))
}

// TestOdd holds that arguments as nobody should send them come to a verdict:
// no built-in function is given what it cannot take.
func TestOdd(t *testing.T) {
	c, _ := compiled(t)
	q, err := withData(t, c, fullData)(verdicts).PrepareForEval(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// Of what is odd, these fit: -1 is at most 5, and no action is a transfer.
	for tool, passes := range map[string]int{"listed": 0, "typed": 0, "placed": 0, "modelled": 0, "priced": 0, "metered": 9, "moving": 0, "closing": 0, "bound": 1} {
		allowed := 0
		for _, odd := range []string{`null`, `true`, `"x"`, `""`, `-1`, `1e300`, `[]`, `["a"]`, `{"t": 7}`} {
			members := make([]string, 0, 12)
			for _, name := range []string{"x", "n", "d", "u", "v", "p", "w", "model", "amount", "action", "asset", "destination"} {
				members = append(members, fmt.Sprintf("%q: %s", name, odd))
			}
			for _, rest := range []string{
				fmt.Sprintf(`, "arguments": {%s}, "request": {"time": %s}, "usage": {"day": {"calls": %[2]s, "sum": %[2]s}}`, strings.Join(members, ", "), odd),
				fmt.Sprintf(`, "arguments": {%s}, "request": {"time": "0001-01-01T00:00:00Z"}, "usage": %s`, strings.Join(members, ", "), odd),
			} {
				rs, err := q.Eval(context.Background(), rego.EvalParsedInput(document(tool, rest).Value))
				if err != nil || len(rs) != 1 {
					t.Errorf("%s with %s: %v, %v", tool, odd, rs, err)
					continue
				}
				sets := rs[0].Expressions[0].Value.([]any)
				denials, holds, allows := sets[0].([]any), sets[1].([]any), sets[2].([]any)
				switch {
				case len(denials)+len(holds)+len(allows) == 0:
					t.Errorf("%s with %s: no verdict", tool, odd)
				case len(denials)+len(holds) == 0:
					allowed++
				}
			}
		}
		if want := 2 * passes; allowed != want {
			t.Errorf("%s: %d of the odd calls passed, want %d", tool, allowed, want)
		}
	}
}
