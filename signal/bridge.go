package signal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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
	return JSONRPCError{Code: cmp.Or(categories[e.Category].rpc, -32603), Message: e.Message, Data: e.DetailJSON()}
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
	body := json.RawMessage(s.form.Body)
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
