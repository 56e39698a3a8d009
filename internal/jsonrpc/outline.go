package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// An Outline is what is kept of a message that cannot be read: its own members, without
// what is inside their objects and arrays. It says whose message it is where the message
// is too large, too deep, or malformed further in:
//
//	{"result":{"content":[ … 40 MiB … ]},"jsonrpc":"2.0","id":5}
//	{"result":{},"jsonrpc":"2.0","id":5}
//
// An Outline is an io.Writer of the message and keeps at most 4 KiB. The zero value is
// ready. It is not safe for concurrent use.
type Outline struct {
	kept    []byte
	size    int64
	depth   int  // how many objects and arrays are open
	text    int  // bytes of the string that is open, its quote included; 0 = none is open
	escaped bool // the next byte belongs to an escape
}

const (
	outlineBytes = 4 << 10
	outlineText  = maxID // bytes of a string that are kept
	endless      = 1 << 30
)

// OutlineOf returns the outline of a message.
func OutlineOf(message []byte) *Outline {
	var o Outline
	_, _ = o.Write(message) // it never fails
	return &o
}

// Write adds the next bytes of the message. It returns len(p) and no error.
func (o *Outline) Write(p []byte) (int, error) {
	o.size += int64(len(p))
	for _, c := range p {
		if o.text == 0 && (c == '}' || c == ']') {
			o.depth--
		}
		isEnd := c == '"' && !o.escaped
		if o.depth <= 1 && len(o.kept) < outlineBytes && (o.text < outlineText || o.escaped && o.text == outlineText || isEnd) {
			o.kept = append(o.kept, c)
		}
		switch {
		case o.text == 0 && (c == '{' || c == '['):
			o.depth++
		case o.text == 0 && c == '"':
			o.text = 1
		case o.text > 0 && isEnd:
			o.text = 0
		case o.text > 0:
			o.text++
			o.escaped = c == '\\' && !o.escaped
		}
	}
	return len(p), nil
}

// ReadBounded reads a message of at most most bytes; size is how many it has, -1 = unknown.
// Of a longer one it returns the outline, for which it reads up to further bytes behind the
// limit.
func ReadBounded(in io.Reader, size int64, most, further int) (message []byte, long *Outline, err error) {
	if size >= 0 && size <= int64(most) {
		message = make([]byte, size)
		_, err = io.ReadFull(in, message)
		return message, nil, err
	}
	message, err = io.ReadAll(io.LimitReader(in, int64(most)+1))
	if len(message) <= most {
		return message, nil, err
	}
	long = OutlineOf(message)
	_, _ = io.CopyN(long, in, int64(further)) // what cannot be read is not in the outline
	return nil, long, nil
}

// member returns the member of the message called name, nil unless it has exactly one, in
// whatever case. The message may break off behind it.
func (o *Outline) member(name string) (value json.RawMessage) {
	l, once := lexer{data: o.kept, accepted: true}, true
	if l.peek() != '{' {
		return nil
	}
	l.each(func(found []byte) bool {
		read := l.element()
		if bytes.EqualFold(found, []byte(name)) && l.at < len(l.data) { // at its end a number may be longer
			once = once && value == nil && string(found) == name
			value = read
		}
		return read != nil
	})
	if !once {
		return nil
	}
	return value
}

// ID returns the id of the message, nil unless it has exactly one that is valid.
func (o *Outline) ID() json.RawMessage {
	if id := o.member("id"); Key(id) != "" && whole(id, 0) {
		return id
	}
	return nil
}

// Asks reports whether the message has a method: it is a request or a notification.
func (o *Outline) Asks() bool { return o.member("method") != nil }

// Endless reports whether the message has more than 1 GiB: to read it to its end may keep
// a core busy for ever.
func (o *Outline) Endless() bool { return o.size > endless }

// TooLarge returns the fault of the message when at most most bytes are allowed.
func (o *Outline) TooLarge(most int) *Fault {
	return &Fault{Kind: TooLarge, Reason: fmt.Sprintf("more than %d bytes", most), Offset: int64(most), ID: o.ID()}
}
