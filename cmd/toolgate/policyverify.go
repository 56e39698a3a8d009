package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/replay"
)

func policyVerify(e *env) *cobra.Command {
	flags := replayFlags{sameRevision: true}
	c := &cobra.Command{
		Use: "verify-decisions", Short: "check recorded decisions against OPA's own evaluation", Args: cobra.NoArgs,
		Long: `verify-decisions reads the audit trail of the state directory and judges each
recorded decision again with OPA alone: one fresh evaluation of the whole policy per
decision, without the caches and the constant verdicts of a running toolgate. A
decision that comes out differently was not the policy's: report it as a bug of
toolgate, with the decision ID.

Decisions made by another revision of the policy are counted and not judged; name
that policy with --bundle. policy.data of the configuration is added to --bundle.
Exit 0: every decision that was judged is the policy's; 12: at least one is not.`,
		Example: `  toolgate policy verify-decisions
  toolgate policy verify-decisions --since 168h --bundle build/policy.tar.gz
  toolgate policy verify-decisions -o json`,
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
	if err := e.sayVerified(rep); err != nil || !rep.Differs() {
		return err
	}
	return &exit{code: exitDiffer, err: errors.New("recorded decisions are not the policy's")}
}

// sayVerified prints the report of verify-decisions: that of a replay under its own
// first line.
func (e *env) sayVerified(rep *replay.Report) error {
	if e.output == "json" {
		return e.json(rep)
	}
	different := rep.Changed.Count + rep.Adjusted.Count
	_, err := fmt.Fprintf(e.out, "%d of %d decisions verified, %d differ, %d not judged\n", rep.Same, rep.Judged+rep.Lost(), different, rep.Lost())
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return e.sayReplay(rep)
}
