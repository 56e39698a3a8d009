package jsonrpc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	// Mend makes Decode and CheckValue accept lone surrogates in strings, such as
	// \ud800, and replaces each by \ufffd, which is as long and has one reading. It also
	// replaces each run of bytes in a string that is not UTF-8 by the character U+FFFD;
	// Bytes and offsets of later faults are then about the longer text.
	Mend bool
	// Owned hands data over: Decode and CheckValue use its bytes in place of a copy
	// and put spaces for line ends into them. Nobody else may write to them. The result
	// of an answer has the capacity that is behind it in data: see Append.
	Owned bool
}

// DefaultLimits are the limits that zero fields stand for: 4 MiB, depth 64,
// 400 digits, exponents within ±400.
func DefaultLimits() Limits { return defaults }

// MostLimits are the most that the settings may allow a message of a client: 32 MiB and depth
// 1000. They hold for what may have passed such settings before.
func MostLimits() Limits { return Limits{Bytes: 32 << 20, Depth: 1000} }

var defaults = Limits{Bytes: 4 << 20, Depth: 64, Digits: 400, Exponent: 400}

// Message is one decoded message. ID, Params, Result and Error are subslices
// of Raw, nil where the member is absent. A Message may be read from several
// goroutines as long as none of them writes to its bytes.
type Message struct {
	Kind Kind
	// ID is a string or an integer as it was spelled, nil when absent: in a
	// notification, and in an error answer to what had no readable id.
	ID json.RawMessage
	// Key is what the function Key returns for ID.
	Key string
	// Method is decoded; it is "" in answers.
	Method string
	// Params is an object, nil also for null, which some clients write for none.
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
	// Plain says that all strings of the message are spelled with visible ASCII characters, spaces,
	// and the escapes \" \\ \/ \n \r \t: none of their characters is hidden. It may be false for
	// such a message.
	Plain bool

	members []member // of params and of its _meta, nil when they are too many or Params are others
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
	// Pointer is the JSON Pointer of the value at fault, "" for the message. Where it
	// would be long it is that of an object or array around the value.
	Pointer string
	// Want and Got say what would be accepted at Pointer and what is there, ""
	// where there is no such pair.
	Want, Got string
	// Offset counts bytes from the start of the input.
	Offset int64
	// ID is the message's id as Decode finds it, also in a message that breaks off or
	// is malformed further in: see Outline. It is nil where the message has none that
	// is valid, or two.
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

// Param returns the member of params at path, as it is spelled: "name", or
// "_meta" and a name in it. It reports false when there is none, and with the value for
// null, which some clients write for none. It does not read again what Decode has read.
func (m *Message) Param(path ...string) (value json.RawMessage, ok bool) {
	if m.members == nil {
		value, ok = At(m.Params, path...)
		return value, ok && string(value) != "null"
	}
	z := zoneParams
	if len(path) == 2 {
		z = zoneMeta
	}
	for i := range m.members {
		own := &m.members[i]
		if own.zone == z && string(own.name) == path[len(path)-1] {
			return own.value, string(own.value) != "null"
		}
	}
	return nil, false
}

// TextParam returns the string that params has at path, as Param does.
func (m *Message) TextParam(path ...string) (string, bool) {
	value, _ := m.Param(path...)
	return Text(value)
}

// SetParams replaces the params, for which the message does not vouch.
func (m *Message) SetParams(params json.RawMessage) { m.Params, m.members = params, nil }

// Vouches reports whether raw is, in memory, a member of params that Decode has
// read, so that no second strict pass is needed.
func (m *Message) Vouches(raw json.RawMessage) bool {
	for i := range m.members {
		own := &m.members[i]
		if own.zone == zoneParams && len(own.value) == len(raw) && &own.value[0] == &raw[0] {
			return true
		}
	}
	return false
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
	return Accepted(raw), nil
}

// Accepted is Value for a text that a strict pass has accepted.
func Accepted(raw json.RawMessage) any { return (&lexer{data: raw, accepted: true}).build() }

// Decode reads one message in one strict pass. The error is always a *Fault,
// and then the message is nil. Decode refuses:
//
//   - bytes that are not exactly one JSON value (RFC 8259), a byte order mark,
//     invalid UTF-8 and lone surrogates (but see Limits.Mend);
//   - repeated names at any depth, control characters in names, and names that
//     differ only by case (but see Message.Variants);
//   - numbers, nesting and messages beyond lim;
//   - batches, and what JSON-RPC 2.0 §4 and §5 and MCP (base protocol,
//     messages) do not allow: an id that is neither a string nor an integer,
//     params that are not an object, unknown members.
//
// CR and LF between tokens become spaces; all other bytes stay as they are. The
// message does not alias data. The id of a failure may be null, which is no id.
func Decode(data []byte, lim Limits) (*Message, error) {
	s := newScanner(lim)
	defer s.free()
	f := s.scan(data, zoneTop)
	if f == nil {
		m := s.message()
		if f = s.judge(m); f == nil {
			return m, nil
		}
	}
	f.ID = OutlineOf(data).ID()
	return nil, f
}

// message returns a message with what the pass has found, but for what its own members say.
// The usual members of params are in the same piece of memory: name and arguments, or these
// and a _meta with three members.
func (s *findings) message() (m *Message) {
	found, inParams := s.members, 0
	if len(found) > maxIndexed {
		found = nil
	}
	for i := range found {
		if found[i].zone != zoneTop {
			inParams++
		}
	}
	switch {
	case inParams == 0:
		m = new(Message)
	case inParams <= 2:
		one := new(struct {
			Message
			room [2]member
		})
		m, one.members = &one.Message, one.room[:0]
	case inParams <= 6:
		one := new(struct {
			Message
			room [6]member
		})
		m, one.members = &one.Message, one.room[:0]
	default:
		m = &Message{members: make([]member, 0, inParams)}
	}
	m.Raw, m.Variants, m.Plain = s.raw, s.variants, s.plain
	for i := range found {
		if found[i].zone != zoneTop {
			m.members = append(m.members, found[i])
		}
	}
	return m
}

// CheckValue holds one bare JSON value to the rules of Decode for values and
// returns its one-line form, which does not alias data. It returns the first
// pair of names that differ only by case instead of refusing the value. The
// error is always a *Fault.
func CheckValue(data []byte, lim Limits) (json.RawMessage, *Variants, error) {
	s, f := scan(data, lim, zoneFree)
	if f == nil {
		f = s.soft
	}
	if f != nil {
		return nil, nil, f
	}
	return s.raw, s.variants, nil
}

// judge fills m with what the pass has read.
func (s *findings) judge(m *Message) *Fault {
	switch {
	case s.raw[0] == '[':
		return invalid("", "batches are not accepted").wanted("one message", "an array")
	case s.raw[0] != '{':
		return invalid("", "a message must be an object").wanted("an object", typeOf(s.raw))
	case s.soft != nil:
		return s.soft
	}
	var version, method json.RawMessage
	into := [...]*json.RawMessage{&version, &m.ID, &method, &m.Params, &m.Result, &m.Error} // as topNames
	for n := range s.members {
		own := &s.members[n]
		if own.zone != zoneTop {
			continue
		}
		if i := slices.Index(topNames, string(own.name)); i >= 0 {
			*into[i] = own.value
		}
	}
	if string(version) != `"2.0"` && Key(version) != `"2.0` { // which may be spelled with escapes
		return invalid("/jsonrpc", `member "jsonrpc" must be "2.0"`).wanted(`"2.0"`, otherText(version))
	}
	if string(m.ID) == "null" && m.Error != nil && method == nil && m.Result == nil {
		m.ID = nil // a failure that answers a message without a readable id (JSON-RPC 2.0 §5)
	}
	if m.Key = Key(m.ID); m.ID != nil && m.Key == "" {
		want := fmt.Sprintf("a string or an integer of at most %d bytes", maxID)
		return invalid("/id", "an id must be "+want).wanted(want, otherID(m.ID))
	}
	isCall := method != nil
	if isCall && string(m.Params) == "null" {
		m.Params = nil
	}
	name, isText := "tools/call", string(method) == `"tools/call"`
	if isCall && !isText {
		name, isText = Text(method)
	}
	switch {
	case isCall && (m.Result != nil || m.Error != nil):
		return invalid("", "a message cannot have both a method and an answer")
	case isCall && !isText:
		return invalid("/method", "a method must be a string").wanted("a string", typeOf(method))
	case isCall && m.Params != nil && m.Params[0] != '{':
		return invalid("/params", "params must be an object").wanted("an object", typeOf(m.Params))
	case isCall && m.ID == nil:
		m.Kind, m.Method = Notification, name
	case isCall:
		m.Kind, m.Method = Request, name
	case m.Params != nil:
		return invalid("", "params without a method")
	case m.Result != nil && m.Error != nil:
		return invalid("", "an answer cannot have both a result and an error")
	case m.Result != nil && m.ID == nil:
		return invalid("", "a result without an id")
	case m.Result != nil:
		m.Kind = Success
	case m.Error == nil:
		return invalid("", "neither a method nor a result nor an error").wanted("a method, a result or an error", "none of them")
	case m.Error[0] != '{':
		return invalid("/error", "an error must be an object").wanted("an object", typeOf(m.Error))
	default:
		m.Kind = Failure
	}
	return nil
}

// topNames are the names of the members of a message.
var topNames = []string{"jsonrpc", "id", "method", "params", "result", "error"}

func invalid(pointer, reason string) *Fault {
	return &Fault{Kind: Invalid, Reason: reason, Pointer: pointer}
}

// wanted adds what would have been accepted and what was there.
func (f *Fault) wanted(want, got string) *Fault {
	f.Want, f.Got = want, got
	return f
}

// typeOf names the type of a value that was read.
func typeOf(raw json.RawMessage) string { return typeNames[jsontext.Value(raw).Kind()] }

var typeNames = map[jsontext.Kind]string{
	'{': "an object", '[': "an array", '"': "a string", 't': "a boolean", 'f': "a boolean", 'n': "null", '0': "a number", 0: "nothing",
}

// otherText says what stands in place of one certain string.
func otherText(raw json.RawMessage) string {
	if len(raw) > 0 && raw[0] == '"' {
		return "another string"
	}
	return typeOf(raw)
}

// otherID says what is wrong with an id.
func otherID(raw json.RawMessage) string {
	switch kind := typeOf(raw); {
	case len(raw) > maxID:
		return strconv.Itoa(len(raw)) + " bytes"
	case kind == "a number":
		return "a number that is no integer"
	default:
		return kind
	}
}

// Split returns the elements of a batch (JSON-RPC 2.0 §6, MCP 2025-03-26). They
// are the bytes of data with spaces for line ends between tokens, and do not
// alias it. Each is one well-formed value, nested no deeper than lim; Decode
// judges the rest. The error is always a *Fault: for a value that is not an
// array, an empty array, and one of more than most elements.
func Split(data []byte, lim Limits, most int) ([][]byte, error) {
	lim.Depth = cmp.Or(max(lim.Depth, 0), defaults.Depth) + 1 // the batch is not part of its messages
	s, f := scan(data, lim, zoneFree)
	isArray := jsontext.Value(data).Kind() == '['
	switch {
	case f != nil && (f.Kind == TooLarge || isArray):
		return nil, f
	case !isArray:
		return nil, invalid("", "a batch must be an array").wanted("an array", "something else")
	}
	var all [][]byte
	for element := range Elements(s.raw) {
		all = append(all, element)
	}
	switch {
	case len(all) == 0:
		return nil, invalid("", "a batch must not be empty").wanted("one message or more", "none")
	case len(all) > most:
		return nil, invalid("", fmt.Sprintf("a batch must not have more than %d messages", most))
	}
	return all, nil
}
