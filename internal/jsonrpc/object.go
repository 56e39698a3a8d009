package jsonrpc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

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

// Get returns the value of the member of obj called key, as it is spelled. It
// reports false when there is none, or when obj is not an object as far as it
// was read: Get reads no further than the member. Strings must be UTF-8; names may
// repeat.
func Get(obj json.RawMessage, key string) (found json.RawMessage, ok bool) {
	l := lexer{data: obj}
	if l.peek() != '{' {
		return nil, false
	}
	l.each(func(name []byte) bool {
		value := l.element()
		if string(name) == key {
			found = value
		}
		return value != nil && found == nil
	})
	return found, found != nil
}

// At returns the value at a path of member names in obj, as Get does.
func At(obj json.RawMessage, path ...string) (value json.RawMessage, ok bool) {
	value = obj
	for _, name := range path {
		value, ok = Get(value, name)
	}
	return value, ok
}

// TextAt returns the string at a path of member names in obj. It reports false
// when there is none.
func TextAt(obj json.RawMessage, path ...string) (string, bool) {
	value, _ := At(obj, path...)
	return Text(value)
}

// A Change sets the member called Name to Value. With Members it edits the object
// that the member holds, an empty one where there is none or null; with neither it deletes
// the member. Edit checks that Value is well formed, unless it is Checked already.
type Change struct {
	Name    string
	Value   json.RawMessage
	Members []Change
	Checked bool
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
	if !whole(obj, '{') {
		return nil, ErrNotObject
	}
	return Extend(obj, changes...)
}

// Extend is Edit for an object that a strict pass has accepted: it does not judge obj
// again.
func Extend(obj json.RawMessage, changes ...Change) (json.RawMessage, error) {
	more, valid := room(changes)
	if !valid {
		return nil, ErrNotValue
	}
	out, err := appendEdited(make([]byte, 0, len(obj)+more), obj, changes)
	if err == nil && bytes.Equal(out, obj) {
		return obj, nil
	}
	return out, err
}

// ExtendSuccess builds the answer that NewSuccess builds of what Extend returns for result,
// without a copy of the result between the two. The errors are those of Extend.
func ExtendSuccess(id, result json.RawMessage, changes ...Change) ([]byte, error) {
	more, valid := room(changes)
	if !valid {
		return nil, ErrNotValue
	}
	out := append(make([]byte, 0, len(successBegin+successResult+"}")+len(id)+len(result)+more), successBegin...)
	out, err := appendEdited(append(append(out, id...), successResult...), result, changes)
	return append(out, '}'), err
}

// Append is Extend for an object that nobody else has: as append does, it writes over the
// end of obj and the capacity behind it where they are enough for new members.
func Append(obj json.RawMessage, changes ...Change) (json.RawMessage, error) {
	more, valid := room(changes)
	gap := len(bytes.TrimRight(obj[:max(0, bytes.LastIndexByte(obj, '}'))], blanks))
	isOther := func(name []byte, _ json.RawMessage) bool {
		return !slices.ContainsFunc(changes, func(c Change) bool { return c.Name == string(name) })
	}
	if !valid || gap == 0 || cap(obj)-len(obj) < more || !Each(obj, isOther) {
		return Extend(obj, changes...)
	}
	end := string(obj[gap:])
	return append(appendMembers(obj[:gap], changes, nil, obj[gap-1] != '{'), end...), nil
}

// Splice returns the result of Extend in parts. New members of obj, and of objects in obj,
// stand between slices of obj, which are not copied. For any other change there is one part,
// which Extend makes. The error is that of Extend.
func Splice(obj json.RawMessage, changes ...Change) (parts [][]byte, err error) {
	if _, valid := room(changes); !valid {
		return nil, ErrNotValue
	}
	from, end := 0, bytes.IndexByte(obj, '{')+1 // of what is not in parts yet, and of the last member
	done, kept := make([]bool, len(changes)), false
	l := lexer{data: obj, accepted: true}
	adds := l.peek() == '{' && l.each(func(name []byte) bool {
		value := l.element()
		end, kept = l.at, true
		i := slices.IndexFunc(changes, func(c Change) bool { return c.Name == string(name) })
		if i < 0 || value == nil || done[i] {
			return i < 0 && value != nil
		}
		done[i] = true
		c := changes[i]
		if c.Members == nil {
			return bytes.Equal(value, c.Value)
		}
		last, ok := lastMember(value, c.Members)
		at := end - len(value) + last
		parts = append(parts, obj[from:at], appendMembers(nil, c.Members, nil, last > 1))
		from = at
		return ok
	})
	if !adds {
		whole, err := Extend(obj, changes...)
		return [][]byte{whole}, err
	}
	return append(parts, obj[from:end], appendMembers(nil, changes, done, kept), obj[end:]), nil
}

