package main

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"text/template"
	"time"
	"unicode"

	"github.com/toolgate/toolgate/policy/replay"
)

//go:embed *.tmpl
var reportFiles embed.FS

// reports returns the templates that print values for people. Cells of a row have tabs between them. What
// callers and servers wrote passes through line, code or plain, so that it ends
// neither its line nor its cell.
var reports = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"line": oneLine, "code": codeMarkdown, "plain": plainMarkdown, "printable": printable, "indent": indented, "cut": cut, "short": short,
		"age":   func(t time.Time) string { return fmt.Sprintf("%dd", int(time.Since(t).Hours()/24)) },
		"clock": clock, "local": func(t time.Time, layout string) string { return t.Local().Format(layout) },
		"title": title, "join": strings.Join, "span": span, "upper": func(v any) string { return strings.ToUpper(fmt.Sprint(v)) },
		"count": count, "approvers": approvers, "verdict": verdictMarkdown, "cause": causeText,
		"shares":     func(all []replay.Share) string { return sharesText(all, oneLine) },
		"codeShares": func(all []replay.Share) string { return sharesText(all, codeMarkdown) },
		"effects":    effects, "xml": xmlText, "firstLine": func(s string) string { first, _, _ := strings.Cut(s, "\n"); return first },
	}).ParseFS(reportFiles, "*.tmpl"))
})

// print writes v as JSON where -o json asks for that, and as the report of a name
// elsewhere.
func (e *env) print(report string, v any) error {
	if e.output == "json" {
		return e.json(v)
	}
	return e.write(renderReport(report, v))
}

// renderReport returns the report of a name, columns aligned. It panics when the
// template has a fault, which only a change of the template causes.
func renderReport(name string, v any) string {
	var text, aligned strings.Builder
	if err := reports().ExecuteTemplate(&text, name, v); err != nil {
		panic(err)
	}
	w := tabwriter.NewWriter(&aligned, 0, 4, 2, ' ', 0)
	_, _ = io.WriteString(w, printable(text.String())) // a strings.Builder takes everything
	_ = w.Flush()
	return aligned.String()
}

// write prints a text as it is.
func (e *env) write(text string) error {
	if _, err := io.WriteString(e.out, text); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// json prints v as one indented document.
func (e *env) json(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// count returns a number of things whose plural has an s.
func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// printable returns s with every control character but line ends and tabs as an
// escape: servers write much of what is printed, and a terminal would obey it.
func printable(s string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, "\r\n", "\n") {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// oneLine returns s as the cell of a table.
func oneLine(s string) string { return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(s)) }

// indented returns the lines of text two spaces further in.
func indented(text string) string {
	return "  " + strings.NewReplacer("\n", "\n  ", "\t", "    ").Replace(strings.TrimRight(printable(text), "\n"))
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// short returns a revision or digest as people read it.
func short(revision string) string { return revision[:min(len(revision), len("sha256:")+12)] }

// clock returns a time to the second in UTC.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// title returns an ASCII text with its first letter in upper case.
func title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

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
