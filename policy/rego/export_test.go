package rego

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// DecideFully is Decide without what was worked out before the call.
func (e *Engine) DecideFully(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	known, err := newPair(&in.Principal, &in.Tool)
	if err != nil {
		return e.failed(err)
	}
	return e.close(e.evaluate(ctx, in, known, e.timeout))
}

// Whole evaluates the policy for an input that was read before, and decodes nothing.
func (e *Engine) Whole(ctx context.Context, input ast.Value) (ast.Value, error) {
	return e.program.decision.run(ctx, input, topdown.NewCancel())
}

// Constant reports whether the verdict on p and t is the same for all calls.
func (e *Engine) Constant(ctx context.Context, p policy.Principal, t policy.Tool) bool {
	known, err := e.pairs.find(&p, &t)
	if err != nil {
		return false
	}
	c, err := e.constantOf(ctx, known, e.timeout)
	return err == nil && c.verdict != nil
}

// Remembered is the number of pairs in memory.
func (e *Engine) Remembered() int {
	e.pairs.mu.Lock()
	defer e.pairs.mu.Unlock()
	return len(e.pairs.young) + len(e.pairs.old)
}

// Bounded runs f as an evaluation.
func (e *Engine) Bounded(ctx context.Context, f func()) error {
	return bounded(ctx, e.timeout, func(topdown.Cancel) error { f(); return nil })
}

// RoundTrip parses one JSON value as arguments are parsed and writes it again.
func RoundTrip(raw json.RawMessage) (json.RawMessage, error) {
	t, err := readJSON(raw, topdown.NewCancel())
	if err != nil {
		return nil, err
	}
	v, err := ast.ValueToInterface(t.Value, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// ReadTable gives the inputs of a decision table.
func ReadTable(content []byte) ([]*policy.Input, error) {
	cases, err := readTable(content)
	var out []*policy.Input
	for _, c := range cases {
		out = append(out, c.input)
	}
	return out, err
}

// Poison makes the engine remember d as the verdict of every call of in's pair.
func (e *Engine) Poison(in *policy.Input, d policy.Decision) error {
	known, err := e.pairs.find(&in.Principal, &in.Tool)
	if err != nil {
		return err
	}
	known.constant.Store(&constant{verdict: &d})
	return nil
}

// PermittedBuiltins are the names of the built-in functions that policies may
// use, sorted.
func PermittedBuiltins() []string {
	var out []string
	for _, b := range capabilities().Builtins {
		out = append(out, b.Name)
	}
	slices.Sort(out)
	return out
}

// RefusedBuiltins are the others, with the reason.
func RefusedBuiltins() map[string]string { return refusals() }

// Remembers reports whether the engine keeps what p sees.
func (e *Engine) Remembers(p policy.Principal) bool {
	s := e.sights.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	rights, _ := e.Rights(p)
	return s.rights.Contains(rights)
}

// Kept are the rules that were evaluated when the policy was compiled, sorted.
func (e *Engine) Kept() []string {
	var out []string
	for _, rules := range e.program.kept {
		for _, r := range rules {
			out = append(out, r.ref.String())
		}
	}
	slices.Sort(out)
	return out
}
