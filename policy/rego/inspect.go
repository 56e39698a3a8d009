package rego

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego/builtin"
)

// testTimeout bounds one test written in Rego, unless the timeout of the policy is longer.
const testTimeout = 5 * time.Second

// ParseModule parses the Rego of a file as that of a policy: a built-in function that policies may
// not use is an error. The error names the place.
func ParseModule(name string, content []byte) (*ast.Module, error) {
	m, err := ast.ParseModuleWithOpts(name, string(content), ast.ParserOptions{ProcessAnnotation: true, Capabilities: builtin.Capabilities()})
	if err != nil {
		return nil, faults(err)
	}
	return m, nil
}

// Modules returns the Rego of the policy by file, which is named with a slash before it. The caller
// must not change the modules.
func (e *Engine) Modules() map[string]*ast.Module { return maps.Clone(e.sources.modules) }

// RunTests runs the rules test_… of modules whose name matches the pattern filter, on the data of
// the policy, and returns their results. Built-in functions that fail make a test an error, as they
// make a decision a denial. Each test has testTimeout, or the timeout of the policy if that is longer.
// set may configure the runner. The error says why modules do not compile.
func (e *Engine) RunTests(ctx context.Context, modules map[string]*ast.Module, filter string, set func(*tester.Runner)) ([]*tester.Result, error) {
	r := tester.NewRunner().
		SetCompiler(NewCompiler().WithEnablePrintStatements(true)).
		SetStore(e.program.store).SetModules(modules).SetTimeout(max(testTimeout, e.timeout)).
		CapturePrintOutput(true).RaiseBuiltinErrors(true).Filter(filter)
	set(r)
	ch, err := r.RunTests(ctx, e.program.txn)
	if err != nil {
		return nil, fmt.Errorf("compiling tests:\n%w", faults(err))
	}
	var out []*tester.Result
	for res := range ch {
		out = append(out, res)
	}
	return out, nil
}

// Trace evaluates the policy for in, whole and without indexes of rules, while tracers watch. It
// costs many times what Decide does. The error says why the policy failed. A policy without an answer
// has not failed.
func (e *Engine) Trace(ctx context.Context, in *policy.Input, tracers ...topdown.QueryTracer) error {
	input, err := e.Input(in)
	if err != nil {
		return err
	}
	watch := func(q *topdown.Query) {
		q.WithIndexing(false) // an index would hide why a rule does not hold
		for _, t := range tracers {
			q.WithQueryTracer(t)
		}
	}
	_, err = e.eval(ctx, e.program.decision, nil, max(tryTimeout, e.timeout), func(topdown.Cancel) (ast.Value, error) { return input.Value, nil }, watch)
	if errors.Is(err, errUndefined) {
		return nil
	}
	return err
}

// Input returns the input of the policy for in, with the facts of its tool.
func (e *Engine) Input(in *policy.Input) (*ast.Term, error) {
	return termOf(e.program.withFacts(in), topdown.NewCancel())
}

// Compiler returns the compiled policy, which the caller must not change.
func (e *Engine) Compiler() *ast.Compiler { return e.program.compiler }

// Data returns the data of the policy, which the caller must not change.
func (e *Engine) Data() ast.Value { return e.program.data }

// Source returns the data of the policy as it was written, with what lies over it, and the members
// of data whose form a policy declares. The caller must not change them.
func (e *Engine) Source() (data map[string]any, declared []string) {
	return e.sources.data, declaredData(e.sources.modules)
}

// Answers reports whether the policy has the rule trail, one of a right, or any other of package toolgate.
func (e *Engine) Answers(rule string) bool {
	return len(e.program.compiler.GetRules(ast.MustParseRef("data.toolgate."+rule))) > 0
}

// RuleText returns the place, file:row, and the text of the first rule with an id; "" for none.
func (e *Engine) RuleText(id string) (where, text string) {
	for _, name := range slices.Sorted(maps.Keys(e.sources.modules)) {
		for _, r := range e.sources.modules[name].Rules {
			if idsOf(r, textLabels(r))[id] {
				return WhereOf(r.Location), string(r.Location.Text)
			}
		}
	}
	return "", ""
}

// PathOf returns the path of a member of data in words of Rego.
func PathOf(path ...string) string { return "data" + dotted(path) }

// WhereOf returns a place as FILE:ROW, "" for none.
func WhereOf(l *ast.Location) string { return at(l, "", "", "", "").Where() }

// Decides reports whether the rule r gave the decision d, if it holds. In a policy that answers with
// sets that is the rule with the id of the decision: one of the set of its effect, or one that such a
// rule asks.
func Decides(r *ast.Rule, d *policy.Decision) bool {
	switch effect, ok := effectOfRule(r); {
	case ok && effect == "":
		return true
	case ok && effect != d.Effect:
		return false
	}
	return r.Head.RuleKind() == ast.MultiValue && idsOf(r, textLabels(r))[d.Rule]
}

// ReadMembers reads the members of a decision that the object v has. Others stay zero, and members
// that a decision does not have are an error, as in the answer of a policy.
func ReadMembers(v any) (d policy.Decision, err error) {
	value, err := ast.InterfaceToValue(v)
	if err != nil {
		return d, err
	}
	return d, eachMember(value, "the decision", func(name string, v ast.Value) error {
		err := decisionMembers.readMember(&d, name, v)
		if name == "effect" && err == nil && d.Effect != policy.Allow && d.Effect != policy.Hold && d.Effect != policy.Deny {
			return fmt.Errorf("is %q, want allow, hold or deny", d.Effect)
		}
		return err
	})
}
