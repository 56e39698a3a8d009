// Package ndjson reads and writes the frames of the NDJSON action protocol:
// one JSON object per line, requests "list_actions" and "invoke", responses
// with "ok". What has more than one reading is refused, as package jsonrpc
// does for its messages, and bytes that are passed on are never rewritten.
package ndjson

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
)

// MaxLine bounds one request line without its end, in bytes (512 KB).
const MaxLine = 512 << 10

// maxID bounds an id as it is spelled, in bytes: ids are map keys and are
// written to logs.
const maxID = 256

// shownBytes keeps a caller from having long text of its own sent back.
const shownBytes = 200

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
func UnknownAction(name string) string {
	return "Unknown action: '" + text.Clip(name, shownBytes, "...") + "'"
}

// InvalidInput is the text for an input that an action does not take.
func InvalidInput(name, reason string) string {
	return "Input validation failed for action '" + text.Clip(name, shownBytes, "...") + "': " + reason
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
	// ID is the request's id as it was spelled, nil where it has none that is valid,
	// or two. It is also read in a line that is too long or not JSON.
	ID json.RawMessage
	// Cause is the same for records; never nil.
	Cause *jsonrpc.Fault
}

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

// TooLong returns the fault of a line of more than MaxLine bytes.
func TooLong(line *jsonrpc.Outline) *Fault {
	cause := line.TooLarge(MaxLine)
	cause.ID = textID(cause.ID)
	return &Fault{Text: Oversized, ID: cause.ID, Cause: cause}
}

// Decode reads one request line in one strict pass, with at most depth arrays and objects in
// each other, 0 for the default of jsonrpc. It returns a request, or why the line is none. Refused are: more than MaxLine bytes,
// what jsonrpc.CheckValue refuses, unknown members of the request and of the
// payload, and members of another type than the protocol gives them. Names
// that differ only by case may stand inside the input, which is judged later.
func Decode(line []byte, depth int) (*Request, *Fault) {
	if len(line) > MaxLine {
		return nil, TooLong(jsonrpc.OutlineOf(line))
	}
	raw, _, err := jsonrpc.CheckValue(line, jsonrpc.Limits{Bytes: MaxLine, Depth: depth})
	if err != nil {
		return nil, faulty(line, err)
	}
	members, issues := read(raw, requestMembers, true)
	kind, isText := jsonrpc.Text(members["type"])
	if isText && kind != ListActions && kind != Invoke {
		issues = append(issues, issue("invalid_enum_value", "Expected 'list_actions' or 'invoke', received '"+text.Clip(kind, shownBytes, "...")+"'", "type"))
	}
	if len(members["id"]) > maxID {
		issues = append(issues, issue("too_big", fmt.Sprintf("An id has at most %d bytes", maxID), "id"))
	}
	if len(issues) > 0 {
		id := idOf(raw)
		return nil, &Fault{Text: InvalidEnvelope, Issues: issues, ID: id, Cause: causeOf(InvalidEnvelope+": ", "", issues[0], id)}
	}
	req := &Request{ID: members["id"], Type: kind}
	if kind == ListActions {
		return req, nil
	}
	members, issues = read(members["payload"], payloadMembers, true)
	if req.Action, isText = jsonrpc.Text(members["action"]); isText && req.Action == "" {
		issues = append(issues, issue("too_small", "An action has a name", "action"))
	}
	if len(issues) > 0 {
		return nil, &Fault{Text: InvalidPayload, Issues: issues, ID: req.ID, Cause: causeOf(InvalidPayload+": ", "/payload", issues[0], req.ID)}
	}
	if req.Input = members["input"]; req.Input == nil {
		req.Input = json.RawMessage(`{}`)
	}
	return req, nil
}

// faulty makes the fault of bytes that CheckValue has refused.
func faulty(line []byte, err error) *Fault {
	f := jsonrpc.FaultOf(err)
	if f.ID = idOf(line); f.Kind == jsonrpc.Parse {
		return &Fault{Text: Malformed, ID: f.ID, Cause: f}
	}
	issue := Issue{Code: "invalid_json", Message: f.Reason, Path: Path(line, f.Pointer)}
	return &Fault{Text: InvalidEnvelope, Issues: []Issue{issue}, ID: f.ID, Cause: f}
}

// idOf returns the id of a message, which may be malformed, nil where it has none that is
// valid, or two.
func idOf(message []byte) json.RawMessage { return textID(jsonrpc.OutlineOf(message).ID()) }

// textID returns id, nil when it is no string: numbers are none in this protocol.
func textID(id json.RawMessage) json.RawMessage {
	if len(id) == 0 || id[0] != '"' {
		return nil
	}
	return id
}

// A member is a member that an object of the protocol may have.
type member struct {
	name     string
	types    string // of its value, "" for any
	required bool
}

