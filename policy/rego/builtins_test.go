package rego_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	oparego "github.com/open-policy-agent/opa/v1/rego"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestPermittedBuiltins holds the list of what policies may use, so that what a
// new version of OPA brings is looked at: whether it takes linear time in what
// callers send, can be cancelled, and gives the same answer later.
func TestPermittedBuiltins(t *testing.T) {
	const golden = "testdata/builtins.txt"
	got := strings.Join(rego.PermittedBuiltins(), "\n") + "\n"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRefusedBuiltins holds that a policy which uses a refused function is
// refused with its place and the reason.
func TestRefusedBuiltins(t *testing.T) {
	for name, why := range rego.RefusedBuiltins() {
		b := ast.BuiltinMap[name]
		if b == nil || strings.HasPrefix(name, "internal.") || why == "" {
			continue
		}
		args := make([]string, len(b.Decl.FuncArgs().Args))
		for i := range args {
			args[i] = "input.arguments.x"
		}
		_, err := tryLoad(t, "p.rego", module(fmt.Sprintf(`decision := {"effect": "allow"} if y := %s(%s)`, name, strings.Join(args, ", "))))
		if err == nil || !strings.Contains(err.Error(), "p.rego:3: undefined function "+name) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestOperands is the table of operands that the policy has to bring.
func TestOperands(t *testing.T) {
	for condition, want := range map[string]string{
		`graph.reachable(data.graph, input.principal.roles)[_]`:                    "",
		`graph.reachable(input.arguments.graph, ["a"])[_]`:                         "operand 1 of graph.reachable is not a document of data",
		`graph.reachable({"a": input.arguments.list}, ["a"])[_]`:                   "operand 1 of graph.reachable is not a document of data",
		`g := input.arguments.graph; graph.reachable(g, ["a"])[_]`:                 "operand 1 of graph.reachable is not a document of data",
		`regex.match("^a", input.arguments.x)`:                                     "",
		`regex.match(data.pattern, input.arguments.x)`:                             "",
		`regex.match(input.arguments.x, "a")`:                                      "operand 1 of regex.match comes from the call",
		`regex.match(input.facts.x, "a")`:                                          "operand 1 of regex.match comes from the call",
		`p := input.arguments.x; regex.match(p, "a")`:                              "operand 1 of regex.match comes from the call",
		`count([1 | regex.match(input.arguments.x, "a")]) > 0`:                     "operand 1 of regex.match comes from the call",
		`glob.match("a*", null, input.tool.exposed)`:                               "",
		`glob.match("*a*a*a*", null, input.arguments.x)`:                           "operand 3 of glob.match comes from the call",
		`trim(input.arguments.x, " ") == "a"`:                                      "",
		`trim(" ", input.arguments.x) == "a"`:                                      "operand 2 of trim comes from the call",
		`sprintf(input.arguments.x, [1]) == "a"`:                                   "operand 1 of sprintf comes from the call",
		`sprintf("%v", [input.arguments.x]) == "a"`:                                "",
		`count(numbers.range(0, input.arguments.x)) > 1`:                           "operand 2 of numbers.range comes from the call",
		`every p in input.arguments.list { regex.match(input["arguments"].x, p) }`: "operand 1 of regex.match comes from the call",
	} {
		_, err := tryLoad(t, "p.rego", module("decision := {\"effect\": \"allow\"} if {\n"+condition+"\n}"), "data.json", `{"graph": {"a": ["b"]}, "pattern": "a"}`)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), "p.rego:4: "+want) {
			t.Errorf("%s: got %v, want %q", condition, err, want)
		}
	}
	_, err := tryLoad(t, "p.rego", module(`decision := {"effect": "deny", "reason": sprintf(input.arguments.x, [])}`))
	if err == nil || !strings.Contains(err.Error(), "p.rego:3: operand 1 of sprintf comes from the call") {
		t.Errorf("in a head: got %v", err)
	}
}

// costs are calls of refused functions, of size n in what a caller sends, whose
// time grows with more than n.
var costs = map[string]struct {
	query string
	of    func(n int) any
	n     int
}{
	"graph.reachable":           {`graph.reachable(input, ["0"])`, dense, 40},
	"graph.reachable_paths":     {`graph.reachable_paths(input, ["0"])`, dense, 5},
	"json.patch":                {`json.patch([], input)`, func(n int) any { return repeated(n, map[string]any{"op": "add", "path": "/0", "value": 1}) }, 500},
	"object.subset":             {`object.subset(input, [1, 2])`, func(n int) any { return repeated(n, 1) }, 500},
	"net.cidr_contains_matches": {`net.cidr_contains_matches(input, input)`, func(n int) any { return repeated(n, "10.0.0.0/24") }, 50},
	"product":                   {`product(input)`, func(n int) any { return repeated(n, 1234567891) }, 2000},
	"indexof":                   {`indexof(input[0], input[1])`, func(n int) any { return []any{strings.Repeat("é", n), strings.Repeat("é", n/2) + "b"} }, 4000},
	"indexof_n":                 {`indexof_n(input[0], input[1])`, func(n int) any { return []any{strings.Repeat("é", n), strings.Repeat("é", n/2) + "b"} }, 4000},
	"regex.find_n":              {`regex.find_n("a.*b|a", input, -1)`, func(n int) any { return strings.Repeat("a", n) }, 500},
	"regex.split":               {`regex.split("a.*b|a", input)`, func(n int) any { return strings.Repeat("a", n) }, 500},
	"graphql.is_valid":          {`graphql.is_valid(input, "type Query { a: String }")`, func(n int) any { return "{" + strings.Repeat(" a", n) + "}" }, 200},
	"glob.match":                {`glob.match("*a*a*c*", [], input)`, func(n int) any { return strings.Repeat("a", n) }, 50},
	"regex.match":               {`regex.match(concat("", [input, "b"]), input)`, func(n int) any { return strings.Repeat("a?", n) }, 200},
	"trim":                      {`trim(input[0], input[1])`, func(n int) any { return []any{strings.Repeat("é", n), strings.Repeat("ü", n) + "é"} }, 1000},
	"strings.render_template":   {`strings.render_template("{{range .a}}{{range $.a}}{{end}}{{end}}", {"a": input})`, func(n int) any { return repeated(n, 1) }, 100},
}

// dense is a graph of n nodes, each of which leads to all.
func dense(n int) any {
	out := map[string]any{}
	for i := range n {
		var to []any
		for j := range n {
			to = append(to, fmt.Sprint(j))
		}
		out[fmt.Sprint(i)] = to
	}
	return out
}

func repeated(n int, v any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// BenchmarkRefusedBuiltins is what they cost with plain OPA at sizes n and 4n.
func BenchmarkRefusedBuiltins(b *testing.B) {
	for name, c := range costs {
		for _, n := range []int{c.n, 4 * c.n} {
			if name == "graph.reachable_paths" {
				n = c.n + n/c.n // 6 and 9 nodes
			}
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				q, err := oparego.New(oparego.Query(c.query)).PrepareForEval(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				in, err := ast.InterfaceToValue(c.of(n))
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if _, err := q.Eval(context.Background(), oparego.EvalParsedInput(in)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// shapes are arguments of about n elements in one argument.
var shapes = map[string]func(n int) string{
	"numbers": func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("12.5,", n), ",") + "]" },
	"texts":   func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`"text",`, n), ",") + "]" },
	"text":    func(n int) string { return `"` + strings.Repeat("x", n) + `"` },
	"nested": func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(strings.Repeat("[", 50)+strings.Repeat("]", 50)+",", max(1, n/50)), ",") + "]"
	},
	"members": func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"key-%d":%d`, i, i)
		}
		return "{" + b.String()[1:] + "}"
	},
	"digits": func(n int) string { return strings.Repeat("9", n) },
}

var shapeSizes = []int{10, 100, 1000, 10_000, 100_000}

// shaped are calls with an argument of a shape, under each policy that reads it.
func shaped(shape string, n int) map[string]*policy.Input {
	value := shapes[shape](n)
	return map[string]*policy.Input{
		"default/amount":   input("treasurer", "manage_wallet", `{"action":"transfer","amount":`+value+`}`),
		"default/action":   input("treasurer", "manage_wallet", `{"action":`+value+`,"amount":5}`),
		"default/model":    input("creator", "generate_media", `{"model":`+value+`}`),
		"default/unread":   input("treasurer", "manage_wallet", `{"action":"transfer","amount":5,"note":`+value+`}`),
		"reference/amount": input("clerk", "pay", `{"amount":`+value+`}`),
	}
}

// TestArgumentShapes holds that no shape or size of an argument keeps a decision
// from coming: it is decided, or denied in time.
func TestArgumentShapes(t *testing.T) {
	engines := map[string]*rego.Engine{}
	for name, path := range map[string]string{"default": "", "reference": "testdata/reference"} {
		e, err := rego.Load(t.Context(), rego.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		engines[name] = e
	}
	for shape := range shapes {
		for _, n := range shapeSizes {
			for name, in := range shaped(shape, n) {
				policyName, _, _ := strings.Cut(name, "/")
				d, err := engines[policyName].Decide(t.Context(), in)
				late := err != nil && strings.Contains(err.Error(), "too long")
				long := err != nil && shape == "digits" && strings.Contains(err.Error(), "characters")
				if err != nil && !late && !long || err != nil && d.Effect != policy.Deny {
					t.Errorf("%s of %d, %s: %s by %s, %v", shape, n, name, d.Effect, d.Rule, err)
				}
				if d.Effect == policy.Allow && !strings.HasSuffix(name, "unread") {
					t.Errorf("%s of %d, %s: allowed by %s", shape, n, name, d.Rule)
				}
			}
		}
	}
}

// BenchmarkArgumentShapes is the cost of a decision by the shape and size of one
// argument.
func BenchmarkArgumentShapes(b *testing.B) {
	e, err := rego.Load(b.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		b.Fatal(err)
	}
	for shape := range shapes {
		for _, n := range shapeSizes {
			in := shaped(shape, n)["default/unread"]
			b.Run(fmt.Sprintf("%s/%d", shape, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = e.Decide(b.Context(), in) // digits beyond the bound are an error
				}
			})
		}
	}
}
