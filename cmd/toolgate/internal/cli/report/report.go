// Package report prints the results of commands for people and for programs.
//
// A result is one Go value, and has one template. The template makes the table, and with
// further columns the wide table. The JSON encoding of the value is the document, as JSON
// or as YAML with the same keys in the same order and numbers digit for digit. So the four
// forms cannot say different things:
//
//	{{define "tokens"}}SUBJECT	ROLES	STATE{{if wide}}	SHA256{{end}}
//	{{range .}}{{line .Subject}}	{{line (join .Roles ",")}}	{{.State}}{{if wide}}	{{.SHA256}}{{end}}
//	{{end}}{{end}}
//
// Cells have tabs between them, and are aligned when they are printed. What callers and
// servers wrote passes through the functions line, code or plain, so that it ends neither
// its line nor its cell. Control characters never reach a terminal, whatever a template
// forgets: [Printable] is applied to all that it makes.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"github.com/toolgate/toolgate/internal/text"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
)

// The forms of output that every report has.
const (
	Table = "table"
	Wide  = "wide"
	JSON  = "json"
	YAML  = "yaml"
)

// Forms returns the forms that every report has.
func Forms() []string { return []string{Table, Wide, JSON, YAML} }

// A Printer prints reports in one form. It is not safe for concurrent use.
type Printer struct {
	Out       io.Writer
	Form      string // one of Forms, or one for which the report has a template of its own
	Templates *Templates

	printed bool
}

// Templates are the templates of reports. They are safe for concurrent use.
type Templates struct{ table, wide *template.Template }

// Parse returns the templates in files whose names end in .tmpl, which may use funcs in
// addition to those of this package. It panics when a template has a fault, which only a
// change of the files causes.
func Parse(files fs.FS, funcs template.FuncMap) *Templates {
	base := template.New("").Funcs(template.FuncMap{
		"line": OneLine, "code": CodeMarkdown, "plain": PlainMarkdown, "printable": Printable, "indent": Indented,
		"cut": text.ClipRunes, "count": text.Count, "join": strings.Join, "wide": func() bool { return false },
	}).Funcs(funcs)
	t := &Templates{table: template.Must(base.ParseFS(files, "*.tmpl"))}
	t.wide = template.Must(t.table.Clone()).Funcs(template.FuncMap{
		"wide": func() bool { return true }, "cut": func(s string, _ int) string { return s },
	})
	return t
}

// Structured reports whether the form is for programs: JSON or YAML.
func (p *Printer) Structured() bool { return p.Form == JSON || p.Form == YAML }

// Printed reports whether anything has been printed.
func (p *Printer) Printed() bool { return p.printed }

// Print prints v: as a document, or as the report of a name. In a form that is none of
// Forms, that is the template of the name, a dot and the form.
func (p *Printer) Print(name string, v any) error {
	if p.Structured() {
		return p.Document(v)
	}
	if !slices.Contains(Forms(), p.Form) {
		name += "." + p.Form
	}
	return p.Write(p.Templates.Render(name, v, p.Form == Wide))
}

// Next prints v as one of several values, of which each is printed when it is known: as a
// line of JSON, as a YAML document of a stream, or as the report of a name without columns
// that align from one value to the next.
func (p *Printer) Next(name string, v any) error {
	switch p.Form {
	case JSON:
		text, err := encode(v, "")
		if err != nil {
			return err
		}
		return p.Write(text)
	case YAML:
		if err := p.Write("---\n"); err != nil {
			return err
		}
		return p.Document(v)
	}
	return p.Write(p.Templates.render(name, v, p.Form == Wide, nextWidth))
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

// Render returns the report of a name, columns aligned. It panics when there is none.
func (t *Templates) Render(name string, v any, wide bool) string { return t.render(name, v, wide, 0) }

func (t *Templates) render(name string, v any, wide bool, width int) string {
	var text, aligned strings.Builder
	templates := t.table
	if wide {
		templates = t.wide
	}
	if err := templates.ExecuteTemplate(&text, name, v); err != nil {
		panic(err)
	}
	w := tabwriter.NewWriter(&aligned, width, 4, 2, ' ', 0)
	_, _ = io.WriteString(w, Printable(text.String())) // a strings.Builder takes everything
	_ = w.Flush()
	return aligned.String()
}
