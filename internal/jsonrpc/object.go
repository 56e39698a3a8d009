package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrNotObject is returned by Edit, Set and Delete for bytes that are not one
// well-formed JSON object.
var ErrNotObject = errors.New("not a well-formed JSON object")

// ErrNotValue is returned by Edit and Set for a value that is not one
// well-formed JSON value.
var ErrNotValue = errors.New("not a well-formed JSON value")

// ErrRepeated is returned by Edit, Set and Delete when the object has the
// member more than once, so that an edit would leave two readings.
var ErrRepeated = errors.New("member appears more than once")

// A Reader reads one JSON text part by part and returns the parts as slices of
// the text. It holds strings to UTF-8 and does not compare names. After a
// fault every method returns nothing.
type Reader struct {
	data    []byte
	buffer  bytes.Buffer
	decoder jsontext.Decoder
	failed  bool
}

var readers = sync.Pool{New: func() any { return new(Reader) }}

// Read calls read with a Reader of text, which is valid until read returns. It
// reports whether read has read one well-formed value and nothing follows it.
func Read(text []byte, read func(*Reader)) bool {
	r := readers.Get().(*Reader)
	r.data, r.failed, r.buffer = text, false, *bytes.NewBuffer(text)
	r.decoder.Reset(&r.buffer, lenient)
	read(r)
	end := r.decoder.InputOffset()
	whole := !r.failed && end > 0 && len(bytes.TrimLeft(text[end:], blanks)) == 0
	r.data, r.buffer = nil, bytes.Buffer{}
	r.decoder.Reset(&r.buffer)
	readers.Put(r)
	return whole
}

// Kind returns the first byte of the next value, '0' for a number, 'f' or 't'
// for a boolean, '}' or ']' at the end of an object or array.
func (r *Reader) Kind() byte { return byte(r.decoder.PeekKind()) }

// Value reads one value and returns it as it is spelled.
func (r *Reader) Value() json.RawMessage {
	if r.failed {
		return nil
	}
	value, err := r.decoder.ReadValue()
	if r.failed = err != nil; r.failed {
		return nil
	}
	end := int(r.decoder.InputOffset())
	return r.data[end-len(value) : end : end]
}

// Each reads an object or an array and returns it as it is spelled. It calls
// visit before each value, which visit must read, with the decoded name in an
// object. A visit that returns false ends the reading.
func (r *Reader) Each(visit func(name []byte) bool) json.RawMessage {
	open, err := r.decoder.ReadToken()
	if r.failed = r.failed || err != nil || open.Kind() != '{' && open.Kind() != '['; r.failed {
		return nil
	}
	start, isObject := int(r.decoder.InputOffset())-1, open.Kind() == '{'
	for next := r.decoder.PeekKind(); next != '}' && next != ']'; next = r.decoder.PeekKind() {
		var name []byte
		if isObject {
			if name = r.Value(); bytes.IndexByte(name, '\\') >= 0 {
				name, _ = jsontext.AppendUnquote(nil, name) // the decoder has accepted it
			} else if name != nil {
				name = name[1 : len(name)-1]
			}
		}
		if r.failed || !visit(name) || r.failed {
			return nil
		}
	}
	if _, err = r.decoder.ReadToken(); err != nil {
		r.failed = true
		return nil
	}
	return r.data[start:r.decoder.InputOffset()]
}

