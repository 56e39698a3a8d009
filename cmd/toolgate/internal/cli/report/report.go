// Package report prints the results of commands for people and for programs.
//
// A result is one Go value. A function of its type makes the table, and with further columns
// the wide table. The JSON encoding of the value is the document, as JSON or as YAML with the
// same keys in the same order and numbers digit for digit. So the four forms cannot say
// different things. The functions are compiled texts of quicktemplate, so that a report of
// another type, or one that does not exist, does not compile:
//
//	{% func tokensText(all []Token, form report.Form) %}SUBJECT	ROLES{% if form.Wide() %}	SHA256{% endif %}
//	{% for _, t := range all %}{%s= line(t.Subject) %}	{%s= line(t.Roles) %}{% if form.Wide() %}	{%s= t.SHA256 %}{% endif %}
//	{% endfor %}{% endfunc %}
//
//	printer.Print(report.Of(tokens, tokensText))
//
// Cells have tabs between them, and are aligned when they are printed. What callers and
// servers wrote passes through [OneLine], [CodeMarkdown] or [PlainMarkdown], so that it ends
// neither its line nor its cell. Control characters never reach a terminal, whatever a report
// forgets: [Printable] is applied to all that it makes.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/toolgate/toolgate/internal/text"
)

// A Form is a form of output: one that every report has, or one of a few reports, such as
// markdown.
type Form string

// The forms of output that every report has.
const (
	Table = "table"
	Wide  = "wide"
	JSON  = "json"
	YAML  = "yaml"
)

// Forms returns the forms that every report has.
func Forms() []string { return []string{Table, Wide, JSON, YAML} }

// Wide reports whether a table has all its columns, with cells as long as they are.
func (f Form) Wide() bool { return f == Wide }

// Cut returns s with at most n characters, and whole in a wide table.
func (f Form) Cut(s string, n int) string {
	if f.Wide() {
		return s
	}
	return text.ClipRunes(s, n)
}

// A Report is one result.
type Report struct {
	document any
	text     func(Form) string
}

// Of returns a report of v. text renders v in the forms other than JSON and YAML.
func Of[V any](v V, text func(v V, form Form) string) *Report {
	return &Report{v, func(f Form) string { return text(v, f) }}
}

// Document returns a report of v that is printed as JSON or YAML only.
func Document(v any) *Report { return &Report{document: v} }

// A Printer prints reports in one form. It is not safe for concurrent use.
type Printer struct {
	Out  io.Writer
	Form Form

	printed bool
}

// Structured reports whether the form is for programs: JSON or YAML.
func (p *Printer) Structured() bool { return p.Form == JSON || p.Form == YAML }

// Printed reports whether anything has been printed.
func (p *Printer) Printed() bool { return p.printed }

// Print prints r: as a document, or as its text, columns aligned.
func (p *Printer) Print(r *Report) error {
	if p.Structured() {
		return p.Document(r.document)
	}
	return p.Write(r.Text(p.Form))
}

// Next prints r as one of several reports, of which each is printed when it is known: as a
// line of JSON, as a YAML document of a stream, or as text without columns that align from
// one report to the next.
func (p *Printer) Next(r *Report) error {
	switch p.Form {
	case JSON:
		text, err := encode(r.document, "")
		if err != nil {
			return err
		}
		return p.Write(text)
	case YAML:
		if err := p.Write("---\n"); err != nil {
			return err
		}
		return p.Document(r.document)
	}
	return p.Write(aligned(r.text(p.Form), nextWidth))
}

// nextWidth is the least width of a cell that is printed before its neighbours are known.
const nextWidth = 12

// Document prints v as YAML if that is the form, and as indented JSON otherwise.
func (p *Printer) Document(v any) error {
	text, err := encode(v, "  ")
	if err == nil && p.Form == YAML {
		text, err = ToYAML(text)
	}
	if err != nil {
		return err
	}
	return p.Write(text)
}

// Write prints a text as it is.
func (p *Printer) Write(text string) error {
	p.printed = p.printed || text != ""
	if _, err := io.WriteString(p.Out, text); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// encode returns v as JSON with a line end.
func encode(v any, indent string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("printing: %w", err)
	}
	return b.String(), nil
}

// Text renders the report in a form other than JSON and YAML, with aligned columns.
func (r *Report) Text(form Form) string { return aligned(r.text(form), 0) }

// aligned returns a text with its cells below each other, each with at least a width.
func aligned(text string, width int) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, width, 4, 2, ' ', 0)
	_, _ = io.WriteString(w, Printable(text)) // a strings.Builder takes everything
	_ = w.Flush()
	return b.String()
}
