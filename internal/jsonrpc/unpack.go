package jsonrpc

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// An Element is one element of an array: its bytes, and the values of the members
// that Unpack looked for, nil for each that is absent.
type Element struct {
	Raw     json.RawMessage
	Members []json.RawMessage
}

// Unpack returns the values of the named members of obj as Fields does, and the
// elements of the first of them, where that is an array, with their members called
// inner. It reports false when obj is not one well-formed object, or when obj or an
// element has one of the members more than once. With accepted it takes the caller's
// word that a strict pass has accepted obj; a large string then costs one search for
// its end.
func Unpack(obj json.RawMessage, accepted bool, inner []string, names ...string) (values []json.RawMessage, elements []Element, ok bool) {
	if jsontext.Value(obj).Kind() != '{' || !accepted && !whole(obj, '{') {
		return nil, nil, false
	}
	c, repeated := &cursor{data: obj}, false
	values, ok = c.members(names, func(i int) json.RawMessage {
		if i != 0 || c.next() != '[' {
			return c.value()
		}
		start := c.at
		c.each(func([]byte) bool {
			e, whole := Element{}, true
			if from := c.at; c.data[from] == '{' {
				e.Members, whole = c.members(inner, func(int) json.RawMessage { return c.value() })
				e.Raw = c.data[from:c.at:c.at]
			} else {
				e = Element{c.value(), make([]json.RawMessage, len(inner))}
			}
			elements, repeated = append(elements, e), repeated || !whole
			return true
		})
		return c.data[start:c.at:c.at]
	})
	if !ok || repeated {
		return nil, nil, false
	}
	return values, elements, true
}

// Each calls visit for the parts of an object or an array that a strict pass has
// accepted: each member's decoded name and value, or a nil name and each element. It
// ends when visit returns false, and returns what visit returned last, true for none.
func Each(accepted json.RawMessage, visit func(name []byte, value json.RawMessage) bool) bool {
	c := cursor{data: accepted}
	return c.each(func(name []byte) bool { return visit(name, c.value()) })
}

// A cursor goes through JSON that was accepted.
type cursor struct {
	data []byte
	at   int
}

// each goes through the object or array that begins here, as Each does. It stands at
// each value when it calls visit, which goes through the value.
func (c *cursor) each(visit func(name []byte) bool) bool {
	named := c.next() == '{'
	c.at++
	for b := c.next(); b != '}' && b != ']' && b != 0; b = c.next() {
		var name []byte
		if named {
			name = c.name()
		}
		if !visit(name) {
			return false
		}
	}
	c.at = min(c.at+1, len(c.data))
	return true
}

// next goes to the next byte that is neither white space nor a separator, and returns
// it, 0 at the end.
func (c *cursor) next() byte {
	for ; c.at < len(c.data); c.at++ {
		if b := c.data[c.at]; b > ' ' && b != ',' && b != ':' {
			return b
		}
	}
	return 0
}

// members goes through the object that begins here and returns the values of the
// members called names. Value goes through the value of the name with index i, -1 for
// any other name.
func (c *cursor) members(names []string, value func(i int) json.RawMessage) (values []json.RawMessage, ok bool) {
	values, ok = make([]json.RawMessage, len(names)), true
	c.each(func(name []byte) bool {
		i := slices.Index(names, string(name))
		v := value(i)
		if i >= 0 {
			ok, values[i] = ok && values[i] == nil, v
		}
		return true
	})
	return values, ok
}

// name goes through the name that begins here, and to its value. It returns the name
// decoded.
func (c *cursor) name() []byte {
	name := c.value()
	if c.next(); len(name) > 1 && bytes.IndexByte(name, '\\') < 0 {
		return name[1 : len(name)-1]
	}
	name, _ = jsontext.AppendUnquote(nil, name)
	return name
}

// value goes through the value that begins here.
func (c *cursor) value() json.RawMessage {
	start, depth := c.at, 0
	for c.at < len(c.data) {
		switch c.data[c.at] {
		case '"':
			c.text()
		case '{', '[':
			c.at++
			depth++
			continue
		case '}', ']':
			c.at++
			depth--
		default:
			if c.at++; depth == 0 && (c.at == len(c.data) || strings.IndexByte(",:]} \t\r\n", c.data[c.at]) < 0) {
				continue // of a number or a word
			}
		}
		if depth == 0 {
			break
		}
	}
	return c.data[start:c.at:c.at]
}

