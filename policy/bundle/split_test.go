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

// fullData says something of every kind, each tool one thing more than who has it.
const fullData = `{
	"roles": {"r": {"tools": {
		"named": true, "listed": {"arguments": {"x": ["a"]}},
		"typed": {"arguments": {"n": {"min": 0, "max": 9, "integer": true}, "/d/t": {"pattern": "a+", "max_length": 5, "optional": true}}},
		"placed": {"arguments": {"u": {"hosts": ["a.example"]}, "v": {"domains": [".example"]}, "p": {"prefix": ["/a/"]}, "w": {"in": "payees", "not_in": ["b"]}}},
		"modelled": true, "priced": true, "metered": true, "moving": true, "closing": true, "bound": true, "held": true, "observed": true
	}, "patterns": {"files__*": true}, "deny": {"tools": {"files__delete": true}}}},
	"directory": {"subjects": {"agent-8": {"roles": ["r"]}}},
	"lists": {"payees": {"acct-1": true}},
	"models": {"modelled": ["m"]},
	"thresholds": {"priced": {"amount": 100}, "moving": {"amount": 100}},
	"unmetered": {"priced": {"action": ["balance"]}, "moving": {"action": ["balance"]}},
	"usage": {"metered": {"day": {"window": "24h", "sum": "/amount", "where": {"/action": ["transfer"]}, "hold": {"sum": 1000, "calls": 9}, "deny": {"sum": 5000}}}},
	"schedules": {"office": {"zone": "Europe/Berlin", "open": [{"days": ["Monday"], "from": "08:00", "to": "17:00"}]}},
	"annotations": {"destructiveHint": "hold"},
	"approval": {"roles": ["approver"]},
	"tools": {
		"moving": {"transfers": {"asset": ["USD"], "destination": {"in": ["acct-1"]}}, "redact": {"*": ["/iban"]}},
		"closing": {"hours": "office"}, "held": {"hold": true},
		"bound": {"arguments": {"x": {"max": 5}}, "limit": {"rate": "5/1m"}},
		"observed": {"observe": {"thresholds": {"amount": 1}}}
	}
}`

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

// TestSplits holds that partial evaluation leaves nothing of the rules over but
// conditions on the call: built-in functions, and negations of such conditions.
// Only a tool that is being observed is evaluated whole.
func TestSplits(t *testing.T) {
	c, _ := compiled(t)
	policy := withData(t, c, fullData)
	var unknown []*ast.Term
	for _, s := range []string{"input.arguments", "input.request", "input.usage", "input.facts"} {
		unknown = append(unknown, ast.MustParseTerm(s))
	}
	for tool, branches := range map[string]int{
		"named": 1, "files__read": 1, "files__delete": 1, "unknown": 1, "held": 1, "listed": 2, "typed": 3, "placed": 2,
		"modelled": 2, "priced": 4, "metered": 4, "moving": 5, "closing": 2, "bound": 2, "observed": 0,
	} {
		q, err := policy("data.toolgate.decision = verdict").PrepareForPartial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		left, err := q.Partial(context.Background(), rego.EvalParsedInput(document(tool, "").Value), rego.EvalParsedUnknowns(unknown))
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		possible := 0
		whole := ""
		check := func(body ast.Body) {
			if strings.HasPrefix(body.String(), "not true") {
				return
			}
			possible++
			if why := beyondConditions(body); why != "" {
				whole = why
			}
		}
		for _, body := range left.Queries {
			check(body)
		}
		count := possible
		for _, m := range left.Support {
			for _, r := range m.Rules {
				check(r.Body)
				if !strings.Contains(r.Head.Ref().String(), "__not") {
					whole = r.Head.Ref().String()
				}
			}
		}
		if (whole != "") != (tool == "observed") || (whole == "" && count != branches) {
			t.Errorf("%s: %d branches, want %d; left over: %q\n%v\n%v", tool, count, branches, whole, left.Queries, left.Support)
		}
	}
}

// beyondConditions names what is in body besides conditions on the call.
func beyondConditions(body ast.Body) (why string) {
	for _, expr := range body {
		if len(expr.With) > 0 {
			why = expr.String()
		}
		switch expr.Terms.(type) {
		case *ast.Every, *ast.SomeDecl:
			why = expr.String()
		}
	}
	ast.WalkTerms(body, func(term *ast.Term) bool {
		switch v := term.Value.(type) {
		case *ast.SetComprehension, *ast.ArrayComprehension, *ast.ObjectComprehension:
			why = v.String()
		case ast.Ref:
			if v.HasPrefix(ast.DefaultRootRef) && !strings.HasPrefix(v.String(), "data.partial.__not") {
				why = v.String()
			}
		}
		return false
	})
	return why
}

// TestOdd holds that arguments as nobody should send them come to a verdict:
// no built-in function is given what it cannot take.
func TestOdd(t *testing.T) {
	c, _ := compiled(t)
	q, err := withData(t, c, fullData)("data.toolgate.decision").PrepareForEval(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// Of what is odd, these fit: -1 is at most 5, and no action is a transfer.
	for tool, passes := range map[string]int{"listed": 0, "typed": 0, "placed": 0, "modelled": 0, "priced": 0, "metered": 9, "moving": 0, "closing": 0, "bound": 1, "observed": 9} {
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
				if rs[0].Expressions[0].Value.(map[string]any)["effect"] == "allow" {
					allowed++
				}
			}
		}
		if want := 2 * passes; allowed != want {
			t.Errorf("%s: %d of the odd calls passed, want %d", tool, allowed, want)
		}
	}
}
