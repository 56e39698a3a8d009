package signal

import (
	"bytes"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// JSONRPCError is the error object of JSON-RPC 2.0.
type JSONRPCError struct {
	Code    int                `json:"code"`
	Message string             `json:"message"`
	Data    stdjson.RawMessage `json:"data,omitempty"`
}

// ErrorToJSONRPC maps an error by its category alone, as seed 002 says:
// INPUT -32602, PROCESSING -32603, EXTERNAL -32003, RESOURCE -32603, POLICY
// -32600, anything else -32603. Data is the detail. What an agent is answered
// is chosen by proxy/wire, which overlays this by code and hides causes.
func ErrorToJSONRPC(e *KernelError) JSONRPCError {
	return JSONRPCError{Code: cmp.Or(categories[e.Category].rpc, -32603), Message: e.Message, Data: e.DetailJSON()}
}

// ToolCall is what a tools/call asks for.
type ToolCall struct {
	Name      string             `json:"name"`
	Arguments stdjson.RawMessage `json:"arguments"` // a JSON object
}

// SignalToToolCall reads a tool call from the members tool and args of a DATA
// signal's body. The error for any other signal is a *KernelError of category
// INPUT and code CodeSchemaMismatch (seed 002, signal_to_tool_call).
func SignalToToolCall(s Signal) (ToolCall, error) {
	body := stdjson.RawMessage(s.form.Body)
	name, _ := jsonrpc.TextAt(body, "tool")
	args, _ := jsonrpc.Get(body, "args")
	var fault error
	switch {
	case s.form.Kind != Data:
		fault = fmt.Errorf("%w: %q is not data", ErrInvalidKind, string(s.form.Kind))
	case name == "":
		fault = fmt.Errorf("%w: no tool", ErrInvalidBody)
	case !bytes.HasPrefix(args, []byte("{")):
		fault = fmt.Errorf("%w: args is no object", ErrInvalidBody)
	default:
		return ToolCall{Name: name, Arguments: bytes.Clone(args)}, nil
	}
	return ToolCall{}, asError(mismatch(fault, "signal_to_tool_call"))
}

// MethodSignal is the method of the notification that carries a Signal.
const MethodSignal = "notifications/signal"

// JSONRPCNotification is a notification of JSON-RPC 2.0: nobody answers it.
// Its JSON form is {jsonrpc: "2.0", method, params?}. Treat it as immutable:
// then it is safe for concurrent use.
type JSONRPCNotification struct {
	Method string             // not empty
	Params stdjson.RawMessage // a JSON object, nil for none
}

// SignalToNotification makes the bus message of a Signal: method
// "notifications/signal", params {"signal": its JSON form} (seed 002,
// signal_to_notification). It never fails.
func SignalToNotification(s Signal) JSONRPCNotification {
	params := struct {
		Signal *signalForm `json:"signal"`
	}{s.whole()}
	return JSONRPCNotification{Method: MethodSignal, Params: encode(params)}
}

// MarshalJSON gives the JSON form on one line; ErrInvalidNotification for one
// without a method or with params that are no JSON object.
func (n JSONRPCNotification) MarshalJSON() ([]byte, error) {
	switch {
	case n.Method == "":
		return nil, fmt.Errorf("%w: no method", ErrInvalidNotification)
	case n.Params != nil && jsontext.Value(n.Params).Kind() != '{':
		return nil, fmt.Errorf("%w: params is no object", ErrInvalidNotification)
	}
	raw, err := json.Marshal(notificationForm{"2.0", n.Method, jsontext.Value(n.Params)}, asItIs, jsontext.AllowDuplicateNames(false))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidNotification, err)
	}
	return raw, nil
}

type notificationForm struct {
	Version string         `json:"jsonrpc"`
	Method  string         `json:"method"`
	Params  jsontext.Value `json:"params,omitzero"`
}

