// Package judgement reads and writes policy judgements in the audit trail: the input
// that a policy judged and the decision that it made. A record that Decode has read
// can be judged again, by the same policy or by another one, and Compare says
// whether the decisions agree.
//
//	again, err := judgement.Again(ctx, engine, record)
//	if err == nil && again.Difference != judgement.Same {
//		log.Printf("%s: was %v, now %v", record.DecisionID, again.Was.Effect, again.Now.Effect)
//	}
//
// Every function is safe for concurrent use.
package judgement

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
)

// Judge is a policy. Implementations must be safe for concurrent use.
type Judge interface {
	Decide(ctx context.Context, in *policy.Input) (policy.Decision, error)
	Meters(t policy.Tool) []policy.Meter
	Revision() string
}

// The reasons why a record cannot be judged again.
var (
	// ErrNotAsked is returned for records of events that no policy judged.
	ErrNotAsked = errors.New("the policy was not asked")
	// ErrElsewhere is returned for tickets, and for the outcome of a call whose
	// decision record holds the input.
	ErrElsewhere = errors.New("the decision record of the call holds the input")
	// ErrNoInput is returned for a decision without its input.
	ErrNoInput = errors.New("the record does not hold what the policy judged: an older toolgate wrote it, or the verdict is toolgate's own")
	// ErrUncounted is returned for a call that a meter of the policy applies to and
	// that was not metered at the time.
	ErrUncounted = errors.New("the policy counts what was not counted then")
)

// RuleFailed is the rule of a denial by a policy that failed to judge.
const RuleFailed = "policy_error"

// Retrial is one recorded decision, judged again.
type Retrial struct {
	Input      *policy.Input
	Was        *policy.Decision // as recorded
	Now        policy.Decision
	Failed     error // with which the judge denies; nil = it judged
	Difference Difference
}

// Silent reports whether err, from Again or Decode, is about a record that holds no
// judgement of its own, so that nothing is lost when it is skipped.
func Silent(err error) bool { return errors.Is(err, ErrNotAsked) || errors.Is(err, ErrElsewhere) }

// Again judges the recorded decision of r by j. The error says why r cannot be
// judged again: an error of Decode, ErrUncounted, or that of ctx.
func Again(ctx context.Context, j Judge, r *audit.Record) (*Retrial, error) {
	in, was, err := Decode(r)
	if err == nil {
		err = checkMeters(j.Meters(in.Tool), in)
	}
	if err != nil {
		return nil, err
	}
	now, failed := j.Decide(ctx, in)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return &Retrial{Input: in, Was: was, Now: now, Failed: failed, Difference: Compare(was, &now)}, nil
}

// checkMeters returns ErrUncounted with the name of the first meter that in has no
// reading of. The record does not say what a meter of that name counted then.
func checkMeters(meters []policy.Meter, in *policy.Input) error {
	if !in.Calls() {
		return nil
	}
	for _, m := range meters {
		if _, ok := in.Usage[m.Name]; !ok {
			return fmt.Errorf("%w: data.usage[%q].%s", ErrUncounted, in.Tool.Exposed, m.Name)
		}
	}
	return nil
}
