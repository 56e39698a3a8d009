package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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

// compactSignals is the most ids of signals in a compact view.
const compactSignals = 8

// Compact returns the view of a Result that travels beside an MCP tool result:
// {status, decision_id, trace_id, signals, count?, error?}. It has the ids of the first
// eight signals, and with more than that their count. The error is {code}; with status
// partial it is {code, message}, because the tool result does not say what is wrong with
// it. Compact never fails.
//
// Some clients show _meta to their model, so the view has nothing that is the same in
// every result.
func Compact(r Result, decisionID, traceID string) json.RawMessage {
	shown := min(len(r.Signals), compactSignals)
	b := appendText(make([]byte, 0, 160+idRoom*shown), `{"status":`, string(r.Status))
	b = appendText(b, `,"decision_id":`, decisionID)
	b = appendText(b, `,"trace_id":`, traceID)
	b = append(b, `,"signals":[`...)
	for i := range shown {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, "", r.Signals[i].form.ID)
	}
	b = append(b, ']')
	if len(r.Signals) > compactSignals {
		b = strconv.AppendInt(append(b, `,"count":`...), int64(len(r.Signals)), 10)
	}
	if r.Error != nil {
		b = appendText(b, `,"error":{"code":`, r.Error.Code)
		if r.Status == StatusPartial {
			b = appendText(b, `,"message":`, r.Error.Message)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendText appends before and text as a JSON string. Bytes that are not UTF-8
// become U+FFFD.
func appendText(b []byte, before, text string) []byte {
	return jsonrpc.AppendQuoted(append(b, before...), text)
}
