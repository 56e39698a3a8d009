package jsonrpc

import (
	"bytes"
	"cmp"
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
func Decode(data []byte, lim Limits) (*Message, error) {
	s, f := scan(data, lim, zoneTop)
	defer s.release()
	if f != nil {
		return nil, f
	}
	m := &Message{Raw: s.data, Variants: s.variants}
	if f := s.judge(m); f != nil {
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
	s, f := scan(data, lim, zoneFree)
	defer s.release()
	if f == nil {
		f = s.soft
	}
	if f != nil {
		return nil, nil, f
	}
	return s.data, s.variants, nil
}

// judge fills m with what the pass has read.
func (s *scanner) judge(m *Message) *Fault {
	if s.data[0] == '[' {
		return invalid("", "batches are not accepted").wanted("one message", "an array")
	}
	if s.data[0] != '{' {
		return invalid("", "a message must be an object").wanted("an object", typeOf(s.data))
	}
	if s.soft != nil {
		return s.soft
	}
	var version, method json.RawMessage
	for _, own := range s.members {
		if own.zone != zoneTop {
			continue
		}
		switch string(own.name) {
		case "jsonrpc":
			version = own.value
		case "id":
			m.ID = own.value
		case "method":
			method = own.value
		case "params":
			m.Params = own.value
		case "result":
			m.Result = own.value
		case "error":
			m.Error = own.value
		}
	}
	if v, ok := Text(version); string(version) != `"2.0"` && (!ok || v != "2.0") {
		return invalid("/jsonrpc", `member "jsonrpc" must be "2.0"`).wanted(`"2.0"`, otherText(version))
	}
	if string(m.ID) == "null" && m.Error != nil && method == nil && m.Result == nil {
		m.ID = nil // a failure that answers a message without a readable id (JSON-RPC 2.0 §5)
	}
	if m.ID != nil && !validID(m.ID) {
		want := fmt.Sprintf("a string or an integer of at most %d bytes", maxID)
		return invalid("/id", "an id must be "+want).wanted(want, otherID(m.ID))
	}
	if len(s.members) <= maxIndexed {
		m.members, m.read = slices.Clone(s.members), [2]json.RawMessage{m.Params, m.Result}
	}
	return m.judgeShape(method)
}

// judgeShape decides which kind of message has the members of m and method.
func (m *Message) judgeShape(method json.RawMessage) *Fault {
	isCall := method != nil
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

// certainID returns a copy of the id where there is no doubt which it is:
// neither repeated nor misspelled.
func (s *scanner) certainID() json.RawMessage {
	var id json.RawMessage
	for _, own := range s.members {
		if own.zone != zoneTop || !bytes.EqualFold(own.name, []byte("id")) {
			continue
		}
		if id != nil || string(own.name) != "id" {
			return nil
		}
		id = own.value
	}
	if !validID(id) {
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

// IsBatch reports whether data, if it is JSON, is an array.
func IsBatch(data []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(data, blanks), []byte{'['})
}

// Split returns the elements of a batch (JSON-RPC 2.0 §6, MCP 2025-03-26). They
// are the bytes of data with spaces for line ends between tokens, and do not
// alias it. Each is one well-formed value, nested no deeper than lim; Decode
// judges the rest. The error is always a *Fault: for a value that is not an
// array, an empty array, and one of more than most elements.
func Split(data []byte, lim Limits, most int) ([][]byte, error) {
	lim.Depth = cmp.Or(max(lim.Depth, 0), defaults.Depth) + 1 // the batch is not part of its messages
	s, f := scan(data, lim, zoneFree)
	defer s.release()
	switch {
	case f != nil && (f.Kind == TooLarge || IsBatch(data)):
		return nil, f
	case !IsBatch(data):
		return nil, invalid("", "a batch must be an array").wanted("an array", "something else")
	}
	var all [][]byte
	for element := range Elements(s.data) {
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
