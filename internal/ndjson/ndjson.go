// Package ndjson reads and writes the frames of the NDJSON action protocol:
// one JSON object per line, requests "list_actions" and "invoke", responses
// with "ok". What has more than one reading is refused, as package jsonrpc
// does for its messages, and bytes that are passed on are never rewritten.
package ndjson

import (
	"encoding/json"

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
