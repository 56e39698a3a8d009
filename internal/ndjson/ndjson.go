// Package ndjson reads and writes the frames of the NDJSON action protocol:
// one JSON object per line, requests "list_actions" and "invoke", responses
// with "ok". What has more than one reading is refused, as package jsonrpc
// does for its messages, and bytes that are passed on are never rewritten.
package ndjson

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// MaxLine bounds one request line without its end, in bytes (512 KB).
const MaxLine = 512 << 10

// maxID bounds an id as it is spelled, in bytes: ids are map keys and are
// written to logs.
const maxID = 256

// MetaAction is the _meta key under which an MCP tool result carries what an
// action says of itself: {"action","boundaryNotice","uncertainty",
// "assumptions"}, each as it was sent and where it was sent.
const MetaAction = "io.toolgate/action"

// The request types.
const (
	ListActions = "list_actions"
	Invoke      = "invoke"
)

// The fixed texts of refusals.
const (
	Malformed       = "Malformed JSON request"
	InvalidEnvelope = "Invalid request envelope"
	InvalidPayload  = "Invalid invoke payload"
	Oversized       = "Request exceeds maximum size (512 KB)"
)

// UnknownAction is the text for an action that does not exist.
func UnknownAction(name string) string { return "Unknown action: '" + clip(name) + "'" }

// InvalidInput is the text for an input that an action does not take.
func InvalidInput(name, reason string) string {
	return "Input validation failed for action '" + clip(name) + "': " + reason
}

// clip keeps a caller from having long text of its own sent back.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// Issue is one fault of a request. Code, message and path are those of the
// protocol; the other members are left out when they are zero.
type Issue struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	// Path is where the fault is; string for a member, int for an element. It
	// starts at what was judged: the request, the payload or the input.
	Path []any `json:"path"`
	// Ticket is the approval ticket that a call waits for.
	Ticket string `json:"ticket,omitzero"`
	// RetryAfterMS is when to ask again, in milliseconds.
	RetryAfterMS int64 `json:"retry_after_ms,omitzero"`
	// Remedy is what would make the request pass.
	Remedy string `json:"remedy,omitzero"`
	// DecisionID names the call in the audit trail.
	DecisionID string `json:"decision_id,omitzero"`
}

// Fault is why a line is no request.
type Fault struct {
	// Text is one of the fixed texts.
	Text string
	// Issues say what is wrong where the line is JSON.
	Issues []Issue
	// ID is the request's id as it was spelled, nil where there is doubt about
	// which it is.
	ID json.RawMessage
	// Cause is the same for records; never nil.
	Cause *jsonrpc.Fault
}

// Error gives the text and the reason in one line.
func (f *Fault) Error() string { return f.Text + ": " + f.Cause.Error() }

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

// Response is one decoded response.
type Response struct {
	// ID is a JSON string as it was spelled, nil when there is none.
	ID json.RawMessage
	OK bool
	// Data is an object or an array; set when OK.
	Data json.RawMessage
	// Error is what went wrong; set when not OK.
	Error string
	// Issues is an array, nil when there is none.
	Issues json.RawMessage
}

// responseNames are the members of a response.
var responseNames = []string{"id", "ok", "data", "error", "issues"}

// DecodeResponse reads one response line of at most lim.Bytes. The error is
// always a *jsonrpc.Fault, with the id where there is no doubt about which it
// is, and then the response is nil. Members that are not known are passed
// over, unless they differ only by case from one that is.
func DecodeResponse(line []byte, lim jsonrpc.Limits) (*Response, error) {
	raw, _, err := jsonrpc.CheckValue(line, lim)
	if err != nil {
		if f := jsonrpc.FaultOf(err); f.Kind == jsonrpc.Invalid {
			f.ID = certainID(line)
		}
		return nil, err
	}
	if raw[0] != '{' {
		return nil, invalid("", "a response must be an object", nil)
	}
	members, misspelled := split(raw, responseNames)
	id := certainID(raw)
	switch {
	case misspelled != "":
		return nil, invalid("", "a member differs only by case from "+misspelled, id)
	case members["id"] != nil && id == nil:
		return nil, invalid("/id", "an id must be a string", nil)
	}
	r := &Response{ID: id, Issues: members["issues"]}
	if f := r.outcome(members); f != nil {
		f.ID = id
		return nil, f
	}
	return r, nil
}

