package rego

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// document is in as a policy sees it, as one term.
func document(in *policy.Input) (*ast.Term, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("writing input: %w", err)
	}
	return parseJSON(raw)
}

// traced evaluates in whole, with tracers that look on. It is for people and
// costs many times what Decide does.
func (e *Engine) traced(ctx context.Context, in *policy.Input, tracers ...topdown.QueryTracer) (ast.Value, error) {
	input, err := document(in)
	if err != nil {
		return nil, err
	}
	options := []rego.EvalOption{rego.EvalRuleIndexing(false)} // an index would hide why a rule does not hold
	for _, t := range tracers {
		options = append(options, rego.EvalQueryTracer(t))
	}
	return e.eval(ctx, &e.program.decision, max(tryTimeout, e.timeout), func(topdown.Cancel) (ast.Value, error) { return input.Value, nil }, options...)
}
