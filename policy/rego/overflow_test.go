package rego_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	oparego "github.com/open-policy-agent/opa/v1/rego"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// overflowing is a policy of which OPA overflows its stack where keys coincide: see
// docs/evidence/opa-overflow.md. KEYS are definitions of k, l and m, and WHEN is what a
// call needs for the rules to be asked.
const overflowing = `package toolgate
import rego.v2
KEYS
p contains x if {
	obj = {"a": {k: 1, l: {"v": 2}}}
	obj[_] = {m: {"v": 2}, "x": x}
}
answers contains [x] if p = x
deny contains {"rule": "no"} if {
	WHEN
	count(answers) > 0
}
allow contains {"rule": "ok"}
`

func overflowingPolicy(t testing.TB, keys, when string) string {
	return writeFiles(t, "p.rego", strings.NewReplacer("KEYS", keys, "WHEN", when).Replace(overflowing),
		"data.json", `{"k": "x", "l": "x", "m": "x", "roles": {"r": {"tools": {"t": true}}}}`)
}

// Keys from the call, which coincide only in some calls, and keys of data.
const (
	plainKeys = "k := input.arguments.k\nl := input.arguments.l\nm := input.arguments.m"
	ruleKeys  = "k := y if y := n.k\nl := n.l\nm := n.m\nn := input.arguments"
	lowerKeys = "k := lower(input.arguments.k)\nl := lower(input.arguments.l)\nm := lower(input.arguments.m)"
	dataKeys  = "k := data.k\nl := data.l\nm := data.m"
	called    = "is_string(input.arguments.k)"
)

var (
	coinciding = input("r", "t", `{"k":"x","l":"x","m":"x"}`)
	different  = input("r", "t", `{"k":"a","l":"b","m":"c"}`)
)

