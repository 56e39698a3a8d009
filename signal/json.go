package signal

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Each type has one struct for its JSON form, for writing and for reading. Reading
// is strict: unknown, duplicate and differently cased members, trailing bytes and
// whatever the validators refuse.

// asItIs writes strings that are not UTF-8 with U+FFFD and raw values as they are.
var asItIs = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true), jsontext.PreserveRawStrings(true))

// encode returns the JSON form of a struct of this package, which has no value
// that JSON cannot hold.
func encode(form any) []byte {
	raw, _ := json.Marshal(form, asItIs)
	return raw
}

// MarshalJSON returns {id, kind, body, origin, trace_id, tags, created_at,
// parent_id}; an absent parent is null. It never fails.
func (s Signal) MarshalJSON() ([]byte, error) { return encode(&s.form), nil }

// MarshalJSON returns {status, signals, error, metrics, reason?}. It never
// fails.
func (r Result) MarshalJSON() ([]byte, error) { return Full(r), nil }

// MarshalJSON returns {code, category, severity, message, source,
// retry_eligible, detail, cause}. It never fails: a detail that JSON cannot
// hold is replaced by {"unencodable": reason}.
func (e *KernelError) MarshalJSON() ([]byte, error) { return encode(e.form(0)), nil }

// Full returns the JSON form of r, with whole bodies.
func Full(r Result) stdjson.RawMessage { return encode(r.form(nil)) }

// DetailJSON returns the detail as a JSON object, {} when there is none. It
// never fails: see MarshalJSON.
func (e *KernelError) DetailJSON() stdjson.RawMessage {
	if len(e.Detail) == 0 {
		return stdjson.RawMessage("{}")
	}
	raw, err := encodeValue(e.Detail)
	if err != nil {
		return stdjson.RawMessage(`{"unencodable":` + quote(err.Error()) + `}`)
	}
	return raw
}

type moduleForm struct {
	Tier     *int   `json:"tier"`
	Module   string `json:"module"`
	Function string `json:"function"`
}

func (f *moduleForm) ref() (ModuleRef, error) {
	if f.Tier == nil {
		return ModuleRef{}, errors.New("no tier")
	}
	r := ModuleRef{*f.Tier, f.Module, f.Function}
	return r, r.Validate()
}

// UnmarshalJSON reads a module reference; it returns ErrInvalidOrigin for one
// that Validate refuses or that names no tier.
func (r *ModuleRef) UnmarshalJSON(data []byte) error {
	return read(data, r, ErrInvalidOrigin, (*moduleForm).ref)
}

// strictly refuses unknown members, and null for what has no null: json/v2
// would read it as the zero value.
var strictly = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(json.UnmarshalFromFunc(refuseNull)))

func refuseNull(d *jsontext.Decoder, into any) error {
	if d.PeekKind() == 'n' {
		switch into.(type) {
		case **string, **KernelError, **errorForm: // nil is a value
		default:
			return errors.New("null is no value")
		}
	}
	return errors.ErrUnsupported // continue in the usual way
}

// read decodes data strictly as a form F and sets *into to what convert makes of
// it. Any error wraps wrong, and then *into is as it was.
func read[F, T any](data []byte, into *T, wrong error, convert func(*F) (T, error), options ...json.Options) error {
	var form F
	err := json.Unmarshal(data, &form, append([]json.Options{strictly}, options...)...)
	var out T
	if err == nil {
		out, err = convert(&form)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", wrong, err)
	}
	*into = out
	return nil
}

// A signalForm is a Signal as JSON has it; a compact view has Ref in place of
// Body.
type signalForm struct {
	ID        string    `json:"id"`
	Kind      Kind      `json:"kind"`
	Ref       *string   `json:"ref,omitzero"`
	Body      body      `json:"body,omitzero"`
	Origin    ModuleRef `json:"origin"`
	TraceID   string    `json:"trace_id"`
	Tags      tags      `json:"tags"`
	CreatedAt time.Time `json:"created_at"`
	ParentID  *string   `json:"parent_id"` // nil for none
}

// signal checks what was read.
func (f *signalForm) signal() (Signal, error) {
	if f.Ref != nil {
		return Signal{}, ErrInvalidBody
	}
	f.CreatedAt = f.CreatedAt.UTC()
	s := Signal{*f}
	return s, s.check()
}

