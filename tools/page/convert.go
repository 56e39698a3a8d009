package page

import (
	"strings"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// convert returns the title of a page and what it shows, in a format. Deep nesting is
// an error of the parser.
func convert(page, format string) (title, content string, err error) {
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		return "", "", err
	}
	title = titleOf(doc)
	if format == Text {
		var b strings.Builder
		writeText(&b, doc)
		return title, tidy(b.String()), nil
	}
	md, err := converter.NewConverter(converter.WithPlugins(
		base.NewBasePlugin(), commonmark.NewCommonmarkPlugin(), table.NewTablePlugin(),
	)).ConvertNode(doc)
	return title, string(md), err
}

func titleOf(n *html.Node) string {
	for at := range n.Descendants() {
		if at.DataAtom == atom.Title && at.Namespace == "" && at.FirstChild != nil {
			return at.FirstChild.Data
		}
	}
	return ""
}

// inline are the elements that do not break a line.
var inline = map[atom.Atom]bool{
	atom.A: true, atom.Abbr: true, atom.B: true, atom.Cite: true, atom.Code: true, atom.Em: true, atom.Font: true, atom.I: true, atom.Kbd: true, atom.Mark: true,
	atom.Q: true, atom.S: true, atom.Samp: true, atom.Small: true, atom.Span: true, atom.Strong: true, atom.Sub: true, atom.Sup: true, atom.Time: true, atom.U: true, atom.Var: true,
}

var lineEnds = strings.NewReplacer("\n", " ", "\r", " ")

// writeText writes the text that n shows. The parser bounds its depth.
func writeText(b *strings.Builder, n *html.Node) {
	switch n.DataAtom {
	case atom.Script, atom.Style, atom.Noscript, atom.Template, atom.Head, atom.Iframe, atom.Svg:
		return
	}
	if n.Type == html.TextNode {
		b.WriteString(lineEnds.Replace(n.Data))
	}
	breaks := n.Type == html.ElementNode && !inline[n.DataAtom]
	if breaks {
		b.WriteByte('\n')
	}
	for child := range n.ChildNodes() {
		writeText(b, child)
	}
	if breaks {
		b.WriteByte('\n')
	}
}

// tidy removes spaces around lines, and empty lines.
func tidy(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