// outcome reads what the response says of its request.
func (r *Response) outcome(members map[string]json.RawMessage) *jsonrpc.Fault {
	data, text := members["data"], members["error"]
	switch string(members["ok"]) {
	case "true":
		if r.OK = true; text != nil || r.Issues != nil {
			return invalid("/error", "a success cannot have an error", nil)
		}
		if r.Data = data; data == nil || data[0] != '{' && data[0] != '[' {
			return invalid("/data", "data must be an object", nil)
		}
		return nil
	case "false":
		if data != nil {
			return invalid("/data", "a failure cannot have data", nil)
		}
		var ok bool
		if r.Error, ok = jsonrpc.Text(text); !ok {
			return invalid("/error", "an error must be a string", nil)
		}
		if r.Issues != nil && r.Issues[0] != '[' {
			return invalid("/issues", "issues must be an array", nil)
		}
		return nil
	}
	return invalid("/ok", "ok must be true or false", nil)
}

// split gives the known members of an object, and the known name that a member
// differs from only by case, if there is such a member.
func split(object json.RawMessage, known []string) (members map[string]json.RawMessage, misspelled string) {
	members = make(map[string]json.RawMessage, len(known))
	for name, value := range jsonrpc.Members(object) {
		for _, k := range known {
			if name == k {
				members[k] = value
			} else if strings.EqualFold(name, k) {
				misspelled = k
			}
		}
	}
	return members, misspelled
}

func invalid(pointer, reason string, id json.RawMessage) *jsonrpc.Fault {
	return &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: reason, Pointer: pointer, ID: id}
}

// Answer is the data of a response to invoke, each member as it was spelled.
type Answer struct {
	// Output is an object.
	Output json.RawMessage
	// Action, BoundaryNotice, Uncertainty and Assumptions are what the action
	// says of itself, unchecked, nil where it says nothing.
	Action, BoundaryNotice, Uncertainty, Assumptions json.RawMessage
}

// Answer reads the data of a response to invoke. The error is always a
// *jsonrpc.Fault.
func (r *Response) Answer() (*Answer, error) {
	if r.Data == nil || r.Data[0] != '{' {
		return nil, invalid("/data", "data must be an object", r.ID)
	}
	members, misspelled := split(r.Data, []string{"action", "boundaryNotice", "uncertainty", "assumptions", "output"})
	if misspelled != "" {
		return nil, invalid("/data", "a member differs only by case from "+misspelled, r.ID)
	}
	a := &Answer{
		Output: members["output"], Action: members["action"], BoundaryNotice: members["boundaryNotice"],
		Uncertainty: members["uncertainty"], Assumptions: members["assumptions"],
	}
	if a.Output == nil || a.Output[0] != '{' {
		return nil, invalid("/data/output", "output must be an object", r.ID)
	}
	return a, nil
}

// NewSuccess builds a response with data, which is written as it is. A nil id
// is left out.
func NewSuccess(id, data json.RawMessage) []byte {
	if id == nil {
		return slices.Concat([]byte(`{"ok":true,"data":`), data, []byte{'}'})
	}
	return slices.Concat([]byte(`{"id":`), id, []byte(`,"ok":true,"data":`), data, []byte{'}'})
}

// NewFailure builds a response with an error and its issues, if there are any.
// A nil id is left out.
func NewFailure(id json.RawMessage, text string, issues []Issue) []byte {
	out, _ := jsonv2.Marshal(struct { // what is not UTF-8 is replaced: an answer must be sent
		ID     jsontext.Value `json:"id,omitzero"`
		OK     bool           `json:"ok"`
		Error  string         `json:"error"`
		Issues []Issue        `json:"issues,omitempty"`
	}{jsontext.Value(id), false, text, issues}, jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true))
	return out
}
