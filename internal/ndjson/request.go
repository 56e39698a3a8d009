package ndjson

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Request is one decoded request.
type Request struct {
	// ID is a JSON string as it was spelled, nil when there is none.
	ID json.RawMessage
	// Type is ListActions or Invoke.
	Type string
	// Action is decoded, "" for ListActions.
	Action string
	// Input is the object as it was spelled, but for line ends between tokens,
	// which arrive as spaces; {} when the payload has none.
	Input json.RawMessage
}

// Decode reads one request line in one strict pass. The error is always a
// *Fault, and then the request is nil. Refused are: more than MaxLine bytes,
// what jsonrpc.CheckValue refuses, unknown members of the request and of the
// payload, and members of another type than the protocol gives them. Names
// that differ only by case may stand inside the input, which is judged later.
func Decode(line []byte) (*Request, error) {
	if len(line) > MaxLine {
		return nil, &Fault{Text: Oversized, Cause: &jsonrpc.Fault{
			Kind: jsonrpc.TooLarge, Reason: fmt.Sprintf("more than %d bytes", MaxLine), Offset: MaxLine,
		}}
	}
	raw, _, err := jsonrpc.CheckValue(line, jsonrpc.Limits{Bytes: MaxLine})
	if err != nil {
		return nil, faulty(line, err)
	}
	r := reader{raw: raw, text: InvalidEnvelope}
	req := r.request()
	if len(r.issues) > 0 {
		return nil, r.fault()
	}
	return req, nil
}

// faulty makes the fault of bytes that CheckValue has refused.
func faulty(line []byte, err error) *Fault {
	f := jsonrpc.FaultOf(err)
	if f.Kind == jsonrpc.Parse {
		return &Fault{Text: Malformed, Cause: f}
	}
	f.ID = certainID(line)
	issue := Issue{Code: "invalid_json", Message: f.Reason, Path: Path(line, f.Pointer)}
	return &Fault{Text: InvalidEnvelope, Issues: []Issue{issue}, ID: f.ID, Cause: f}
}

// certainID gives the id of an object that may be refused for anything else,
// nil where there is doubt about which it is.
func certainID(line []byte) json.RawMessage {
	var found json.RawMessage
	for name, value := range jsonrpc.Members(line) {
		if !strings.EqualFold(name, "id") {
			continue
		}
		if name != "id" || found != nil || !validID(value) {
			return nil
		}
		found = value
	}
	return found
}

// validID accepts a string that is not too long.
func validID(raw json.RawMessage) bool {
	_, ok := jsonrpc.Text(raw)
	return ok && len(raw) <= maxID
}

// reader takes one request apart and notes what is wrong with it.
type reader struct {
	raw    json.RawMessage
	text   string // what the first issue belongs to
	id     json.RawMessage
	issues []Issue
}

// refuse notes an issue.
func (r *reader) refuse(code, message string, path ...any) {
	r.issues = append(r.issues, Issue{Code: code, Message: message, Path: path})
}

// fault makes the fault of the issues.
func (r *reader) fault() *Fault {
	var at jsontext.Pointer
	if r.text == InvalidPayload {
		at = "/payload"
	}
	for _, step := range r.issues[0].Path {
		at = at.AppendToken(fmt.Sprint(step))
	}
	cause := &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: r.text + ": " + r.issues[0].Message, Pointer: string(at), ID: r.id}
	return &Fault{Text: r.text, Issues: r.issues, ID: r.id, Cause: cause}
}

// request reads the envelope, and the payload when the envelope is whole.
func (r *reader) request() *Request {
	if r.raw[0] != '{' {
		r.refuse("invalid_type", wrongType("object", r.raw))
		return nil
	}
	r.id = certainID(r.raw)
	members := r.members(r.raw, "id", "type", "payload")
	if id := members["id"]; id != nil {
		r.str("id", id)
		if len(id) > maxID {
			r.refuse("too_big", fmt.Sprintf("An id has at most %d bytes", maxID), "id")
		}
	}
	req := &Request{ID: members["id"], Type: r.kind(members["type"])}
	payload := members["payload"]
	if payload != nil && payload[0] != '{' {
		r.refuse("invalid_type", wrongType("object", payload), "payload")
	}
	if len(r.issues) == 0 && req.Type == Invoke {
		r.text = InvalidPayload
		r.payload(req, payload)
	}
	return req
}

// kind reads the type.
func (r *reader) kind(raw json.RawMessage) string {
	kind, ok := r.str("type", raw)
	if ok && kind != ListActions && kind != Invoke {
		r.refuse("invalid_enum_value", "Expected 'list_actions' or 'invoke', received '"+clip(kind)+"'", "type")
	}
	return kind
}

// payload reads what is to be invoked.
func (r *reader) payload(req *Request, raw json.RawMessage) {
	if raw == nil {
		r.refuse("invalid_type", "Required")
		return
	}
	members := r.members(raw, "action", "input")
	var ok bool
	if req.Action, ok = r.str("action", members["action"]); ok && req.Action == "" {
		r.refuse("too_small", "An action has a name", "action")
	}
	req.Input = json.RawMessage(`{}`)
	if input := members["input"]; input != nil {
		if req.Input = input; input[0] != '{' {
			r.refuse("invalid_type", wrongType("object", input), "input")
		}
	}
}

// members splits an object and refuses the members that are not known.
func (r *reader) members(object json.RawMessage, known ...string) map[string]json.RawMessage {
	for name := range jsonrpc.Members(object) {
		if !slices.Contains(known, name) {
			r.refuse("unrecognized_keys", "Unrecognized key "+strconv.QuoteToGraphic(clip(name)))
			break
		}
	}
	return maps.Collect(jsonrpc.Members(object))
}

// str reads a member that must be there and be a string.
func (r *reader) str(name string, raw json.RawMessage) (string, bool) {
	if raw == nil {
		r.refuse("invalid_type", "Required", name)
		return "", false
	}
	text, ok := jsonrpc.Text(raw)
	if !ok {
		r.refuse("invalid_type", wrongType("string", raw), name)
	}
	return text, ok
}

// typeNames gives the types of JSON by their first byte; any other is a number.
var typeNames = map[byte]string{'{': "object", '[': "array", '"': "string", 't': "boolean", 'f': "boolean", 'n': "null"}

// wrongType says which type came in place of another.
func wrongType(want string, raw json.RawMessage) string {
	return "Expected " + want + ", received " + cmp.Or(typeNames[raw[0]], "number")
}

// Path gives the steps of a JSON Pointer (RFC 6901) into value: an int where
// value has an array, else a string. "" has no steps.
func Path(value json.RawMessage, pointer string) []any {
	var out []any
	for step := range jsontext.Pointer(pointer).Tokens() {
		elements := slices.Collect(jsonrpc.Elements(value))
		if n, err := strconv.Atoi(step); err == nil && n >= 0 && n < len(elements) {
			out, value = append(out, n), elements[n]
			continue
		}
		out = append(out, step)
		value, _ = jsonrpc.Get(value, step)
	}
	return out
}

// NewList builds a list_actions request.
func NewList(id string) []byte {
	return slices.Concat([]byte(`{"id":`), jsonrpc.Quote(id), []byte(`,"type":"list_actions"}`))
}

// NewInvoke builds an invoke request. Name and input are written as they are:
// they must be a JSON string and a JSON object, each on one line.
func NewInvoke(id string, name, input json.RawMessage) []byte {
	return slices.Concat([]byte(`{"id":`), jsonrpc.Quote(id), []byte(`,"type":"invoke","payload":{"action":`), name, []byte(`,"input":`), input, []byte(`}}`))
}
