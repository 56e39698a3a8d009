// Package wire has the error codes of every protocol that toolgate speaks: the
// table of canonical errors with their HTTP status, kernel code and JSON-RPC code in
// each of the four dialects, and the answers made from it. It also has the envelope:
// the validation of messages (Envelope.Validate, in two profiles), the factories of
// the four kinds of message, and the report of each message (Event).
package wire

import (
	"errors"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/signal"
)

// Errors of the look-ups. They are programming errors of the caller: an unknown name
// has no fallback, so that a missing row is noticed.
var (
	// ErrUnknownCode is returned for a canonical or kernel code without a row
	// (the KeyError of seed 004).
	ErrUnknownCode = errors.New("unknown error code")
	// ErrUnknownDialect is returned for a dialect that is not one of the four.
	ErrUnknownDialect = errors.New("unknown error dialect")
)

// Dialect selects the error codes of a route.
type Dialect string

// The dialects.
const (
	Gateway   Dialect = "gateway"   // default of /mcp and stdio: seed 003, then seed 002
	Canonical Dialect = "canonical" // seed 004, serves /v1/rpc
	Kernel    Dialect = "kernel"    // seed 002's mapping by category
	MCP       Dialect = "mcp"       // the MCP specification, serves /mcp/{server}
)

// Valid reports whether d is one of the four dialects.
func (d Dialect) Valid() bool {
	return d == Gateway || d == Canonical || d == Kernel || d == MCP
}

// Code is a canonical error code.
type Code string

// The canonical codes.
const (
	ParseError          Code = "PARSE_ERROR"
	InvalidEnvelope     Code = "INVALID_ENVELOPE"
	MethodNotFound      Code = "METHOD_NOT_FOUND"
	ToolNotFound        Code = "TOOL_NOT_FOUND"
	NotFound            Code = "NOT_FOUND"
	InvalidToolInput    Code = "INVALID_TOOL_INPUT"
	PolicyDenied        Code = "POLICY_DENIED"
	ApprovalDenied      Code = "APPROVAL_DENIED"
	ApprovalExpired     Code = "APPROVAL_EXPIRED"
	ApprovalPending     Code = "APPROVAL_PENDING"
	ConnectionRequired  Code = "CONNECTION_REQUIRED"
	Stopped             Code = "STOPPED"
	RateLimited         Code = "RATE_LIMITED"
	Overloaded          Code = "OVERLOADED"
	ToolQuarantined     Code = "TOOL_QUARANTINED"
	OutputInvalid       Code = "OUTPUT_INVALID"
	AuditUnavailable    Code = "AUDIT_UNAVAILABLE"
	StoreUnavailable    Code = "STORE_UNAVAILABLE"
	TooLarge            Code = "TOO_LARGE"
	Cancelled           Code = "CANCELLED"
	Unauthenticated     Code = "UNAUTHENTICATED"
	SessionLost         Code = "SESSION_LOST"
	HeaderMismatch      Code = "HEADER_MISMATCH"
	InvalidParams       Code = "INVALID_PARAMS"
	UnsupportedVersion  Code = "UNSUPPORTED_VERSION"
	ToolFailed          Code = "TOOL_FAILED"
	ToolTimeout         Code = "TOOL_TIMEOUT"
	UpstreamUnavailable Code = "UPSTREAM_UNAVAILABLE"
	InternalError       Code = "INTERNAL_ERROR"
)

// Form is the form of an answer in dialect mcp.
type Form uint8

// The forms.
const (
	AsError    Form = iota // a JSON-RPC error, as in every other dialect
	AsResult               // a tool result with isError, which the model reads
	AsUpstream             // the upstream's own error object, when there is one
	AsNothing              // no answer in any dialect
)

// RPC holds the JSON-RPC code of each dialect; 0 where there is none, and where it is that
// of the category in seed 002 (signal.ErrorToJSONRPC), as for most rows in dialect kernel.
type RPC struct{ Gateway, Canonical, Kernel, MCP int }