// lastMember returns where the last member of value ends. It reports false unless value is
// an object without the members of others.
func lastMember(value json.RawMessage, others []Change) (end int, ok bool) {
	end = 1
	l := lexer{data: value, accepted: true}
	ok = l.peek() == '{' && l.each(func(name []byte) bool {
		v := l.element()
		end = l.at
		return v != nil && !slices.ContainsFunc(others, func(c Change) bool { return c.Name == string(name) })
	})
	return end, ok
}

// appendMembers appends the members that changes set, but for those that are done, to
// out, which ends inside an object. A comma comes before the first where it says so.
func appendMembers(out []byte, changes []Change, done []bool, comma bool) []byte {
	for i, c := range changes {
		if c.Value == nil && c.Members == nil || done != nil && done[i] {
			continue
		}
		if comma {
			out = append(out, ',')
		}
		out = AppendQuoted(out, c.Name)
		if out, comma = append(append(out, ':'), c.Value...), true; c.Members != nil {
			out = append(appendMembers(append(out, '{'), c.Members, nil, false), '}')
		}
	}
	return out
}

// room returns how many bytes changes add at most, and whether their values are well
// formed.
func room(changes []Change) (n int, valid bool) {
	valid = true
	for i := range changes {
		c := &changes[i]
		inner, ok := room(c.Members)
		n += len(c.Name) + len(c.Value) + len(`,"":{}`) + inner
		valid = valid && ok && (c.Value == nil || c.Checked || whole(c.Value, 0))
	}
	return n, valid
}

// appendEdited appends obj to out with its changes made, as Edit does. Their values are
// valid.
func appendEdited(out []byte, obj json.RawMessage, changes []Change) ([]byte, error) {
	head := bytes.IndexByte(obj, '{') + 1
	if first := bytes.TrimLeft(obj[head:], blanks); len(first) > 0 && first[0] == '"' {
		head = len(obj) - len(first)
	}
	out, gap := append(out, obj[:head]...), head // the comma before a member follows gap
	done, kept, err := make([]bool, len(changes)), false, error(nil)
	l := lexer{data: obj, accepted: true}
	whole := l.peek() == '{' && l.each(func(name []byte) bool {
		value, from := l.element(), gap
		start, end := l.at-len(value), l.at
		gap = end
		i := slices.IndexFunc(changes, func(c Change) bool { return c.Name == string(name) })
		if !kept { // no comma before the first member
			from = end - len(bytes.TrimLeft(obj[from:end], blanks+","))
		}
		if i < 0 {
			out, kept = append(out, obj[from:end]...), true
			return true
		}
		switch c := changes[i]; {
		case done[i]:
			err = ErrRepeated
		case c.Value != nil:
			out, kept = append(append(out, obj[from:start]...), c.Value...), true
		case c.Members != nil:
			kept = true
			held := obj[start:end]
			if string(held) == "null" {
				held = json.RawMessage("{}")
			}
			out, err = appendEdited(append(out, obj[from:start]...), held, c.Members)
		}
		done[i] = true
		return err == nil
	})
	switch {
	case err != nil:
		return nil, err
	case !whole:
		return nil, ErrNotObject
	}
	return append(appendMembers(out, changes, done, kept), obj[gap:]...), nil
}

// Members iterates over obj in the order of the text: decoded name and value
// as it is spelled. Bytes that are not one well-formed object yield nothing.
func Members(obj json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		if whole(obj, '{') {
			Each(obj, func(name []byte, value json.RawMessage) bool { return yield(string(name), value) })
		}
	}
}

