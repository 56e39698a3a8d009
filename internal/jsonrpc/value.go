package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// Value decodes one bare JSON value under the rules of CheckValue: objects as
// map[string]any, arrays as []any, numbers as json.Number with their spelling.
// A value for which encoding/json would choose between two readings is a
// *Fault.
func Value(data []byte, lim Limits) (any, error) {
	raw, _, err := CheckValue(data, lim)
	if err != nil {
		return nil, err
	}
	return Judged{raw}.Value(), nil
}

// Judged is one JSON value that has passed the strict pass, so that nobody has
// to scan it again. Only this package makes one that is not empty.
type Judged struct{ text json.RawMessage }

// Judged returns the value of the member of params called name, the zero Judged
// when there is none or when Decode has not read m.Params.
func (m *Message) Judged(name string) Judged {
	if m == nil {
		return Judged{}
	}
	if _, read := m.params.of(m.Params); !read {
		return Judged{}
	}
	value, _ := m.Param(name)
	return Judged{value}
}

// Is reports whether raw is the judged value itself: the same bytes in memory.
func (j Judged) Is(raw json.RawMessage) bool {
	return len(raw) > 0 && len(raw) == len(j.text) && &raw[0] == &j.text[0]
}

// Value decodes the value as the function Value does, without a second strict
// pass. The zero Judged is nil.
func (j Judged) Value() any {
	if len(j.text) == 0 {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(j.text), lenient)
	return build(d, read(d))
}

// read returns the next token of a text that CheckValue has accepted.
func read(d *jsontext.Decoder) jsontext.Token {
	token, _ := d.ReadToken()
	return token
}

// build decodes the value that starts with token.
func build(d *jsontext.Decoder, token jsontext.Token) any {
	switch token.Kind() {
	case '{':
		out := map[string]any{}
		for name := read(d); name.Kind() == '"'; name = read(d) {
			key := name.String()
			out[key] = build(d, read(d))
		}
		return out
	case '[':
		out := []any{}
		for element := read(d); element.Kind() != ']'; element = read(d) {
			out = append(out, build(d, element))
		}
		return out
	case '"':
		return token.String()
	case '0':
		return json.Number(token.String())
	case 't', 'f':
		return token.Bool()
	}
	return nil
}
