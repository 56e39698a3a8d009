package signal

import "slices"

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
