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
	right, err := askAbout(ctx, e, e.program.trail, p, trailRight)
	if err != nil {
		return policy.TrailNone, fmt.Errorf("judging who reads the trail: %w", err)
	}
	return right, nil
}

// May reports whether p has a right. The rule of package toolgate with the right's name decides,
// evaluated with input {principal}; undefined is no right. When the rule fails or is not boolean, May
// returns false and an error.
//
// A policy without that rule lets the role operator operate servers. Those who operate them have
// the rights Stops, Definitions and Connections, and those who read the whole trail the rights
// ReadsArguments and Exports.
func (e *Engine) May(ctx context.Context, p policy.Principal, right policy.Right) (may bool, err error) {
	rule := e.program.rights[right]
	switch {
	case !p.Valid():
		err = errors.New("no principal")
	case rule != nil:
		may, err = askAbout(ctx, e, rule, p, boolean)
	case right == policy.Operates:
		return p.Has("operator"), nil
	case right == policy.ReadsArguments, right == policy.Exports:
		trail, err := e.TrailRight(ctx, p)
		return err == nil && trail == policy.TrailAll, err
	default:
		return e.May(ctx, p, policy.Operates)
	}
	if err != nil {
		return false, fmt.Errorf("judging who has the right %s: %w", right, err)
	}
	return may, nil
}

// askAbout evaluates a query about a principal alone.
func askAbout[T any](ctx context.Context, e *Engine, q *query, p policy.Principal, decode func(ast.Value) (T, error)) (out T, err error) {
	who, err := principalTerm(p)
	if err != nil {
		return out, err
	}
	return ask(ctx, e, q, ast.NewObject([2]*ast.Term{keyPrincipal, who}), decode)
}

func trailRight(v ast.Value) (policy.TrailRight, error) {
	right, err := stringOf[policy.TrailRight](v)
	if err == nil && right != policy.TrailAll && right != policy.TrailDecides {
		err = fmt.Errorf("%s is %q", trailPath, right)
	}
	return right, err
}
