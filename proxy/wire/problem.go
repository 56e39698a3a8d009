package wire

import (
	stdjson "encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/signal"
)

// ProblemReply is an answer in problem details (RFC 7807).
type ProblemReply struct {
	Status int // of the HTTP column of the table
	// RetryAfter is the hint for the header of that name, in seconds: -1 means
	// do not retry, 0 that nothing is known.
	RetryAfter int
	Body       stdjson.RawMessage // one line, media type application/problem+json
}

// problem is the body: seed 002's ProblemDetails and, as RFC 7807 §3.2 lets us,
// the facts of error.data, with its detail under the name details, since detail
// is text here.
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

// speaker is who an error comes from that does not say.
var speaker = signal.ModuleRef{Tier: 0, Module: "gateway", Function: "answer"}

// Problem puts a failure into problem details for the HTTP routes: type, title
// and retry hint as seed 002 maps them, the status of the table, and the words
// and facts of Answer; extensions has the kernel error with its causes. The error
// is ErrUnknownCode, as for Answer. An INTERNAL_ERROR tells the ids and nothing
// else, and a chain of causes ends before one.
func Problem(f Failure) (ProblemReply, error) {
	row, f, err := lookup(f)
	if err != nil {
		return ProblemReply{}, err
	}
	var upstream jsontext.Value
	if row.Form == AsUpstream {
		upstream = object(f.Upstream)
	}
	data := describe(row, f, upstream)
	kernel := signal.KernelError{
		Code: row.Kernel, Category: data.Category, Severity: data.Severity, Message: message(Gateway, row, f),
		Source: f.Kernel.Source, RetryEligible: data.RetryEligible, Detail: f.Kernel.Detail, Cause: shown(f.Kernel.Cause),
	}
	if kernel.Source.Validate() != nil {
		kernel.Source = speaker
	}
	seed := signal.ErrorToProblemDetails(&kernel, f.RetryAfter)
	body, err := encode(problem{
		Type: seed.Type, Title: seed.Title, Status: row.HTTP, Detail: seed.Detail, Extensions: seed.Extensions, RetryAfter: seed.RetryAfter,
		facts: data.facts, Details: data.Detail,
	})
	if err != nil {
		return ProblemReply{}, fmt.Errorf("writing problem details: %w", err)
	}
	return ProblemReply{Status: row.HTTP, RetryAfter: seed.RetryAfter, Body: body}, nil
}

// shown is a chain of causes up to the first internal error, which is for the log.
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
