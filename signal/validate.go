package signal

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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
	f := s.whole()
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
	tags, err := decodeTags(f.Tags)
	if err == nil {
		err = checkTags(tags)
	}
	if err != nil {
		return err
	}
	for _, rule := range bodyRules[f.Kind] {
		raw, found := jsonrpc.Get(stdjson.RawMessage(f.Body), rule.key)
		if !found && rule.opt {
			continue
		}
		if !found || !rule.ok(raw) {
			return fmt.Errorf("body of kind %s: %s must be %s", f.Kind, rule.key, rule.want)
		}
	}
	return nil
}

// bodyRule is one rule of the table "Body Conventions Per Kind" of seed 002.
type bodyRule struct {
	key, want string
	ok        func(raw stdjson.RawMessage) bool
	opt       bool // may be absent
}

var bodyRules = map[Kind][]bodyRule{
	Text:    {{"text", "a string", isString, false}},
	Data:    {{"data", "any value", isAny, false}, {"schema", "a string", isString, false}},
	File:    {{"file_id", "a string", isString, false}, {"file_type", "a string", isString, false}, {"path", "a string or null", isPath, true}},
	Command: {{"action", "a string", isString, false}, {"target", "a module reference", isTarget, false}},
	Stream:  {{"chunk", "a string", isString, false}, {"sequence", "an integer from 0", isSequence, false}, {"final", "a boolean", isBool, false}},
}

func isAny(stdjson.RawMessage) bool        { return true }
func isString(raw stdjson.RawMessage) bool { return raw[0] == '"' }
func isPath(raw stdjson.RawMessage) bool   { return string(raw) == "null" || isString(raw) }
func isBool(raw stdjson.RawMessage) bool   { return string(raw) == "true" || string(raw) == "false" }
func isTarget(raw stdjson.RawMessage) bool { return new(ModuleRef).UnmarshalJSON(raw) == nil }
func isSequence(raw stdjson.RawMessage) bool {
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

// tagRule is what a standard tag may say. A tag without a rule is free.
type tagRule struct {
	want string
	ok   func(value string) bool
}

var tagRules = map[string]tagRule{
	TagUrgency:    {"low, normal, high or critical", among("low", "normal", "high", "critical")},
	TagDomain:     {"a word", func(v string) bool { return v != "" }},
	TagComplexity: {"trivial, simple, moderate or complex", among("trivial", "simple", "moderate", "complex")},
	TagConfidence: {"a decimal from 0.0 to 1.0", ratio.MatchString},
	TagGrounding:  {"a decimal from 0.0 to 1.0", ratio.MatchString},
	TagSourceType: {"user, tool, agent or system", among("user", "tool", "agent", "system")},
}

func among(words ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(words, v) }
}

// ratio matches plain decimals only: readers in other languages disagree on
// exponents, signs and bare points.
var ratio = regexp.MustCompile(`^(0(\.[0-9]+)?|1(\.0+)?)$`)

// mergeTags returns the tags of a signal: given over the defaults of its origin.
func mergeTags(origin ModuleRef, given map[string]string) (jsontext.Value, error) {
	merged := map[string]string{TagTier: strconv.Itoa(origin.Tier), TagModule: origin.Module, TagSourceType: "system"}
	maps.Copy(merged, given)
	return encode(merged), checkTags(merged)
}

func decodeTags(raw jsontext.Value) (tags map[string]string, err error) {
	return tags, json.Unmarshal(raw, &tags, strictly)
}

func checkTags(tags map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if key == "" || !utf8.ValidString(key) {
			return fmt.Errorf("%w: key %q is empty or no UTF-8", ErrInvalidTag, key)
		}
		if rule, ok := tagRules[key]; ok && !rule.ok(tags[key]) {
			return fmt.Errorf("%w: %s %q is not %s", ErrInvalidTag, key, tags[key], rule.want)
		}
	}
	return nil
}
