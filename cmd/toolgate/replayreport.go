package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/replay"
)

// sayReplay prints what a replay found.
func (e *env) sayReplay(rep *replay.Report) error {
	if e.output == "json" {
		return e.json(rep)
	}
	text := replayText(rep)
	if e.output == "markdown" {
		text = replayMarkdown(rep)
	}
	if _, err := io.WriteString(e.out, printable(text)); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// parts are the groups of changes under their names, the heaviest first.
func parts(rep *replay.Report) []struct {
	name string
	*replay.Changes
} {
	return []struct {
		name string
		*replay.Changes
	}{
		{"another effect", &rep.Changed},
		{"the same effect by another rule, or with other obligations", &rep.Adjusted},
		{"failed then, and no change of the policy's", &rep.Failed},
	}
}

// replaySummary is the outcome in one sentence.
func replaySummary(rep *replay.Report) string {
	if rep.Judged+rep.Failed.Count == 0 {
		return "no decision could be judged again"
	}
	return fmt.Sprintf("%d of %d decisions come out otherwise: %d with another effect, %d by another rule or with other obligations",
		rep.Changed.Count+rep.Adjusted.Count, rep.Judged, rep.Changed.Count, rep.Adjusted.Count)
}

// replaySpan says over what the replay went, and with what.
func replaySpan(rep *replay.Report) string {
	if rep.First.IsZero() {
		return "with policy " + short(rep.Candidate)
	}
	return fmt.Sprintf("recorded from %s to %s, judged again by policy %s", clock(rep.First), clock(rep.Last), short(rep.Candidate))
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func replayText(rep *replay.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", replaySummary(rep), replaySpan(rep))
	for _, m := range rep.Effects {
		mark := ""
		if m.Was != m.Now {
			mark = "  changed"
		}
		fmt.Fprintf(&b, "  %-5s → %-5s  %7d%s\n", m.Was, m.Now, m.Count, mark)
	}
	for _, part := range parts(rep) {
		if part.Count > 0 {
			fmt.Fprintf(&b, "\n%s: %d\n", part.name, part.Count)
			changesText(&b, part.Changes)
		}
	}
	causesText(&b, "the policy failed", rep.Errors)
	causesText(&b, "could not be judged again", rep.Unjudged)
	return b.String()
}

func changesText(b *strings.Builder, c *replay.Changes) {
	for _, t := range c.Rules {
		fmt.Fprintf(b, "%7d  %s → %s\n", t.Count, oneLine(t.Was.String()), oneLine(t.Now.String()))
		for _, e := range t.Examples {
			fmt.Fprintf(b, "           %s  %s  %s\n", oneLine(e.DecisionID), clock(e.Time), oneLine(exampleText(&e)))
		}
	}
	fmt.Fprintf(b, "  principals  %s\n  tools       %s\n", sharesText(c.Principals, oneLine), sharesText(c.Tools, oneLine))
}

func exampleText(e *replay.Example) string {
	words := []string{e.Principal, e.Tool}
	if e.Arguments != "" {
		words = append(words, e.Arguments)
	}
	if e.Was+e.Now != "" {
		words = append(words, "was "+e.Was+", now "+e.Now)
	}
	return strings.Join(words, "  ")
}

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

func causesText(b *strings.Builder, name string, causes []replay.Cause) {
	if len(causes) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", name)
	for _, c := range causes {
		fmt.Fprintf(b, "%7d  %s%s\n", c.Count, oneLine(c.Cause), oneLine(such(c)))
	}
}

func such(c replay.Cause) string {
	if c.DecisionID == "" {
		return ""
	}
	return " (such as " + c.DecisionID + ")"
}

// replayMarkdown is the report as a comment on a pull request.
func replayMarkdown(rep *replay.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### Policy replay: %s\n\n%s.\n\n", replaySummary(rep), strings.ToUpper(replaySpan(rep)[:1])+replaySpan(rep)[1:])
	matrixMarkdown(&b, rep.Effects)
	for _, part := range parts(rep) {
		if part.Count == 0 {
			continue
		}
		fmt.Fprintf(&b, "#### %s%s: %d\n\n| decisions | was | now |\n| ---: | --- | --- |\n", strings.ToUpper(part.name[:1]), part.name[1:], part.Count)
		for _, t := range part.Rules {
			fmt.Fprintf(&b, "| %d | %s | %s |\n", t.Count, verdictMarkdown(t.Was), verdictMarkdown(t.Now))
		}
		fmt.Fprintf(&b, "\nPrincipals: %s. Tools: %s.\n\n", sharesText(part.Principals, codeMarkdown), sharesText(part.Tools, codeMarkdown))
		examplesMarkdown(&b, part.Changes)
	}
	causesMarkdown(&b, "The policy failed", rep.Errors)
	causesMarkdown(&b, "Could not be judged again", rep.Unjudged)
	return b.String()
}

// matrixMarkdown is what became of each effect.
func matrixMarkdown(b *strings.Builder, moves []replay.Move) {
	effects := []policy.Effect{policy.Allow, policy.Hold, policy.Deny}
	b.WriteString("| was \\ now | allow | hold | deny |\n| --- | ---: | ---: | ---: |\n")
	for _, was := range effects {
		fmt.Fprintf(b, "| **%s** |", was)
		for _, now := range effects {
			count := 0
			if i := slices.IndexFunc(moves, func(m replay.Move) bool { return m.Was == was && m.Now == now }); i >= 0 {
				count = moves[i].Count
			}
			fmt.Fprintf(b, " %d |", count)
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}

func verdictMarkdown(v judgement.Verdict) string {
	if v.Rule == "" {
		return string(v.Effect)
	}
	return string(v.Effect) + " " + codeMarkdown(v.Rule)
}

func examplesMarkdown(b *strings.Builder, c *replay.Changes) {
	b.WriteString("<details><summary>Examples</summary>\n\n")
	for _, t := range c.Rules {
		for _, e := range t.Examples {
			fmt.Fprintf(b, "- %s → %s: %s, %s, %s, %s", verdictMarkdown(t.Was), verdictMarkdown(t.Now),
				codeMarkdown(e.DecisionID), clock(e.Time), codeMarkdown(e.Principal), codeMarkdown(e.Tool))
			for name, text := range pairs("arguments", e.Arguments, "was", e.Was, "now", e.Now) {
				fmt.Fprintf(b, ", %s %s", name, codeMarkdown(text))
			}
			b.WriteByte('\n')
		}
	}
	b.WriteString("\n</details>\n\n")
}

// pairs yields names with their texts, those that are not empty.
func pairs(all ...string) func(yield func(name, text string) bool) {
	return func(yield func(string, string) bool) {
		for p := range slices.Chunk(all, 2) {
			if p[1] != "" && !yield(p[0], p[1]) {
				return
			}
		}
	}
}

func causesMarkdown(b *strings.Builder, name string, causes []replay.Cause) {
	if len(causes) == 0 {
		return
	}
	fmt.Fprintf(b, "#### %s\n\n", name)
	for _, c := range causes {
		fmt.Fprintf(b, "- %d: %s\n", c.Count, plainMarkdown(c.Cause+such(c)))
	}
	b.WriteByte('\n')
}

// codeMarkdown gives text as code that neither ends its own quotes nor a cell.
func codeMarkdown(text string) string {
	text = strings.ReplaceAll(oneLine(cmp.Or(text, " ")), "|", `\|`)
	ticks := "`"
	for strings.Contains(text, ticks) {
		ticks += "`"
	}
	if strings.HasPrefix(text, "`") || strings.HasSuffix(text, "`") {
		text = " " + text + " "
	}
	return ticks + text + ticks
}

// plainMarkdown gives text without any meaning to Markdown or HTML.
func plainMarkdown(text string) string {
	var b strings.Builder
	for _, r := range oneLine(text) {
		if strings.ContainsRune("\\`*_{}[]()<>#+-!|~@&", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
