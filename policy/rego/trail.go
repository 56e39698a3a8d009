package rego

import (
	"context"
	"errors"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
)

// TrailRight returns which records of the audit trail p may read. The rule
// data.toolgate.trail decides, evaluated with input {principal}: "all", "decides", or
// undefined for none. When the rule fails or has another value, TrailRight returns none
// and an error.
//
// A policy without that rule lets the role auditor read everything, and the role approver
// what it may decide on.
func (e *Engine) TrailRight(ctx context.Context, p policy.Principal) (policy.TrailRight, error) {
	switch {
	case !p.Valid():
		return policy.TrailNone, errors.New("judging who reads the trail: no principal")
	case e.program.trail == nil && p.Has("auditor"):
		return policy.TrailAll, nil
	case e.program.trail == nil && p.Has("approver"):
		return policy.TrailDecides, nil
	case e.program.trail == nil:
		return policy.TrailNone, nil
	}
	right := policy.TrailNone
	who, err := principalTerm(p)
	if err == nil {
		right, err = ask(ctx, e, e.program.trail, ast.NewObject([2]*ast.Term{keyPrincipal, who}), trailRight)
	}
	if err != nil {
		return policy.TrailNone, fmt.Errorf("judging who reads the trail: %w", err)
	}
	return right, nil
}

func trailRight(v ast.Value) (policy.TrailRight, error) {
	right, err := text[policy.TrailRight](v)
	if err == nil && right != policy.TrailAll && right != policy.TrailDecides {
		err = fmt.Errorf("%s is %q", trailPath, right)
	}
	return right, err
}
