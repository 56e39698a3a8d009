package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/shadow"
)

func policyShadow(e *env) *cobra.Command {
	var since, candidate string
	var most int
	c := &cobra.Command{
		Use: "shadow", Short: "list what the policy of policy.shadow would have decided otherwise", Args: cobra.NoArgs,
		Long: `shadow reads what a serving toolgate has noted about the policy that
toolgate.policy.shadow names: how often it was asked and how that came out, and the
latest decisions that it would have made otherwise. It needs no running toolgate.
Exit 0: also when there are some.`,
		Example: `  toolgate policy shadow
  toolgate policy shadow --since 1h -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			from, err := moment(since, "since")
			if err != nil {
				return err
			}
			if most < 1 {
				return usage(fmt.Errorf("--limit %d lists nothing\nhint: give a number above 0", most))
			}
			return e.shadow(c.Context(), candidate, from, most)
		},
	}
	c.Flags().StringVar(&since, "since", "", "only decisions of this long ago, or from then on (RFC 3339)")
	c.Flags().StringVar(&candidate, "candidate", "", "only those of this revision, or one that begins so (default: of the one that was asked last)")
	c.Flags().IntVar(&most, "limit", 50, "how many to list")
	return c
}

func (e *env) shadow(ctx context.Context, candidate string, since time.Time, most int) (err error) {
	trail, err := e.trail()
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(trail), "state.db")
	if _, err := os.Stat(path); err != nil {
		return missing(err)
	}
	db, err := store.Open(ctx, path, store.Migrations())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	totals, err := shadow.Totals(ctx, db)
	if err != nil {
		return err
	}
	asked, err := chosen(totals, candidate)
	if err != nil {
		return err
	}
	list := []shadow.Disagreement{}
	if asked != nil {
		if list, err = shadow.List(ctx, db, asked.Candidate, since, most); err != nil {
			return err
		}
	}
	if e.output == "json" {
		return e.json(map[string]any{"candidates": totals, "disagreements": list})
	}
	return e.sayShadow(asked, list)
}

// chosen is the candidate that a command is about: the one whose revision begins
// so, or the latest; nil when there is none at all.
func chosen(totals []shadow.Total, candidate string) (*shadow.Total, error) {
	for i, t := range totals {
		if strings.HasPrefix(t.Candidate, candidate) || strings.HasPrefix(t.Candidate, "sha256:"+candidate) {
			return &totals[i], nil
		}
	}
	if candidate != "" {
		return nil, usage(fmt.Errorf("no policy with the revision %s was asked\nhint: without --candidate it is the one that was asked last", candidate))
	}
	return nil, nil
}

func (e *env) sayShadow(asked *shadow.Total, list []shadow.Disagreement) error {
	if asked == nil {
		_, err := io.WriteString(e.out, "no policy was asked beside the one that serves (toolgate.policy.shadow)\n")
		return err
	}
	fmt.Fprintf(e.out, "policy %s, asked from %s to %s: same %d, changed %d, failed %d, skipped %d\n", short(asked.Candidate),
		clock(asked.First), clock(asked.Last), asked.Same, asked.Changed, asked.Failed, asked.Skipped)
	if len(list) == 0 {
		return nil
	}
	rows := make([][]string, len(list))
	for i, d := range list {
		rows[i] = []string{clock(d.At), d.DecisionID, d.Principal, d.Tool, d.Was.String(), d.Now.String(), string(d.Difference)}
	}
	return e.table([]string{"TIME", "DECISION", "PRINCIPAL", "TOOL", "DECIDED", "WOULD BE", "DIFFERS IN"}, rows)
}
