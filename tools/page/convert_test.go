package page

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Pages that are made to be slow or to grow, each up to the size that is read: some take
// the parser quadratic time, and others say that cells and quotations repeat. Unbounded,
// the first of them takes 40 s, and the second all memory.
func TestConversionIsBounded(t *testing.T) {
	repeat := func(part string) string { return strings.Repeat(part, maxBody/len(part)) }
	for name, text := range map[string]string{
		"text in tables":    repeat("<td>x</td>"),
		"wide cells":        "<table><tr><td colspan=99999999>x<td rowspan=99999999>y</table>",
		"many wide cells":   repeat("<tr><td colspan=1000>x</td></tr>"),
		"wide table":        "<table><tr>" + strings.Repeat("<td>x", 40_000) + strings.Repeat("<tr><td>y", 5000),
		"formatting":        repeat("<a><b><i><p>"),
		"links in tables":   repeat("<table><a>"),
		"tables in bold":    repeat("<b><table>"),
		"paragraphs":        repeat("<p>a</p>"),
		"links":             repeat("<a href=x>y</a>"),
		"special letters":   repeat("a*b_c`d[e](f)"),
		"nested quotations": strings.Repeat("<blockquote>", 400) + strings.Repeat("x<br>", 50_000),
		"nested lists":      strings.Repeat("<ul><li>", 200) + strings.Repeat("x<br>", 50_000),
		"too deep":          repeat("<ul><li>"),
	} {
		for _, format := range []string{Markdown, Text} {
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, content, _, err := convert(ctx, text, format, "http://example.org/"+strings.Repeat("x", 60_000))
			stop()
			if took := time.Since(start); took > 20*time.Second || len(content) > 10*maxBody {
				t.Errorf("%s as %s: %d bytes of %d after %v, %v", name, format, len(content), len(text), took, err)
			}
		}
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