// overflows are the ways to evaluate a policy, each with what must become of
// coinciding keys.
var overflows = map[string]func(t *testing.T){
	"a decision":                func(t *testing.T) { denies(t, func(e *rego.Engine) decider { return e }) },
	"a decision without memory": func(t *testing.T) { denies(t, func(e *rego.Engine) decider { return fully{e} }) },
	"the reference":             func(t *testing.T) { denies(t, func(e *rego.Engine) decider { return e.Reference() }) },
	"an explanation": func(t *testing.T) {
		for _, keys := range []string{plainKeys, ruleKeys, lowerKeys} {
			e, err := rego.Load(t.Context(), rego.Options{Path: overflowingPolicy(t, keys, called), Timeout: testTimeout})
			if err != nil {
				t.Fatal(err)
			}
			x, err := workbench.Explain(t.Context(), e, coinciding, true)
			if err != nil || x.Decision.Rule != rego.RuleError || !strings.Contains(x.Failure, "requires evaluation") {
				t.Errorf("got %+v, %v", x, err)
			}
		}
	},
	"partial evaluation with known keys": func(t *testing.T) {
		o := rego.Options{Path: overflowingPolicy(t, dataKeys, called), Timeout: testTimeout}
		e, _, err := rego.Check(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		out, err := workbench.OutlineOf(t.Context(), e, coinciding.Principal, coinciding.Tool)
		if err != nil || !strings.Contains(out.Whole, "requires evaluation") {
			t.Errorf("got %+v, %v", out, err)
		}
	},
	"a trial of a policy": func(t *testing.T) {
		_, err := rego.Load(t.Context(), rego.Options{Path: overflowingPolicy(t, dataKeys, "true"), Timeout: testTimeout})
		if err == nil || !strings.Contains(err.Error(), "requires evaluation") {
			t.Errorf("got %v", err)
		}
	},
	"tests": func(t *testing.T) {
		dir := overflowingPolicy(t, plainKeys, called)
		const tests = `package toolgate_test
import rego.v2
test_same if count(data.toolgate.deny) == 1 with input.arguments as {"k": "x", "l": "x", "m": "x"}
test_other if count(data.toolgate.deny) == 1 with input.arguments as {"k": "a", "l": "b", "m": "c"}
`
		if err := os.WriteFile(filepath.Join(dir, "p_test.rego"), []byte(tests), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, coverage := range []bool{false, true} {
			report, err := workbench.Test(t.Context(), workbench.TestOptions{Policy: rego.Options{Path: dir, Timeout: testTimeout}, Coverage: coverage, Trace: true})
			if err != nil || len(report.Cases) != 2 {
				t.Fatalf("got %+v, %v", report, err)
			}
			same, other := report.Cases[0], report.Cases[1]
			if same.Name != "data.toolgate_test.test_same" || same.Row != 3 || same.Outcome != workbench.Errored || !strings.Contains(same.Message, "requires evaluation") || other.Outcome != workbench.Passed {
				t.Errorf("got %+v and %+v", same, other)
			}
		}
	},
}

// TestCoincidingKeys holds that object literals whose keys coincide are judged as OPA
// judges them, where they leave no variable without a value.
func TestCoincidingKeys(t *testing.T) {
	for condition, want := range map[string][2]bool{ // with the same keys, and with others
		`count({a.k: true, a.l: true}) == 2`:                             {false, true},
		`count({lower(a.k): true, upper(a.l): true}) == 2`:               {true, true},
		`k := lower(a.k); l := lower(a.l); count({k: 1, l: 1}) == 2`:     {false, true},
		`v := count(a); o := {a.k: v, a.l: v}; o[a.l] == 3`:              {true, true},
		`{a.k: 1, a.l: 1} == {"x": 1}`:                                   {false, false},
		`not object.get({a.k: 1, a.l: 1}, "x", 0) == 1`:                  {false, true},
		`count([1 | some i in [1, 2]; {a.k: i, a.l: i}[a.k] == 2]) == 1`: {true, true},
		`{a.k: y, "other": z} = {a.k: 1, "other": 2}; y + z == 3`:        {true, true},
		`some o in [{a.k: 1, "n": 2}]; o = {a.k: y, "n": z}; y + z == 3`: {true, true},
		`pair(a.k, {a.k: 1, "other": 2}) == [1, 2]`:                      {true, true},
		`every o in [{a.k: 1, a.l: 1}] { count(o) == 1 }`:                {true, false},
		`{a.k: v | some v in [1, 1]} == {a.k: 1}`:                        {true, true},
		`walk({a.k: 1, "other": 2}, [[a.k], n]); n == 1`:                 {true, true},
		`{a.k: _, a.l: _} = {a.k: 1, a.l: 1}`:                            {true, true},
	} {
		source := module("a := input.arguments\npair(k, o) := [o[k], n] if {k: _, \"other\": n} = o\nallow contains {\"rule\": \"ok\"} if {\n" + condition + "\n}")
		e, err := tryLoad(t, "p.rego", source)
		if err != nil {
			t.Errorf("%s: %v", condition, err)
			continue
		}
		for i, in := range []*policy.Input{coinciding, different} {
			rs, err := oparego.New(oparego.Module("p.rego", source), oparego.Query("data.toolgate.allow[_]"), oparego.Input(map[string]any{"arguments": in.Arguments})).Eval(t.Context())
			if err != nil || (len(rs) > 0) != want[i] {
				t.Errorf("%s with %s: OPA says %v, %v", condition, in.Arguments, rs, err)
			}
			d, err := e.Decide(t.Context(), in)
			if err != nil || (d.Effect == policy.Allow) != want[i] {
				t.Errorf("%s with %s: got %+v, %v", condition, in.Arguments, d, err)
			}
		}
	}
}

// TestUnboundVariables holds that a variable which a pattern or itself would leave
// without a finite value is an error wherever it is.
func TestUnboundVariables(t *testing.T) {
	for condition, rules := range map[string]string{
		`of[_] = {a.m: {"v": 2}, "x": y}; y == 1`:                        "",
		`count([y | of[_] = {a.m: {"v": 2}, "x": y}]) >= 0`:              "",
		`count({y | of[_] = {a.m: {"v": 2}, "x": y}}) >= 0`:              "",
		`count({y: 1 | of[_] = {a.m: {"v": 2}, "x": y}}) >= 0`:           "",
		`every v in [1] { of[_] = {a.m: {"v": 2}, "x": y}; y == v }`:     "",
		`count(p[["x"]]) >= 0`:                                           `p[k] contains [x] if { some k in ["b", ["x"]]; of[_] = {a.m: {"v": 2}, "x": x} }`,
		`count(p) >= 0`:                                                  `p[k] contains x if { k := a.k; of[_] = {a.m: {"v": 2}, "x": x} }`,
		`of[_] = {a.m: {"v": 2}, "x": y}; p with input.arguments.k as y`: "p if a.k == 1",
		`count(pair(a.m, of.a)) == 3`:                                    `pair(k, {k: z, "x": y}) := [k, y, z]`,
		`k = {{k}}`:                                                      "",
		`{"b": {k: 1}} = k`:                                              "",
	} {
		dir := writeFiles(t, "p.rego", module("a := input.arguments\nof := {\"a\": {a.k: 1, a.l: {\"v\": 2}}}\n"+rules+"\nallow contains {\"rule\": \"ok\"} if {\n"+condition+"\n}"))
		e, err := rego.LoadUntried(t.Context(), rego.Options{Path: dir, Timeout: testTimeout})
		if err != nil {
			t.Errorf("%s: %v", condition, err)
			continue
		}
		if d, err := e.Decide(t.Context(), coinciding); err == nil || !strings.Contains(err.Error(), "requires evaluation") || d.Rule != rego.RuleError {
			t.Errorf("%s: got %+v, %v", condition, d, err)
		}
	}
}

// TestOnlyGroundResults holds that an evaluation does not keep a result with a variable.
func TestOnlyGroundResults(t *testing.T) {
	for term, keeps := range map[string]bool{`{1, "x"}`: true, `[1, {"a": {2}}]`: true, `{x}`: false, `[1, {"a": {x}}]`: false} {
		if rego.Keeps(ast.MustParseTerm(term)) != keeps {
			t.Errorf("%s: want %v", term, keeps)
		}
	}
}

type decider interface {
	Decide(ctx context.Context, in *policy.Input) (policy.Decision, error)
}

// fully decides by evaluations that nothing was kept for.
type fully struct{ engine *rego.Engine }

func (f fully) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	return f.engine.DecideFully(ctx, in)
}

// denies holds that coinciding keys are denied, and other keys judged.
func denies(t *testing.T, by func(*rego.Engine) decider) {
	for _, keys := range []string{plainKeys, ruleKeys, lowerKeys} {
		e, err := rego.Load(t.Context(), rego.Options{Path: overflowingPolicy(t, keys, called), Timeout: testTimeout})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			d, err := by(e).Decide(t.Context(), coinciding)
			if err == nil || !strings.Contains(err.Error(), "requires evaluation") || d.Rule != rego.RuleError || d.Effect != policy.Deny {
				t.Errorf("%s: the same keys: got %+v, %v", keys, d, err)
			}
			if d, err = by(e).Decide(t.Context(), different); err != nil || d.Rule != "no" {
				t.Errorf("%s: different keys: got %+v, %v", keys, d, err)
			}
		}
	}
}

// TestNoOverflow holds that no way to evaluate a policy overflows the stack where OPA
// does. Each runs in a process of its own, because an overflow ends the process.
func TestNoOverflow(t *testing.T) {
	const child = "TOOLGATE_TEST_OVERFLOW"
	for name, try := range overflows {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(child) != "" {
				debug.SetMaxStack(64 << 20) // an overflow takes less memory
				try(t)
				return
			}
			t.Parallel()
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stop()
			c := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestNoOverflow$/^"+strings.ReplaceAll(name, " ", "_")+"$")
			c.Env = append(os.Environ(), child+"=1")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v:\n%s", err, out[:min(len(out), 2000)])
			}
		})
	}
}
