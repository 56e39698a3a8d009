package signal

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ProblemDetails is RFC 7807. Its JSON form is {type, title, status, detail,
// extensions: {error}, retry_after?}.
type ProblemDetails struct {
	Type   string // "urn:toolgate:error:" and the code
	Title  string // the category
	Status int    // HTTP, 400 to 599, or 202 for an approval that is pending
	Detail string // the message
	// Extensions carries the whole error with its chain of causes: for
	// operators, not for strangers.
	Extensions ProblemExtensions
	// RetryAfter is the hint for the header of that name, in seconds: -1 means
	// do not retry, 0 that nothing is known.
	RetryAfter int
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
	return encode(problemForm{p.Type, Category(p.Title), p.Status, p.Detail, encode(p.Extensions), p.RetryAfter}), nil
}

type problemForm struct {
	Type       string         `json:"type"`
	Title      Category       `json:"title"`
	Status     int            `json:"status"`
	Detail     string         `json:"detail"`
	Extensions jsontext.Value `json:"extensions"`
	RetryAfter int            `json:"retry_after,omitzero"`
}

// UnmarshalJSON reads the JSON form strictly but for further members, which a
// reader has to ignore (RFC 7807 §3.2); ErrInvalidResponse for anything else,
// and for a type, title or detail against the error in the extensions.
func (p *ProblemDetails) UnmarshalJSON(data []byte) error {
	return read(data, p, ErrInvalidResponse, (*problemForm).problem, json.RejectUnknownMembers(false))
}

func (f *problemForm) problem() (ProblemDetails, error) {
	p := ProblemDetails{Type: f.Type, Title: string(f.Title), Status: f.Status, Detail: f.Detail, RetryAfter: f.RetryAfter}
	if f.Extensions.Kind() != '{' {
		return p, errors.New("no extensions")
	}
	if err := json.Unmarshal(f.Extensions, &p.Extensions, strictly); err != nil {
		return p, err
	}
	return p, f.check(p.Extensions.Error)
}

func (in *problemForm) check(e *KernelError) error {
	code, ours := strings.CutPrefix(in.Type, problemType)
	switch {
	case !ours || !ValidCode(code):
		return fmt.Errorf("type %q is not %s and an error code", in.Type, problemType)
	case !in.Title.Valid():
		return fmt.Errorf("title %q is no category", string(in.Title))
	case in.Status != 202 && (in.Status < 400 || in.Status > 599):
		return fmt.Errorf("status %d is not 202 or 400 to 599", in.Status)
	case in.Detail == "":
		return errors.New("no detail")
	case in.RetryAfter < -1:
		return fmt.Errorf("retry_after %d is less than -1", in.RetryAfter)
	case e == nil:
		return nil
	case e.Code != code || e.Category != in.Title || e.Message != in.Detail:
		return errors.New("type, title or detail is not that of the error")
	}
	return nil
}

// SuccessResponse is the HTTP envelope of a Result that is no failure. Its
// JSON form is {status, data, error?, metrics, reason?, trace_id?,
// decision_id?, ticket?}.
type SuccessResponse struct {
	Status  Status   // ok, partial or skip
	Data    []Signal // empty for skip
	Error   *KernelError
	Metrics Metrics
	Reason  string // of a skip

	TraceID    string // of the request, "" when it has none
	DecisionID string // of the call in the audit trail, "" when no call was made
	Ticket     string // the approval that let the call pass, "" when none was needed
}

// ResultToHTTPResponse gives the HTTP envelope of a Result: OK, PARTIAL and
// SKIP a SuccessResponse with the signals as data, ERROR a ProblemDetails with
// a TRANSIENT error's delay (seed 002, result_to_http_response). One of the
// two is given, never both: the SuccessResponse counts when the pointer is
// nil. A Result that ValidateResult refuses is a ProblemDetails of code
// CodeInternal whose cause says why.
func ResultToHTTPResponse(r Result, delay time.Duration) (SuccessResponse, *ProblemDetails) {
	fault := r.Error
	if wrong := mismatch(r.check(), "result_to_http_response"); wrong != nil {
		fault = invalidResult(wrong)
	} else if r.Status != StatusError {
		return successOf(r), nil
	}
	p := ErrorToProblemDetails(fault, delay)
	return SuccessResponse{}, &p
}

func invalidResult(cause *KernelError) *KernelError {
	return &KernelError{
		Code: CodeInternal, Category: Processing, Severity: Fatal,
		Message: "a module gave an invalid result", Source: cause.Source, Cause: cause,
	}
}

func successOf(r Result) SuccessResponse {
	return SuccessResponse{Status: r.Status, Data: r.Signals, Error: r.Error, Metrics: r.Metrics, Reason: r.Reason}
}

// MarshalJSON gives the JSON form, with whole bodies, on one line. It never
// fails.
func (s SuccessResponse) MarshalJSON() ([]byte, error) {
	r := Result{s.Status, s.Data, s.Error, s.Metrics, s.Reason}
	f := r.form(nil)
	return encode(successForm{f.Status, &f.Signals, f.Error, f.Metrics, f.Reason, s.TraceID, s.DecisionID, s.Ticket}), nil
}

type successForm struct {
	Status  Status        `json:"status"`
	Data    *[]signalForm `json:"data"`
	Error   *KernelError  `json:"error,omitzero"`
	Metrics *Metrics      `json:"metrics"`
	Reason  string        `json:"reason,omitzero"`

	TraceID    string `json:"trace_id,omitzero"`
	DecisionID string `json:"decision_id,omitzero"`
	Ticket     string `json:"ticket,omitzero"`
}

// UnmarshalJSON reads the JSON form strictly; ErrInvalidResponse for anything
// else and for what ValidateResult would refuse.
func (s *SuccessResponse) UnmarshalJSON(data []byte) error {
	return read(data, s, ErrInvalidResponse, (*successForm).success)
}

func (f *successForm) success() (SuccessResponse, error) {
	switch {
	case f.Status == StatusError:
		return SuccessResponse{}, errors.New("status error is no success")
	case f.Data == nil:
		return SuccessResponse{}, errors.New("no data")
	}
	r, err := (&resultForm{f.Status, *f.Data, f.Error, f.Metrics, f.Reason}).result((*signalForm).signal)
	s := successOf(r)
	s.TraceID, s.DecisionID, s.Ticket = f.TraceID, f.DecisionID, f.Ticket
	return s, err
}