// In returns the code of one dialect, 0 for an unknown one.
func (r RPC) In(d Dialect) int {
	return map[Dialect]int{Gateway: r.Gateway, Canonical: r.Canonical, Kernel: r.Kernel, MCP: r.MCP}[d]
}

// Row is one line of the table.
type Row struct {
	Code     Code
	HTTP     int    // on routes where the status carries meaning; /mcp sends 200
	Kernel   string // the kernel code, one row each
	Category signal.Category
	Severity signal.Severity
	Message  string // fixed beginning of error.message
	RPC      RPC
	Form     Form
	// Exact reports whether the seeds fix the message: dialect canonical adds nothing.
	Exact bool
}

// elicitationRequired is the code of an error that names what a person has to do first (MCP
// 2025-11-25, URLElicitationRequiredError).
const elicitationRequired = -32042

// rows is the table. The dialect mcp has no code for rows that are sent as a
// result. The mcp code of TOOL_FAILED is for upstreams that sent no error
// object.
var rows = []Row{
	{ParseError, 400, signal.CodeEnvelopeParse, signal.Input, signal.Transient,
		"Parse error", RPC{-32700, -32700, -32700, -32700}, AsError, false},
	{InvalidEnvelope, 400, signal.CodeEnvelopeInvalid, signal.Input, signal.Transient,
		"Invalid MCP envelope", RPC{-32600, -32600, 0, -32600}, AsError, true},
	{MethodNotFound, 404, signal.CodeEnvelopeMethod, signal.Input, signal.Transient,
		"Method not found", RPC{-32601, -32601, -32601, -32601}, AsError, false},
	{ToolNotFound, 404, signal.CodeToolNotFound, signal.Input, signal.Transient,
		"Unknown tool", RPC{-32601, -32001, 0, -32602}, AsError, true},
	{NotFound, 404, signal.CodeNotFound, signal.Input, signal.Transient,
		"Not found", RPC{-32602, -32602, 0, -32602}, AsError, false},
	{InvalidToolInput, 422, signal.CodeSchemaMismatch, signal.Input, signal.Transient,
		"Invalid tool input", RPC{-32600, -32602, 0, 0}, AsResult, true},
	{PolicyDenied, 403, signal.CodePolicyDenied, signal.Policy, signal.Fatal,
		"Denied by policy", RPC{-32600, -32600, 0, 0}, AsResult, false},
	{ApprovalDenied, 403, signal.CodeApprovalDenied, signal.Policy, signal.Fatal,
		"Approval denied", RPC{-32600, -32600, 0, 0}, AsResult, false},
	{ApprovalExpired, 403, signal.CodeApprovalExpired, signal.Policy, signal.Transient,
		"Approval expired", RPC{-32600, -32600, 0, 0}, AsResult, false},
	{ApprovalPending, 202, signal.CodeApprovalPending, signal.Policy, signal.Transient,
		"Approval pending", RPC{-32600, -32600, 0, 0}, AsResult, false},
	{ConnectionRequired, 403, signal.CodeConnectionRequired, signal.Policy, signal.Transient,
		"Connection required", RPC{-32600, -32600, 0, elicitationRequired}, AsError, false},
	{Stopped, 403, signal.CodeStopped, signal.Policy, signal.Fatal,
		"Stopped", RPC{-32600, -32600, 0, 0}, AsResult, false},
	{RateLimited, 429, signal.CodeRateLimited, signal.Resource, signal.Transient,
		"Rate limit exceeded", RPC{-32001, -32001, 0, -32001}, AsError, false},
	{Overloaded, 429, signal.CodeOverloaded, signal.Resource, signal.Transient,
		"Gateway overloaded", RPC{-32001, -32001, 0, -32001}, AsError, false},
	{ToolQuarantined, 403, signal.CodeToolQuarantined, signal.Policy, signal.Fatal,
		"Tool quarantined", RPC{-32600, -32600, 0, -32602}, AsError, false},
	{OutputInvalid, 502, signal.CodeOutputInvalid, signal.External, signal.Degraded,
		"Invalid tool output", RPC{-32000, -32603, 0, -32603}, AsError, false},
	{AuditUnavailable, 500, signal.CodeAuditUnavailable, signal.Processing, signal.Transient,
		"Audit log unavailable", RPC{-32603, -32603, 0, -32603}, AsError, false},
	{StoreUnavailable, 503, signal.CodeStoreUnavailable, signal.Processing, signal.Transient,
		"State unavailable", RPC{-32603, -32603, 0, -32603}, AsError, false},
	{TooLarge, 413, signal.CodeEnvelopeTooLarge, signal.Input, signal.Transient,
		"Message too large", RPC{-32600, -32600, 0, -32600}, AsError, false},
	{Cancelled, 499, signal.CodeCancelled, signal.Processing, signal.Transient,
		"Call cancelled", RPC{}, AsNothing, false},
	{Unauthenticated, 401, signal.CodeUnauthenticated, signal.Policy, signal.Fatal,
		"Not authenticated", RPC{-32600, -32600, 0, -32600}, AsError, false},
	{SessionLost, 404, signal.CodeSessionLost, signal.Input, signal.Transient,
		"Session lost", RPC{-32600, -32600, -32600, -32600}, AsError, false},
	{HeaderMismatch, 400, signal.CodeHeaderMismatch, signal.Input, signal.Transient,
		"Header mismatch", RPC{-32020, -32020, -32020, -32020}, AsError, false},
	{InvalidParams, 400, signal.CodeEnvelopeParams, signal.Input, signal.Transient,
		"Invalid params", RPC{-32602, -32602, 0, -32602}, AsError, false},
	{UnsupportedVersion, 400, signal.CodeEnvelopeVersion, signal.Input, signal.Transient,
		"Unsupported protocol version", RPC{-32022, -32022, -32022, -32022}, AsError, false},
	{ToolFailed, 502, signal.CodeToolFailed, signal.External, signal.Transient,
		"Tool failed", RPC{-32000, -32603, 0, -32603}, AsUpstream, false},
	{ToolTimeout, 502, signal.CodeToolTimeout, signal.External, signal.Transient,
		"Tool did not answer in time", RPC{-32000, -32603, 0, -32603}, AsError, false},
	{UpstreamUnavailable, 502, signal.CodeUpstreamUnavailable, signal.External, signal.Transient,
		"Tool server unavailable", RPC{-32000, -32603, 0, -32603}, AsError, false},
	{InternalError, 500, signal.CodeInternal, signal.Processing, signal.Fatal,
		"Internal error", RPC{-32603, -32603, 0, -32603}, AsError, true},
}

var byCode, byKernel = index()

func index() (map[Code]*Row, map[string]*Row) {
	codes, kernels := make(map[Code]*Row, len(rows)), make(map[string]*Row, len(rows))
	for i := range rows {
		codes[rows[i].Code], kernels[rows[i].Kernel] = &rows[i], &rows[i]
	}
	return codes, kernels
}

// Rows returns a copy of the table in its order.
func Rows() []Row { return slices.Clone(rows) }

// Lookup returns the row of a canonical code, or ErrUnknownCode.
func Lookup(code Code) (Row, error) {
	if r := byCode[code]; r != nil {
		return *r, nil
	}
	return Row{}, fmt.Errorf("%w: %q", ErrUnknownCode, string(code))
}

// ByKernel returns the row of a kernel code, or ErrUnknownCode.
func ByKernel(kernelCode string) (Row, error) {
	if r := byKernel[kernelCode]; r != nil {
		return *r, nil
	}
	return Row{}, fmt.Errorf("%w: kernel code %q", ErrUnknownCode, kernelCode)
}
