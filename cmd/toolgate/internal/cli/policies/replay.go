package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
)

// replayFlags are the flags of policy replay.
type replayFlags struct {
	bundle              string
	since               time.Time
	arguments, progress bool
	verify              bool // judge by the reference evaluation, only decisions of the same revision
	options             replay.Options
}

func policyReplay(e *command.Env) (c *cobra.Command) {
	var flags replayFlags
	c = command.WithForms(command.New("replay", "judge recorded calls again, by a policy that does not serve yet", func(ctx context.Context, _ []string) error {
		if e.Form == "markdown" && !c.Flags().Changed("arguments") {
			flags.arguments = false // it is for a page that others read
		}
		return flags.replay(ctx, e, replayText, "the policy decides otherwise than recorded")
	}), "markdown")
	flags.bind(c)
	return c
}

// bind adds the flags of a command that judges recorded calls again.
func (flags *replayFlags) bind(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&flags.bundle, "bundle", "", "directory or .tar.gz of the `POLICY` that is to judge (default: as configured)")
	flags.since = time.Now().Add(-24 * time.Hour)
	f.Var((*command.Moment)(&flags.since), "since", "`TIME` from which on: RFC 3339, or how long ago (default: 24h ago)")
	f.Var((*command.Moment)(&flags.options.Until), "until", "`TIME` at which to end: RFC 3339, or how long ago (default: now)")
	f.StringSliceVar(&flags.options.Records.Roles, "role", nil, "only calls of principals with this `ROLE`; may be repeated")
	f.StringSliceVar(&flags.options.Records.Tools, "tool", nil, "only this `TOOL` as agents call it, or this method; * stands for anything; may be repeated")
	f.StringSliceVar(&flags.options.Records.Principals, "principal", nil, "only calls of this `SUBJECT`; may be repeated")
	f.IntVar(&flags.options.Examples, "examples", 3, "`COUNT` of calls to show of each change")
	f.BoolVar(&flags.arguments, "arguments", true, "show the beginning of the arguments of examples (-o markdown: not unless asked for)")
	f.BoolVar(&flags.progress, "progress", false, "tell on stderr how far it is, where that is no terminal too")
	f.IntVar(&flags.options.Workers, "workers", 0, "`COUNT` of calls to judge at once (default: one for each processor)")
}

// replay judges the decisions that flags name by the policy that they name. It prints the
// report of a name, and returns an error that says what any difference means.
func (flags *replayFlags) replay(ctx context.Context, e *command.Env, page func(replayPage, report.Form) string, difference string) error {
	o := flags.options
	o.Bare = !flags.arguments
	dir, err := e.Trail()
	if err != nil {
		return err
	}
	options, cfg, err := policySource(ctx, e, flags.bundle)
	if err != nil {
		return err
	}
	if flags.bundle != "" { // a policy that does not serve gets what the configuration adds to the one that does
		options.Data, options.DataAt = cfg.Policy.Data, cfg.Policy.DataAt
	}
	options.Timeout = 5 * rego.DefaultTimeout // all processors are busy with evaluations, so that the time of serving would be short
	engine, err := rego.Load(ctx, options)    // unsigned, as it may be work that nobody has signed yet
	if err != nil {
		return command.Usage(err)
	}
	judge := judgement.Judge(engine)
	if flags.verify {
		judge, o.Revision = engine.Reference(), engine.Revision()
	}
	bar, end, first := e.Progress(flags.progress), cmp.Or(o.Until, time.Now()), time.Time{}
	o.Progress = func(at replay.Progress) {
		first = cmp.Or(first, at.At)
		bar.Update(int64(at.At.Sub(first)), int64(end.Sub(first)), func() string {
			return fmt.Sprintf("%s, %s judged again, %d otherwise, come to %s", text.Count(at.Records, "record"), text.Count(at.Judged, "decision"), at.Changed, at.At.UTC().Format(time.RFC3339))
		})
	}
	rep, err := replay.Run(ctx, audit.Read(ctx, dir, flags.since), judge, o)
	bar.End()
	switch {
	case errors.Is(err, path.ErrBadPattern):
		return command.Usage(err)
	case err != nil:
		return err
	}
	if err := e.Print(report.Of(replayPage{Report: rep}, page)); err != nil || !rep.Differs() {
		return err
	}
	return &command.Exit{Code: command.ExitDiffer, Err: errors.New(difference)}
}

// replayPage is a report as its texts read it.
type replayPage struct {
	*replay.Report
	Bare bool // Markdown has no arguments of calls
}

// replayPart is one group of changes under its name.
type replayPart struct {
	Name string
	*replay.Changes
}

// Parts returns the groups that have changes, the heaviest first.
func (p replayPage) Parts() (parts []replayPart) {
	for _, part := range []replayPart{
		{"another effect", &p.Changed},
		{"the same effect by another rule, or with other obligations", &p.Adjusted},
		{"failed then, and no change of the policy's", &p.Failed},
	} {
		if part.Count > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// Summary returns the outcome in one sentence.
func (p replayPage) Summary() string {
	if p.Judged+p.Failed.Count == 0 {
		return "no decision could be judged again"
	}
	verb := "come"
	if p.Different() == 1 {
		verb = "comes"
	}
	return fmt.Sprintf("%d of %s %s out otherwise: %d with another effect, %d by another rule or with other obligations",
		p.Different(), text.Count(p.Judged, "decision"), verb, p.Changed.Count, p.Adjusted.Count)
}

// Span returns the time that the replay covers, and the policy that judged.
func (p replayPage) Span() string {
	if p.First.IsZero() {
		return "with policy " + text.ShortDigest(p.Candidate)
	}
	return fmt.Sprintf("recorded from %s to %s, judged again by policy %s", report.Clock(p.First), report.Clock(p.Last), text.ShortDigest(p.Candidate))
}

// Moved returns how many decisions went from effect was to effect now.
func (p replayPage) Moved(was, now policy.Effect) int {
	for _, m := range p.Effects {
		if m.Was == was && m.Now == now {
			return m.Count
		}
	}
	return 0
}

func effects() []policy.Effect { return []policy.Effect{policy.Allow, policy.Hold, policy.Deny} }

// sharesShown is how many names a line lists.
const sharesShown = 8

func sharesText(all []replay.Share, name func(string) string) string {
	var words []string
	for _, s := range all[:min(len(all), sharesShown)] {
		words = append(words, fmt.Sprintf("%s %d", name(s.Name), s.Count))
	}
	if more := len(all) - sharesShown; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// Different counts the decisions that are not the policy's.
func (p replayPage) Different() int { return p.Changed.Count + p.Adjusted.Count }

// Total counts the decisions that were looked at.
func (p replayPage) Total() int { return p.Judged + p.Lost() }
