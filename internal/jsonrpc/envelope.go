package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// maxID bounds an id as it is spelled, in bytes: ids are map keys and are
// written to logs.
const maxID = 256

// envelopeNames are the members of a JSON-RPC 2.0 message.
var envelopeNames = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// paramNames are the members of params that decide what a call does. A
// case-folding peer would take "Arguments" for one of them.
var paramNames = []string{"name", "arguments", "_meta"}

// envelope is what the pass has seen of the message's own members.
type envelope struct {
	version, id, method, params, result, error json.RawMessage

	doubtfulID bool // repeated or misspelled: no answer may carry it
}

// Decode reads one message in one strict pass. The error is always a *Fault,
// and then the message is nil. Refused are: more than one value, a byte order
// mark, invalid UTF-8, lone surrogates, repeated names at any depth, control
// characters in names, names that differ only by case (but see
// Message.Variants), numbers and nesting beyond lim, batches, and whatever
// JSON-RPC 2.0 §4 and §5 and MCP (base protocol, messages) do not allow: an id
// that is neither string nor integer, params that are no object, members that
// are unknown. CR and LF between tokens become spaces; all other bytes
// stay as they are. The message does not alias data. A failure's id may be
// null, which is no id.
func Decode(data []byte, lim Limits) (*Message, error) { return decode(data, lim, false) }

// DecodeOpen is Decode but for members of the message itself that JSON-RPC
// does not know: they are passed over (seed 004, additional properties). What
// differs only by case from a known one is refused here too.
func DecodeOpen(data []byte, lim Limits) (*Message, error) { return decode(data, lim, true) }

func decode(data []byte, lim Limits, open bool) (*Message, error) {
	lim = lim.orDefault()
	if len(data) > lim.Bytes {
		return nil, tooLarge(lim)
	}
	s := newScanner(data, lim)
	defer s.release()
	s.open = open
	if f := s.whole(zoneTop); f != nil {
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
// gives its one-line form, which does not alias data. Names that differ only
// by case are returned, the first pair only, and not refused. The error is
// always a *Fault.
func CheckValue(data []byte, lim Limits) (json.RawMessage, *Variants, error) {
	lim = lim.orDefault()
	if len(data) > lim.Bytes {
		return nil, nil, tooLarge(lim)
	}
	s := newScanner(data, lim)
	defer s.release()
	if f := s.whole(zoneFree); f != nil {
		return nil, nil, f
	}
	if s.soft != nil {
		return nil, nil, s.soft
	}
	return s.data, s.variants, nil
}

func tooLarge(lim Limits) *Fault {
	return &Fault{Kind: TooLarge, Reason: fmt.Sprintf("more than %d bytes", lim.Bytes), Offset: int64(lim.Bytes)}
}

// envelope takes one member of the message.
func (s *scanner) envelope(n name, raw json.RawMessage) {
	switch string(n.text) {
	case "jsonrpc":
		s.env.version = raw
	case "id":
		s.env.doubtfulID = s.env.doubtfulID || s.env.id != nil
		s.env.id = raw
	case "method":
		s.env.method = raw
	case "params":
		s.env.params = raw
	case "result":
		s.env.result = raw
	case "error":
		s.env.error = raw
	default:
		switch meant := s.misspelled(n, envelopeNames); {
		case meant == "id":
			s.env.doubtfulID = true
		case meant == "" && !s.open:
			s.refuse(n.at, "unknown member "+brief(n.text))
		}
	}
}

// misspelled refuses a name that differs only by case from one of known, and
// gives the one.
func (s *scanner) misspelled(n name, known []string) string {
	if slices.Contains(known, string(n.text)) {
		return ""
	}
	for _, k := range known {
		if bytes.EqualFold(n.text, []byte(k)) {
			s.refuse(n.at, fmt.Sprintf("member %s differs only by case from %q", brief(n.text), k))
			return k
		}
	}
	return ""
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
	if e.unknownID() {
		e.id = nil
	}
	if e.id != nil && !validID(e.id) {
		want := fmt.Sprintf("a string or an integer of at most %d bytes", maxID)
		return nil, invalid("/id", "an id must be "+want).wanted(want, otherID(e.id))
	}
	m := &Message{ID: e.id, Params: e.params, Result: e.result, Error: e.error, Raw: s.data, Variants: s.variants}
	if e.method != nil {
		return m, e.call(m)
	}
	return m, e.answer(m)
}

// call completes a request or a notification.
func (e *envelope) call(m *Message) *Fault {
	if e.result != nil || e.error != nil {
		return invalid("", "a message cannot have both a method and an answer")
	}
	method, ok := methodText(e.method)
	if !ok {
		return invalid("/method", "a method must be a string").wanted("a string", typeOf(e.method))
	}
	if e.params != nil && e.params[0] != '{' {
		return invalid("/params", "params must be an object").wanted("an object", typeOf(e.params))
	}
	m.Kind, m.Method = Request, method
	if e.id == nil {
		m.Kind = Notification
	}
	return nil
}

// answer completes a success or a failure.
func (e *envelope) answer(m *Message) *Fault {
	switch {
	case e.params != nil:
		return invalid("", "params without a method")
	case e.result != nil && e.error != nil:
		return invalid("", "an answer cannot have both a result and an error")
	case e.result != nil && e.id == nil:
		return invalid("", "a result without an id")
	case e.result != nil:
		m.Kind = Success
	case e.error == nil:
		return invalid("", "neither a method nor a result nor an error").wanted("a method, a result or an error", "none of them")
	case e.error[0] != '{':
		return invalid("/error", "an error must be an object").wanted("an object", typeOf(e.error))
	default:
		m.Kind = Failure
	}
	return nil
}

func invalid(pointer, reason string) *Fault {
	return &Fault{Kind: Invalid, Reason: reason, Pointer: pointer}
}

// wanted says what would have been accepted and what was there.
func (f *Fault) wanted(want, got string) *Fault {
	f.Want, f.Got = want, got
	return f
}

// unknownID reports the null with which a failure says that it answers what
// had no readable id (JSON-RPC 2.0 §5).
func (e *envelope) unknownID() bool {
	return string(e.id) == "null" && e.error != nil && e.method == nil && e.result == nil
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

// otherText is what stands where one certain string should.
func otherText(raw json.RawMessage) string {
	if len(raw) > 0 && raw[0] == '"' {
		return "another string"
	}
	return typeOf(raw)
}

// otherID says what is wrong with an id.
func otherID(raw json.RawMessage) string {
	switch c := raw[0]; {
	case len(raw) > maxID:
		return fmt.Sprintf("%d bytes", len(raw))
	case c == '-' || '0' <= c && c <= '9':
		return "a number that is no integer"
	}
	return typeOf(raw)
}

// certainID is the id where there is no doubt about which it is.
func (s *scanner) certainID() json.RawMessage {
	if s.data[0] != '{' || s.env.doubtfulID || !validID(s.env.id) {
		return nil
	}
	return bytes.Clone(s.env.id)
}

// validID accepts a string, or an integer without fraction and exponent.
func validID(raw json.RawMessage) bool {
	if len(raw) == 0 || len(raw) > maxID {
		return false
	}
	if raw[0] == '"' {
		return true
	}
	for _, c := range bytes.TrimPrefix(raw, []byte("-")) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
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
