package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Category says what kind of failure it is.
type Category string

// The categories.
const (
	Input      Category = "input"      // bad input: validation, parsing, missing fields
	Processing Category = "processing" // the logic failed
	External   Category = "external"   // a dependency failed: tool, API, network
	Resource   Category = "resource"   // out of budget, memory or time
	Policy     Category = "policy"     // blocked by a guardrail, an identity or a role
)

// categories has the HTTP status and the JSON-RPC code of each category (seed 002,
// error_to_problem_details, error_to_jsonrpc_error).
var categories = map[Category]struct{ http, rpc int }{
	Input: {400, -32602}, Processing: {500, -32603}, External: {502, -32003}, Resource: {429, -32603}, Policy: {403, -32600},
}

// Valid reports whether c is one of the five categories.
func (c Category) Valid() bool { _, ok := categories[c]; return ok }

// Severity says how bad a failure is.
type Severity string

// The severities.
const (
	Transient Severity = "transient" // another attempt may well pass
	Degraded  Severity = "degraded"  // part is lost, work can go on
	Fatal     Severity = "fatal"     // cannot go on: escalate or abort
)

// Valid reports whether s is one of the three severities.
func (s Severity) Valid() bool { return s == Transient || s == Degraded || s == Fatal }

// maxCauses bounds a chain of causes, so that one made into a ring by hand
// still has an end. Deeper causes are not written to JSON and refused from it.
const maxCauses = 32

// KernelError is a failure as data. Treat it as immutable once it is shared:
// then it is safe for concurrent use.
type KernelError struct {
	Code          string         // T{tier}_{MODULE}_{REASON}, or CodeInternal
	Category      Category       //
	Severity      Severity       //
	Message       string         // for people
	Source        ModuleRef      // which function failed
	RetryEligible bool           // may the same call, unchanged, pass later?
	Detail        map[string]any // context; values that JSON can hold
	Cause         *KernelError   // what it wraps, or nil
}

// Error gives code and message.
func (e *KernelError) Error() string { return e.Code + ": " + e.Message }

// Unwrap gives the cause, nil when there is none.
func (e *KernelError) Unwrap() error {
	if e.Cause == nil {
		return nil
	}
	return e.Cause
}

// Is matches a *KernelError of the same code, so that
// errors.Is(err, &KernelError{Code: CodeToolTimeout}) asks for a code.
func (e *KernelError) Is(target error) bool {
	t, ok := target.(*KernelError)
	return ok && t.Code == e.Code
}

// Validate returns ErrInvalidError, or ErrInvalidCode, with the reason when e
// or one of its causes is malformed.
func (e *KernelError) Validate() error {
	for n := 0; ; n++ {
		switch {
		case e == nil:
			return fmt.Errorf("%w: none", ErrInvalidError)
		case n > maxCauses:
			return fmt.Errorf("%w: more than %d causes", ErrInvalidError, maxCauses)
		}
		if err := e.validate(); err != nil {
			return err
		}
		if e.Cause == nil {
			return nil
		}
		e = e.Cause
	}
}

func (e *KernelError) validate() error {
	switch {
	case !ValidCode(e.Code):
		return fmt.Errorf("%w: %q", ErrInvalidCode, e.Code)
	case !e.Category.Valid():
		return fmt.Errorf("%w: category %q", ErrInvalidError, string(e.Category))
	case !e.Severity.Valid():
		return fmt.Errorf("%w: severity %q", ErrInvalidError, string(e.Severity))
	case e.Message == "":
		return fmt.Errorf("%w: no message", ErrInvalidError)
	}
	if err := e.Source.Validate(); err != nil {
		return fmt.Errorf("%w: source: %w", ErrInvalidError, err)
	}
	return nil
}

