package main

import (
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/replay"
)

// replayPage is a report as its templates read it.
type replayPage struct{ *replay.Report }

// printReplay prints what a replay found.
func (e *env) printReplay(rep *replay.Report) error {
	if e.output == "markdown" {
		return e.write(renderReport("replay.md.tmpl", replayPage{rep}))
	}
	return e.print("replay.txt.tmpl", replayPage{rep})
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
	return fmt.Sprintf("%d of %d decisions come out otherwise: %d with another effect, %d by another rule or with other obligations",
		p.Changed.Count+p.Adjusted.Count, p.Judged, p.Changed.Count, p.Adjusted.Count)
}

// Span returns the time that the replay covers, and the policy that judged.
func (p replayPage) Span() string {
	if p.First.IsZero() {
		return "with policy " + short(p.Candidate)
	}
	return fmt.Sprintf("recorded from %s to %s, judged again by policy %s", clock(p.First), clock(p.Last), short(p.Candidate))
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

func causeText(c replay.Cause) string {
	if c.DecisionID == "" {
		return c.Cause
	}
	return c.Cause + " (such as " + c.DecisionID + ")"
}

func verdictMarkdown(v judgement.Verdict) string {
	if v.Rule == "" {
		return string(v.Effect)
	}
	return string(v.Effect) + " " + codeMarkdown(v.Rule)
}
