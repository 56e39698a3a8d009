package rego_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rego/builtin"
	"github.com/toolgate/toolgate/policy/workbench"
)

// TestPermittedBuiltins holds the list of what policies may use, so that what a
// new version of OPA brings is looked at: whether it takes linear time in what
// callers send, can be cancelled, and gives the same answer later.
func TestPermittedBuiltins(t *testing.T) {
	const golden = "testdata/builtins.txt"
	var names []string
	for _, b := range builtin.Capabilities().Builtins {
		names = append(names, b.Name)
	}
	slices.Sort(names)
	got := strings.Join(names, "\n") + "\n"
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
	for name, why := range builtin.Refusals() {
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

// hostile are calls of built-in functions with arguments that keep OPA's own busy for
// seconds to minutes, or take hundreds of megabytes: conditions about a, the arguments.
var hostile = map[string]struct {
	condition string
	arguments map[string]any
}{
	"glob.match":                       {`glob.match("*a*a*a*c*", [], lower(a.x))`, map[string]any{"x": strings.Repeat("a", 2000)}},
	"regex.match":                      {`some p in a.list; regex.match(p, a.x)`, map[string]any{"list": []any{strings.Repeat("a?", 2000)}, "x": strings.Repeat("a", 20_000)}},
	"regex.match, repeated":            {`regex.match(a.p, a.x)`, map[string]any{"p": "(a?){1000}", "x": strings.Repeat("a", 100_000)}},
	"regex.template_match":             {`regex.template_match(a.x, a.x, "<", ">")`, map[string]any{"x": "<" + strings.Repeat("a?", 5000) + ">"}},
	"regex.is_valid":                   {`regex.is_valid(a.x)`, map[string]any{"x": strings.Repeat("(a{10}){10}", 50_000)}},
	"regex.find_n":                     {`count(regex.find_n("a.*b|a", a.x, -1)) > 0`, map[string]any{"x": strings.Repeat("a", 20_000)}},
	"regex.find_all_string_submatch_n": {`count(regex.find_all_string_submatch_n("a.*b|a", a.x, -1)) > 0`, map[string]any{"x": strings.Repeat("a", 20_000)}},
	"regex.split":                      {`count(regex.split("a.*b|a", a.x)) > 0`, map[string]any{"x": strings.Repeat("a", 20_000)}},
	"regex.replace":                    {`regex.replace(upper(a.x), "A.*B|A", "") == ""`, map[string]any{"x": strings.Repeat("a", 20_000)}},
	"regex.replace, output":            {`count(regex.replace(a.x, "a", a.y)) > 0`, map[string]any{"x": strings.Repeat("a", 1000), "y": strings.Repeat("y", 100_000)}},
	"trim":                             {`trim(lower(a.x), upper(a.y)) == ""`, map[string]any{"x": strings.Repeat("é", 20_000), "y": strings.Repeat("ü", 20_000)}},
	"trim_left":                        {`trim_left(a.x, a.y) == ""`, map[string]any{"x": strings.Repeat("é", 20_000), "y": strings.Repeat("ü", 20_000)}},
	"trim_right":                       {`trim_right(a.x, a.y) == ""`, map[string]any{"x": strings.Repeat("é", 20_000), "y": strings.Repeat("ü", 20_000)}},
	"indexof":                          {`indexof(a.x, a.y) > 0`, map[string]any{"x": strings.Repeat("é", 20_000), "y": strings.Repeat("é", 10_000) + "b"}},
	"indexof_n":                        {`count(indexof_n(a.x, a.y)) > 0`, map[string]any{"x": strings.Repeat("é", 20_000), "y": strings.Repeat("é", 10_000) + "b"}},
	"strings.replace_n":                {`strings.replace_n({a.y: "b"}, a.x) == ""`, map[string]any{"x": strings.Repeat("a", 20_000), "y": strings.Repeat("a", 10_000) + "b"}},
	"time.parse_ns":                    {`time.parse_ns(a.x, a.x) > 0`, map[string]any{"x": strings.Repeat("2006", 5000)}},
	"object.subset":                    {`object.subset(a.list, array.concat(a.list, [2]))`, map[string]any{"list": repeated(10_000, 1)}},
	"net.cidr_contains_matches":        {`count(net.cidr_contains_matches(a.list, a.list)) > 0`, map[string]any{"list": repeated(1000, "10.0.0.0/24")}},
	"net.cidr_merge":                   {`count(net.cidr_merge(a.list)) > 0`, map[string]any{"list": repeated(20_000, "10.0.0.0/24")}},
	"net.cidr_expand":                  {`count(net.cidr_expand(a.x)) > 0`, map[string]any{"x": "::/64"}},
	"numbers.range":                    {`count(numbers.range(0, a.x)) > 0`, map[string]any{"x": 1e9}},
	"numbers.range_step":               {`count(numbers.range_step(0, a.x, 2)) > 0`, map[string]any{"x": 1e9}},
	"graph.reachable":                  {`count(graph.reachable(a.x, ["0"])) > 0`, map[string]any{"x": dense(250)}},
	"json.match_schema":                {`json.match_schema({"list": a.list}, {"properties": {"list": {"uniqueItems": true}}})[0]`, map[string]any{"list": repeated(10_000, 1)}},
	"json.match_schema, pattern":       {`json.match_schema({"x": a.x}, {"properties": {"x": {"pattern": "(a?){1000}"}}})[0]`, map[string]any{"x": strings.Repeat("a", 100_000)}},
	"json.match_schema, file":          {`json.match_schema({"x": 1}, a.x)[0]`, map[string]any{"x": map[string]any{"$ref": "file:///etc/schema.json"}}},
	"json.match_schema, itself":        {`json.match_schema({"x": 1}, a.x)[0]`, map[string]any{"x": `{"allOf": [{"\u0024ref": "#"}]}`}},
	"json.verify_schema":               {`json.verify_schema(a.x)[0]`, map[string]any{"x": map[string]any{"$ref": "http://192.0.2.1/"}}},
	"concat":                           {`count(concat(a.sep, a.list)) > 0`, map[string]any{"sep": strings.Repeat("-", 50_000), "list": repeated(10_000, "")}},
	"replace":                          {`count(replace(a.x, "", a.y)) > 0`, map[string]any{"x": strings.Repeat("x", 50_000), "y": strings.Repeat("y", 10_000)}},
	"sprintf, width":                   {`count(sprintf(a.x, [1])) > 0`, map[string]any{"x": strings.Repeat("%[1]999999d", 100)}},
	"sprintf, star":                    {`count(sprintf(a.x, [999999, 1])) > 0`, map[string]any{"x": strings.Repeat("%[1]*[2]d", 100)}},
	"sprintf, repeated":                {`count(sprintf(a.x, [a.x])) > 0`, map[string]any{"x": strings.Repeat("%[1]v", 10_000)}},
	"json.marshal_with_options":        {`count(json.marshal_with_options(a.list, {"indent": a.x, "prefix": a.x})) > 0`, map[string]any{"list": repeated(5000, 1), "x": strings.Repeat(" ", 50_000)}},
	"yaml.unmarshal":                   {`yaml.unmarshal(a.x) == 1`, map[string]any{"x": strings.Repeat("[", 2_000_000)}},
	"yaml.is_valid":                    {`yaml.is_valid(a.x)`, map[string]any{"x": strings.Repeat("[", 2_000_000)}},
	"json.unmarshal":                   {`json.unmarshal(a.x) * 2 > 0`, map[string]any{"x": strings.Repeat("9", 100_000)}},
	"json.unmarshal, exponent":         {`floor(json.unmarshal(a.x).n) > 0`, map[string]any{"x": `{"n": 1e20000}`}},
	"yaml.unmarshal, number":           {`yaml.unmarshal(a.x) * 2 > 0`, map[string]any{"x": strings.Repeat("9", 100_000)}},
	"to_number":                        {`to_number(a.x) > 0`, map[string]any{"x": "1e900000000"}},
	"units.parse":                      {`units.parse(a.x) > 0`, map[string]any{"x": strings.Repeat("9", 100_000)}},
	"units.parse_bytes":                {`units.parse_bytes(a.x) > 0`, map[string]any{"x": "1e900000"}},
	"mul":                              {`(((a.n * a.n) * a.n) * a.n) * a.n > 0`, map[string]any{"n": json.Number(strings.Repeat("9", 4000))}},
	"product":                          {`product(a.list) > 0`, map[string]any{"list": repeated(20_000, 1234567891)}},
	"sum":                              {`sum(a.list) > 0`, map[string]any{"list": repeated(2000, json.Number("1e9900"))}},
	"bits.lsh":                         {`bits.lsh(1, a.x) > 0`, map[string]any{"x": 1e12}},
	"io.jwt.verify_rs256":              {`io.jwt.verify_rs256("e30.e30.e30", a.x)`, map[string]any{"x": strings.Repeat("A", 50_000)}},
}

// TestBounds holds that no call of a built-in function is begun that takes too much time
// or memory, however its operands came about, and that this denies the call.
func TestBounds(t *testing.T) {
	for name, h := range hostile {
		t.Run(name, func(t *testing.T) {
			e, err := tryLoad(t, "p.rego", module("a := input.arguments\nallow contains {\"rule\": \"ok\"} if {\n"+h.condition+"\n}"))
			if err != nil {
				t.Fatal(err)
			}
			in := input("r", "t", asText(h.arguments))
			for by, judge := range map[string]decider{"the engine": e, "the reference": e.Reference()} {
				d, err := judge.Decide(t.Context(), in)
				if err == nil || d.Rule != rego.RuleError || !strings.Contains(err.Error(), "has the bounds") {
					t.Errorf("%s: got %+v, %v", by, d, err)
				}
			}
			if x, err := workbench.Explain(t.Context(), e, in, false); err != nil || !strings.Contains(x.Failure, "has the bounds") {
				t.Errorf("explained: got %+v, %v", x, err)
			}
		})
	}
	for name := range builtin.Works {
		tried := func(h string) bool { h, _, _ = strings.Cut(h, ","); return h == name }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(hostile)), tried) && !slices.Contains([]string{"plus", "minus", "div", "rem", "abs", "round", "ceil", "floor", "format_int", "bits.and", "bits.or", "bits.xor", "bits.negate", "bits.rsh"}, name) && !strings.HasPrefix(name, "io.jwt.") {
			t.Errorf("%s has no case", name)
		}
	}
}

