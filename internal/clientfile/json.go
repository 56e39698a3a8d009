package clientfile

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// span is where a member or an element is written.
type span struct {
	from, to int
	value    *hujson.Value
}

// editJSON makes an edit in a file that has no comments, or some.
func editJSON(e Edit, data []byte) ([]byte, error) {
	data = orEmpty(data)
	root, err := hujson.Parse(data)
	if err != nil {
		return nil, err
	}
	in := &root
	for i, key := range e.Container {
		next := member(in, key)
		if next == nil { // only an entry that is set gets here
			return insert(data, in, key, e.wrap(i+1)), nil
		}
		in = next
	}
	all := spans(in)
	i := slices.IndexFunc(all, func(s span) bool { return e.names(data, s) })
	switch {
	case e.Value == nil:
		return remove(data, in, all, i), nil
	case i < 0:
		return insert(data, in, e.Name, e.Value), nil
	}
	at := all[i].value
	return splice(data, at.StartOffset, at.EndOffset, layoutOf(data, in).indent(e.Value, indentAt(data, all[i].from))), nil
}

// wrap returns the entry inside what is missing of its container.
func (e Edit) wrap(depth int) json.RawMessage {
	keys, value := e.Container[depth:], e.Value
	if e.Key != "" {
		value = slices.Concat([]byte("["), value, []byte("]"))
	} else {
		keys = append(slices.Clone(keys), e.Name)
	}
	for _, key := range slices.Backward(keys) {
		value = slices.Concat([]byte("{"), quote(key), []byte(":"), value, []byte("}"))
	}
	return value
}

// names reports whether s is the entry.
func (e Edit) names(data []byte, s span) bool {
	if e.Key == "" {
		return keyOf(data, s) == e.Name
	}
	named := member(s.value, e.Key)
	return named != nil && literal(named) == e.Name
}

// keyOf returns the key of a member.
func keyOf(data []byte, s span) (key string) {
	_ = json.NewDecoder(bytes.NewReader(data[s.from:])).Decode(&key) // the file was parsed
	return key
}

// literal returns the text of a string, "" for another value.
func literal(v *hujson.Value) string {
	if l, ok := v.Value.(hujson.Literal); ok && l.Kind() == '"' {
		return l.String()
	}
	return ""
}

// quote returns a text as a string of JSON, TOML and YAML.
func quote(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string can be encoded
	return bytes.TrimRight(b.Bytes(), "\n")
}

// spans returns the members or the elements of a value.
func spans(v *hujson.Value) (all []span) {
	switch c := v.Value.(type) {
	case *hujson.Object:
		for i := range c.Members {
			m := &c.Members[i]
			all = append(all, span{m.Name.StartOffset, m.Value.EndOffset, &m.Value})
		}
	case *hujson.Array:
		for i := range c.Elements {
			all = append(all, span{c.Elements[i].StartOffset, c.Elements[i].EndOffset, &c.Elements[i]})
		}
	}
	return all
}

// member returns the value of a key, nil when there is none.
func member(v *hujson.Value, key string) *hujson.Value {
	o, ok := v.Value.(*hujson.Object)
	if !ok {
		return nil
	}
	for i := range o.Members {
		if literal(&o.Members[i].Name) == key {
			return &o.Members[i].Value
		}
	}
	return nil
}