// Elements iterates over arr in order. Bytes that are not one well-formed
// array yield nothing.
func Elements(arr json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		if whole(arr, '[') {
			Each(arr, func(_ []byte, value json.RawMessage) bool { return yield(value) })
		}
	}
}

// whole reports whether data is one well-formed value that begins with first, 0 for any
// value. Strings must be UTF-8; names may repeat.
func whole(data []byte, first byte) bool {
	l := lexer{data: data}
	return (first == 0 || l.peek() == first) && l.value(maxDepth) && l.peek() == 0 && l.at == len(data)
}

// IsPlain reports whether value is one well-formed value whose strings are plain, as in
// Message.Plain.
func IsPlain(value json.RawMessage) bool {
	l := lexer{data: value}
	return l.value(maxDepth) && l.peek() == 0 && l.at == len(value) && !l.odd
}

// The builders below write the bytes they are given without looking at them:
// ids, params, results and error objects must be well-formed JSON on one line,
// as Decode, CheckValue and Set give them.

// Array builds an array.
func Array[E ~[]byte](elements []E) json.RawMessage {
	out := []byte{'['}
	for i, e := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']')
}

// NewRequest builds a request (JSON-RPC 2.0 §4). A nil id or nil params are left
// out.
func NewRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	out := append(make([]byte, 0, len(id)+len(method)+len(params)+64), `{"jsonrpc":"2.0"`...)
	if id != nil {
		out = append(append(out, `,"id":`...), id...)
	}
	out = AppendQuoted(append(out, `,"method":`...), method)
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

// What stands in an answer before its id and before its result.
const (
	successBegin  = `{"jsonrpc":"2.0","id":`
	successResult = `,"result":`
)

// NewSuccess builds an answer with a result (JSON-RPC 2.0 §5).
func NewSuccess(id, result json.RawMessage) []byte {
	return slices.Concat([]byte(successBegin), id, []byte(successResult), result, []byte{'}'})
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
	var room [64]byte
	if len(raw) == 0 || raw[0] != '"' { // without the decoder's error
		return "", false
	}
	text, err := jsontext.AppendUnquote(room[:0], raw)
	if err != nil {
		return "", false
	}
	return string(text), true
}

// Quote returns s as a JSON string. Only what JSON demands is escaped, so `<`
// and U+2028 stay as they are; invalid UTF-8 becomes U+FFFD.
func Quote(s string) json.RawMessage { return AppendQuoted(make([]byte, 0, len(s)+2), s) }

// AppendQuoted appends Quote(s) to out.
func AppendQuoted(out []byte, s string) []byte {
	if IsVisible([]byte(s)) {
		return append(append(append(out, '"'), s...), '"')
	}
	out, _ = jsontext.AppendQuote(out, s) // the error reports what it has replaced
	return out
}

// IsVisible reports whether text has only visible ASCII characters and spaces, without quotes and
// backslashes: between quotes it is a JSON string as it stands.
func IsVisible(text []byte) bool {
	odd := uint64(0)
	for ; len(text) >= 8; text = text[8:] {
		odd |= oddIn(binary.LittleEndian.Uint64(text))
	}
	for _, c := range text {
		if c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return odd&tops == 0
}

// IDText returns a request id as records, policies and events show it: a
// string's text, a number as it is written.
func IDText(id json.RawMessage) string {
	if s, ok := Text(id); ok {
		return s
	}
	return string(id)
}

// maxID bounds an id as it is spelled, in bytes: ids are map keys and are
// written to logs.
const maxID = 256

// Key returns the form of an id under which two ids are equal exactly when they
// are the same id (JSON-RPC 2.0 §4): "1" and 1 differ, two spellings of one
// string do not, and -0 is 0. It returns "" for what is not an id: neither a string
// nor an integer without fraction and exponent, or longer than 256 bytes.
func Key(id json.RawMessage) string {
	switch {
	case len(id) == 0 || len(id) > maxID:
		return ""
	case id[0] == '-' && digits(id, 1) < len(id), id[0] != '-' && id[0] != '"' && digits(id, 0) < len(id):
		return ""
	case string(id) == "-0":
		return "0"
	case id[0] != '"':
		return string(id)
	case bytes.IndexByte(id, '\\') < 0:
		return string(id[:len(id)-1])
	}
	text, _ := Text(id)
	return `"` + text
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