// TestLongNumbers: a number of too many digits is refused as an argument.
func TestLongNumbers(t *testing.T) {
	e, err := tryLoad(t, "p.rego", module(`allow contains {"rule": "ok"} if is_number(input.arguments.n)`))
	if err != nil {
		t.Fatal(err)
	}
	for number, denied := range map[string]bool{"1e5000": false, "1e20000": true, "-0.5E+20000": true, strings.Repeat("9", 9000): false, strings.Repeat("9", 20_000): true} {
		for by, judge := range map[string]decider{"the engine": e, "the reference": e.Reference()} {
			d, err := judge.Decide(t.Context(), input("r", "t", `{"n": `+number+`}`))
			if denied != (err != nil) || denied != (d.Rule == rego.RuleError) || err != nil && !strings.Contains(err.Error(), "digits") {
				t.Errorf("%.20s by %s: got %+v, %v", number, by, d, err)
			}
		}
	}
}

// TestBoundsOfTests holds that the bounds hold for tests that are written in Rego, where
// a failing built-in function is otherwise undefined.
func TestBoundsOfTests(t *testing.T) {
	dir := writeFiles(t, "p.rego", module(`allow contains {"rule": "ok"}`), "p_test.rego",
		"package toolgate_test\nimport rego.v2\ntest_glob if not glob.match(\"*a*a*a*c*\", [], concat(\"\", [\"a\" | some i in numbers.range(1, 2000)]))\n")
	report, err := workbench.Test(t.Context(), workbench.TestOptions{Policy: rego.Options{Path: dir, Timeout: testTimeout}})
	if err != nil || len(report.Cases) != 1 || report.Cases[0].Outcome != workbench.Errored || !strings.Contains(report.Cases[0].Message, "has the bounds") {
		t.Errorf("got %+v, %v", report, err)
	}
}

