package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/shadow"
)

func policyShadow(e *env) *cobra.Command {
	var since time.Time
	var candidate string
	var most int
	c := command("shadow", "list what the policy of policy.shadow would have decided otherwise", func(ctx context.Context, _ []string) error {
		if most < 1 {
			return usage(fmt.Errorf("--limit %d lists nothing\nhint: give a number above 0", most))
		}
		return e.shadow(ctx, candidate, since, most)
	})
	c.Flags().Var((*moment)(&since), "since", "only decisions from this `TIME` on: RFC 3339, or how long ago (default: all)")
	c.Flags().StringVar(&candidate, "candidate", "", "only those of the policy whose `REVISION` begins so (default: of the one that was asked last)")
	c.Flags().IntVar(&most, "limit", 50, "`COUNT` of decisions to list")
	return c
}

// shadowReport is what policy shadow prints.
type shadowReport struct {
	Candidates    []shadow.Total        `json:"candidates"`
	Disagreements []shadow.Disagreement `json:"disagreements"`
	Asked         *shadow.Total         `json:"-"` // the candidate of Disagreements; nil = none was asked
}

func (e *env) shadow(ctx context.Context, candidate string, since time.Time, most int) error {
	r := shadowReport{Disagreements: []shadow.Disagreement{}}
	err := e.withStore(ctx, func(db *store.DB) (err error) {
		if r.Candidates, err = shadow.Totals(ctx, db); err != nil {
			return err
		}
		if r.Asked, err = chosen(r.Candidates, candidate); err == nil && r.Asked != nil {
			r.Disagreements, err = shadow.List(ctx, db, r.Asked.Candidate, since, most)
		}
		return err
	})
	if err != nil {
		return err
	}
	return e.Print("shadow", r)
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
