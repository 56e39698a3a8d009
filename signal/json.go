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

type moduleJSON struct {
	Tier     *int   `json:"tier"`
	Module   string `json:"module"`
	Function string `json:"function"`
}

// UnmarshalJSON reads a module reference; it returns ErrInvalidOrigin for one
// that Validate refuses or that names no tier.
func (r *ModuleRef) UnmarshalJSON(data []byte) error {
	var in moduleJSON
	if err := decodeStrict(data, &in); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOrigin, err)
	}
	if in.Tier == nil {
		return fmt.Errorf("%w: no tier", ErrInvalidOrigin)
	}
	out := ModuleRef{*in.Tier, in.Module, in.Function}
	if err := out.Validate(); err != nil {
		return err
	}
	*r = out
	return nil
}

// strictly refuses unknown members, and null for what has no null: json/v2
// would read it as the zero value.
var strictly = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(json.JoinUnmarshalers(
	refuseNull[string](), refuseNull[bool](), refuseNull[int](), refuseNull[float64](), refuseNull[tags](),
	refuseNull[Kind](), refuseNull[Status](), refuseNull[Category](), refuseNull[Severity](), refuseNull[time.Time](),
	refuseNull[[]signalForm](),
)))

func refuseNull[T any]() *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(d *jsontext.Decoder, _ *T) error {
		if d.PeekKind() == 'n' {
			return errors.New("null is no value")
		}
		return errors.ErrUnsupported // go on with the usual way
	})
}

func decodeStrict(data []byte, into any) error {
	return json.Unmarshal(data, into, strictly)
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
	var in signalForm
	err := decodeStrict(data, &in)
	if err == nil {
		var out Signal
		if out, err = in.signal(); err == nil {
			*s = out
			return nil
		}
	}
	return fmt.Errorf("%w: %w", ErrInvalidSignal, err)
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
	var in *errorForm
	err := decodeStrict(data, &in)
	if err == nil {
		var out *KernelError
		if out, err = in.kernel(0); err == nil {
			*e = *out
			return nil
		}
	}
	return fmt.Errorf("%w: %w", ErrInvalidError, err)
}

func (f *errorForm) kernel(depth int) (out *KernelError, err error) {
	switch {
	case f == nil || depth > maxCauses:
		return nil, errors.New("no error, or too many causes")
	case f.RetryEligible == nil:
		return nil, errors.New("no retry_eligible")
	case len(f.Detail) > 0 && f.Detail.Kind() != '{':
		return nil, errors.New("detail is no object")
	}
	out = &KernelError{
		Code: f.Code, Category: f.Category, Severity: f.Severity, Message: f.Message,
		Source: f.Source, RetryEligible: *f.RetryEligible,
	}
	if len(f.Detail) > len("{}") {
		if out.Detail, err = decodeObject(f.Detail); err != nil {
			return nil, err
		}
	}
	if f.Cause != nil {
		if out.Cause, err = f.Cause.kernel(depth + 1); err != nil {
			return nil, err
		}
	}
	return out, out.validate()
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
	var in resultForm
	err := decodeStrict(data, &in)
	if err == nil {
		var out Result
		if out, err = in.result((*signalForm).signal); err == nil {
			*r = out
			return nil
		}
	}
	return fmt.Errorf("%w: %w", ErrInvalidResult, err)
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
func Expand(view, toolResult stdjson.RawMessage) (Result, error) {
	var in resultForm
	if err := decodeStrict(view, &in); err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrInvalidView, err)
	}
	source := source{result: toolResult}
	out, err := in.result(source.read)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrInvalidView, err)
	}
	return out, nil
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