// TestWithinBounds is the table of honest uses of bounded built-in functions.
func TestWithinBounds(t *testing.T) {
	list := make([]any, 1000)
	for i := range list {
		list[i] = fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)
	}
	in := input("r", "t", asText(map[string]any{"x": "https://api.example.org/v1/users/7?q=text", "file": "/home/ann/projects/tool/src/main.go", "list": list, "text": strings.Repeat("word ", 100_000),
		"n": json.Number("12345678901234567890.123456789"), "o": map[string]any{"action": "pay", "to": "ann", "amount": 7}, "pattern": "https://*.example.org/*"}))
	for _, condition := range []string{
		`some pattern in data.patterns; glob.match(pattern, [], a.x)`,
		`glob.match(a.pattern, [], lower(a.x))`,
		`glob.match("/home/*/projects/*/src/**", ["/"], a.file)`,
		`some pattern in data.regexes; regex.match(pattern, a.x)`,
		`regex.match("^(word ){1,10}", a.text)`,
		`not regex.match("BEGIN (RSA|EC) PRIVATE KEY", a.text)`,
		`regex.replace(a.x, "[0-9]+", "N") == "https://api.example.org/vN/users/N?q=text"`,
		`count(regex.find_n("[a-z]+", a.x, -1)) > 3`,
		`count(regex.split("/", a.file)) == 7`,
		`object.subset(a.o, {"action": "pay"})`,
		`object.subset({"action": ["pay", "move"]}, {"action": ["pay"]})`,
		`json.match_schema(a.o, {"type": "object", "properties": {"amount": {"type": "number", "maximum": 10}, "to": {"pattern": "^[a-z]{1,64}$"}}, "required": ["to"]})[0]`,
		`not json.match_schema(a.o, data.schema)[0]`,
		`net.cidr_contains_matches(["10.0.0.0/8"], [a.list[0]]) == {[0, 0]}`,
		`count(net.cidr_merge(a.list)) > 0`,
		`count(net.cidr_expand("10.0.0.0/16")) == 65536`,
		`count(numbers.range(1, 10000)) == 10000`,
		`trim(a.text, " ") != a.text`,
		`trim_left(a.file, "/") == "home/ann/projects/tool/src/main.go"`,
		`count(replace(a.text, " ", "&nbsp;")) > 500000`,
		`concat(", ", a.list) != ""`,
		`sprintf("%v may not pay %-10.2f of %s", [a.o.to, a.n, a.text]) != ""`,
		`indexof(a.text, "word") == 0`,
		`product([a.o.amount, 6]) == 42`,
		`bits.lsh(1, 40) == 1099511627776`,
		`sum([a.n, 1]) > a.n - 1`,
		`units.parse("10G") == 10000000000`,
		`json.unmarshal(json.marshal(a)).n == a.n`,
		`count(graph.reachable(data.graph, {"a"})) == 3`,
		`count(graph.reachable({"x": [a.o.to]}, {"x"})) == 1`,
	} {
		e, err := tryLoad(t, "p.rego", module("a := input.arguments\nallow contains {\"rule\": \"ok\"} if {\n"+condition+"\n}"),
			"data.json", `{"patterns": ["*.example.com", "https://*.example.org/*"], "regexes": ["^http:", "^https://[a-z.]{1,64}/"], "graph": {"a": ["b"], "b": ["c"], "c": ["a"]}, "schema": {"required": ["from"]}}`)
		if err != nil {
			t.Errorf("%s: %v", condition, err)
			continue
		}
		if d, err := e.Decide(t.Context(), in); err != nil || d.Effect != policy.Allow {
			t.Errorf("%s: got %+v, %v", condition, d, err)
		}
	}
}

