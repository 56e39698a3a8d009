package rego

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolgate/toolgate/policy"
)

// Outline is what a principal may do with a tool, as far as it is known before
// any call.
type Outline struct {
	// Whole says why every call is evaluated whole; "" when the policy could be
	// split, and Branches then hold every verdict that there is. What no branch
	// decides is denied with RuleUndefined.
	Whole    string
	Branches []Branch
}

// Branch is one verdict and when it holds.
type Branch struct {
	// Decision is the verdict; members that come from the arguments of a call are
	// empty in it.
	Decision policy.Decision
	// When are the conditions, all of which must hold, in words of Rego:
	// "input.arguments.amount > 100". None means always.
	When []string
}

// Outline tells for people what Decide answers p about t, whatever the
// arguments. It is safe for concurrent use; an error means that nothing is known.
func (e *Engine) Outline(ctx context.Context, p policy.Principal, t policy.Tool) (Outline, error) {
	if !p.Valid() {
		return Outline{}, errors.New("outlining: no principal")
	}
	known, err := e.pair(ctx, &p, &t)
	if err != nil {
		return Outline{}, fmt.Errorf("outlining: %w", err)
	}
	if known.verdict != nil {
		return Outline{Branches: []Branch{{Decision: cloneDecision(known.verdict)}}}, nil
	}
	return Outline{Whole: "the verdict depends on the call"}, nil
}
