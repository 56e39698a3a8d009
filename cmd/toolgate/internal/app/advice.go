package app

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
)

// withAdvice adds what people ask about the policy and the trail.
func (a *App) withAdvice(opts *console.Options, people *desk) {
	desk := advice.New(advice.Options{
		Engine: a.policy.current, Source: a.policy.options, Config: a.Config, Shadow: a.shadow.line, Served: a.inventory.policies, Usage: limit.NewUsage(a.state.db, nil),
		Tools: func() []policy.Tool {
			tools := PolicyTools(a.upstreams.Catalogue().Tools(""))
			slices.SortFunc(tools, func(a, b policy.Tool) int { return strings.Compare(a.Exposed, b.Exposed) })
			return tools
		},
		Roles: func() []string { return RolesOf(a.Config(), a.policy.current(), a.options.Role) },
		Trail: trail.Dir(a.Config().State),
	})
	opts.Policy, opts.Judge, opts.TrialText, opts.Verify = desk, desk, a.options.TrialText, people.verifyTrail
	opts.Shadow = func(ctx context.Context, q console.ShadowQuery) (shadow.Report, error) {
		return shadow.ReportOf(ctx, a.state.db, q.Candidate, q.Since, q.After, q.Limit)
	}
	opts.Anchors = func() ([]notary.AnchorState, error) { return a.state.trail.Anchors(), a.state.trail.Unsigned() }
	opts.Export = func(ctx context.Context, q console.ExportQuery) (iter.Seq2[[]byte, error], error) {
		s := trail.Selection{Since: q.Since, Until: q.Until}
		for _, member := range []struct {
			of    *[]string
			value string
		}{{&s.Kinds, q.Kind}, {&s.Outcomes, q.Outcome}, {&s.Principals, q.Principal}, {&s.Tools, q.Tool}, {&s.Tickets, q.Ticket}} {
			if member.value != "" {
				*member.of = []string{member.value}
			}
		}
		return s.Export(ctx, trail.Dir(a.Config().State), q.Format), s.Check()
	}
}

// verifyTrail verifies the trail of this replica, as the command audit verify does. Its error is that
// of ctx when that ends.
func (d *desk) verifyTrail(ctx context.Context, report func(console.Progress)) (v notary.Verified, err error) {
	cfg, dir := d.Config(), trail.Dir(d.Config().State)
	x := notary.Evidence{Replica: true, Directory: true, Progress: &checked{ctx: ctx, report: report, all: progress.Size(dir)}}
	if x.Notes, err = fleet.StoredNotes(ctx, d.state.db); err != nil {
		return v, err
	}
	if err := trail.AddKeys(&x, d.state.keys, dir); err != nil {
		return v, err
	}
	rep, err := x.Verify(dir)
	if err != nil {
		return v, err
	}
	kept := cfg.Approvals.Keep
	if !d.state.db.Shared() {
		kept = 0
	}
	faults, err := trail.Contradictions(ctx, d.state.db, d.state.keys, []string{dir}, rep, &x, kept)
	return notary.Verified{OK: rep.OK() && len(faults) == 0 && rep.Verdicts.Content == notary.OK, State: faults, Report: rep}, err
}

// reportEvery is how many checked bytes are reported together.
const reportEvery = 1 << 20

// checked counts the bytes of a trail that were checked. Write fails when ctx has ended.
type checked struct {
	ctx               context.Context
	report            func(console.Progress)
	all, done, before int64
}

func (c *checked) Write(line []byte) (int, error) {
	if c.done += int64(len(line)) + 1; c.done-c.before >= reportEvery {
		c.before = c.done
		c.report(console.Progress{Doing: "verifying", Done: c.done, All: c.all})
	}
	return len(line), c.ctx.Err()
}