// Get returns the value of the member of obj called key, as it is spelled. It
// reports false when there is none, or when obj is not an object as far as it
// was read: Get reads no further than the member.
func Get(obj json.RawMessage, key string) (found json.RawMessage, ok bool) {
	Read(obj, func(r *Reader) {
		r.Each(func(name []byte) bool {
			value := r.Value()
			if name != nil && string(name) == key {
				found = value
			}
			return found == nil
		})
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

// apply returns what takes the place of old, nil for nothing.
func (c Change) apply(old json.RawMessage) (json.RawMessage, error) {
	if c.Members == nil {
		return c.Value, nil
	}
	return Edit(old, c.Members...)
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
	head := bytes.IndexByte(obj, '{') + 1
	if first := bytes.TrimLeft(obj[head:], blanks); len(first) > 0 && first[0] == '"' {
		head = len(obj) - len(first)
	}
	out, gap := append(make([]byte, 0, room), obj[:head]...), head // the comma before a member follows gap
	done, kept, err := make([]bool, len(changes)), false, error(nil)
	whole := Read(obj, func(r *Reader) {
		r.Each(func(name []byte) bool {
			i := slices.IndexFunc(changes, func(c Change) bool { return c.Name == string(name) })
			value := r.Value()
			from, end := gap, int(r.decoder.InputOffset())
			start := end - len(value)
			gap = end
			switch {
			case r.failed || err != nil || i < 0:
			case done[i]:
				err = ErrRepeated
			default:
				value, err = changes[i].apply(value)
				done[i] = true
			}
			if !kept { // no comma before the first member
				from = end - len(bytes.TrimLeft(obj[from:end], blanks+","))
			}
			if value != nil {
				out, kept = append(append(out, obj[from:start]...), value...), true
			}
			return true
		})
	})
	switch {
	case !whole || bytes.TrimLeft(obj, blanks)[0] != '{':
		return nil, ErrNotObject
	case err != nil:
		return nil, err
	}
	for i, c := range changes {
		if done[i] {
			continue
		}
		value, err := c.apply(json.RawMessage("{}"))
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		if kept {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, c.Name)
		out, kept = append(append(out, ':'), value...), true
	}
	if out = append(out, obj[gap:]...); bytes.Equal(out, obj) {
		return obj, nil
	}
	return out, nil
}

// Members iterates over obj in the order of the text: decoded name and value
// as it is spelled. Bytes that are not one well-formed object yield nothing.
func Members(obj json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for _, m := range parts(obj, '{') {
			if !yield(m.Name, m.Value) {
				return
			}
		}
	}
}

// Elements iterates over arr in order. Bytes that are not one well-formed
// array yield nothing.
func Elements(arr json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		for _, e := range parts(arr, '[') {
			if !yield(e.Value) {
				return
			}
		}
	}
}

// parts returns the members or elements of one well-formed object or array,
// nothing for other bytes.
func parts(data []byte, open byte) (all []Change) {
	whole := Read(data, func(r *Reader) {
		if r.Kind() != open {
			return
		}
		r.Each(func(name []byte) bool {
			all = append(all, Change{Name: string(name), Value: r.Value()})
			return true
		})
	})
	if !whole {
		return nil
	}
	return all
}

// The builders below write the bytes they are given without looking at them:
// ids, params, results and error objects must be well-formed JSON on one line,
// as Decode, CheckValue and Set give them.

// NewRequest builds a request (JSON-RPC 2.0 §4). A nil id or nil params are left
// out.
func NewRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	out := append(make([]byte, 0, len(id)+len(method)+len(params)+64), `{"jsonrpc":"2.0"`...)
	if id != nil {
		out = append(append(out, `,"id":`...), id...)
	}
	out, _ = jsontext.AppendQuote(append(out, `,"method":`...), method)
	if params != nil {
		out = append(append(out, `,"params":`...), params...)
	}
	return append(out, '}')
}

// NewNotification builds a notification (JSON-RPC 2.0 §4.1); nil params are
// left out.
func NewNotification(method string, params json.RawMessage) []byte {
	return NewRequest(nil, method, params)
}

// NewSuccess builds an answer with a result (JSON-RPC 2.0 §5).
func NewSuccess(id, result json.RawMessage) []byte {
	return slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), result, []byte{'}'})
}

// NewFailure builds an answer with an error object of code, message and data
// (JSON-RPC 2.0 §5.1). A nil id becomes null, for what had no readable id; nil
// data is left out.
func NewFailure(id json.RawMessage, code int, message string, data json.RawMessage) []byte {
	object := fmt.Appendf(nil, `{"code":%d,"message":%s`, code, Quote(message))
	if data != nil {
		object = append(append(object, `,"data":`...), data...)
	}
	return NewFailureObject(id, append(object, '}'))
}

// NewFailureObject builds an answer with an error object that is passed on. A
// nil id becomes null.
func NewFailureObject(id, errorObject json.RawMessage) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"error":`), errorObject, []byte{'}'})
}

// Text decodes raw as one JSON string. It reports false for anything else:
// other values, white space around it, invalid UTF-8, lone surrogates.
func Text(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	var room [64]byte
	text, err := jsontext.AppendUnquote(room[:0], raw)
	if err != nil {
		return "", false
	}
	return string(text), true
}

// Quote returns s as a JSON string. Only what JSON demands is escaped, so `<`
// and U+2028 stay as they are; invalid UTF-8 becomes U+FFFD.
func Quote(s string) json.RawMessage {
	out, _ := jsontext.AppendQuote(make([]byte, 0, len(s)+2), s) // the error reports what it has replaced
	return out
}

// IDText returns a request id as records, policies and events show it: a
// string's text, a number as it is written.
func IDText(id json.RawMessage) string {
	if s, ok := Text(id); ok {
		return s
	}
	return string(id)
}

// OneLine returns message without raw line ends, which JSON allows between
// tokens only: a line or an event must hold exactly one message. A message
// without line ends is returned as it is, any other as a copy.
func OneLine(message []byte) []byte {
	if bytes.IndexByte(message, '\n') < 0 && bytes.IndexByte(message, '\r') < 0 {
		return message
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(message, []byte{'\r'}, []byte{' '}), []byte{'\n'}, []byte{' '})
}