// The objects of the protocol.
var (
	requestMembers  = []member{{"id", "string", false}, {"type", "string", true}, {"payload", "object", false}}
	payloadMembers  = []member{{"action", "string", true}, {"input", "object", false}}
	responseMembers = []member{
		{"id", "string", false}, {"ok", "boolean", true}, {"data", "object or array", false},
		{"error", "string", false}, {"issues", "array", false},
	}
	answerMembers = []member{
		{"action", "", false}, {"boundaryNotice", "", false}, {"uncertainty", "", false}, {"assumptions", "", false},
		{"output", "", false},
	}
)

// read returns the known members of a checked object, nil for none, and what is
// wrong with it. An unknown member is an issue if its name differs from that of a
// known one by case alone, and always when closed is true.
func read(object json.RawMessage, known []member, closed bool) (map[string]json.RawMessage, []Issue) {
	if object == nil {
		return nil, []Issue{issue("invalid_type", "Required")}
	}
	if object[0] != '{' {
		return nil, []Issue{issue("invalid_type", wrongType("object", object))}
	}
	var issues []Issue
	members := make(map[string]json.RawMessage, len(known))
	for name, value := range jsonrpc.Members(object) {
		misspelled := slices.ContainsFunc(known, func(m member) bool { return strings.EqualFold(m.name, name) })
		switch {
		case slices.ContainsFunc(known, func(m member) bool { return m.name == name }):
			members[name] = value
		case len(issues) == 0 && (closed || misspelled):
			issues = append(issues, issue("unrecognized_keys", "Unrecognized key "+strconv.QuoteToGraphic(text.Clip(name, shownBytes, "..."))))
		}
	}
	for _, m := range known {
		switch value := members[m.name]; {
		case value == nil && m.required:
			issues = append(issues, issue("invalid_type", "Required", m.name))
		case value != nil && !strings.Contains(m.types, typeOf(value)) && m.types != "":
			issues = append(issues, issue("invalid_type", wrongType(m.types, value), m.name))
		}
	}
	return members, issues
}

func issue(code, message string, path ...any) Issue {
	return Issue{Code: code, Message: message, Path: path}
}

// causeOf returns the fault for an issue with what holder points at.
func causeOf(text, holder string, first Issue, id json.RawMessage) *jsonrpc.Fault {
	at := jsontext.Pointer(holder)
	for _, step := range first.Path {
		at = at.AppendToken(fmt.Sprint(step))
	}
	return &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: text + first.Message, Pointer: string(at), ID: id}
}

// typeOf returns the type of a JSON value, which its first byte tells.
func typeOf(raw json.RawMessage) string {
	return cmp.Or(map[byte]string{'{': "object", '[': "array", '"': "string", 't': "boolean", 'f': "boolean", 'n': "null"}[raw[0]], "number")
}

// wrongType reports that another type came in place of want.
func wrongType(want string, raw json.RawMessage) string {
	return "Expected " + want + ", received " + typeOf(raw)
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

// DecodeResponse reads one response line of at most lim.Bytes. The error is
// always a *jsonrpc.Fault, with the id where there is no doubt about which it
// is, and then the response is nil. Members that are not known are passed
// over, unless they differ only by case from one that is.
func DecodeResponse(line []byte, lim jsonrpc.Limits) (*Response, error) {
	raw, _, err := jsonrpc.CheckValue(line, lim)
	if err != nil {
		jsonrpc.FaultOf(err).ID = idOf(line)
		return nil, err
	}
	members, issues := read(raw, responseMembers, false)
	if len(issues) > 0 {
		return nil, causeOf("", "", issues[0], idOf(raw))
	}
	id := members["id"]
	r := &Response{ID: id, OK: string(members["ok"]) == "true", Data: members["data"], Issues: members["issues"]}
	var failed bool
	switch r.Error, failed = jsonrpc.Text(members["error"]); {
	case len(id) > maxID:
		return nil, invalid("/id", "an id must be a short string", nil)
	case r.OK && (failed || r.Issues != nil):
		return nil, invalid("/error", "a success cannot have an error", id)
	case !r.OK && r.Data != nil:
		return nil, invalid("/data", "a failure cannot have data", id)
	case r.OK && r.Data == nil:
		return nil, invalid("/data", "data must be an object", id)
	case !r.OK && !failed:
		return nil, invalid("/error", "a failure must have an error", id)
	}
	return r, nil
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
	members, issues := read(r.Data, answerMembers, false)
	if len(issues) > 0 {
		return nil, causeOf("", "/data", issues[0], r.ID)
	}
	if output := members["output"]; output == nil || output[0] != '{' {
		return nil, invalid("/data/output", "output must be an object", r.ID)
	}
	return &Answer{
		Output: members["output"], Action: members["action"], BoundaryNotice: members["boundaryNotice"],
		Uncertainty: members["uncertainty"], Assumptions: members["assumptions"],
	}, nil
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