// text goes through the string that begins here.
func (c *cursor) text() {
	for c.at++; c.at < len(c.data); {
		i := bytes.IndexByte(c.data[c.at:], '"')
		if i < 0 {
			c.at = len(c.data)
			return
		}
		before := bytes.TrimRight(c.data[c.at:c.at+i], `\`)
		if c.at += i + 1; (i-len(before))%2 == 0 {
			return
		}
	}
}

// MapStrings returns value with f applied to every string, the names of members
// included. Other values keep their spelling; white space between tokens is removed.
// It returns null for bytes that are not one JSON value.
func MapStrings(value json.RawMessage, f func(string) string) json.RawMessage {
	return rewrite(value, func(_ []string, _ bool, text string) string { return f(text) })
}

// MapTexts is MapStrings for the texts in a message of an MCP server that are made to be
// read: the values of title, description, text, message, systemPrompt and $comment, in
// JSON Schemas too. Names, addresses, and what a schema validates or proposes are left.
func MapTexts(value json.RawMessage, f func(string) string) json.RawMessage {
	return rewrite(value, func(path []string, isName bool, text string) string {
		if isName || !isText(path) {
			return text
		}
		return f(text)
	})
}

var (
	textNames   = []string{"title", "description", "text", "message", "systemPrompt", "$comment"}
	valueNames  = []string{"const", "enum", "default", "examples"}
	schemaNames = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)

// isText reports whether a value is a text to read, by the names of the members in which
// it is, "" for elements of arrays. The names in an object of schemas are not keywords.
func isText(path []string) bool {
	inSchemas := false
	for i, name := range path {
		switch {
		case i == len(path)-1:
			return !inSchemas && slices.Contains(textNames, name)
		case !inSchemas && slices.Contains(valueNames, name):
			return false
		}
		inSchemas = !inSchemas && slices.Contains(schemaNames, name)
	}
	return false
}

// rewrite returns value with f applied to every string. The path is only valid during
// the call of f.
func rewrite(value json.RawMessage, f func(path []string, isName bool, text string) string) json.RawMessage {
	if !jsontext.Value(value).IsValid(lenient, jsontext.AllowInvalidUTF8(true)) {
		return json.RawMessage("null")
	}
	return (&cursor{data: value}).rewrite(make([]byte, 0, len(value)), nil, f)
}

// rewrite appends the value that begins here to out, with f applied to its strings.
func (c *cursor) rewrite(out []byte, path []string, f func(path []string, isName bool, text string) string) []byte {
	open := c.next()
	switch open {
	case '{', '[':
	case '"':
		text, _ := jsontext.AppendUnquote(nil, c.value())
		out, _ = jsontext.AppendQuote(out, f(path, false, string(text)))
		return out
	default:
		return append(out, c.value()...)
	}
	out = append(out, open)
	c.each(func(name []byte) bool {
		if out[len(out)-1] != open {
			out = append(out, ',')
		}
		at := append(path, string(name))
		if open == '{' {
			out, _ = jsontext.AppendQuote(out, f(at, true, string(name)))
			out = append(out, ':')
		}
		out = c.rewrite(out, at, f)
		return true
	})
	return append(out, open+2) // the closing bracket
}

// Plain returns the bytes of a JSON text with the escapes in its strings resolved,
// for a search that does not care where a string begins. It returns text itself where
// there are none.
func Plain(text []byte) []byte {
	at := bytes.IndexByte(text, '\\')
	if at < 0 {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:at]...)
	for at < len(text) {
		end := at
		for end < len(text) && text[end] == '\\' {
			end++ // the first of an escape
			if end < len(text) && text[end] == 'u' {
				end += 4
			}
			end = min(end+1, len(text))
		}
		if decoded, err := jsontext.AppendUnquote(nil, append(append([]byte{'"'}, text[at:end]...), '"')); err == nil || decoded != nil {
			out = append(out, decoded...)
		}
		next := bytes.IndexByte(text[end:], '\\')
		if next < 0 {
			return append(out, text[end:]...)
		}
		out = append(out, text[end:end+next]...)
		at = end + next
	}
	return out
}
