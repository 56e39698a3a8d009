package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrNotObject is returned by Set and Delete for bytes that are not one
// well-formed JSON object.
var ErrNotObject = errors.New("not a well-formed JSON object")

// ErrNotValue is returned by Set for a value that is not one well-formed JSON
// value.
var ErrNotValue = errors.New("not a well-formed JSON value")

// ErrRepeated is returned by Set and Delete when the object has the member
// more than once, so that an edit would leave two readings.
var ErrRepeated = errors.New("member appears more than once")

// A part is one member of an object or one element of an array, as offsets.
type part struct {
	name       []byte // decoded, nil in arrays
	from       int    // of the name, or of the element
	value, end int
}

// Get returns the value of the member of obj called key, as it is spelled. It
// reports false when there is none, or when obj is not an object as far as it
// was read: Get reads no further than the member.
func Get(obj json.RawMessage, key string) (json.RawMessage, bool) {
	var found json.RawMessage
	walk(obj, '{', func(p part) bool {
		if string(p.name) == key {
			found = p.in(obj)
		}
		return found == nil
	})
	return found, found != nil
}

// A Change sets the member called Name to Value. With Members it edits the object
// that the member holds, an empty one where there is none; with neither it deletes
// the member.
type Change struct {
	Name    string
	Value   json.RawMessage
	Members []Change
}

// Set is Edit with one change that sets a member.
func Set(obj json.RawMessage, name string, value json.RawMessage) (json.RawMessage, error) {
	if len(value) == 0 {
		return nil, ErrNotValue
	}
	return Edit(obj, Change{Name: name, Value: value})
}

// Delete is Edit with one change that deletes a member.
func Delete(obj json.RawMessage, name string) (json.RawMessage, error) {
	return Edit(obj, Change{Name: name})
}

// Edit makes changes, of one name each, in one pass over obj. It replaces the
// values of members that are there, appends the others in the order of changes,
// and removes deleted members with their commas. Every other byte stays, and
// obj itself is not changed; it is returned where there is nothing to change.
// The error is ErrNotObject, ErrNotValue or ErrRepeated.
func Edit(obj json.RawMessage, changes ...Change) (json.RawMessage, error) {
	room := len(obj)
	for _, c := range changes {
		if c.Value != nil && !jsontext.Value(c.Value).IsValid(lenient) {
			return nil, ErrNotValue
		}
		room += len(c.Name) + len(c.Value) + 4
	}
	all, ok := parts(obj, '{')
	if !ok {
		return nil, ErrNotObject
	}
	head := bytes.IndexByte(obj, '{') + 1
	tail := head
	if len(all) > 0 {
		head, tail = all[0].from, all[len(all)-1].end
	}
	out := append(make([]byte, 0, room), obj[:head]...)
	done, kept, gap := make([]bool, len(changes)), false, head // the comma before a member follows gap
	for _, p := range all {
		value := obj[p.value:p.end]
		if i := slices.IndexFunc(changes, func(c Change) bool { return c.Name == string(p.name) }); i >= 0 {
			if done[i] {
				return nil, ErrRepeated
			}
			old, inner := value, changes[i].Members
			if done[i], value = true, changes[i].Value; inner != nil {
				var err error
				if value, err = Edit(old, inner...); err != nil {
					return nil, err
				}
			}
		}
		if value != nil {
			if kept {
				out = append(out, obj[gap:p.from]...)
			}
			out, kept = append(append(out, obj[p.from:p.value]...), value...), true
		}
		gap = p.end
	}
	for i, c := range changes {
		if done[i] || c.Value == nil && c.Members == nil {
			continue
		}
		value := c.Value
		if c.Members != nil {
			var err error
			if value, err = Edit(json.RawMessage("{}"), c.Members...); err != nil {
				return nil, err
			}
		}
		if kept {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, c.Name)
		out, kept = append(append(out, ':'), value...), true
	}
	if out = append(out, obj[tail:]...); bytes.Equal(out, obj) {
		return obj, nil
	}
	return out, nil
}

// Members iterates over obj in the order of the text: decoded name and value
// as it is spelled. Bytes that are not one well-formed object yield nothing.
func Members(obj json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		all, _ := parts(obj, '{')
		for _, p := range all {
			if !yield(string(p.name), p.in(obj)) {
				return
			}
		}
	}
}

// Elements iterates over arr in order. Bytes that are not one well-formed
// array yield nothing.
func Elements(arr json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		all, _ := parts(arr, '[')
		for _, p := range all {
			if !yield(p.in(arr)) {
				return
			}
		}
	}
}

// in returns the value of the part of data.
func (p part) in(data json.RawMessage) json.RawMessage { return data[p.value:p.end:p.end] }

// parts returns the parts of one well-formed object or array, and reports false
// for anything else.
func parts(data []byte, open jsontext.Kind) (all []part, ok bool) {
	if !walk(data, open, func(p part) bool { all = append(all, p); return true }) {
		return nil, false
	}
	return all, true
}

// A walker reads the parts of one object or array.
type walker struct {
	buffer  bytes.Buffer
	decoder jsontext.Decoder
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

// walk reads one object or array and nothing after it, and calls visit for each
// part until it returns false. It reports whether what it has read is
// well-formed.
func walk(data []byte, open jsontext.Kind, visit func(part) bool) bool {
	w := walkers.Get().(*walker)
	defer walkers.Put(w)
	w.buffer = *bytes.NewBuffer(data)
	w.decoder.Reset(&w.buffer, lenient)
	defer func() { w.buffer = bytes.Buffer{}; w.decoder.Reset(&w.buffer) }()
	if token, err := w.decoder.ReadToken(); err != nil || token.Kind() != open {
		return false
	}
	for {
		if end := w.decoder.PeekKind(); end == '}' || end == ']' {
			_, err := w.decoder.ReadToken()
			return err == nil && len(bytes.TrimLeft(data[w.decoder.InputOffset():], blanks)) == 0
		}
		var p part
		if open == '{' {
			name, err := w.decoder.ReadValue()
			if err != nil {
				return false
			}
			p.from = int(w.decoder.InputOffset()) - len(name)
			if p.name = name[1 : len(name)-1]; bytes.IndexByte(p.name, '\\') >= 0 {
				p.name, _ = jsontext.AppendUnquote(nil, name) // the decoder has accepted it
			}
		}
		value, err := w.decoder.ReadValue()
		if err != nil {
			return false
		}
		p.end = int(w.decoder.InputOffset())
		p.value = p.end - len(value)
		if open == '[' {
			p.from = p.value
		}
		if !visit(p) {
			return true
		}
	}
}
