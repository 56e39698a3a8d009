package workbench_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// payments is a policy with a threshold, for tests of tests.
var payments = []string{
	"p.rego", module(`
decision := {"effect": "deny", "rule": "no-number"} if not is_number(input.arguments.amount)
decision := {"effect": "hold", "rule": "large", "approval": {"roles": ["boss"], "ttl": "15m"}} if {
	is_number(input.arguments.amount)
	input.arguments.amount > data.most
}
decision := {"effect": "allow", "rule": "small", "limit": {"rate": "5/1m"}, "redact": ["/iban"]} if {
	is_number(input.arguments.amount)
	input.arguments.amount <= data.most
}
unused if to_number(input.arguments.text) == 1
`),
	"data.json", `{"most": 100}`,
}

func runTests(t *testing.T, o workbench.TestOptions, files ...string) *workbench.TestReport {
	t.Helper()
	o.Policy = rego.Options{Path: writeFiles(t, append(slices.Clone(payments), files...)...), Timeout: testTimeout}
	r, err := workbench.Test(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range r.Cases {
		if rel, err := filepath.Rel(o.Policy.Path, c.File); err == nil {
			r.Cases[i].File = filepath.ToSlash(rel)
		}
	}
	return r
}

func outcomes(r *workbench.TestReport) []string {
	var out []string
	for _, c := range r.Cases {
		out = append(out, fmt.Sprintf("%s %s:%d %s", c.Outcome, c.File, c.Row, c.Name))
	}
	return out
}

const regoTests = `package pay_test

import rego.v2
import data.toolgate

doc(amount) := {"arguments": {"amount": amount}}

test_small if toolgate.decision.effect == "allow" with input as doc(100)

test_wrong if {
	amount := 101
	print("it is", amount)
	toolgate.decision.rule == "small" with input as doc(amount)
}

test_each[name] if {
	some name, amount in {"few": 1, "many": 1000}
	toolgate.decision.effect == "allow" with input as doc(amount)
}

todo_test_later if false

test_fails if toolgate.unused with input as {"arguments": {"text": "x"}}
`

func TestRegoTests(t *testing.T) {
	r := runTests(t, workbench.TestOptions{}, "deep/pay_test.rego", regoTests)
	want := []string{
		"pass deep/pay_test.rego:8 data.pay_test.test_small",
		"fail deep/pay_test.rego:10 data.pay_test.test_wrong",
		"pass deep/pay_test.rego:16 data.pay_test.test_each/few",
		"fail deep/pay_test.rego:16 data.pay_test.test_each/many",
		"skip deep/pay_test.rego:21 data.pay_test.todo_test_later",
		"error deep/pay_test.rego:23 data.pay_test.test_fails",
	}
	if diff := cmp.Diff(want, outcomes(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i, part := range map[int]string{
		1: "deep/pay_test.rego:13 does not hold:\ntoolgate.decision.rule == \"small\" with input as doc(amount)",
		3: "deep/pay_test.rego:18 does not hold:",
		5: "to_number",
	} {
		if got := strings.ReplaceAll(r.Cases[i].Message, "\t", ""); !strings.Contains(got, part) {
			t.Errorf("%s: says %q, want %q", r.Cases[i].Name, got, part)
		}
	}
	if r.Cases[1].Output != "it is 101\n" || r.Cases[1].Trace != "" || r.Coverage != nil {
		t.Errorf("got %+v", r.Cases[1])
	}
	r = runTests(t, workbench.TestOptions{Run: "test_w", Trace: true}, "pay_test.rego", regoTests)
	if diff := cmp.Diff([]string{"fail pay_test.rego:10 data.pay_test.test_wrong"}, outcomes(r)); diff != "" || !strings.Contains(r.Cases[0].Trace, "Enter data.pay_test.test_wrong") {
		t.Errorf("one test, traced: %s\n%s", diff, r.Cases[0].Trace)
	}
}

const yamlTable = `# what treasurers may
input:
  principal: {roles: [treasurer]}
  tool: {exposed: pay, risk: high}
  arguments: {currency: USD}
cases:
  - name: small
    input: {arguments: {amount: 100}}
    want: allow
  - want: {effect: deny, rule: no-number}
  - name: large, with its obligations
    input: {arguments: {amount: 100.00000000000000000000000000001}}
    want: {effect: hold, approval: {roles: [boss], ttl: 15m}}
  - name: wrong rule
    input: &big {arguments: {amount: 1e9}}
    want: {effect: hold, rule: small}
  - name: wrong obligations
    input: *big
    want: {approval: {roles: [clerk], ttl: 15m}}
  - name: limit and redaction
    input: {arguments: {amount: 1}}
    want: {limit: {rate: 5/1m}, redact: [/iban]}
  - name: no redaction wanted
    input: {arguments: {amount: 1}}
    want: {redact: []}
  - name: text is no number
    input: {arguments: {amount: "5"}}
    want: deny
  - name: only the roles of the approval
    input: *big
    want: {approval: {roles: [boss]}}
  - name: another time of the approval
    input: *big
    want: {approval: {ttl: 1h}}
`

func TestTables(t *testing.T) {
	r := runTests(t, workbench.TestOptions{}, "t_test.yaml", yamlTable)
	want := []string{
		"pass t_test.yaml:7 t_test.yaml/small",
		"pass t_test.yaml:10 t_test.yaml/case 2",
		"pass t_test.yaml:11 t_test.yaml/large, with its obligations",
		"fail t_test.yaml:14 t_test.yaml/wrong rule",
		"fail t_test.yaml:17 t_test.yaml/wrong obligations",
		"pass t_test.yaml:20 t_test.yaml/limit and redaction",
		"fail t_test.yaml:23 t_test.yaml/no redaction wanted",
		"pass t_test.yaml:26 t_test.yaml/text is no number",
		"pass t_test.yaml:29 t_test.yaml/only the roles of the approval",
		"fail t_test.yaml:32 t_test.yaml/another time of the approval",
	}
	if diff := cmp.Diff(want, outcomes(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := r.Cases[9].Message; !strings.HasPrefix(got, `approval.ttl: want "1h0m0s", got "15m0s" (`) {
		t.Errorf("got %q", got)
	}
	if got := r.Cases[3].Message; got != `rule: want "small", got "large" (the decision: hold by large)` {
		t.Errorf("got %q", got)
	}
	// JSON says the same, as a bare list.
	r = runTests(t, workbench.TestOptions{}, "t_test.json", `[{"name": "a", "input": {"tool": {"exposed": "pay"}, "arguments": {"amount": 12345678901234567890123}}, "want": "hold"}]`)
	if diff := cmp.Diff([]string{"pass t_test.json:1 t_test.json/a"}, outcomes(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBadTables holds that a table which cannot be read is an error with its
// line, and no test that passes.
func TestBadTables(t *testing.T) {
	const tool = "input: {tool: {exposed: pay}}"
	for text, want := range map[string]string{
		"":                                       "nothing in it",
		"a: [":                                   "did not find",
		"cases: []":                              "line 1: cases are no list with something in it",
		"input: {}":                              "line 1: cases are missing",
		"hello":                                  "line 1: cases are no list",
		"case: []":                               "line 1: case is not known",
		"cases:\n- {" + tool + "}":               "line 2: want is missing",
		"- want: allow":                          "line 1: reading input: tool: wanted",
		"- {" + tool + ", want: maybe}":          `line 1: want: the decision: effect: is "maybe"`,
		"- {" + tool + ", want: {efect: allow}}": "efect: is not known",
		"- {" + tool + ", want: {approval: {ttl: 5}}}":                                  "ttl: is number",
		"- {" + tool + ", want: allow, want: deny}":                                     "line 1: want is there twice",
		"- {" + tool + ", wants: allow}":                                                "wants is not known",
		"- {input: {tool: {exposed: pay}, argument: {}}, want: allow}":                  `unknown field "argument"`,
		"- {input: {tool: {exposed: pay, nam: x}}, want: allow}":                        `unknown field "nam"`,
		"- {input: {tool: {exposed: pay}, arguments: {a: 1, a: 2}}, want: allow}":       "a is there twice",
		"- {input: {tool: {exposed: pay}, arguments: {a: .inf}}, want: allow}":          ".inf is no number",
		"- {input: {tool: {exposed: pay}, arguments: {a: 0x10}}, want: allow}":          "0x10 is no number",
		"- {input: {tool: {exposed: pay}, arguments: {a: !!binary aGk=}}, want: allow}": "cannot be told in JSON",
		"- {input: [], want: allow}":                                                    "input is not an object",
		"- {" + tool + ", want: &a {effect: [*a, *a, *a]}}":                             "more than",
		"- {" + tool + ", want: allow}\n---\n- {}":                                      "more than one document",
	} {
		_, err := workbench.Test(t.Context(), workbench.TestOptions{Policy: rego.Options{Timeout: testTimeout, Path: writeFiles(t, append(slices.Clone(payments), "x_test.yaml", text)...)}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "x_test.yaml") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestBesideAndFaults(t *testing.T) {
	beside := writeFiles(t, "more_test.rego", "package more_test\nimport rego.v2\nimport data.helpers\ntest_more if helpers.two == 2", "helpers.rego", "package helpers\ntwo := 2", "data.json", `{"most": 0}`)
	r := runTests(t, workbench.TestOptions{Beside: []string{beside, filepath.Join(beside, "more_test.rego")}}, "t_test.yaml", yamlTable)
	if n := r.Count(workbench.Passed); n != 7 {
		t.Errorf("got %v", outcomes(r))
	}
	for files, want := range map[[2]string]string{
		{"p_test.rego", "package p_test\ntest_x if {"}:                             "parsing tests:\n",
		{"p_test.rego", "package p_test\nimport rego.v2\ntest_x if y"}:             "var y is unsafe",
		{"p_test.rego", "package p_test\nimport rego.v2\ntest_x if http.send({})"}: "undefined function http.send",
		{"broken.rego", "package toolgate\nx := "}:                                 "parsing policy:\nbroken.rego:2",
	} {
		_, err := workbench.Test(t.Context(), workbench.TestOptions{Policy: rego.Options{Timeout: testTimeout, Path: writeFiles(t, append(slices.Clone(payments), files[0], files[1])...)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", files[1], err, want)
		}
	}
	for _, o := range []workbench.TestOptions{{Run: "("}, {Beside: []string{"nowhere"}}, {Policy: rego.Options{Path: "nowhere"}}} {
		if _, err := workbench.Test(t.Context(), o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// TestCoverage holds that lines count which tests in Rego or tables reach, and
// no others.
func TestCoverage(t *testing.T) {
	r := runTests(t, workbench.TestOptions{Coverage: true}, "t_test.yaml", "- {input: {tool: {exposed: pay}, arguments: {amount: 1}}, want: allow}")
	if len(r.Coverage.Files) != 1 || r.Coverage.Files[0].File != "p.rego" || r.Coverage.Percent < 40 || r.Coverage.Percent > 90 {
		t.Fatalf("got %+v", r.Coverage)
	}
	missing := func(row int) bool {
		return slices.ContainsFunc(r.Coverage.Files[0].Missing, func(m [2]int) bool { return m[0] <= row && row <= m[1] })
	}
	for row, want := range map[int]bool{5: true, 9: false, 10: false, 13: true} {
		if missing(row) != want {
			t.Errorf("line %d: missing is %v, want %v: %v", row, !want, want, r.Coverage.Files[0].Missing)
		}
	}
	r = runTests(t, workbench.TestOptions{Coverage: true},
		"t_test.yaml", "- {input: {tool: {exposed: pay}, arguments: {amount: 1}}, want: allow}\n- {input: {tool: {exposed: pay}}, want: deny}",
		"p_test.rego", "package p_test\nimport rego.v2\nimport data.toolgate\ntest_large if toolgate.decision.effect == \"hold\" with input as {\"arguments\": {\"amount\": 101}}\ntest_u if toolgate.unused with input as {\"arguments\": {\"text\": \"1\"}}")
	if r.Coverage.Percent != 100 || len(r.Coverage.Files[0].Missing) != 0 {
		t.Errorf("got %+v", r.Coverage)
	}
}

// FuzzTable holds that a table is read or refused, and that an input which was
// read is one that policies can be asked about.
func FuzzTable(f *testing.F) {
	f.Add([]byte(yamlTable))
	f.Add([]byte(`[{"input": {"tool": {"exposed": "pay"}}, "want": {"effect": "deny", "rule": "x"}}]`))
	f.Add([]byte("- &a {want: *a}"))
	f.Add([]byte("cases:\n- {input: {action: resources/read, resource: {server: s, uri: u}}, want: deny}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		inputs, err := workbench.ReadTable(content)
		if err != nil {
			return
		}
		if len(inputs) == 0 {
			t.Error("a table without cases was read")
		}
		for _, in := range inputs {
			raw, err := json.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			var document any // as OPA reads it
			if err := util.UnmarshalJSON(raw, &document); err != nil {
				t.Errorf("%s: %v", raw, err)
			}
		}
	})
}

// TestTableMetersBeginAtZero holds that a case without usage is judged like a first call, and
// that other meters of a case that names some stand at 0 too.
func TestTableMetersBeginAtZero(t *testing.T) {
	const table = `
input: {tool: {exposed: t}}
cases:
  - want: allow
  - {input: {usage: {day: {calls: 1, sum: 0}}}, want: allow}
  - {input: {usage: {week: {calls: 9, sum: 0}}}, want: deny}
  - {input: {tool: {exposed: other}, usage: {day: {calls: 0, sum: 0}}}, want: deny}
`
	dir := writeFiles(t, "p.rego", module(`allow contains {"rule": "r"} if { input.usage.day.calls < 5; input.usage.week.calls < 5 }`),
		"data.json", `{"usage": {"t": {"day": {"window": "24h"}, "week": {"window": "168h"}}}}`, "t_test.yaml", table)
	report, err := workbench.Test(t.Context(), workbench.TestOptions{Policy: rego.Options{Path: dir, Timeout: testTimeout}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Cases {
		if c.Outcome != workbench.Passed {
			t.Errorf("%s: %s", c.Name, c.Message)
		}
	}
}
