package page

import (
	"context"
	"io"
	"net/url"
	"strings"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// Bounds of what is converted of a page.
const (
	maxNodes   = 100_000 // elements, texts and comments
	maxNesting = 16      // of lists and quotations
)

// convert returns the title of a page and what it shows, in a format, with links relative
// to address; cut reports that the page has more than maxNodes. Some markup takes the
// parser quadratic time: it stops when ctx ends. Deep nesting is an error of the parser.
func convert(ctx context.Context, page, format, address string) (title, content string, cut bool, err error) {
	doc, err := html.Parse(timed{ctx, strings.NewReader(page)})
	if err != nil {
		return "", "", false, err
	}
	title = titleOf(doc)
	var t tame
	t.walk(doc, 0)
	if format == Text {
		var b strings.Builder
		writeText(&b, doc)
		return title, tidy(b.String()), t.cut, nil
	}
	md, err := converter.NewConverter(converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin())).ConvertNode(doc, converter.WithContext(ctx), converter.WithDomain(baseOf(address)))
	return title, string(md), t.cut, err
}

// maxBase bounds the base of relative links, which is written for each of them, in bytes.
const maxBase = 256

// baseOf returns the address against which the links of a page are resolved.
func baseOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	if u.RawQuery, u.Fragment = "", ""; len(u.Path) > maxBase {
		u.Path, u.RawPath = "/", ""
	}
	return u.String()
}

// timed is a reader that fails when ctx has ended.
type timed struct {
	ctx context.Context
	io.Reader
}

// Read reads a small part, so that little work follows the end of ctx.
func (t timed) Read(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	return t.Reader.Read(p[:min(len(p), 4<<10)])
}

// tame makes a tree safe for a conversion: removed is what follows its first maxNodes
// nodes, lists and quotations nest up to maxNesting levels, since each level is written
// on each of its lines, and rows of tables are lines, since Markdown's tables have as many
// cells in each row as the widest row.
type tame struct {
	nodes int // so far
	cut   bool
}

func (t *tame) walk(n *html.Node, nesting int) {
	switch n.DataAtom {
	case atom.Ul, atom.Ol, atom.Blockquote:
		if nesting++; nesting > maxNesting {
			n.Data, n.DataAtom = "div", atom.Div
		}
	case atom.Tr:
		n.Data, n.DataAtom = "div", atom.Div
	case atom.Td, atom.Th:
		n.Data, n.DataAtom = "span", atom.Span
		if n.PrevSibling != nil {
			n.InsertBefore(&html.Node{Type: html.TextNode, Data: " | "}, n.FirstChild)
		}
	}
	for child := n.FirstChild; child != nil; {
		next := child.NextSibling
		if t.nodes++; t.nodes > maxNodes {
			n.RemoveChild(child)
			t.cut = true
		} else {
			t.walk(child, nesting)
		}
		child = next
	}
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
