package jsonrpc

import (
	"bytes"
	"encoding/json"
)

// A span is a part of a text, as offsets.
type span struct{ from, end int }

// A member is one member of an object.
type member struct{ name, value span }

// An index holds the members of one object that the strict pass has met, so
// that nobody has to walk the object again.
type index struct {
	object  json.RawMessage
	members []member
}

// maxIndexed bounds an index: a search in a larger one costs more than it saves.
const maxIndexed = 64

// index keeps copies of the members that the pass has met.
func (m *Message) index(params, meta, result []member) {
	if len(params) > maxIndexed || len(meta) > maxIndexed || len(result) > maxIndexed {
		return
	}
	all := make([]member, 0, len(params)+len(meta)+len(result))
	all = append(append(append(all, params...), meta...), result...)
	m.params = index{m.Params, all[:len(params)]}
	m.result = index{m.Result, all[len(params)+len(meta):]}
	if of, ok := m.Param("_meta"); ok {
		m.meta = index{of, all[len(params) : len(params)+len(meta)]}
	}
}

// of returns the members of object, and reports whether the index has them.
func (x *index) of(object json.RawMessage) ([]member, bool) {
	read := len(object) > 0 && len(object) == len(x.object) && &object[0] == &x.object[0]
	return x.members, read
}

// find returns a member of object, by the index if it is of that object.
func (m *Message) find(x *index, object json.RawMessage, name string) (json.RawMessage, bool) {
	members, read := x.of(object)
	if !read {
		return Get(object, name)
	}
	for _, member := range members {
		if spells(m.Raw[member.name.from:member.name.end], name) {
			return m.Raw[member.value.from:member.value.end:member.value.end], true
		}
	}
	return nil, false
}

// spells reports whether lexeme is a JSON string for name.
func spells(lexeme []byte, name string) bool {
	if bytes.IndexByte(lexeme, '\\') < 0 {
		return string(lexeme[1:len(lexeme)-1]) == name
	}
	text, _ := Text(lexeme)
	return text == name
}

// Param returns the member of params called name, as it is spelled. It reports
// false when there is none. What Decode has read is not walked again.
func (m *Message) Param(name string) (json.RawMessage, bool) {
	return m.find(&m.params, m.Params, name)
}

// Meta returns the member of params._meta called name, as Param does.
func (m *Message) Meta(name string) (json.RawMessage, bool) {
	meta, _ := m.Param("_meta")
	return m.find(&m.meta, meta, name)
}

// Member returns the member of result called name, as Param does.
func (m *Message) Member(name string) (json.RawMessage, bool) {
	return m.find(&m.result, m.Result, name)
}
