package wire

import (
	"cmp"
	stdjson "encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// MetaError is the _meta key of a tool result that reports an error. Its value
// is what error.data would contain.
const MetaError = "io.toolgate/error"

// internalReason is the whole message of an INTERNAL_ERROR.
const internalReason = "the gateway failed; its log has the cause under these ids"

// Failure is a refused or failed call, as the road says it (proxy.Failure).
type Failure struct {
	Kernel     *signal.KernelError // never nil
	RetryAfter time.Duration       // 0 = unknown
	Reason     string              // for the agent, one sentence
	Remedy     string              // what would make the call pass, "" = nothing
	DecisionID string              // in the audit trail
	TraceID    string              //
	Upstream   stdjson.RawMessage  // the error object as the upstream sent it, or nil
	Plain      bool                // the request calls no tool, so no tool result can carry the failure
	Context    string              // whom and which rule it concerns, for the message alone; "" = not said
	Errors     string              // how it is shown: ErrorsAsResult, a dialect, or "" = as the route does
	Status     int                 // of HTTP; 0 = that of the table
	Scopes     []string            // that the caller's token has to have, sorted; nil = a token changes nothing
	// Elicitations are the URL elicitations that a person has to complete first, a JSON array of the
	// params of elicitation/create (MCP 2025-11-25); nil = none. Elicits says that the client declared
	// such elicitations, so that it acts on the error that has them.
	Elicitations stdjson.RawMessage
	Elicits      bool
}

// ErrorsAsResult is the value of Failure.Errors for a client that shows its model the
// results of tools and not JSON-RPC errors: the failure is a tool result in every
// dialect. An upstream's request for an elicitation stays an error, because clients act
// on its code.
const ErrorsAsResult = "result"

// Reply is an answer: the value of the member result or error of a JSON-RPC
// response. Exactly one is set, unless Silent.
type Reply struct {
	Result, Error stdjson.RawMessage
	// HTTP is the table's status, for routes where the status carries meaning.
	HTTP int
	// Silent reports that no answer may be sent.
	Silent bool
}

// data is error.data, the same in all dialects.
type data struct {
	facts
	Detail       jsontext.Value `json:"detail"`
	Elicitations jsontext.Value `json:"elicitations,omitzero"` // where the code is elicitationRequired
}

// facts are the members of a failure that every form of answer contains.
type facts struct {
	Code          Code            `json:"code"`
	KernelCode    string          `json:"kernel_code"`
	Category      signal.Category `json:"category"`
	Severity      signal.Severity `json:"severity"`
	RetryEligible bool            `json:"retry_eligible"`
	RetryAfterMS  int64           `json:"retry_after_ms,omitzero"`
	Reason        string          `json:"reason"`
	Remedy        string          `json:"remedy,omitzero"`
	DecisionID    string          `json:"decision_id"`
	TraceID       string          `json:"trace_id"`
}

// Answer returns the answer to a failed call in a dialect. It returns
// ErrUnknownDialect, and ErrUnknownCode for a kernel code without a row or a
// missing kernel error. Both are programming errors of the caller, which then
// answers with Internal.
//
// The answer to an INTERNAL_ERROR has the ids only: neither message, detail nor
// cause of the kernel error, nor reason, remedy or upstream error.
func Answer(d Dialect, f Failure) (Reply, error) {
	if !d.Valid() {
		return Reply{}, fmt.Errorf("%w: %q", ErrUnknownDialect, string(d))
	}
	row, f, err := lookup(f)
	if err != nil {
		return Reply{}, err
	}
	return answer(d, row, f)
}

// lookup returns the row of f, and f without the members that its row does not
// show.
func lookup(f Failure) (Row, Failure, error) {
	if f.Kernel == nil {
		return Row{}, f, fmt.Errorf("%w: no kernel error", ErrUnknownCode)
	}
	row, err := ByKernel(f.Kernel.Code)
	if row.Code == InternalError {
		f = internal(f)
	}
	return row, f, err
}

func internal(f Failure) Failure {
	return Failure{
		Kernel: &signal.KernelError{Code: signal.CodeInternal}, Reason: internalReason,
		DecisionID: f.DecisionID, TraceID: f.TraceID, Plain: f.Plain, Errors: f.Errors,
	}
}

func answer(d Dialect, row Row, f Failure) (Reply, error) {
	reply := Reply{HTTP: cmp.Or(f.Status, row.HTTP)}
	var upstream jsontext.Value
	if row.Form == AsUpstream {
		upstream = object(f.Upstream)
	}
	var err error
	switch {
	case row.Form == AsNothing:
		reply.Silent = true
	case upstream != nil && passes(d, f, upstream):
		reply.Error = stdjson.RawMessage(upstream)
	case f.Elicits && f.Elicitations != nil && (d == MCP || d == Gateway): // as for those of an upstream, see passes
		reply.Error, err = errorObject(MCP, row, f, upstream)
	case !f.Plain && (f.Errors == ErrorsAsResult || d == MCP && row.Form == AsResult):
		reply.Result, err = result(row, f, upstream)
	default:
		reply.Error, err = errorObject(d, row, f, upstream)
	}
	return reply, err
}

// passes reports whether the upstream's own error object is the answer.
func passes(d Dialect, f Failure, upstream jsontext.Value) bool {
	if elicits(upstream) {
		return d == MCP || d == Gateway
	}
	return d == MCP && (f.Plain || f.Errors != ErrorsAsResult)
}

// elicits reports whether an upstream's error asks its client for an
// elicitation first (MCP 2025-11-25, URLElicitationRequiredError). Clients act
// on its code and data, so the error is passed on.
func elicits(upstream jsontext.Value) bool {
	code, _ := jsonrpc.Get(stdjson.RawMessage(upstream), "code")
	return string(code) == strconv.Itoa(elicitationRequired)
}

// object returns raw on one line when it is one JSON object with a single
// reading, otherwise nil.
func object(raw stdjson.RawMessage) jsontext.Value {
	v := jsontext.Value(raw)
	if v.Kind() != '{' || !v.IsValid() {
		return nil
	}
	return jsonrpc.OneLine(v)
}

// errorObject is the error of seed 002 with the code that the row has in the dialect,
// and in data what describe says: the detail is a member there.
func errorObject(d Dialect, row Row, f Failure, upstream jsontext.Value) (stdjson.RawMessage, error) {
	code, about := row.RPC.In(d), describe(row, f, upstream)
	switch {
	case d == MCP && row.Form == AsResult, code == elicitationRequired && f.Elicitations == nil:
		code = row.RPC.Gateway
	case code == elicitationRequired:
		about.Elicitations = jsontext.Value(f.Elicitations)
	}
	out := signal.ErrorToJSONRPC(&signal.KernelError{Category: row.Category, Message: message(d, row, f)})
	out.Code = cmp.Or(code, out.Code)
	var err error
	if out.Data, err = encode(about); err != nil {
		return nil, err
	}
	return encode(out)
}

// HintMark stands between what went wrong and the remedy in a message.
const HintMark = ". Hint: "

// message returns the row's message, the reason, whom it concerns and the remedy: a
// model may be shown nothing else. Where the seeds fix the message, dialect canonical
// adds nothing.
func message(d Dialect, row Row, f Failure) string {
	if row.Code == InternalError || d == Canonical && row.Exact {
		return row.Message
	}
	text := reason(row, f)
	if n := len(row.Message); len(text) >= n && strings.EqualFold(text[:n], row.Message) {
		text = row.Message + text[n:] // it repeats the message
	} else {
		text = row.Message + ": " + text
	}
	if f.Context != "" {
		text = strings.TrimRight(text, ". ") + " (" + f.Context + ")"
	}
	if f.Remedy != "" {
		text = strings.TrimRight(text, ". ") + HintMark + f.Remedy
	}
	return text
}

func reason(row Row, f Failure) string {
	return cmp.Or(f.Reason, f.Kernel.Message, row.Message)
}

func describe(row Row, f Failure, upstream jsontext.Value) data {
	out := data{facts: facts{
		Code: row.Code, KernelCode: row.Kernel, Category: row.Category, Severity: row.Severity,
		RetryEligible: f.Kernel.RetryEligible, RetryAfterMS: Milliseconds(f.RetryAfter),
		Reason: reason(row, f), Remedy: f.Remedy, DecisionID: f.DecisionID, TraceID: f.TraceID,
	}, Detail: detail(f.Kernel, upstream)}
	if f.Kernel.Severity.Valid() {
		out.Severity = f.Kernel.Severity
	}
	return out
}

// Milliseconds rounds a wait up, so that no client retries too early. A wait of
// 0 or less is 0.
func Milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

// detail returns the detail of the kernel error, and adds the upstream's error
// object when the stage that failed has not.
func detail(e *signal.KernelError, upstream jsontext.Value) jsontext.Value {
	if _, has := e.Detail["upstream"]; upstream == nil || has {
		return jsontext.Value(e.DetailJSON())
	}
	own := strings.TrimSuffix(string(e.DetailJSON()), "}")
	if own != "{" {
		own += ","
	}
	return jsontext.Value(own + `"upstream":` + string(upstream) + "}")
}

// result returns the tool result of a failure: a sentence for the model, and
// the data, which no model is shown.
func result(row Row, f Failure, upstream jsontext.Value) (stdjson.RawMessage, error) {
	type block struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	text := message(MCP, row, f)
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return encode(struct {
		Content []block         `json:"content"`
		IsError bool            `json:"isError"`
		Meta    map[string]data `json:"_meta"`
	}{[]block{{"text", text}}, true, map[string]data{MetaError: describe(row, f, upstream)}})
}

// encode returns v as JSON on one line. Invalid UTF-8 is replaced, because an
// answer must be sent.
func encode(v any) (stdjson.RawMessage, error) {
	raw, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return nil, fmt.Errorf("encoding answer: %w", err)
	}
	return raw, nil
}

