package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Status says how a function went.
type Status string

// The statuses, with what a reader downstream does.
const (
	StatusOK      Status = "ok"      // use the signals
	StatusPartial Status = "partial" // use the signals, log the error
	StatusError   Status = "error"   // do not use the signals: look at the error
	StatusSkip    Status = "skip"    // pass through: skipped on purpose
)

// Valid reports whether s is one of the four statuses.
func (s Status) Valid() bool {
	return slices.Contains([]Status{StatusOK, StatusPartial, StatusError, StatusSkip}, s)
}

// Metrics is the telemetry of one Result.
type Metrics struct {
	DurationMS float64   `json:"duration_ms"` // wall clock, milliseconds
	TokenCount int       `json:"token_count"` // LLM tokens, 0 when no LLM was called
	CacheHit   bool      `json:"cache_hit"`   // served from a cache
	ModuleRef  ModuleRef `json:"module_ref"`  // who produced the result
}

// Result is what every kernel function returns. Build it with OK, Partial,
// Fail and Skip. It is safe for concurrent reading.
type Result struct {
	Status  Status
	Signals []Signal     // may be empty
	Error   *KernelError // set for ERROR and PARTIAL
	Metrics Metrics
	// Reason is why a SKIP was skipped, "" for any other status. Seed 002 gives
	// skip a reason and the Result no place for it: this is the place.
	Reason string
}

// OK is full success.
func OK(signals []Signal, metrics Metrics) Result {
	return Result{Status: StatusOK, Signals: signals, Metrics: metrics}
}

// Partial is success in part: there are signals and an error.
func Partial(signals []Signal, err *KernelError, metrics Metrics) Result {
	return Result{Status: StatusPartial, Signals: signals, Error: err, Metrics: metrics}
}

// Fail is failure, without output.
func Fail(err *KernelError, metrics Metrics) Result {
	return Result{Status: StatusError, Error: err, Metrics: metrics}
}

// Skip is an intended omission, with its reason.
func Skip(reason string, metrics Metrics) Result {
	return Result{Status: StatusSkip, Reason: reason, Metrics: metrics}
}

// Next is what a reader downstream does with a Result; see Compose.
type Next struct {
	Signals []Signal     // to consume
	Log     *KernelError // to write down before going on
	Stop    *KernelError // set: nothing may be consumed
	Retry   bool         // with Stop: retry, else escalate
	Pass    bool         // pass through: the module was left out on purpose
}

// Compose is the table "Result Composition Rules" of seed 002: OK gives the
// signals; PARTIAL the signals and the error to log; ERROR no signals, the
// error and whether to retry; SKIP passes. A Result that contradicts itself
// stops with the fault that ValidateResult finds in its status.
func Compose(r Result) Next {
	if fault := mismatch(r.consistent(), "compose"); fault != nil {
		return Next{Stop: fault}
	}
	switch r.Status {
	case StatusError:
		return Next{Stop: r.Error, Retry: r.Error.RetryEligible}
	case StatusSkip:
		return Next{Pass: true}
	}
	return Next{Signals: r.Signals, Log: r.Error}
}

// Full returns the JSON form of r, with whole bodies.
func Full(r Result) json.RawMessage { return encode(r.form()) }

// MarshalJSON returns {status, signals, error, metrics, reason?}. It never
// fails.
func (r Result) MarshalJSON() ([]byte, error) { return Full(r), nil }

type resultForm struct {
	Status  Status       `json:"status"`
	Signals []signalForm `json:"signals"`
	Error   *KernelError `json:"error"`
	Metrics *Metrics     `json:"metrics"`
	Reason  string       `json:"reason,omitzero"`
}

// form returns the form of r. A duration that JSON has no number for is 0.
func (r *Result) form() *resultForm {
	f := &resultForm{r.Status, make([]signalForm, len(r.Signals)), r.Error, &r.Metrics, r.Reason}
	for i := range r.Signals {
		f.Signals[i] = *r.Signals[i].whole()
	}
	if d := r.Metrics.DurationMS; math.IsNaN(d) || math.IsInf(d, 0) {
		metrics := r.Metrics
		f.Metrics, metrics.DurationMS = &metrics, 0
	}
	return f
}

