package rego

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
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
	patient := *e
	patient.timeout = max(tryTimeout, e.timeout)
	var v ast.Value
	err = patient.bounded(ctx, func(c topdown.Cancel) error {
		options := []rego.EvalOption{
			rego.EvalParsedInput(input.Value), rego.EvalExternalCancel(c), rego.EvalMetrics(metrics.NoOp()),
			rego.EvalInterQueryBuiltinValueCache(e.program.patterns),
			rego.EvalRuleIndexing(false), // an index would hide why a rule does not hold
		}
		for _, t := range tracers {
			options = append(options, rego.EvalQueryTracer(t))
		}
		rs, err := e.program.decision.Eval(ctx, options...)
		if err != nil {
			return err
		}
		if len(rs) == 0 {
			return errUndefined
		}
		v = rs[0].Expressions[0].Value.(*ast.Term).Value
		return nil
	})
	return v, err
}
