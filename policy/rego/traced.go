package rego

import (
	"context"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// traced evaluates in whole, with tracers that look on. It is for people and
// costs many times what Decide does.
func (e *Engine) traced(ctx context.Context, in *policy.Input, tracers ...topdown.QueryTracer) (ast.Value, error) {
	input, err := termOf(in, topdown.NewCancel())
	if err != nil {
		return nil, err
	}
	options := []rego.EvalOption{rego.EvalRuleIndexing(false)} // an index would hide why a rule does not hold
	for _, t := range tracers {
		options = append(options, rego.EvalQueryTracer(t))
	}
	return e.eval(ctx, &e.program.decision, max(tryTimeout, e.timeout), func(topdown.Cancel) (ast.Value, error) { return input.Value, nil }, options...)
}
