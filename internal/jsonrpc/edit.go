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

// A Change sets the member called Name, or deletes it where Value is nil.
type Change struct {
	Name  string
	Value json.RawMessage
}

// Set is Edit with one change that sets a member.
func Set(obj json.RawMessage, name string, value json.RawMessage) (json.RawMessage, error) {
	if len(value) == 0 {
		return nil, ErrNotValue
	}
	return Edit(obj, Change{name, value})
}

// Delete is Edit with one change that deletes a member.
func Delete(obj json.RawMessage, name string) (json.RawMessage, error) {
	return Edit(obj, Change{name, nil})
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
	e := editor{obj: obj, out: make([]byte, 0, room), changes: changes, done: make([]bool, len(changes))}
	return e.edit(all)
}

// An editor writes an object with its changes.
type editor struct {
	obj     json.RawMessage
	out     []byte
	changes []Change
	done    []bool // the changes whose member was there
	kept    bool   // out has a member
}

// edit writes the members all of the object, then those that are new.
func (e *editor) edit(all []part) (json.RawMessage, error) {
	head := bytes.IndexByte(e.obj, '{') + 1
	tail := head
	if len(all) > 0 {
		head, tail = all[0].from, all[len(all)-1].end
	}
	e.out = append(e.out, e.obj[:head]...)
	gap := head
	for _, p := range all {
		i := slices.IndexFunc(e.changes, func(c Change) bool { return c.Name == string(p.name) })
		if i >= 0 && e.done[i] {
			return nil, ErrRepeated
		}
		e.member(gap, p, i)
		gap = p.end
	}
	for i, c := range e.changes {
		if !e.done[i] && c.Value != nil {
			e.comma()
			e.out = append(append(appendQuoted(e.out, c.Name), ':'), c.Value...)
		}
	}
	if e.out = append(e.out, e.obj[tail:]...); bytes.Equal(e.out, e.obj) {
		return e.obj, nil
	}
	return e.out, nil
}

// member writes p with change i, -1 for none; the comma before p follows gap.
func (e *editor) member(gap int, p part, i int) {
	value := e.obj[p.value:p.end]
	if i >= 0 {
		e.done[i], value = true, e.changes[i].Value
	}
	if value == nil {
		return
	}
	if e.kept {
		e.out = append(e.out, e.obj[gap:p.from]...)
	}
	e.kept = true
	e.out = append(append(e.out, e.obj[p.from:p.value]...), value...)
}

// comma separates a new member from the one before it.
func (e *editor) comma() {
	if e.kept {
		e.out = append(e.out, ',')
	}
	e.kept = true
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
	defer w.reset(nil)
	w.reset(data)
	if token, err := w.decoder.ReadToken(); err != nil || token.Kind() != open {
		return false
	}
	for {
		if end := w.decoder.PeekKind(); end == '}' || end == ']' {
			_, err := w.decoder.ReadToken()
			return err == nil && skipBlanks(data, int(w.decoder.InputOffset())) == len(data)
		}
		p, ok := w.part(open == '{')
		if !ok {
			return false
		}
		if !visit(p) {
			return true
		}
	}
}

// reset makes data the next text to read.
func (w *walker) reset(data []byte) {
	w.buffer = *bytes.NewBuffer(data)
	w.decoder.Reset(&w.buffer, lenient)
}

// part reads the next member or element.
func (w *walker) part(named bool) (p part, ok bool) {
	if named {
		name, err := w.decoder.ReadValue()
		if err != nil || name.Kind() != '"' {
			return p, false
		}
		p.from = int(w.decoder.InputOffset()) - len(name)
		if p.name = name[1 : len(name)-1]; bytes.IndexByte(p.name, '\\') >= 0 {
			p.name, _ = jsontext.AppendUnquote(nil, name) // the decoder has accepted it
		}
	}
	value, err := w.decoder.ReadValue()
	p.end = int(w.decoder.InputOffset())
	p.value = p.end - len(value)
	if !named {
		p.from = p.value
	}
	return p, err == nil
}
