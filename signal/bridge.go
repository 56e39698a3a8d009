package signal

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// JSONRPCError is the error object of JSON-RPC 2.0.
type JSONRPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// ErrorToJSONRPC maps an error by its category alone, as seed 002 says:
// INPUT -32602, PROCESSING -32603, EXTERNAL -32003, RESOURCE -32603, POLICY
// -32600, anything else -32603. Data is the detail. What an agent is answered
// is chosen by proxy/wire, which overlays this by code and hides causes.
func ErrorToJSONRPC(e *KernelError) JSONRPCError {
	return JSONRPCError{Code: rpcCode(e.Category), Message: e.Message, Data: e.DetailJSON()}
}

func rpcCode(c Category) int {
	switch c {
	case Input:
		return -32602
	case External:
		return -32003
	case Policy:
		return -32600
	}
	return -32603
}

// ProblemDetails is RFC 7807.
type ProblemDetails struct {
	Type   string `json:"type"`   // "urn:toolgate:error:" and the code
	Title  string `json:"title"`  // the category
	Status int    `json:"status"` // HTTP
	Detail string `json:"detail"` // the message
	// Extensions carries the whole error with its chain of causes: for
	// operators, not for strangers.
	Extensions ProblemExtensions `json:"extensions"`
	// RetryAfter is the hint for the header of that name, in seconds: -1 means
	// do not retry, 0 that nothing is known.
	RetryAfter int `json:"-"`
}

// ProblemExtensions are our members of a ProblemDetails.
type ProblemExtensions struct {
	Error *KernelError `json:"error"`
}

// ErrorToProblemDetails maps an error by its category alone: INPUT 400,
// PROCESSING 500, EXTERNAL 502, RESOURCE 429, POLICY 403, anything else 500.
// FATAL says do not retry; TRANSIENT suggests delay, rounded up to seconds
// (seed 002, error_to_problem_details).
func ErrorToProblemDetails(e *KernelError, delay time.Duration) ProblemDetails {
	p := ProblemDetails{
		Type: "urn:toolgate:error:" + e.Code, Title: string(e.Category), Status: httpStatus(e.Category),
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

func httpStatus(c Category) int {
	switch c {
	case Input:
		return 400
	case External:
		return 502
	case Resource:
		return 429
	case Policy:
		return 403
	}
	return 500
}

// ToolCall is what a tools/call asks for.
type ToolCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // a JSON object
}

// SignalToToolCall reads a tool call from the members tool and args of a DATA
// signal's body. The error for any other signal is a *KernelError of category
// INPUT and code CodeSchemaMismatch (seed 002, signal_to_tool_call).
func SignalToToolCall(s Signal) (ToolCall, error) {
	name := s.body.text("tool")
	args, _ := s.body.member("args")
	var fault error
	switch {
	case s.kind != Data:
		fault = fmt.Errorf("%w: %q is not data", ErrInvalidKind, string(s.kind))
	case name == "":
		fault = fmt.Errorf("%w: no tool", ErrInvalidBody)
	case !strings.HasPrefix(args, "{"):
		fault = fmt.Errorf("%w: args is no object", ErrInvalidBody)
	default:
		return ToolCall{Name: name, Arguments: json.RawMessage(args)}, nil
	}
	return ToolCall{}, mismatch(fault, "signal_to_tool_call")
}
