package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// maxIndexed bounds the members that a message knows: a search in a longer list
// costs more than it saves.
const maxIndexed = 64

// Param returns the member of params called name, as it is spelled. It reports
// false when there is none. It does not read again what Decode has read.
func (m *Message) Param(name string) (json.RawMessage, bool) {
	return m.find(zoneParams, m.Params, name)
}

// Meta returns the member of params._meta called name, as Param does.
func (m *Message) Meta(name string) (json.RawMessage, bool) {
	if !same(m.Params, m.read[0]) {
		meta, _ := Get(m.Params, "_meta")
		return Get(meta, name)
	}
	return m.find(zoneMeta, m.Params, name)
}

// Member returns the member of result called name, as Param does.
func (m *Message) Member(name string) (json.RawMessage, bool) {
	return m.find(zoneResult, m.Result, name)
}

// find returns a member of an object in zone z, which is owner or inside it.
func (m *Message) find(z zone, owner json.RawMessage, name string) (json.RawMessage, bool) {
	if !same(owner, m.read[0]) && !same(owner, m.read[1]) {
		return Get(owner, name)
	}
	for _, member := range m.members {
		if member.zone == z && string(member.name) == name {
			return member.value, true
		}
	}
	return nil, false
}

// same reports whether a and b are the same bytes in memory.
func same(a, b []byte) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

// Judged is one JSON value that has passed the strict pass, so that nobody has
// to scan it again. Only this package makes one that is not empty.
type Judged struct{ text json.RawMessage }

// Judged returns the value of the member of params called name, the zero Judged
// when there is none or when Decode has not read m.Params.
func (m *Message) Judged(name string) Judged {
	if m == nil || !same(m.Params, m.read[0]) {
		return Judged{}
	}
	value, _ := m.Param(name)
	return Judged{value}
}

// Is reports whether raw is the judged value itself: the same bytes in memory.
func (j Judged) Is(raw json.RawMessage) bool { return same(raw, j.text) }

// Value decodes the value as the function Value does, without a second strict
// pass. The zero Judged is nil.
func (j Judged) Value() any {
	if len(j.text) == 0 {
		return nil
	}
	return build(jsontext.NewDecoder(bytes.NewBuffer(j.text), lenient))
}

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

// build decodes the next value of a text that the strict pass has accepted.
func build(d *jsontext.Decoder) any {
	token, _ := d.ReadToken()
	switch token.Kind() {
	case '{':
		out := map[string]any{}
		for d.PeekKind() == '"' {
			name, _ := d.ReadToken()
			key := name.String()
			out[key] = build(d)
		}
		_, _ = d.ReadToken()
		return out
	case '[':
		out := []any{}
		for next := d.PeekKind(); next != ']' && next != 0; next = d.PeekKind() {
			out = append(out, build(d))
		}
		_, _ = d.ReadToken()
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
