package main

import (
	"cmp"
	"embed"
	"fmt"
	"io"
	"strings"
	"text/template"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/replay"
)

//go:embed replay.txt.tmpl replay.md.tmpl
var replayFiles embed.FS

// replayTemplates print a replayPage for a terminal and as a comment on a pull
// request. Callers choose names and arguments: the templates pass them through
// line, code or plain.
var replayTemplates = template.Must(template.New("").Funcs(template.FuncMap{
	"line": oneLine, "code": codeMarkdown, "plain": plainMarkdown, "clock": clock, "title": title, "verdict": verdictMarkdown, "cause": causeText,
	"shares":     func(all []replay.Share) string { return sharesText(all, oneLine) },
	"codeShares": func(all []replay.Share) string { return sharesText(all, codeMarkdown) },
	"effects":    func() []policy.Effect { return []policy.Effect{policy.Allow, policy.Hold, policy.Deny} },
}).ParseFS(replayFiles, "*.tmpl"))

// replayPage is a report as its templates read it.
type replayPage struct{ *replay.Report }

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

func replayText(rep *replay.Report) string     { return renderReplay("replay.txt.tmpl", rep) }
func replayMarkdown(rep *replay.Report) string { return renderReplay("replay.md.tmpl", rep) }

// renderReplay panics on an error: only a fault in the template causes one.
func renderReplay(name string, rep *replay.Report) string {
	var b strings.Builder
	if err := replayTemplates.ExecuteTemplate(&b, name, replayPage{rep}); err != nil {
		panic(err)
	}
	return b.String()
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

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// title returns an ASCII text with its first letter in upper case.
func title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

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

// codeMarkdown returns text as Markdown code that ends neither its quotes nor a
// table cell.
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

// plainMarkdown returns text with every character escaped that means something in
// Markdown or HTML.
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
