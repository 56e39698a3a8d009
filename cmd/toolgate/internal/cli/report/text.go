package report

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
)

// Printable returns s with every control character but line ends and tabs as an
// escape: servers write much of what is printed, and a terminal would obey it.
func Printable(s string) string {
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

// OneLine returns s as the cell of a table.
func OneLine(s string) string { return strings.NewReplacer("\n", " ", "\t", " ").Replace(Printable(s)) }

// Indented returns the lines of text two spaces further in.
func Indented(text string) string {
	return "  " + strings.NewReplacer("\n", "\n  ", "\t", "    ").Replace(strings.TrimRight(Printable(text), "\n"))
}

// CodeMarkdown returns text as Markdown code that ends neither its quotes nor a
// table cell.
func CodeMarkdown(text string) string {
	text = strings.ReplaceAll(OneLine(cmp.Or(text, " ")), "|", `\|`)
	ticks := "`"
	for strings.Contains(text, ticks) {
		ticks += "`"
	}
	if strings.HasPrefix(text, "`") || strings.HasSuffix(text, "`") {
		text = " " + text + " "
	}
	return ticks + text + ticks
}

// PlainMarkdown returns text with every character escaped that means something in
// Markdown or HTML.
func PlainMarkdown(text string) string {
	var b strings.Builder
	for _, r := range OneLine(text) {
		if strings.ContainsRune("\\`*_{}[]()<>#+-!|~@&", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
