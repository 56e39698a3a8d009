package tree

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

// parseJSON reads f into nodes, or reports where f stops being JSON. Only the position is taken
// from the parser: its words quote the file, and with it secrets.
func (r *Report) parseJSON(f *File) *Node {
	v, err := hujson.Parse(f.Data)
	if err == nil {
		return convert(v)
	}
	var line, column int
	if _, scan := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &column); scan != nil {
		r.Fault(f.At(0), "is not JSON", "")
		return nil
	}
	at := f.At(offsetOf(f.Data, line, column))
	rest := f.Data[at.Offset:]
	first, _ := utf8.DecodeRune(rest)
	switch {
	case len(bytes.TrimSpace(f.Data)) == 0:
		r.Fault(at, "is empty", `write at least { "mcpServers": {} }`)
	case len(rest) == 0:
		r.Fault(at, "ends in the middle of a value", "close what is open: a string, a comment, [ or {")
	case rest[0] == '"' && !literal(token.Find(rest)):
		r.Fault(at, "has a string that is not JSON", `a backslash is written \\, a tab \t, a line end \n`)
	case word.Match(rest) && !literal(word.Find(rest)):
		r.Fault(at, "has a bare word or number that is not JSON", "text goes between double quotes")
	case strings.ContainsRune("'`“”„‘’", first):
		r.Fault(at, fmt.Sprintf("%c is not a quote of JSON", first), `write "`)
	default:
		r.Fault(at, fmt.Sprintf("%q is not expected here", first), "look for a missing comma, colon or quote just before")
	}
	return nil
}

// literal reports whether data is a whole literal, so that its place is what is
// wrong.
func literal(data []byte) bool { return hujson.Literal(data).IsValid() }

// offsetOf undoes position.
func offsetOf(data []byte, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		offset += bytes.IndexByte(data[offset:], '\n') + 1
	}
	return min(offset+column-1, len(data))
}

// convert turns a parsed value into nodes.
func convert(v hujson.Value) *Node {
	n := &Node{Offset: v.StartOffset, Kind: v.Value.Kind()}
	switch t := v.Value.(type) {
	case *hujson.Object:
		for _, m := range t.Members {
			key := convert(m.Name)
			n.addMember(key.Text, key.Offset, convert(m.Value))
		}
	case *hujson.Array:
		for _, e := range t.Elements {
			n.Items = append(n.Items, convert(e))
		}
	case hujson.Literal:
		n.Text = string(t)
		if n.Kind == String {
			n.Text = t.String()
		}
	}
	return n
}

// token finds what matters for depth: strings and comments, which may hold
// brackets, and brackets.
var token = regexp.MustCompile(`(?s)"(?:[^"\\]|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\z)|[][{}]`)

// tooDeep gives the offset of the first bracket beyond maxDepth, or -1. The
// parser recurses, so this is known before it runs.
func tooDeep(data []byte) int {
	depth := 0
	for _, at := range token.FindAllIndex(data, -1) {
		switch data[at[0]] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return at[0]
			}
		case '}', ']':
			depth--
		}
	}
	return -1
}