// Internal is the error object when Answer returns an error. The log has the
// cause.
var Internal = stdjson.RawMessage(`{"code":-32603,"message":"Internal error"}`)

// ProblemReply is an answer in problem details (RFC 7807).
type ProblemReply struct {
	Status int // of the HTTP column of the table
	// RetryAfter is the value for the header Retry-After in seconds; -1 = do not
	// retry, 0 = unknown.
	RetryAfter int
	Body       stdjson.RawMessage // one line, media type application/problem+json
}

// problem is the body: the ProblemDetails of seed 002 and, as extensions (RFC
// 7807 §3.2), the members of error.data. The detail of error.data is named
// details, because detail is text here.
type problem struct {
	Type       string                   `json:"type"`
	Title      string                   `json:"title"`
	Status     int                      `json:"status"`
	Detail     string                   `json:"detail"`
	Extensions signal.ProblemExtensions `json:"extensions"`
	RetryAfter int                      `json:"retry_after,omitzero"`
	facts
	Details jsontext.Value `json:"details"`
}

// speaker is the source of errors that name none.
var speaker = signal.ModuleRef{Tier: 0, Module: "gateway", Function: "answer"}

// Problem returns the answer to a failed call as problem details: type, title
// and retry hint of seed 002, the status of the table, and the message and
// facts of Answer. The member extensions has the kernel error with its causes.
// Problem returns ErrUnknownCode like Answer. The answer to an INTERNAL_ERROR
// has the ids only, and a chain of causes ends before one.
func Problem(f Failure) (ProblemReply, error) {
	row, f, err := lookup(f)
	if err != nil {
		return ProblemReply{}, err
	}
	var upstream jsontext.Value
	if row.Form == AsUpstream {
		upstream = object(f.Upstream)
	}
	data, status := describe(row, f, upstream), cmp.Or(f.Status, row.HTTP)
	kernel := signal.KernelError{
		Code: row.Kernel, Category: data.Category, Severity: data.Severity, Message: message(Gateway, row, f),
		Source: f.Kernel.Source, RetryEligible: data.RetryEligible, Detail: f.Kernel.Detail, Cause: shown(f.Kernel.Cause),
	}
	if kernel.Source.Validate() != nil {
		kernel.Source = speaker
	}
	seed := signal.ErrorToProblemDetails(&kernel, f.RetryAfter)
	body, err := encode(problem{
		Type: seed.Type, Title: seed.Title, Status: status, Detail: seed.Detail, Extensions: seed.Extensions, RetryAfter: seed.RetryAfter,
		facts: data.facts, Details: data.Detail,
	})
	if err != nil {
		return ProblemReply{}, fmt.Errorf("writing problem details: %w", err)
	}
	return ProblemReply{Status: status, RetryAfter: seed.RetryAfter, Body: body}, nil
}

// shown returns a chain of causes up to the first internal error, which only
// the log shows.
func shown(cause *signal.KernelError) *signal.KernelError {
	if cause == nil || cause.Code == signal.CodeInternal {
		return nil
	}
	if invalid := cause.Validate(); invalid != nil {
		return nil //nolint:nilerr // a cause that breaks its own contract is not shown
	}
	out := *cause
	out.Cause = shown(cause.Cause)
	return &out
}

// The statuses of an Event.
const (
	StatusOK        = "ok"        // answered with a result
	StatusError     = "error"     // answered with an error, or with a result that reports one
	StatusAccepted  = "accepted"  // a notification or an answer: no answer follows
	StatusCancelled = "cancelled" // the sender cancelled, so no answer may follow
)

// Event is the report of a door about one envelope, made once, when the answer
// is known (seed 004, structured logs).
type Event = audit.EnvelopeEvent
