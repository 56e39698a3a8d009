package ndjson

import (
	"encoding/json"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

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