// TestLateEvaluations holds that nothing is evaluated while several evaluations go on
// beyond their time, and again as soon as they have ended.
func TestLateEvaluations(t *testing.T) {
	e, err := tryLoad(t, "p.rego", module(`allow contains {"rule": "ok"} if input.arguments.x`))
	if err != nil {
		t.Fatal(err)
	}
	in := input("r", "t", `{"x": true}`)
	end, ended := make(chan struct{}), make(chan error)
	for range rego.MaxLate {
		go func() { ended <- e.Overrun(func() { <-end }) }()
	}
	for rego.Late() < rego.MaxLate {
		runtime.Gosched()
	}
	if d, err := e.DecideFully(t.Context(), in); err == nil || d.Rule != rego.RuleError || !strings.Contains(err.Error(), "beyond their time") {
		t.Errorf("with late evaluations: got %+v, %v", d, err)
	}
	close(end)
	for range rego.MaxLate {
		if err := <-ended; err == nil {
			t.Error("a late evaluation is no error")
		}
	}
	if d, err := e.DecideFully(t.Context(), in); err != nil || d.Effect != policy.Allow {
		t.Errorf("without late evaluations: got %+v, %v", d, err)
	}
}

func asText(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
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
	parts.Long(t, "decides large arguments")
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
				long := err != nil && shape == "digits" && strings.Contains(err.Error(), "digits")
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
