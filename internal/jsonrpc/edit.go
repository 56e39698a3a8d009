package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
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

// maxWalk bounds the nesting that editing follows; decoded messages are far
// below it.
const maxWalk = 1000

// part is one member of an object or one element of an array, as offsets.
type part struct {
	name       []byte // decoded, nil in arrays
	from       int    // of the name, or of the element
	value, end int
}

// Get finds the member of obj called key and gives its value as it is spelled.
// It reports false when there is none, or when obj is no object as far as it
// was read: it looks no further than the member found.
func Get(obj json.RawMessage, key string) (json.RawMessage, bool) {
	var found json.RawMessage
	walk(obj, '{', func(p part) bool {
		if string(p.name) == key {
			found = obj[p.value:p.end:p.end]
		}
		return found == nil
	})
	return found, found != nil
}

// Set replaces the value of the member called key, or appends the member after
// the last one. Every other byte stays, and obj itself is not changed. The
// error is ErrNotObject, ErrNotValue or ErrRepeated.
func Set(obj json.RawMessage, key string, value json.RawMessage) (json.RawMessage, error) {
	if end, ok := skipValue(value, skipSpace(value, 0), 0); !ok || skipSpace(value, end) != len(value) {
		return nil, ErrNotValue
	}
	_, hit, last, err := find(obj, key)
	if err != nil {
		return nil, err
	}
	if hit.end > 0 {
		return splice(obj, hit.value, hit.end, nil, value), nil
	}
	head := make([]byte, 0, len(key)+4)
	if last.end == 0 {
		last.end = bytes.IndexByte(obj, '{') + 1
	} else {
		head = append(head, ',')
	}
	head = append(appendQuoted(head, key), ':')
	return splice(obj, last.end, last.end, head, value), nil
}

// Delete removes the member called key with its comma; without such a member
// it gives obj. Every other byte stays, and obj itself is not changed. The
// error is ErrNotObject or ErrRepeated.
func Delete(obj json.RawMessage, key string) (json.RawMessage, error) {
	before, hit, last, err := find(obj, key)
	switch {
	case err != nil:
		return nil, err
	case hit.end == 0:
		return obj, nil
	case before.end > 0:
		return splice(obj, before.end, hit.end, nil, nil), nil
	case hit.end == last.end:
		return splice(obj, hit.from, hit.end, nil, nil), nil
	}
	next := skipSpace(obj, skipSpace(obj, hit.end)+1)
	return splice(obj, hit.from, next, nil, nil), nil
}

// find reads all of obj: the member called key, the one before it, and the
// last one. Each is the zero part when there is none.
func find(obj json.RawMessage, key string) (before, hit, last part, err error) {
	repeated := false
	ok := walk(obj, '{', func(p part) bool {
		if string(p.name) == key {
			repeated = repeated || hit.end > 0
			before, hit = last, p
		}
		last = p
		return true
	})
	switch {
	case !ok:
		err = ErrNotObject
	case repeated:
		err = ErrRepeated
	}
	return before, hit, last, err
}

// splice replaces b[from:to] by head and tail in a new slice.
func splice(b []byte, from, to int, head, tail []byte) json.RawMessage {
	out := make([]byte, 0, len(b)-(to-from)+len(head)+len(tail))
	out = append(append(out, b[:from]...), head...)
	return append(append(out, tail...), b[to:]...)
}

// Members iterates over obj in the order of the text: decoded name and value
// as it is spelled. Bytes that are not one well-formed object yield nothing.
func Members(obj json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		if !walk(obj, '{', nil) {
			return
		}
		walk(obj, '{', func(p part) bool { return yield(string(p.name), obj[p.value:p.end:p.end]) })
	}
}

// Elements iterates over arr in order. Bytes that are not one well-formed
// array yield nothing.
func Elements(arr json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		if !walk(arr, '[', nil) {
			return
		}
		walk(arr, '[', func(p part) bool { return yield(arr[p.value:p.end:p.end]) })
	}
}

// walk reads one object or array and nothing after it, calling visit for each
// part until it gives false. It reports whether what it read is well-formed.
func walk(data []byte, open byte, visit func(part) bool) bool {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != open {
		return false
	}
	end, ok := container(data, i, 0, visit)
	return ok && (end < 0 || skipSpace(data, end) == len(data))
}

// container reads the object or array at data[i]. The end is -1 when visit
// ended it.
func container(data []byte, i, depth int, visit func(part) bool) (end int, ok bool) {
	object := data[i] == '{'
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == closing(object) {
		return i + 1, true
	}
	for {
		p, ok := readPart(data, i, depth, object, visit != nil)
		if !ok {
			return 0, false
		}
		if visit != nil && !visit(p) {
			return -1, true
		}
		i = skipSpace(data, p.end)
		switch {
		case i >= len(data):
			return 0, false
		case data[i] == closing(object):
			return i + 1, true
		case data[i] != ',':
			return 0, false
		}
		i = skipSpace(data, i+1)
	}
}

func closing(object bool) byte {
	if object {
		return '}'
	}
	return ']'
}

// readPart reads the member or the element at data[i].
func readPart(data []byte, i, depth int, object, named bool) (p part, ok bool) {
	p.from = i
	if object {
		if i >= len(data) || data[i] != '"' {
			return p, false
		}
		end, escaped, reason := endOfString(data, i)
		if reason != "" {
			return p, false
		}
		if p.name = data[i+1 : end-1]; escaped && named {
			p.name = unescape(p.name)
		}
		if i = skipSpace(data, end); i >= len(data) || data[i] != ':' {
			return p, false
		}
		i = skipSpace(data, i+1)
	}
	p.value = i
	p.end, ok = skipValue(data, i, depth+1)
	return p, ok
}

// skipValue reads the value at data[i] and gives the offset after it.
func skipValue(data []byte, i, depth int) (end int, ok bool) {
	if i >= len(data) || depth > maxWalk {
		return 0, false
	}
	switch data[i] {
	case '{', '[':
		return container(data, i, depth, nil)
	case '"':
		end, _, reason := endOfString(data, i)
		return end, reason == ""
	case 't', 'n':
		return i + 4, bytes.HasPrefix(data[i:], []byte("true")) || bytes.HasPrefix(data[i:], []byte("null"))
	case 'f':
		return i + 5, bytes.HasPrefix(data[i:], []byte("false"))
	}
	end, _, _, ok = endOfNumber(data, i)
	return end, ok
}

// skipSpace gives the offset of the first byte at or after i that is no white
// space.
func skipSpace(data []byte, i int) int {
	for i < len(data) && space(data[i]) {
		i++
	}
	return i
}
