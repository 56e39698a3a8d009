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

// Set replaces the value of the member called key, or appends the member after
// the last one. Every other byte stays, and obj itself is not changed. The
// error is ErrNotObject, ErrNotValue or ErrRepeated.
func Set(obj json.RawMessage, key string, value json.RawMessage) (json.RawMessage, error) {
	if !jsontext.Value(value).IsValid(lenient) {
		return nil, ErrNotValue
	}
	all, at, err := find(obj, key)
	switch {
	case err != nil:
		return nil, err
	case at >= 0:
		return splice(obj, all[at].value, all[at].end, value), nil
	}
	end, comma := bytes.IndexByte(obj, '{')+1, ""
	if len(all) > 0 {
		end, comma = all[len(all)-1].end, ","
	}
	head := append(appendQuoted(append(make([]byte, 0, len(key)+4), comma...), key), ':')
	return splice(obj, end, end, head, value), nil
}

// Delete removes the member called key with its comma, and returns obj when
// there is no such member. Every other byte stays, and obj itself is not
// changed. The error is ErrNotObject or ErrRepeated.
func Delete(obj json.RawMessage, key string) (json.RawMessage, error) {
	all, at, err := find(obj, key)
	switch {
	case err != nil:
		return nil, err
	case at < 0:
		return obj, nil
	case at > 0:
		return splice(obj, all[at-1].end, all[at].end), nil
	case len(all) > 1:
		return splice(obj, all[0].from, all[1].from), nil
	}
	return splice(obj, all[0].from, all[0].end), nil
}

// find returns the members of obj, and the index of the one called key, -1 for
// none.
func find(obj json.RawMessage, key string) (all []part, at int, err error) {
	all, ok := parts(obj, '{')
	if !ok {
		return nil, -1, ErrNotObject
	}
	called := func(p part) bool { return string(p.name) == key }
	if at = slices.IndexFunc(all, called); slices.ContainsFunc(all[at+1:], called) && at >= 0 {
		return nil, -1, ErrRepeated
	}
	return all, at, nil
}

// splice replaces b[from:to] in a new slice.
func splice(b []byte, from, to int, by ...[]byte) json.RawMessage {
	return slices.Concat(b[:from], bytes.Join(by, nil), b[to:])
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