// CreateError makes a KernelError. It returns ErrInvalidCode for a code that
// breaks the convention and ErrInvalidError for any other malformed part. The
// detail is copied; the cause is shared.
func CreateError(code string, category Category, severity Severity, message string, source ModuleRef, retry bool, detail map[string]any, cause *KernelError) (*KernelError, error) {
	e := &KernelError{
		Code: code, Category: category, Severity: severity, Message: message, Source: source,
		RetryEligible: retry, Detail: cloneMap(detail), Cause: cause,
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	return e, nil
}

// InputError makes an INPUT error, TRANSIENT: correct the input and it passes.
// As with its sisters the code is T{tier}_{MODULE}_{CATEGORY} of the source;
// give a precise code with CreateError or ErrorFor where a reader needs one.
func InputError(message string, source ModuleRef, detail map[string]any) *KernelError {
	return plainError(Input, Transient, message, source, false, detail, nil)
}

// ProcessingError makes a PROCESSING error, DEGRADED. See InputError.
func ProcessingError(message string, source ModuleRef, detail map[string]any, cause *KernelError) *KernelError {
	return plainError(Processing, Degraded, message, source, false, detail, cause)
}

// ExternalError makes an EXTERNAL error, TRANSIENT; the caller says whether a
// retry is safe. See InputError.
func ExternalError(message string, source ModuleRef, retry bool, detail map[string]any) *KernelError {
	return plainError(External, Transient, message, source, retry, detail, nil)
}

// ResourceError makes a RESOURCE error, TRANSIENT and to be retried: budgets
// refill. See InputError.
func ResourceError(message string, source ModuleRef, detail map[string]any) *KernelError {
	return plainError(Resource, Transient, message, source, true, detail, nil)
}

// PolicyError makes a POLICY error, FATAL: asking again changes nothing. See
// InputError.
func PolicyError(message string, source ModuleRef, detail map[string]any) *KernelError {
	return plainError(Policy, Fatal, message, source, false, detail, nil)
}

func plainError(c Category, s Severity, message string, source ModuleRef, retry bool, detail map[string]any, cause *KernelError) *KernelError {
	return &KernelError{
		Code: sourceCode(source, strings.ToUpper(string(c))), Category: c, Severity: s, Message: message,
		Source: source, RetryEligible: retry, Detail: cloneMap(detail), Cause: cause,
	}
}

// WrapError puts the context of an outer tier around inner, which stays its
// cause. Category, severity and retry are inherited, with one promotion: a
// TRANSIENT error that may not be retried becomes FATAL, because waiting it
// out was the only way in which the outer tier could have recovered. An empty
// message becomes "<module>.<function>: " and the message of inner. Refuses as
// CreateError does, a nil inner included.
func WrapError(outerCode string, inner *KernelError, source ModuleRef, message string) (*KernelError, error) {
	if inner == nil {
		return nil, fmt.Errorf("%w: nothing to wrap", ErrInvalidError)
	}
	if message == "" {
		message = source.Module + "." + source.Function + ": " + inner.Message
	}
	severity := inner.Severity
	if severity == Transient && !inner.RetryEligible {
		severity = Fatal
	}
	return CreateError(outerCode, inner.Category, severity, message, source, inner.RetryEligible, nil, inner)
}

func cloneMap(m map[string]any) map[string]any {
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = cloneValue(v)
	}
	return out
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return cloneMap(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = cloneValue(v[i])
		}
		return out
	}
	return v
}

// MarshalJSON returns {code, category, severity, message, source,
// retry_eligible, detail, cause}. It never fails: a detail that JSON cannot
// hold is replaced by {"unencodable": reason}.
func (e *KernelError) MarshalJSON() ([]byte, error) { return encode(e.form(0)), nil }

// DetailJSON returns the detail as a JSON object, {} when there is none. It
// never fails: see MarshalJSON.
func (e *KernelError) DetailJSON() json.RawMessage {
	if len(e.Detail) == 0 {
		return json.RawMessage("{}")
	}
	raw, err := encodeValue(e.Detail)
	if err != nil {
		return json.RawMessage(`{"unencodable":` + string(jsonrpc.Quote(err.Error())) + `}`)
	}
	return raw
}

type errorForm struct {
	Code          string         `json:"code"`
	Category      Category       `json:"category"`
	Severity      Severity       `json:"severity"`
	Message       string         `json:"message"`
	Source        ModuleRef      `json:"source"`
	RetryEligible *bool          `json:"retry_eligible"`
	Detail        jsontext.Value `json:"detail"`
	Cause         *errorForm     `json:"cause"`
}

// form returns the form of e, nil beyond maxCauses.
func (e *KernelError) form(depth int) *errorForm {
	if e == nil || depth > maxCauses {
		return nil
	}
	return &errorForm{
		e.Code, e.Category, e.Severity, e.Message, e.Source, &e.RetryEligible, jsontext.Value(e.DetailJSON()), e.Cause.form(depth + 1),
	}
}

// UnmarshalJSON reads a KernelError strictly; what Validate refuses is
// ErrInvalidError. Numbers in the detail are json.Number.
func (e *KernelError) UnmarshalJSON(data []byte) error {
	return read(data, e, ErrInvalidError, errorForm{}, func(f *errorForm) (KernelError, error) { return f.kernel(0) })
}

func (f *errorForm) kernel(depth int) (e KernelError, err error) {
	switch {
	case depth > maxCauses:
		return e, errors.New("too many causes")
	case f.RetryEligible == nil:
		return e, errors.New("no retry_eligible")
	case len(f.Detail) > 0 && f.Detail.Kind() != '{':
		return e, errors.New("detail is no object")
	}
	e = KernelError{
		Code: f.Code, Category: f.Category, Severity: f.Severity, Message: f.Message,
		Source: f.Source, RetryEligible: *f.RetryEligible,
	}
	if len(f.Detail) > len("{}") {
		if e.Detail, err = decodeObject(f.Detail); err != nil {
			return e, err
		}
	}
	if f.Cause != nil {
		cause, err := f.Cause.kernel(depth + 1)
		if err != nil {
			return e, err
		}
		e.Cause = &cause
	}
	return e, e.validate()
}
