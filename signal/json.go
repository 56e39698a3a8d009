package signal

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The JSON forms are appended by hand, because one is built for each call.
// They are read strictly: unknown, duplicate and differently cased members,
// trailing bytes and whatever the validators refuse.

// MarshalJSON gives {id, kind, body, origin, trace_id, tags, created_at,
// parent_id}; an absent parent is null. It never fails.
func (s Signal) MarshalJSON() ([]byte, error) { return s.append(nil, ""), nil }

// MarshalJSON gives {status, signals, error, metrics, reason?}. It never
// fails.
func (r Result) MarshalJSON() ([]byte, error) { return Full(r), nil }

// MarshalJSON gives {code, category, severity, message, source,
// retry_eligible, detail, cause}. It never fails: a detail that JSON cannot
// hold is replaced by {"unencodable": reason}.
func (e *KernelError) MarshalJSON() ([]byte, error) { return appendError(nil, e, 0), nil }

// Full gives the JSON form of r, with whole bodies.
func Full(r Result) stdjson.RawMessage { return appendResult(make([]byte, 0, 1024), &r, nil, false) }

// appendResult appends the JSON form of r. A signal that has one of refs has it
// in place of its body; a compact form leaves out an absent error.
func appendResult(dst []byte, r *Result, refs []string, compact bool) []byte {
	dst = appendQuote(append(dst, `{"status":`...), string(r.Status))
	dst = appendSignals(append(dst, `,"signals":`...), r.Signals, refs)
	if r.Error != nil || !compact {
		dst = appendError(append(dst, `,"error":`...), r.Error, 0)
	}
	return appendMetrics(dst, r)
}

// appendSignals appends a list of signals; see appendResult for refs.
func appendSignals(dst []byte, signals []Signal, refs []string) []byte {
	dst = append(dst, '[')
	for i := range signals {
		if i > 0 {
			dst = append(dst, ',')
		}
		ref := ""
		if i < len(refs) {
			ref = refs[i]
		}
		dst = signals[i].append(dst, ref)
	}
	return append(dst, ']')
}

// appendMetrics appends the metrics and the reason, and closes the object. A
// duration that JSON has no number for is 0.
func appendMetrics(dst []byte, r *Result) []byte {
	m := r.Metrics
	if math.IsNaN(m.DurationMS) || math.IsInf(m.DurationMS, 0) {
		m.DurationMS = 0
	}
	dst = strconv.AppendFloat(append(dst, `,"metrics":{"duration_ms":`...), m.DurationMS, 'g', -1, 64)
	dst = strconv.AppendInt(append(dst, `,"token_count":`...), int64(m.TokenCount), 10)
	dst = strconv.AppendBool(append(dst, `,"cache_hit":`...), m.CacheHit)
	dst = append(appendModule(append(dst, `,"module_ref":`...), m.ModuleRef), '}')
	if r.Reason != "" {
		dst = appendQuote(append(dst, `,"reason":`...), r.Reason)
	}
	return append(dst, '}')
}

func appendModule(dst []byte, r ModuleRef) []byte {
	dst = strconv.AppendInt(append(dst, `{"tier":`...), int64(r.Tier), 10)
	dst = appendQuote(append(dst, `,"module":`...), r.Module)
	return append(appendQuote(append(dst, `,"function":`...), r.Function), '}')
}

// append appends the JSON form, with ref in place of the body unless it is "".
func (s *Signal) append(dst []byte, ref string) []byte {
	dst = appendQuote(append(dst, `{"id":`...), s.id)
	dst = appendQuote(append(dst, `,"kind":`...), string(s.kind))
	if ref != "" {
		dst = appendQuote(append(dst, `,"ref":`...), ref)
	} else {
		dst = s.body.append(append(dst, `,"body":`...))
	}
	dst = appendModule(append(dst, `,"origin":`...), s.origin)
	dst = appendQuote(append(dst, `,"trace_id":`...), s.traceID)
	dst = append(dst, `,"tags":{`...)
	for i, t := range s.tags {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuote(append(appendQuote(dst, t.key), ':'), t.value)
	}
	dst = s.createdAt.AppendFormat(append(dst, `},"created_at":"`...), time.RFC3339Nano)
	dst = append(dst, `","parent_id":`...)
	if s.parentID == "" {
		return append(dst, "null}"...)
	}
	return append(appendQuote(dst, s.parentID), '}')
}

func appendError(dst []byte, e *KernelError, depth int) []byte {
	if e == nil || depth > maxCauses {
		return append(dst, "null"...)
	}
	dst = appendQuote(append(dst, `{"code":`...), e.Code)
	dst = appendQuote(append(dst, `,"category":`...), string(e.Category))
	dst = appendQuote(append(dst, `,"severity":`...), string(e.Severity))
	dst = appendQuote(append(dst, `,"message":`...), e.Message)
	dst = appendModule(append(dst, `,"source":`...), e.Source)
	dst = strconv.AppendBool(append(dst, `,"retry_eligible":`...), e.RetryEligible)
	dst = append(append(dst, `,"detail":`...), e.DetailJSON()...)
	dst = appendError(append(dst, `,"cause":`...), e.Cause, depth+1)
	return append(dst, '}')
}

