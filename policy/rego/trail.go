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

// Operates reports whether p may operate servers. The rule data.toolgate.operates
// decides, evaluated with input {principal}; undefined is no right. When the rule fails or
// is not boolean, Operates returns false and an error.
//
// A policy without that rule gives the right to the role operator.
func (e *Engine) Operates(ctx context.Context, p policy.Principal) (bool, error) {
	return e.may(ctx, p, "operates servers", e.program.operates, func() (bool, error) { return p.Has("operator"), nil })
}

// Stops reports whether p may stop calls and resume them. The rule data.toolgate.stops decides, as
// for Operates. A policy without that rule gives the right to those who operate servers.
func (e *Engine) Stops(ctx context.Context, p policy.Principal) (bool, error) {
	return e.may(ctx, p, "stops calls", e.program.stops, func() (bool, error) { return e.Operates(ctx, p) })
}

// may evaluates the rule that decides who has a right; without a rule, otherwise decides.
func (e *Engine) may(ctx context.Context, p policy.Principal, right string, rule *query, otherwise func() (bool, error)) (bool, error) {
	switch {
	case !p.Valid():
		return false, fmt.Errorf("judging who %s: no principal", right)
	case rule == nil:
		return otherwise()
	}
	may, err := askAbout(ctx, e, rule, p, boolean)
	if err != nil {
		return false, fmt.Errorf("judging who %s: %w", right, err)
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
