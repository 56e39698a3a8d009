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
			e = Edit{Name: key, Value: e.wrap(i + 1)}
			break
		}
		in = next
	}
	members, end := split(in)
	i := slices.IndexFunc(members, e.names)
	switch {
	case e.Value == nil:
		members, end = remove(members, end, i)
	case i < 0:
		members, end = insert(data, root, in, e)
	default:
		members[i].Value.Value = lines(data, root, e.Value, indentAt(data, members[i].Value.StartOffset))
	}
	join(in, members, end)
	return root.Pack(), nil
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

// split returns the members of an object, or the elements of an array as members without a
// name, and what stands before the bracket at the end. There is a comma behind the last
// member if it has AfterExtra.
func split(v *hujson.Value) (members []hujson.ObjectMember, end hujson.Extra) {
	switch c := v.Value.(type) {
	case *hujson.Object:
		return c.Members, c.AfterExtra
	case *hujson.Array:
		for _, element := range c.Elements {
			m := hujson.ObjectMember{Value: element}
			m.Name.BeforeExtra, m.Value.BeforeExtra = element.BeforeExtra, nil
			members = append(members, m)
		}
		return members, c.AfterExtra
	}
	return nil, nil
}

// join undoes split.
func join(v *hujson.Value, members []hujson.ObjectMember, end hujson.Extra) {
	switch c := v.Value.(type) {
	case *hujson.Object:
		c.Members, c.AfterExtra = members, end
	case *hujson.Array:
		c.Elements, c.AfterExtra = nil, end
		for _, m := range members {
			m.Value.BeforeExtra = m.Name.BeforeExtra
			c.Elements = append(c.Elements, m.Value)
		}
	}
}

// insert adds an entry behind the others. A comment on the line of the last of them stays
// there.
func insert(data []byte, root hujson.Value, in *hujson.Value, e Edit) ([]hujson.ObjectMember, hujson.Extra) {
	members, end := split(in)
	added := hujson.ObjectMember{Name: hujson.Value{Value: hujson.String(e.Name), BeforeExtra: hujson.Extra(" ")}}
	if e.Key == "" {
		added.Value.BeforeExtra = hujson.Extra(" ")
	}
	newline, outer := lineEnd(data), indentAt(data, in.StartOffset)
	inner := outer + unit(root)
	if n := len(members); n > 0 {
		first := members[0].Name.BeforeExtra
		if members[n-1].Value.AfterExtra != nil {
			added.Value.AfterExtra = hujson.Extra{}
		}
		if !bytes.Contains(first, []byte("\n")) {
			value, _ := hujson.Parse(e.Value) // it was parsed
			value.Minimize()
			added.Value.Value = value.Value
			return append(members, added), end
		}
		inner = indentAt(first, len(first))
	}
	line, end := splitLine(end)
	added.Name.BeforeExtra = slices.Concat(line, hujson.Extra(newline+inner))
	if len(members) == 0 && !bytes.Contains(end, []byte("\n")) {
		end = slices.Concat(hujson.Extra(newline+outer), end)
	}
	added.Value.Value = lines(data, root, e.Value, inner)
	return append(members, added), end
}

// remove takes out a member with its line. Comments above it stay.
func remove(members []hujson.ObjectMember, end hujson.Extra, i int) ([]hujson.ObjectMember, hujson.Extra) {
	before, comma := members[i].Name.BeforeExtra, members[len(members)-1].Value.AfterExtra != nil
	members = slices.Delete(members, i, i+1)
	next := &end
	if i < len(members) {
		next = &members[i].Name.BeforeExtra
	}
	if start := bytes.LastIndexByte(before, '\n'); start >= 0 && len(bytes.TrimSpace(before[start:])) == 0 {
		_, rest := splitLine(*next)
		*next = slices.Concat(bytes.TrimSuffix(before[:start], []byte("\r")), rest)
	}
	if 0 < i && i == len(members) {
		last := &members[i-1].Value
		if comma {
			last.AfterExtra = append(hujson.Extra{}, last.AfterExtra...)
		} else {
			end, last.AfterExtra = slices.Concat(last.AfterExtra, end), nil
		}
	}
	return members, end
}

// splitLine returns what stands on the first line of blanks and comments, and the rest. The
// first is empty when there is one line only, or a comment goes on.
func splitLine(x hujson.Extra) (line, rest hujson.Extra) {
	end := bytes.IndexByte(x, '\n')
	if end < 0 || bytes.Count(x[:end], []byte("/*")) > bytes.Count(x[:end], []byte("*/")) {
		return nil, x
	}
	line = bytes.TrimRight(x[:end], "\r")
	return line, x[len(line):]
}

// unit returns the blanks by which a file indents.
func unit(root hujson.Value) string {
	members, _ := split(&root)
	if len(members) == 0 {
		return "  "
	}
	first := members[0].Name.BeforeExtra
	return cmp.Or(indentAt(first, len(first)), "  ")
}

// lines returns a value over several lines, all but the first indented.
func lines(data []byte, root hujson.Value, value json.RawMessage, indent string) hujson.Literal {
	var b bytes.Buffer
	if err := json.Indent(&b, value, indent, unit(root)); err != nil {
		return hujson.Literal(value) // which the check after the edit refuses
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(lineEnd(data)))
}

// indentAt returns the blanks with which the line of an offset begins.
func indentAt(data []byte, at int) string {
	line := data[bytes.LastIndexByte(data[:at], '\n')+1 : at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}
