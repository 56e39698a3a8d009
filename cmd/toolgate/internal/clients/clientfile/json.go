package clientfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tailscale/hujson"
)

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
			e = Edit{Name: key, Value: e.wrap(e.Container[i+1:])}
			break
		}
		in = next
	}
	unit := "  "
	if all := members(&root); len(all) > 0 {
		unit = cmp.Or(blanksBefore(data, all[0].Name.StartOffset), unit)
	}
	i := slices.IndexFunc(members(in), e.names)
	switch {
	case e.Value == nil:
		return remove(data, in, i), nil
	case i < 0:
		return e.insert(data, in, unit), nil
	}
	v := members(in)[i].Value
	text := lines(data, e.Value, indentAt(data, v.StartOffset), unit)
	return slices.Concat(data[:v.StartOffset], text, data[v.EndOffset:]), nil
}

// wrap returns the entry inside what is missing of its container.
func (e Edit) wrap(missing []string) json.RawMessage {
	keys, value := slices.Clone(missing), e.Value
	if e.Key != "" {
		value = slices.Concat([]byte("["), value, []byte("]"))
	} else {
		keys = append(keys, e.Name)
	}
	for _, key := range slices.Backward(keys) {
		value = slices.Concat([]byte("{"), json.RawMessage(hujson.String(key)), []byte(":"), value, []byte("}"))
	}
	return value
}

// member returns the value of a key, nil when there is none.
func member(v *hujson.Value, key string) *hujson.Value {
	return v.Find(string(jsontext.Pointer("").AppendToken(key)))
}

// names reports whether m is the entry.
func (e Edit) names(m hujson.ObjectMember) bool {
	name := &m.Name
	if e.Key != "" {
		name = member(&m.Value, e.Key)
	}
	if name == nil {
		return false
	}
	text, ok := name.Value.(hujson.Literal)
	return ok && text.Kind() == '"' && text.String() == e.Name
}

// members returns the members of an object, or the elements of an array as members whose
// names are where they begin.
func members(v *hujson.Value) (found []hujson.ObjectMember) {
	switch c := v.Value.(type) {
	case *hujson.Object:
		return c.Members
	case *hujson.Array:
		for _, element := range c.Elements {
			found = append(found, hujson.ObjectMember{Name: hujson.Value{StartOffset: element.StartOffset}, Value: element})
		}
	}
	return found
}

// behind returns the offset behind a member and its comma. Only the last one may have none.
func behind(m hujson.ObjectMember, last bool) (at int, comma bool) {
	if last && m.Value.AfterExtra == nil {
		return m.Value.EndOffset, false
	}
	return m.Value.EndOffset + len(m.Value.AfterExtra) + 1, true
}

// insert adds an entry behind the others. A comment on the line of the last of them stays
// there.
func (e Edit) insert(data []byte, in *hujson.Value, unit string) []byte {
	var name, before, after string
	if e.Key == "" {
		name = string(hujson.String(e.Name)) + ": "
	}
	at, newline, outer := in.StartOffset+1, lineEnd(data), indentAt(data, in.StartOffset)
	all, inner := members(in), outer+unit
	if n := len(all); n > 0 {
		var comma bool
		if at, comma = behind(all[n-1], true); comma {
			after = ","
		} else {
			before = ","
		}
		first := all[0].Name.StartOffset
		if inner = blanksBefore(data, first); !bytes.Contains(data[in.StartOffset:first], []byte("\n")) {
			value, _ := hujson.Parse(e.Value) // it was parsed
			value.Minimize()
			return slices.Concat(data[:at], []byte(before+" "+name), value.Pack(), []byte(after), data[at:])
		}
	}
	line := restOfLine(data[at : in.EndOffset-1])
	rest := data[at+len(line):]
	if len(all) == 0 && !bytes.Contains(data[at+len(line):in.EndOffset-1], []byte("\n")) {
		after = newline + outer
	}
	return slices.Concat(data[:at], []byte(before), line, []byte(newline+inner+name), lines(data, e.Value, inner, unit), []byte(after), rest)
}

// remove takes out a member with its line. Comments above it stay.
func remove(data []byte, in *hujson.Value, i int) []byte {
	all := members(in)
	last := i == len(all)-1
	end, comma := behind(all[i], last)
	from, until := in.StartOffset+1, in.EndOffset-1 // of the blanks and comments around it
	if i > 0 {
		from, _ = behind(all[i-1], false)
	}
	if !last {
		until = all[i+1].Name.StartOffset
	}
	around := data[from:all[i].Name.StartOffset]
	start := from
	if n := bytes.LastIndexByte(around, '\n'); n >= 0 && len(bytes.TrimSpace(around[n:])) == 0 {
		start = from + len(bytes.TrimSuffix(around[:n], []byte("\r")))
		end += len(restOfLine(data[end:until]))
	}
	head := data[:start]
	if last && i > 0 && !comma {
		head = slices.Concat(data[:from-1], data[from:start])
	}
	return slices.Concat(head, data[end:])
}

// restOfLine returns what stands on the first line of blanks and comments. It is empty when
// there is one line only, or a comment goes on.
func restOfLine(x []byte) []byte {
	end := bytes.IndexByte(x, '\n')
	if end < 0 || bytes.Count(x[:end], []byte("/*")) > bytes.Count(x[:end], []byte("*/")) {
		return nil
	}
	return bytes.TrimRight(x[:end], "\r")
}

// lines returns a value over several lines, all but the first indented.
func lines(data []byte, value json.RawMessage, indent, unit string) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, value, indent, unit); err != nil {
		return value // which the check after the edit refuses
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(lineEnd(data)))
}

// indentAt returns the blanks with which the line of an offset begins.
func indentAt(data []byte, at int) string {
	line := data[bytes.LastIndexByte(data[:at], '\n')+1 : at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// blanksBefore returns the blanks that stand before an offset on its line.
func blanksBefore(data []byte, at int) string {
	return string(data[len(bytes.TrimRight(data[:at], " \t")):at])
}