// result assembles and checks a Result.
func (f *resultForm) result() (Result, error) {
	if f.Metrics == nil {
		return Result{}, errors.New("no metrics")
	}
	out := Result{Status: f.Status, Error: f.Error, Metrics: *f.Metrics, Reason: f.Reason}
	for i := range f.Signals {
		s, err := f.Signals[i].signal()
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
	return read(data, r, ErrInvalidResult, resultForm{}, (*resultForm).result)
}

// Compact returns the view of a Result that travels beside an MCP tool result:
// {status, signals, error?, metrics, reason?}, where a signal has "ref", a
// JSON Pointer into that tool result, in place of its body. refs are those of
// FromToolResult, one for each signal in order; a signal beyond them, or with the
// ref "", keeps its body. It never fails.
//
// Every result of a tool has such a view, so it is written without reflection.
func Compact(r Result, refs []string) json.RawMessage {
	b := appendText(make([]byte, 0, 256+512*len(r.Signals)), `{"status":`, string(r.Status))
	b = append(b, `,"signals":[`...)
	for i := range r.Signals {
		if i > 0 {
			b = append(b, ',')
		}
		if i < len(refs) && refs[i] != "" {
			b = r.Signals[i].form.appendView(b, refs[i])
		} else {
			b = append(b, encode(r.Signals[i].whole())...)
		}
	}
	b = append(b, ']')
	if r.Error != nil {
		b = append(append(b, `,"error":`...), encode(r.Error)...)
	}
	b = r.Metrics.append(append(b, `,"metrics":`...))
	if r.Reason != "" {
		b = appendText(b, `,"reason":`, r.Reason)
	}
	return append(b, '}')
}

// appendView appends the form of a signal with ref in place of its body.
func (f *signalForm) appendView(b []byte, ref string) []byte {
	b = appendText(b, `{"id":`, f.ID)
	b = appendText(b, `,"kind":`, string(f.Kind))
	b = appendText(b, `,"ref":`, ref)
	b = f.Origin.append(append(b, `,"origin":`...))
	b = appendText(b, `,"trace_id":`, f.TraceID)
	b = append(append(b, `,"tags":`...), f.Tags...)
	b = f.CreatedAt.AppendFormat(append(b, `,"created_at":"`...), time.RFC3339Nano)
	if f.ParentID == nil {
		return append(b, `","parent_id":null}`...)
	}
	return append(appendText(b, `","parent_id":`, *f.ParentID), '}')
}

// append appends the JSON form of m.
func (m *Metrics) append(b []byte) []byte {
	b = append(b, `{"duration_ms":`...)
	switch d := math.Abs(m.DurationMS); {
	case math.IsNaN(d) || math.IsInf(d, 0): // JSON has no number for it
		b = append(b, '0')
	case d == 0 || d >= 1e-6 && d < 1e21: // JSON's usual spelling has no exponent
		b = strconv.AppendFloat(b, m.DurationMS, 'f', -1, 64)
	default:
		b = append(b, encode(m.DurationMS)...)
	}
	b = strconv.AppendInt(append(b, `,"token_count":`...), int64(m.TokenCount), 10)
	b = strconv.AppendBool(append(b, `,"cache_hit":`...), m.CacheHit)
	return append(m.ModuleRef.append(append(b, `,"module_ref":`...)), '}')
}

// append appends the JSON form of r.
func (r *ModuleRef) append(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"tier":`...), int64(r.Tier), 10)
	b = appendText(b, `,"module":`, r.Module)
	return append(appendText(b, `,"function":`, r.Function), '}')
}

// appendText appends before and text as a JSON string. Bytes that are not UTF-8
// become U+FFFD.
func appendText(b []byte, before, text string) []byte {
	b, _ = jsontext.AppendQuote(append(b, before...), text) // the error reports what it has replaced
	return b
}
