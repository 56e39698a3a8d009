package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

var validator = ModuleRef{Tier: 0, Module: "validation", Function: "validate"}

// ValidateSignal checks a Signal and whether its body keeps the conventions of
// its kind. The error, if any, is a *KernelError of category INPUT and code
// CodeSchemaMismatch (seed 002, validate_signal).
func ValidateSignal(s Signal) error {
	return asError(mismatch(s.check(), "validate_signal"))
}

// ValidateResult checks that status, signals and error agree: OK has no error,
// PARTIAL has signals and error, ERROR has an error, SKIP has no signals; only
// SKIP has a reason. It checks every signal too. The error, if any, is a
// *KernelError of category INPUT and code CodeSchemaMismatch.
func ValidateResult(r Result) error {
	return asError(mismatch(r.check(), "validate_result"))
}

// asError gives an untyped nil for no fault: a nil *KernelError in an error
// would not be nil.
func asError(fault *KernelError) error {
	if fault == nil {
		return nil
	}
	return fault
}

// mismatch says what is wrong with a value, as data; nil for no fault.
func mismatch(fault error, function string) *KernelError {
	if fault == nil {
		return nil
	}
	source := validator
	source.Function = function
	return &KernelError{
		Code: CodeSchemaMismatch, Category: Input, Severity: Transient,
		Message: fault.Error(), Source: source,
	}
}

func (s Signal) check() error {
	f := &s.form
	switch {
	case !validID(f.ID, "sig_"):
		return fmt.Errorf("id %q is not sig_ and a ULID", f.ID)
	case !f.Kind.Valid():
		return fmt.Errorf("%w: %q", ErrInvalidKind, string(f.Kind))
	case f.TraceID == "":
		return errors.New("no trace_id")
	case f.CreatedAt.IsZero() || f.CreatedAt.Year() < 1 || f.CreatedAt.Year() > 9999:
		return errors.New("created_at is not a time of years 1 to 9999")
	}
	if err := f.Origin.Validate(); err != nil {
		return err
	}
	if err := f.Tags.check(); err != nil {
		return err
	}
	return f.Body.check(f.Kind)
}

// bodyRule is one rule of the table "Body Conventions Per Kind" of seed 002.
type bodyRule struct {
	key  string
	want string
	ok   func(raw json.RawMessage) bool
	opt  bool // may be absent
}

var bodyRules = map[Kind][]bodyRule{
	Text:    {{"text", "a string", isString, false}},
	Data:    {{"data", "any value", isAny, false}, {"schema", "a string", isString, false}},
	File:    {{"file_id", "a string", isString, false}, {"file_type", "a string", isString, false}, {"path", "a string or null", isPath, true}},
	Command: {{"action", "a string", isString, false}, {"target", "a module reference", isTarget, false}},
	Stream:  {{"chunk", "a string", isString, false}, {"sequence", "an integer from 0", isSequence, false}, {"final", "a boolean", isBool, false}},
}

func (b body) check(kind Kind) error {
	for _, c := range bodyRules[kind] {
		raw, found := b.member(c.key)
		if !found && c.opt {
			continue
		}
		if !found || !c.ok(raw) {
			return fmt.Errorf("body of kind %s: %s must be %s", kind, c.key, c.want)
		}
	}
	return nil
}

func isAny(json.RawMessage) bool        { return true }
func isString(raw json.RawMessage) bool { return raw[0] == '"' }
func isPath(raw json.RawMessage) bool   { return string(raw) == "null" || isString(raw) }
func isBool(raw json.RawMessage) bool   { return string(raw) == "true" || string(raw) == "false" }
func isTarget(raw json.RawMessage) bool { return new(ModuleRef).UnmarshalJSON(raw) == nil }
func isSequence(raw json.RawMessage) bool {
	_, err := strconv.ParseUint(string(raw), 10, 63)
	return err == nil
}

func (r Result) check() error {
	if err := r.consistent(); err != nil {
		return err
	}
	if d := r.Metrics.DurationMS; d < 0 || math.IsNaN(d) || math.IsInf(d, 0) || r.Metrics.TokenCount < 0 {
		return errors.New("metrics: negative or not a number")
	}
	if err := r.Metrics.ModuleRef.Validate(); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	if r.Error != nil {
		if err := r.Error.Validate(); err != nil {
			return err
		}
	}
	for i := range r.Signals {
		if err := r.Signals[i].check(); err != nil {
			return fmt.Errorf("signal %d: %w", i, err)
		}
	}
	return nil
}

func (r Result) consistent() error {
	signals, failed := len(r.Signals) > 0, r.Error != nil
	switch {
	case !r.Status.Valid():
		return fmt.Errorf("status %q is unknown", string(r.Status))
	case r.Status == StatusOK && failed:
		return errors.New("status ok has an error")
	case r.Status == StatusPartial && !(signals && failed):
		return errors.New("status partial lacks signals or an error")
	case r.Status == StatusError && !failed:
		return errors.New("status error has no error")
	case r.Status == StatusSkip && (signals || failed):
		return errors.New("status skip has signals or an error")
	case r.Status != StatusSkip && r.Reason != "":
		return fmt.Errorf("status %s has a reason to skip", r.Status)
	}
	return nil
}
