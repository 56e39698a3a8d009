package rego

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// testTimeout bounds one test written in Rego, unless the timeout of the policy is longer.
const testTimeout = 5 * time.Second

// ReadFiles reads the files at where that keep wants, by slash path: of the embedded default for
// "", else of a directory or a bundle archive (.tar.gz). It looks into a hidden folder if keep
// wants that, named with a slash at its end. It has the bounds of Load.
func ReadFiles(where string, keep func(name string) bool) (map[string][]byte, error) {
	return readSource(where, keep)
}

// ParseModule parses the Rego of a file as that of a policy: a built-in function that policies may
// not use is an error. The error names the place.
func ParseModule(name string, content []byte) (*ast.Module, error) {
	m, err := ast.ParseModuleWithOpts(name, string(content), ast.ParserOptions{ProcessAnnotation: true, Capabilities: capabilities()})
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
		SetCompiler(newCompiler().WithEnablePrintStatements(true)).
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
// returns no decision, and fails where a decision would be a denial by a policy that failed.
func (e *Engine) Trace(ctx context.Context, in *policy.Input, tracers ...topdown.QueryTracer) error {
	_, err := e.traced(ctx, in, tracers...)
	return err
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

// Cause returns the reason of a failed evaluation on one line, without the code path.
func Cause(err error) string { return cause(err) }
