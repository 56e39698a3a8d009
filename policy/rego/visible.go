package rego

import (
	"context"
	"errors"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// Visible reports whether p may see t, and so may ask to call it. The rule
// data.toolgate.visible decides, evaluated with input {principal, tool} once for
// each pair: undefined and false hide. When the rule fails or is no boolean,
// Visible returns false and an error; it asks again the next time.
//
// A policy without that rule shows every tool but those whose constant verdict
// is a denial.
func (e *Engine) Visible(ctx context.Context, p policy.Principal, t policy.Tool) (bool, error) {
	if !p.Valid() {
		return false, errors.New("judging visibility: no principal")
	}
	known, err := e.pairs.find(&p, &t)
	if err != nil {
		return false, fmt.Errorf("judging visibility: %w", err)
	}
	if shown := known.shown.Load(); shown != nil {
		return *shown, nil
	}
	shown, err := e.show(ctx, known)
	if err != nil {
		return false, fmt.Errorf("judging visibility: %w", err)
	}
	known.shown.Store(&shown)
	return shown, nil
}

// DefinesVisible reports whether the policy has the rule data.toolgate.visible.
func (e *Engine) DefinesVisible() bool { return e.program.visible != nil }

func (e *Engine) show(ctx context.Context, known *pair) (bool, error) {
	if e.program.visible == nil {
		c, err := e.constantOf(ctx, known, e.timeout)
		return err == nil && (c.verdict == nil || c.verdict.Effect != policy.Deny), err
	}
	v, err := e.eval(ctx, e.program.visible, e.timeout, func(topdown.Cancel) (ast.Value, error) {
		return ast.NewObject([2]*ast.Term{keyPrincipal, known.principalTerm}, [2]*ast.Term{keyTool, known.toolTerm}), nil
	})
	if errors.Is(err, errUndefined) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	shown, err := boolean(v)
	if err != nil {
		return false, fmt.Errorf("%s %w", visiblePath, err)
	}
	return shown, nil
}