// DetailJSON gives the detail as a JSON object, {} when there is none. It
// never fails: see MarshalJSON.
func (e *KernelError) DetailJSON() stdjson.RawMessage {
	if len(e.Detail) == 0 {
		return stdjson.RawMessage("{}")
	}
	raw, err := encodeValue(e.Detail)
	if err != nil {
		raw = `{"unencodable":` + quote(err.Error()) + `}`
	}
	return stdjson.RawMessage(raw)
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
	refuseNull[string](), refuseNull[bool](), refuseNull[int](), refuseNull[float64](), refuseNull[map[string]string](),
	refuseNull[Kind](), refuseNull[Status](), refuseNull[Category](), refuseNull[Severity](), refuseNull[time.Time](),
	refuseNull[[]signalJSON](),
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

type signalJSON struct {
	ID        string            `json:"id"`
	Kind      Kind              `json:"kind"`
	Ref       *string           `json:"ref,omitzero"`
	Body      jsontext.Value    `json:"body"`
	Origin    ModuleRef         `json:"origin"`
	TraceID   string            `json:"trace_id"`
	Tags      map[string]string `json:"tags"`
	CreatedAt time.Time         `json:"created_at"`
	ParentID  *string           `json:"parent_id"` // null for none
}

// envelope gives the signal without its body.
func (in *signalJSON) envelope() Signal {
	s := Signal{
		id: in.ID, kind: in.Kind, origin: in.Origin, traceID: in.TraceID,
		tags: sortTags(in.Tags), createdAt: in.CreatedAt.UTC(),
	}
	if in.ParentID != nil {
		s.parentID = *in.ParentID
	}
	return s
}

func (in *signalJSON) signal() (Signal, error) {
	s := in.envelope()
	if in.Ref != nil || in.Body.Kind() != '{' {
		return Signal{}, ErrInvalidBody
	}
	raw, err := strictValue(in.Body)
	if err != nil {
		return Signal{}, fmt.Errorf("%w: %w", ErrInvalidBody, err)
	}
	s.body = objectBody(raw)
	return s, s.check()
}

// UnmarshalJSON reads a Signal strictly; what ValidateSignal refuses is
// ErrInvalidSignal, as is anything that MarshalJSON would not have written
// but for order and white space.
func (s *Signal) UnmarshalJSON(data []byte) error {
	var in signalJSON
	if err := decodeStrict(data, &in); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidSignal, err)
	}
	out, err := in.signal()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidSignal, err)
	}
	*s = out
	return nil
}

type errorJSON struct {
	Code          string         `json:"code"`
	Category      Category       `json:"category"`
	Severity      Severity       `json:"severity"`
	Message       string         `json:"message"`
	Source        ModuleRef      `json:"source"`
	RetryEligible *bool          `json:"retry_eligible"`
	Detail        jsontext.Value `json:"detail"`
	Cause         *errorJSON     `json:"cause"`
}

// UnmarshalJSON reads a KernelError strictly; what Validate refuses is
// ErrInvalidError. Numbers in the detail are json.Number.
func (e *KernelError) UnmarshalJSON(data []byte) error {
	var in *errorJSON
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

func (in *errorJSON) kernel(depth int) (*KernelError, error) {
	if in == nil || depth > maxCauses {
		return nil, errors.New("no error, or too many causes")
	}
	if in.RetryEligible == nil {
		return nil, errors.New("no retry_eligible")
	}
	detail, err := decodeDetail(in.Detail)
	if err != nil {
		return nil, err
	}
	out := &KernelError{
		Code: in.Code, Category: in.Category, Severity: in.Severity, Message: in.Message,
		Source: in.Source, RetryEligible: *in.RetryEligible, Detail: detail,
	}
	if in.Cause != nil {
		if out.Cause, err = in.Cause.kernel(depth + 1); err != nil {
			return nil, err
		}
	}
	return out, out.validate()
}

func decodeDetail(raw jsontext.Value) (map[string]any, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	if raw.Kind() != '{' {
		return nil, errors.New("detail is no object")
	}
	var m map[string]any
	dec := stdjson.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		return nil, err
	}
	if len(m) == 0 {
		return nil, nil
	}
	return m, nil
}

type resultJSON struct {
	Status  Status       `json:"status"`
	Signals []signalJSON `json:"signals"`
	Error   *KernelError `json:"error"`
	Metrics *Metrics     `json:"metrics"`
	Reason  string       `json:"reason"`
}

// result assembles and checks a Result, reading each signal with read.
func (in *resultJSON) result(read func(*signalJSON) (Signal, error)) (Result, error) {
	if in.Metrics == nil {
		return Result{}, errors.New("no metrics")
	}
	out := Result{Status: in.Status, Error: in.Error, Metrics: *in.Metrics, Reason: in.Reason}
	for i := range in.Signals {
		s, err := read(&in.Signals[i])
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
	var in resultJSON
	err := decodeStrict(data, &in)
	if err == nil {
		var out Result
		if out, err = in.result((*signalJSON).signal); err == nil {
			*r = out
			return nil
		}
	}
	return fmt.Errorf("%w: %w", ErrInvalidResult, err)
}
