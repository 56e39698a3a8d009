package rego

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// constant is what one look at a pair has found: the verdict of every call, or
// nil when the verdict may depend on the call.
type constant struct{ verdict *policy.Decision }

var errDepends = errors.New("the verdict depends on the call")

// constantOf returns what is known of every call of a pair, and looks for at
// most within if nobody has. Only an ended context is an error; what it cuts
// short is not remembered.
//
// The policy is evaluated once, whole, without arguments, request and usage,
// under a tracer, with rule indexing off, because an index reads the input
// without an event, and without early exit, which passes over rules that a call
// can reach. If no expression that is evaluated mentions anything of a
// call, no call can take another way through the policy: an expression that
// was reached has the same value in every call, and one that was not reached is
// reached in none. The policy is then evaluated once more as calls are, and has
// to answer the same. A failing policy has no constant verdict.
func (e *Engine) constantOf(ctx context.Context, known *pair, within time.Duration) (*constant, error) {
	if c := known.constant.Load(); c != nil {
		return c, nil
	}
	begin := time.Now()
	c := new(constant)
	found, err := e.traceConstant(ctx, known, within)
	if err == nil {
		var whole policy.Decision
		whole, err = e.close(e.evaluate(ctx, &policy.Input{}, known, within-time.Since(begin)))
		if err == nil && reflect.DeepEqual(found, whole) {
			c.verdict = &whole
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	known.constant.Store(c)
	return c, nil
}

// traceConstant evaluates the policy without a call. An error means that the
// verdict is not known to be constant.
func (e *Engine) traceConstant(ctx context.Context, known *pair, within time.Duration) (policy.Decision, error) {
	input := ast.NewObject([2]*ast.Term{keyAction, actionCall},
		[2]*ast.Term{keyPrincipal, known.principalTerm}, [2]*ast.Term{keyTool, known.toolTerm})
	t := new(callTracer)
	v, err := e.eval(ctx, &e.program.decision, within, func(c topdown.Cancel) (ast.Value, error) {
		t.cancel = c
		return input, nil
	}, rego.EvalRuleIndexing(false), rego.EvalEarlyExit(false), rego.EvalQueryTracer(t))
	if t.depends {
		return policy.Decision{}, errDepends
	}
	if err != nil {
		return e.close(policy.Decision{}, err)
	}
	return e.close(e.program.form.decode(v))
}

// callTracer finds out whether an evaluation mentions anything of a call, and
// ends the evaluation when it does.
type callTracer struct {
	depends bool
	cancel  topdown.Cancel
}

// Enabled implements topdown.QueryTracer.
func (t *callTracer) Enabled() bool { return !t.depends }

// Config implements topdown.QueryTracer.
func (t *callTracer) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

// TraceEvent implements topdown.QueryTracer.
func (t *callTracer) TraceEvent(ev topdown.Event) {
	if t.depends {
		return
	}
	switch node := ev.Node.(type) {
	case *ast.Rule:
		t.depends = ev.Op == topdown.EnterOp && mentionsCall(node.Head)
	case *ast.Expr:
		t.depends = ev.Op == topdown.EvalOp && mentionsCall(node)
	}
	if t.depends {
		t.cancel.Cancel()
	}
}

// knownBeforeCall are the members of input that are the same in every call of
// a pair, those included that no call has.
var knownBeforeCall = map[ast.Value]bool{
	ast.String("action"): true, ast.String("principal"): true, ast.String("tool"): true,
	ast.String("resource"): true, ast.String("prompt"): true, ast.String("server"): true,
}

// mentionsCall reports whether x, or anything within it, mentions a member of
// input that is not known before a call, or input with a member that is not
// written out.
func mentionsCall(x any) bool { return mentionsInput(x, knownBeforeCall) }

// mentionsInput reports whether x mentions members of input other than those
// in but.
func mentionsInput(x any, but map[ast.Value]bool) bool {
	found := false
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Var:
			found = found || x == "input"
		case ast.Ref:
			if x[0].Equal(ast.InputRootDocument) {
				found = found || len(x) == 1 || !isString(x[1]) || !but[x[1].Value]
				for _, t := range x[1:] {
					found = found || mentionsInput(t, but)
				}
				return true
			}
		}
		return found
	}).Walk(x)
	return found
}
