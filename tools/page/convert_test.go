package page

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile are parts of pages that are made to be slow or to grow: some take the parser
// quadratic time, and others say that cells and quotations repeat.
var hostile = map[string]string{
	"text in tables":  "<td>x</td>",
	"many wide cells": "<tr><td colspan=1000>x</td></tr>",
	"formatting":      "<a><b><i><p>",
	"links in tables": "<table><a>",
	"tables in bold":  "<b><table>",
	"paragraphs":      "<p>a</p>",
	"links":           "<a href=x>y</a>",
	"special letters": "a*b_c`d[e](f)",
}

// The content of a page is not much larger than the page, whatever its markup says.
func TestConversionIsBounded(t *testing.T) {
	pages := map[string]string{
		"wide cells":        "<table><tr><td colspan=99999999>x<td rowspan=99999999>y</table>",
		"wide table":        "<table><tr>" + strings.Repeat("<td>x", 10_000) + strings.Repeat("<tr><td>y", 5000),
		"nested quotations": strings.Repeat("<blockquote>", 400) + strings.Repeat("x<br>", 50_000),
		"too deep":          strings.Repeat("<ul><li>", 1000),
		"nested lists":      strings.Repeat("<ul><li>", 200) + strings.Repeat("x<br>", 50_000),
	}
	for name, part := range hostile {
		pages[name] = strings.Repeat(part, 64<<10/len(part))
	}
	for name, text := range pages {
		for _, format := range []string{Markdown, Text} {
			_, content, _, err := convert(t.Context(), text, format, "http://example.org/"+strings.Repeat("x", 60_000))
			if len(content) > 40*len(text)+1024 || (err != nil) != (name == "too deep") {
				t.Errorf("%s as %s: %d bytes of %d, %v", name, format, len(content), len(text), err)
			}
		}
	}
}

// parts is a context that ends when Err was called as often as it says.
type parts struct {
	context.Context
	left int
}

func (p *parts) Err() error {
	if p.left--; p.left < 0 {
		return context.Canceled
	}
	return nil
}

// A page whose time has ended is read no further: the parser gets small parts, and none
// after the end.
func TestConversionStopsWithItsTime(t *testing.T) {
	for name, part := range hostile {
		ctx := &parts{t.Context(), 3}
		_, content, _, err := convert(ctx, strings.Repeat(part, maxBody/len(part)), Markdown, "http://example.org/")
		if err == nil || content != "" || ctx.left != -1 {
			t.Errorf("%s: %d bytes, %v, and %d parts after the end", name, len(content), err, -1-ctx.left)
		}
	}
	r, buffer := timed{t.Context(), strings.NewReader(strings.Repeat("x", maxBody))}, make([]byte, maxBody)
	if n, err := r.Read(buffer); err != nil || n > 4<<10 {
		t.Errorf("a part has %d bytes, %v", n, err)
	}
}

// What ends a conversion: its context, and the number of nodes.
func TestConversionEnds(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	if _, content, _, err := convert(ended, "<p>x", Text, "http://a/"); err == nil {
		t.Errorf("an ended context gives %q", content)
	}
	for n, want := range map[int]bool{1000: false, maxNodes: true} {
		_, content, cut, err := convert(t.Context(), strings.Repeat("<p>x</p>", n), Text, "http://a/")
		if lines := strings.Count(content, "x"); cut != want || err != nil || lines > maxNodes/2 {
			t.Errorf("%d paragraphs: %d, cut %v, %v", n, lines, cut, err)
		}
	}
}

// FuzzConvert: a page of any bytes makes no panic, and the content is UTF-8 of a
// bounded size.
func FuzzConvert(f *testing.F) {
	for _, page := range []string{
		"<h1>x</h1><p>a <b>b</b> <a href='/c'>c</a><script>needle</script><!-- needle -->", "<table><tr><th>a<td colspan=9>b</table>", "<ul><li>a<ol><li>b", "<title>a</title>\x00\xff<pre>\n x </pre>",
		"<blockquote><blockquote>x<br>y", "<img src='data:x' alt='**'>", "<svg><title>x</title></svg>", "<a href='javascript:x'>y</a>", "&nGt;&#0;&#x110000;", "<base href='http://b/'><a href=x>y",
	} {
		f.Add(page)
	}
	f.Fuzz(func(t *testing.T, page string) {
		page = strings.ToValidUTF8(page, "?")
		for _, format := range []string{Markdown, Text} {
			title, content, _, err := convert(t.Context(), page, format, "http://a/b")
			if err == nil && (!utf8.ValidString(content) || !utf8.ValidString(title) || len(content) > 64*len(page)+64) {
				t.Errorf("%s: title %q, %d bytes %.200q of %d", format, title, len(content), content, len(page))
			}
		}
	})
}
