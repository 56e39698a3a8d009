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
	if !accepted && !jsontext.Value(obj).IsValid(lenient) || jsontext.Value(obj).Kind() != '{' {
		return nil, nil, false
	}
	c := &cursor{data: obj}
	c.next()
	values, ok = c.members(names, func(i int) json.RawMessage {
		if i != 0 || c.next() != '[' {
			return c.value()
		}
		start := c.at
		for c.at++; c.next() != ']' && c.next() != 0; {
			e, whole := Element{}, true
			if from := c.at; c.data[from] == '{' {
				e.Members, whole = c.members(inner, func(int) json.RawMessage { return c.value() })
				e.Raw = c.data[from:c.at:c.at]
			} else {
				e = Element{c.value(), make([]json.RawMessage, len(inner))}
			}
			elements = append(elements, e)
			c.repeated = c.repeated || !whole
		}
		c.at = min(c.at+1, len(c.data))
		return c.data[start:c.at:c.at]
	})
	if !ok || c.repeated {
		return nil, nil, false
	}
	return values, elements, true
}

// A cursor goes through JSON that was accepted.
type cursor struct {
	data     []byte
	at       int
	repeated bool // an element has a member more than once
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
	for c.at++; c.next() == '"'; {
		name := c.value()
		if len(name) < len(`""`) {
			return values, false
		}
		if name = name[1 : len(name)-1]; bytes.IndexByte(name, '\\') >= 0 {
			name, _ = jsontext.AppendUnquote(nil, c.data[c.at-len(name)-2:c.at])
		}
		c.next()
		i := slices.Index(names, string(name))
		v := value(i)
		if i >= 0 {
			ok, values[i] = ok && values[i] == nil, v
		}
	}
	c.at = min(c.at+1, len(c.data))
	return values, ok
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
