package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/replay"
)

func policyVerify(e *env) *cobra.Command {
	flags := replayFlags{sameRevision: true}
	c := &cobra.Command{
		Use: "verify-decisions", Short: "check recorded decisions against OPA's own evaluation", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.verifyDecisions(c.Context(), &flags) },
	}
	flags.bind(c)
	return c
}

func (e *env) verifyDecisions(ctx context.Context, flags *replayFlags) error {
	rep, err := e.judgeAgain(ctx, flags, func() (judgement.Judge, error) {
		engine, err := e.candidate(ctx, flags.bundle)
		if err != nil {
			return nil, err
		}
		return engine.Reference(), nil
	})
	if err != nil {
		return err
	}
	if err := e.print("verified-decisions", verifiedPage{rep}); err != nil || !rep.Differs() {
		return err
	}
	return &exit{code: exitDiffer, err: errors.New("recorded decisions are not the policy's")}
}

// verifiedPage is the report of verify-decisions.
type verifiedPage struct{ *replay.Report }

// Replay returns the same decisions as the report of a replay.
func (p verifiedPage) Replay() replayPage { return replayPage(p) }

// Different counts the decisions that are not the policy's.
func (p verifiedPage) Different() int { return p.Changed.Count + p.Adjusted.Count }

// Total counts the decisions that were looked at.
func (p verifiedPage) Total() int { return p.Judged + p.Lost() }