// ProblemDetails is RFC 7807. Its JSON form is {type, title, status, detail,
// extensions: {error}, retry_after?}.
type ProblemDetails struct {
	Type   string `json:"type"`   // "urn:toolgate:error:" and the code
	Title  string `json:"title"`  // the category
	Status int    `json:"status"` // HTTP, 400 to 599, or 202 for an approval that is pending
	Detail string `json:"detail"` // the message
	// Extensions carries the whole error with its chain of causes: for
	// operators, not for strangers.
	Extensions ProblemExtensions `json:"extensions"`
	// RetryAfter is the hint for the header of that name, in seconds: -1 means
	// do not retry, 0 that nothing is known.
	RetryAfter int `json:"retry_after,omitzero"`
}

// ProblemExtensions are our members of a ProblemDetails.
type ProblemExtensions struct {
	Error *KernelError `json:"error"` // nil where it is not to be seen
}

const problemType = "urn:toolgate:error:"

// ErrorToProblemDetails maps an error by its category alone: INPUT 400,
// PROCESSING 500, EXTERNAL 502, RESOURCE 429, POLICY 403, anything else 500.
// FATAL says do not retry; TRANSIENT suggests delay, rounded up to seconds
// (seed 002, error_to_problem_details).
func ErrorToProblemDetails(e *KernelError, delay time.Duration) ProblemDetails {
	p := ProblemDetails{
		Type: problemType + e.Code, Title: string(e.Category), Status: cmp.Or(categories[e.Category].http, 500),
		Detail: e.Message, Extensions: ProblemExtensions{Error: e},
	}
	switch {
	case e.Severity == Fatal:
		p.RetryAfter = -1
	case e.Severity == Transient && delay > 0:
		p.RetryAfter = int(math.Ceil(delay.Seconds()))
	}
	return p
}

// MarshalJSON gives the JSON form on one line. It never fails.
func (p ProblemDetails) MarshalJSON() ([]byte, error) {
	type form ProblemDetails
	return encode(form(p)), nil
}

// SuccessResponse is the HTTP envelope of a Result that is no failure. Its
// JSON form is {status, data, error?, metrics, reason?, trace_id?,
// decision_id?, ticket?}.
type SuccessResponse struct {
	Status  Status       `json:"status"` // ok, partial or skip
	Data    []Signal     `json:"data"`   // empty for skip
	Error   *KernelError `json:"error,omitzero"`
	Metrics Metrics      `json:"metrics"`
	Reason  string       `json:"reason,omitzero"` // of a skip

	TraceID    string `json:"trace_id,omitzero"`    // of the request, "" when it has none
	DecisionID string `json:"decision_id,omitzero"` // of the call in the audit trail, "" when no call was made
	Ticket     string `json:"ticket,omitzero"`      // the approval that let the call pass, "" when none was needed
}

// ResultToHTTPResponse gives the HTTP envelope of a Result: OK, PARTIAL and
// SKIP a SuccessResponse with the signals as data, ERROR a ProblemDetails with
// a TRANSIENT error's delay (seed 002, result_to_http_response). One of the
// two is given, never both: the SuccessResponse counts when the pointer is
// nil. A Result that ValidateResult refuses is a ProblemDetails of code
// CodeInternal whose cause says why.
func ResultToHTTPResponse(r Result, delay time.Duration) (SuccessResponse, *ProblemDetails) {
	fault := r.Error
	var wrong *KernelError
	if errors.As(ValidateResult(r), &wrong) {
		fault = &KernelError{
			Code: CodeInternal, Category: Processing, Severity: Fatal,
			Message: "a module gave an invalid result", Source: wrong.Source, Cause: wrong,
		}
	} else if r.Status != StatusError {
		return SuccessResponse{Status: r.Status, Data: r.Signals, Error: r.Error, Metrics: r.Metrics, Reason: r.Reason}, nil
	}
	p := ErrorToProblemDetails(fault, delay)
	return SuccessResponse{}, &p
}

// MarshalJSON gives the JSON form, with whole bodies, on one line. It never
// fails.
func (s SuccessResponse) MarshalJSON() ([]byte, error) {
	type form SuccessResponse
	return encode(form(s)), nil
}
