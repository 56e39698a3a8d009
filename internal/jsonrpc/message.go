package jsonrpc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Kind tells the four shapes of a JSON-RPC 2.0 message apart.
type Kind uint8

// The kinds of message (JSON-RPC 2.0 §4 and §5).
const (
	Request      Kind = iota + 1 // method and id
	Notification                 // method without id
	Success                      // result
	Failure                      // error
)

// String gives the kind in lower case.
func (k Kind) String() string {
	return cmp.Or(map[Kind]string{Request: "request", Notification: "notification", Success: "success", Failure: "failure"}[k],
		fmt.Sprintf("kind(%d)", uint8(k)))
}

// Limits bounds what is read. A field that is zero or less has its default.
type Limits struct {
	// Bytes is the size of a whole message, default 4 MiB.
	Bytes int
	// Depth is how many arrays and objects may be open at once, the message
	// itself included, default 64.
	Depth int
	// Digits is how many digits a number may have before its exponent,
	// default 400.
	Digits int
	// Exponent is the largest absolute value of an exponent, default 400.
	Exponent int
	// Open makes Decode skip members of the message itself that JSON-RPC does
	// not know (seed 004, additional properties). A name that differs only by
	// case from a known one is refused all the same.
	Open bool
}

// DefaultLimits are the limits that zero fields stand for: 4 MiB, depth 64,
// 400 digits, exponents within ±400.
func DefaultLimits() Limits { return defaults }

var defaults = Limits{Bytes: 4 << 20, Depth: 64, Digits: 400, Exponent: 400}

// Message is one decoded message. ID, Params, Result and Error are subslices
// of Raw, nil where the member is absent. A Message may be read from several
// goroutines as long as none of them writes to its bytes.
type Message struct {
	Kind Kind
	// ID is a string or an integer as it was spelled, nil when absent: in a
	// notification, and in an error answer to what had no readable id.
	ID json.RawMessage
	// Method is decoded; it is "" in answers.
	Method string
	// Params is an object.
	Params json.RawMessage
	// Result is any value.
	Result json.RawMessage
	// Error is an object.
	Error json.RawMessage
	// Raw is the whole message on one line, without white space around it.
	Raw []byte
	// Variants is the first pair of names that differ only by case where data
	// may carry such a pair: inside params.arguments of a call, and inside
	// result.structuredContent and result.tools of an answer. It is nil when
	// there is none; everywhere else such a pair is a Fault.
	Variants *Variants

	members []member           // as the pass has met them, nil when they are too many
	read    [2]json.RawMessage // Params and Result that have these members
}

// Variants names two members of one object that differ only by case, which
// case-folding decoders take for the same member.
type Variants struct {
	// Pointer is the JSON Pointer (RFC 6901) of the object.
	Pointer string
	// First and Second are the names in the order of the text.
	First, Second string
}

// FaultKind says which answer a refused message deserves.
type FaultKind uint8

// The kinds of fault.
const (
	Parse    FaultKind = iota + 1 // not one well-formed JSON text (-32700)
	Invalid                       // JSON, but not a message with one reading (-32600)
	TooLarge                      // more bytes than allowed
)

// String gives the kind in lower case.
func (k FaultKind) String() string {
	return cmp.Or(map[FaultKind]string{Parse: "parse", Invalid: "invalid", TooLarge: "too large"}[k], fmt.Sprintf("fault(%d)", uint8(k)))
}

// Fault is why bytes were refused. What Decode gives holds no part of the input
// but member names in Reason and Pointer, shortened, and the id.
type Fault struct {
	Kind   FaultKind
	Reason string
	// Pointer is the JSON Pointer of the value at fault, "" for the message.
	Pointer string
	// Want and Got say what would be accepted at Pointer and what is there, ""
	// where there is no such pair.
	Want, Got string
	// Offset counts bytes from the start of the input.
	Offset int64
	// ID is the request's id where the whole message was read and it has
	// exactly one valid id; else nil.
	ID json.RawMessage
}

// FaultOf returns the Fault that err is. For any other error it returns an
// Invalid fault with the error's text, so that callers fail closed.
func FaultOf(err error) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f
	}
	return &Fault{Kind: Invalid, Reason: err.Error()}
}

// Error says why and where in one line.
func (f *Fault) Error() string {
	if f.Pointer == "" {
		return fmt.Sprintf("%s at byte %d", f.Reason, f.Offset)
	}
	return fmt.Sprintf("%s at byte %d (%s)", f.Reason, f.Offset, strings.Trim(strconv.QuoteToGraphic(f.Pointer), `"`))
}

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
	if same(m.Params, m.read[0]) {
		return m.find(zoneMeta, m.Params, name)
	}
	meta, _ := Get(m.Params, "_meta")
	return Get(meta, name)
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

// Decoded returns the value of raw as the function Value does, where raw is, in
// memory, a member of params that Decode has read: it makes no second strict
// pass. It reports false for any other bytes.
func (m *Message) Decoded(raw json.RawMessage) (any, bool) {
	for _, own := range m.members {
		if own.zone == zoneParams && same(own.value, raw) {
			return build(jsontext.NewDecoder(bytes.NewBuffer(raw), lenient)), true
		}
	}
	return nil, false
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
	return build(jsontext.NewDecoder(bytes.NewBuffer(raw), lenient)), nil
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
