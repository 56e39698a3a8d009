package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// maxID bounds an id as it is spelled, in bytes: ids are map keys and are
// written to logs.
const maxID = 256

// envelopeNames are the members of a JSON-RPC 2.0 message.
var envelopeNames = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// paramNames are the members of params that decide what a call does. A
// case-folding peer would take "Arguments" for one of them.
var paramNames = []string{"name", "arguments", "_meta"}

// An envelope is what the pass has read of the message's own members.
type envelope struct {
	message Message // ID, Params, Result and Error, unjudged
	version json.RawMessage
	method  json.RawMessage

	doubtfulID           bool // repeated or misspelled: no answer may carry it
	params, meta, result []member
}

// Decode reads one message in one strict pass. The error is always a *Fault,
// and then the message is nil. Decode refuses:
//
//   - bytes that are not exactly one JSON value (RFC 8259), a byte order mark,
//     invalid UTF-8 and lone surrogates;
//   - repeated names at any depth, control characters in names, and names that
//     differ only by case (but see Message.Variants);
//   - numbers, nesting and messages beyond lim;
//   - batches, and what JSON-RPC 2.0 §4 and §5 and MCP (base protocol,
//     messages) do not allow: an id that is neither a string nor an integer,
//     params that are not an object, unknown members.
//
// CR and LF between tokens become spaces; all other bytes stay as they are. The
// message does not alias data. The id of a failure may be null, which is no id.
func Decode(data []byte, lim Limits) (*Message, error) { return decode(data, lim, false) }

// DecodeOpen is Decode, except that it skips members of the message itself that
// JSON-RPC does not know (seed 004, additional properties). A name that differs
// only by case from a known one is refused here too.
func DecodeOpen(data []byte, lim Limits) (*Message, error) { return decode(data, lim, true) }

func decode(data []byte, lim Limits, open bool) (*Message, error) {
	s, f := scan(data, lim, zoneTop, open)
	defer s.release()
	if f != nil {
		return nil, f
	}
	m, f := s.message()
	if f != nil {
		f.ID = s.certainID()
		return nil, f
	}
	return m, nil
}

// CheckValue holds one bare JSON value to the rules of Decode for values and
// returns its one-line form, which does not alias data. It returns the first
// pair of names that differ only by case instead of refusing the value. The
// error is always a *Fault.
func CheckValue(data []byte, lim Limits) (json.RawMessage, *Variants, error) {
	s, f := scan(data, lim, zoneFree, false)
	defer s.release()
	if f == nil {
		f = s.soft
	}
	if f != nil {
		return nil, nil, f
	}
	return s.data, s.variants, nil
}

// scan makes the pass. The caller must release the scanner.
func scan(data []byte, lim Limits, z zone, open bool) (*scanner, *Fault) {
	lim = lim.orDefault()
	if len(data) > lim.Bytes {
		reason := fmt.Sprintf("more than %d bytes", lim.Bytes)
		return newScanner(nil, lim), &Fault{Kind: TooLarge, Reason: reason, Offset: int64(lim.Bytes)}
	}
	s := newScanner(data, lim)
	s.open = open
	return s, s.whole(z)
}

// envelopeName judges a name of the message itself.
func (s *scanner) envelopeName(text []byte, at int) {
	if slices.Contains(envelopeNames, string(text)) {
		return
	}
	switch meant := s.misspelled(text, at, envelopeNames); {
	case meant == "id":
		s.env.doubtfulID = true
	case meant == "" && !s.open:
		s.refuse(at, "unknown member "+brief(text))
	}
}

// misspelled refuses a name that differs only by case from one of known, and
// returns that one.
func (s *scanner) misspelled(text []byte, at int, known []string) string {
	for _, k := range known {
		if string(text) != k && bytes.EqualFold(text, []byte(k)) {
			s.refuse(at, fmt.Sprintf("member %s differs only by case from %q", brief(text), k))
			return k
		}
	}
	return ""
}

// take keeps a complete member of an object in z.
func (e *envelope) take(z zone, name []byte, m member, value json.RawMessage) {
	switch z {
	case zoneTop:
		e.takeOwn(name, value)
	case zoneParams:
		e.params = append(e.params, m)
	case zoneMeta:
		e.meta = append(e.meta, m)
	case zoneResult:
		e.result = append(e.result, m)
	}
}