// UnmarshalJSON reads a Signal strictly; what ValidateSignal refuses is
// ErrInvalidSignal, as is anything that MarshalJSON would not have written
// but for order and white space.
func (s *Signal) UnmarshalJSON(data []byte) error {
	return read(data, s, ErrInvalidSignal, (*signalForm).signal)
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
	return read(data, e, ErrInvalidError, func(f *errorForm) (KernelError, error) { return f.kernel(0) })
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

type resultForm struct {
	Status  Status       `json:"status"`
	Signals []signalForm `json:"signals"`
	Error   *KernelError `json:"error"`
	Metrics *Metrics     `json:"metrics"`
	Reason  string       `json:"reason,omitzero"`
}

// A resultView is a resultForm that leaves out an absent error.
type resultView struct {
	Status  Status       `json:"status"`
	Signals []signalForm `json:"signals"`
	Error   *KernelError `json:"error,omitzero"`
	Metrics *Metrics     `json:"metrics"`
	Reason  string       `json:"reason,omitzero"`
}

// form returns the form of r. A signal that has one of refs has it in place of
// its body. A duration that JSON has no number for is 0.
func (r *Result) form(refs []string) *resultForm {
	f := &resultForm{r.Status, make([]signalForm, len(r.Signals)), r.Error, &r.Metrics, r.Reason}
	for i := range r.Signals {
		f.Signals[i] = r.Signals[i].form
		if i < len(refs) && refs[i] != "" {
			f.Signals[i].Ref, f.Signals[i].Body = &refs[i], body{}
		}
	}
	if d := r.Metrics.DurationMS; math.IsNaN(d) || math.IsInf(d, 0) {
		metrics := r.Metrics
		f.Metrics, metrics.DurationMS = &metrics, 0
	}
	return f
}

// result assembles and checks a Result, reading each signal with read.
func (f *resultForm) result(read func(*signalForm) (Signal, error)) (Result, error) {
	if f.Metrics == nil {
		return Result{}, errors.New("no metrics")
	}
	out := Result{Status: f.Status, Error: f.Error, Metrics: *f.Metrics, Reason: f.Reason}
	for i := range f.Signals {
		s, err := read(&f.Signals[i])
		if err != nil {
			return Result{}, fmt.Errorf("signal %d: %w", i, err)
		}
		out.Signals = append(out.Signals, s)
	}
	return out, out.check()
}

// UnmarshalJSON reads a Result strictly; what ValidateResult refuses is
// ErrInvalidResult, and a bad signal ErrInvalidResult with its own cause.
func (r *Result) UnmarshalJSON(data []byte) error {
	return read(data, r, ErrInvalidResult, func(f *resultForm) (Result, error) { return f.result((*signalForm).signal) })
}

// Compact returns the view of a Result that travels beside an MCP tool result:
// {status, signals, error?, metrics, reason?}, where a signal has "ref", a
// JSON Pointer into that tool result, in place of its body. refs are those of
// FromToolResult, one for each signal in order; a signal beyond them, or with the
// ref "", keeps its body. Expand is the inverse. It never fails.
func Compact(r Result, refs []string) stdjson.RawMessage {
	return encode((*resultView)(r.form(refs)))
}

// Expand gives back the Result of a compact view and the tool result it points
// into. It returns ErrInvalidView for a view that is malformed or points at
// nothing, ErrInvalidToolResult for bytes that are no tool result; the Result
// it returns passes ValidateResult.
func Expand(view, toolResult stdjson.RawMessage) (out Result, err error) {
	source := source{result: toolResult}
	err = read(view, &out, ErrInvalidView, func(f *resultForm) (Result, error) { return f.result(source.read) })
	return out, err
}

// source finds payloads by their ref.
type source struct {
	result []byte
	from   ModuleRef // what payloads were made for
	tool   string
	parts  []payload // nil until split
}

func (src *source) read(f *signalForm) (Signal, error) {
	if f.Ref == nil {
		return f.signal()
	}
	ref := *f.Ref
	if f.Body.raw != nil {
		return Signal{}, fmt.Errorf("%w: both body and ref", ErrInvalidBody)
	}
	if err := src.split(f.Origin, f.Tags.value(TagTool)); err != nil {
		return Signal{}, err
	}
	for _, p := range src.parts {
		if p.ref == ref && p.kind == f.Kind {
			f.Ref, f.Body = nil, p.body
			return f.signal()
		}
	}
	return Signal{}, fmt.Errorf("%w: nothing of kind %s at %q", ErrInvalidBody, f.Kind, ref)
}

// split takes the result apart; error signals name their origin and tool in
// the body, so those decide whether the parts at hand still fit.
func (src *source) split(origin ModuleRef, tool string) error {
	if src.parts != nil && src.from == origin && src.tool == tool {
		return nil
	}
	parts, err := split(src.result, origin, tool)
	src.parts, src.from, src.tool = parts, origin, tool
	return err
}
