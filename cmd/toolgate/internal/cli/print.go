package cli

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
)

//go:embed *.tmpl
var reportFiles embed.FS

// reports returns the templates of all reports.
var reports = sync.OnceValue(func() *report.Templates {
	return report.Parse(reportFiles, template.FuncMap{
		"age":   func(t time.Time) string { return fmt.Sprintf("%dd", int(time.Since(t).Hours()/24)) },
		"clock": clock, "local": func(t time.Time, layout string) string { return t.Local().Format(layout) },
		"short": short, "ordinal": func(i int) int { return i + 1 }, "title": title, "span": span, "upper": func(v any) string { return strings.ToUpper(fmt.Sprint(v)) },
		"annotation": annotation, "layout": layout, "approvers": approvers,
		"shares":     func(all []replay.Share) string { return sharesText(all, report.OneLine) },
		"codeShares": func(all []replay.Share) string { return sharesText(all, report.CodeMarkdown) },
		"effects":    effects, "xml": xmlText, "firstLine": func(s string) string { first, _, _ := strings.Cut(s, "\n"); return first },
	})
})

// layout returns v as indented JSON with a line end.
func layout(v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text) + "\n", err
}

// progress returns a line on stderr that shows how far a long command is: on a terminal,
// unless the output is for programs, and elsewhere where somebody wants lines.
func (e *env) progress(wanted bool) *progress.Line {
	form := progress.None
	if kind, _ := e.lookup("TERM"); isTerminal(e.err) && kind != "dumb" && !e.Structured() {
		form = progress.Bar
	} else if wanted {
		form = progress.Lines
	}
	return progress.New(e.err, form)
}

// short returns a revision or digest as people read it.
func short(revision string) string { return revision[:min(len(revision), len("sha256:")+12)] }

// clock returns a time to the second in UTC.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// title returns an ASCII text with its first letter in upper case.
func title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