// insert adds a member, or an element when in is a list, behind the others.
func insert(data []byte, in *hujson.Value, key string, value json.RawMessage) []byte {
	l, all := layoutOf(data, in), spans(in)
	prefix := ""
	if _, ok := in.Value.(*hujson.Object); ok {
		prefix = string(quote(key)) + ": "
	}
	if len(all) == 0 {
		outer := indentAt(data, in.StartOffset)
		text := l.newline + outer + l.unit + prefix + l.indent(value, outer+l.unit)
		if !bytes.Contains(data[in.StartOffset:in.EndOffset], []byte("\n")) {
			text += l.newline + outer
		}
		return splice(data, in.StartOffset+1, in.StartOffset+1, text)
	}
	last := all[len(all)-1].to
	text := " " + prefix + compact(value)
	at := skipExtra(data, last)
	comma := data[at] == ','
	if !comma {
		at = last - 1
	}
	at++ // behind the comma or the value
	if bytes.Contains(data[in.StartOffset:all[0].from], []byte("\n")) {
		inner := indentAt(data, all[0].from)
		text = l.newline + inner + prefix + l.indent(value, inner)
		at = restOfLine(data, at)
	}
	if comma {
		return splice(data, at, at, text+",")
	}
	return splice(splice(data, at, at, text), last, last, ",")
}

// remove takes out a member or an element with its line. Comments above it stay.
func remove(data []byte, in *hujson.Value, all []span, i int) []byte {
	from, to := in.StartOffset+1, all[i].to
	comma := -1
	if i > 0 {
		comma = skipExtra(data, all[i-1].to)
		from = comma + 1
	}
	if next := skipExtra(data, to); data[next] == ',' {
		to, comma = next+1, -1
	}
	if start := lineStart(data, all[i].from); start > from && len(bytes.TrimSpace(data[start:all[i].from])) == 0 {
		from = len(bytes.TrimSuffix(bytes.TrimSuffix(data[:start], []byte("\n")), []byte("\r")))
		to = restOfLine(data, to)
	}
	data = splice(data, from, to, "")
	if comma >= 0 && i == len(all)-1 {
		data = splice(data, comma, comma+1, "")
	}
	return data
}

// skipExtra returns the offset of what follows blanks and comments.
func skipExtra(data []byte, at int) int {
	for at < len(data) {
		switch rest := data[at:]; {
		case bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0:
			at++
		case bytes.HasPrefix(rest, []byte("//")):
			at += bytes.IndexByte(append(rest[:len(rest):len(rest)], '\n'), '\n')
		case bytes.HasPrefix(rest, []byte("/*")):
			at += bytes.Index(rest, []byte("*/")) + 2
		default:
			return at
		}
	}
	return at
}

// restOfLine returns the end of a line on which only blanks and comments follow, and at
// for any other.
func restOfLine(data []byte, at int) int {
	end := at + bytes.IndexByte(append(data[at:len(data):len(data)], '\n'), '\n')
	line := append(slices.Clone(data[at:end]), '\n')
	if bytes.Count(line, []byte("/*")) > bytes.Count(line, []byte("*/")) || skipExtra(line, 0) < len(line) {
		return at
	}
	return at + len(bytes.TrimRight(line, "\r\n"))
}

// layout is how a file is indented.
type layout struct{ newline, unit string }

// layoutOf looks at what surrounds in, and at the members of the file.
func layoutOf(data []byte, in *hujson.Value) layout {
	l := layout{newline: lineEnd(data), unit: "  "}
	all := spans(in)
	if len(all) == 0 {
		root, err := hujson.Parse(data)
		if err != nil {
			return l
		}
		in, all = &root, spans(&root)
	}
	if len(all) > 0 {
		outer, inner := indentAt(data, in.StartOffset), indentAt(data, all[0].from)
		if unit, ok := strings.CutPrefix(inner, outer); ok && unit != "" {
			l.unit = unit
		}
	}
	return l
}

// indent returns a value over several lines, all but the first indented.
func (l layout) indent(value json.RawMessage, prefix string) string {
	var b bytes.Buffer
	if err := json.Indent(&b, value, prefix, l.unit); err != nil {
		return string(value) // which the check after the edit refuses
	}
	return strings.ReplaceAll(b.String(), "\n", l.newline)
}

func compact(value json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, value); err != nil {
		return string(value) // which the check after the edit refuses
	}
	return b.String()
}

// indentAt returns the blanks with which the line of an offset begins.
func indentAt(data []byte, at int) string {
	line := data[lineStart(data, at):at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}