// takeOwn keeps a member of the message itself.
func (e *envelope) takeOwn(name []byte, value json.RawMessage) {
	switch string(name) {
	case "jsonrpc":
		e.version = value
	case "id":
		e.doubtfulID = e.doubtfulID || e.message.ID != nil
		e.message.ID = value
	case "method":
		e.method = value
	case "params":
		e.message.Params = value
	case "result":
		e.message.Result = value
	case "error":
		e.message.Error = value
	}
}

// message judges the whole once it has been read.
func (s *scanner) message() (*Message, *Fault) {
	if s.data[0] == '[' {
		return nil, invalid("", "batches are not accepted").wanted("one message", "an array")
	}
	if s.data[0] != '{' {
		return nil, invalid("", "a message must be an object").wanted("an object", typeOf(s.data))
	}
	if s.soft != nil {
		return nil, s.soft
	}
	e := &s.env
	if v, ok := Text(e.version); !ok || v != "2.0" {
		return nil, invalid("/jsonrpc", `member "jsonrpc" must be "2.0"`).wanted(`"2.0"`, otherText(e.version))
	}
	m := &Message{Raw: s.data, Variants: s.variants}
	m.ID, m.Params, m.Result, m.Error = e.message.ID, e.message.Params, e.message.Result, e.message.Error
	if e.unknownID() {
		m.ID = nil
	}
	if m.ID != nil && !validID(m.ID) {
		want := fmt.Sprintf("a string or an integer of at most %d bytes", maxID)
		return nil, invalid("/id", "an id must be "+want).wanted(want, otherID(m.ID))
	}
	m.index(e.params, e.meta, e.result)
	if e.method != nil {
		return m, m.completeCall(e.method)
	}
	return m, m.completeAnswer()
}

// unknownID reports the null with which a failure says that it answers a
// message without a readable id (JSON-RPC 2.0 §5).
func (e *envelope) unknownID() bool {
	m := &e.message
	return string(m.ID) == "null" && m.Error != nil && e.method == nil && m.Result == nil
}

// completeCall judges the members of a request or a notification.
func (m *Message) completeCall(method json.RawMessage) *Fault {
	if m.Result != nil || m.Error != nil {
		return invalid("", "a message cannot have both a method and an answer")
	}
	name, ok := methodText(method)
	if !ok {
		return invalid("/method", "a method must be a string").wanted("a string", typeOf(method))
	}
	if m.Params != nil && m.Params[0] != '{' {
		return invalid("/params", "params must be an object").wanted("an object", typeOf(m.Params))
	}
	m.Kind, m.Method = Request, name
	if m.ID == nil {
		m.Kind = Notification
	}
	return nil
}

// completeAnswer judges the members of a success or a failure.
func (m *Message) completeAnswer() *Fault {
	switch {
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

func invalid(pointer, reason string) *Fault {
	return &Fault{Kind: Invalid, Reason: reason, Pointer: pointer}
}

// wanted adds what would have been accepted and what was there.
func (f *Fault) wanted(want, got string) *Fault {
	f.Want, f.Got = want, got
	return f
}

// typeOf names the type of a value that was read.
func typeOf(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
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
		return fmt.Sprintf("%d bytes", len(raw))
	case kind == "a number":
		return "a number that is no integer"
	default:
		return kind
	}
}

// certainID returns the id where there is no doubt about which it is.
func (s *scanner) certainID() json.RawMessage {
	id := s.env.message.ID
	if s.data[0] != '{' || s.env.doubtfulID || !validID(id) {
		return nil
	}
	return bytes.Clone(id)
}

// validID accepts a string, or an integer without fraction and exponent.
func validID(raw json.RawMessage) bool {
	if len(raw) == 0 || len(raw) > maxID {
		return false
	}
	return raw[0] == '"' || strings.Trim(strings.TrimPrefix(string(raw), "-"), "0123456789") == ""
}

// methodText is Text without an allocation for the methods of the call path.
func methodText(raw json.RawMessage) (string, bool) {
	switch string(raw) {
	case `"tools/call"`:
		return "tools/call", true
	case `"tools/list"`:
		return "tools/list", true
	}
	return Text(raw)
}
