package signal_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

func TestErrorCodeConvention(t *testing.T) {
	good := []string{
		"T0_VALIDATION_SCHEMA_MISMATCH", "T0_CACHE_PRESSURE_EVICTION", "T1_CLASSIFY_LOW_CONFIDENCE", "T1_CLASSIFY_TIMEOUT",
		"T2_DECOMPOSE_CYCLE_DETECTED", "T3_DAG_COMPILE_UNRESOLVED_DEPS", "T4_TOOL_EXECUTION_FAILED", "T5_BUDGET_EXHAUSTED",
		"T6_LOOP_DETECTED", "T7_SPAWN_INSUFFICIENT_RESOURCES", "T7_A1_B2", signal.CodeInternal,
	}
	for _, code := range good {
		if !signal.ValidCode(code) {
			t.Errorf("%q is refused", code)
		}
	}
	bad := []string{
		"", "T", "T0", "T0_", "T0_X", "T1_INTERNAL", "T8_A_B", "t0_A_B", "X0_A_B", "T0-A_B", "T0_a_B", "T0_A_b",
		"T0_A__B", "T0_A_B_", "T0__A_B", "T0_1A_B", "T0_A_1", "T0_A_B ", "T10_A_B", "T0_Ä_B",
	}
	for _, code := range bad {
		if signal.ValidCode(code) {
			t.Errorf("%q is taken", code)
		}
		if _, err := signal.CreateError(code, signal.Input, signal.Fatal, "m", here, false, nil, nil); !errors.Is(err, signal.ErrInvalidCode) {
			t.Errorf("CreateError(%q): %v", code, err)
		}
	}
}

// The five convenience factories: category, severity and retry of each.
func TestInputError(t *testing.T) {
	convenience(t, signal.InputError("m", here, detail), signal.KernelError{Code: "T4_GATE_INPUT", Category: signal.Input, Severity: signal.Transient})
}

func TestProcessingError(t *testing.T) {
	cause := signal.InputError("inner", there, nil)
	convenience(t, signal.ProcessingError("m", here, detail, cause),
		signal.KernelError{Code: "T4_GATE_PROCESSING", Category: signal.Processing, Severity: signal.Degraded, Cause: cause})
}

func TestExternalError(t *testing.T) {
	for _, retry := range []bool{true, false} {
		convenience(t, signal.ExternalError("m", here, retry, detail),
			signal.KernelError{Code: "T4_GATE_EXTERNAL", Category: signal.External, Severity: signal.Transient, RetryEligible: retry})
	}
}

func TestResourceError(t *testing.T) {
	convenience(t, signal.ResourceError("m", here, detail),
		signal.KernelError{Code: "T4_GATE_RESOURCE", Category: signal.Resource, Severity: signal.Transient, RetryEligible: true})
}

func TestPolicyError(t *testing.T) {
	convenience(t, signal.PolicyError("m", here, detail), signal.KernelError{Code: "T4_GATE_POLICY", Category: signal.Policy, Severity: signal.Fatal})
}

var detail = map[string]any{"k": []any{"v"}}

func convenience(t *testing.T, got *signal.KernelError, want signal.KernelError) {
	t.Helper()
	want.Message, want.Source, want.Detail = "m", here, map[string]any{"k": []any{"v"}}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

func TestTheDetailIsACopy(t *testing.T) {
	mine := map[string]any{"k": []any{"v"}}
	e := signal.InputError("m", here, mine)
	mine["k"].([]any)[0] = "changed"
	if got := e.Detail["k"].([]any)[0]; got != "v" {
		t.Errorf("the detail is the caller's: %v", got)
	}
}

func TestAModuleWithAnOddNameGetsACode(t *testing.T) {
	odd := signal.ModuleRef{Tier: 2, Module: "2nd-ooda loop", Function: "f"}
	if err := signal.InputError("m", odd, nil).Validate(); err != nil {
		t.Error(err)
	}
}

func TestCreateError(t *testing.T) {
	cause := signal.InputError("inner", there, nil)
	got := must(signal.CreateError("T4_A_B", signal.Resource, signal.Degraded, "m", here, true, detail, cause))(t)
	convenience(t, got, signal.KernelError{Code: "T4_A_B", Category: signal.Resource, Severity: signal.Degraded, RetryEligible: true, Cause: cause})
}

func TestCreateErrorRefuses(t *testing.T) {
	tests := []struct {
		name     string
		category signal.Category
		severity signal.Severity
		message  string
		source   signal.ModuleRef
		cause    *signal.KernelError
	}{
		{"an unknown category", "weather", signal.Fatal, "m", here, nil},
		{"an unknown severity", signal.Input, "bad", "m", here, nil},
		{"no message", signal.Input, signal.Fatal, "", here, nil},
		{"no source", signal.Input, signal.Fatal, "m", signal.ModuleRef{}, nil},
		{"a malformed cause", signal.Input, signal.Fatal, "m", here, &signal.KernelError{Code: "T0_A_B"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := signal.CreateError("T0_A_B", tt.category, tt.severity, tt.message, tt.source, false, nil, tt.cause)
			if !errors.Is(err, signal.ErrInvalidError) || e != nil {
				t.Errorf("got %v, %v", e, err)
			}
		})
	}
}

// wrap_error: the cause is kept, category and severity are inherited, and what
// the outer tier cannot wait out becomes FATAL.
func TestWrapError(t *testing.T) {
	tests := []struct {
		name     string
		severity signal.Severity
		retry    bool
		want     signal.Severity
	}{
		{"transient that may be retried stays", signal.Transient, true, signal.Transient},
		{"transient that may not becomes fatal", signal.Transient, false, signal.Fatal},
		{"degraded stays", signal.Degraded, false, signal.Degraded},
		{"fatal stays", signal.Fatal, false, signal.Fatal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inner := must(signal.CreateError("T1_CLASSIFY_TIMEOUT", signal.External, tt.severity, "timed out", there, tt.retry, nil, nil))(t)
			outer := must(signal.WrapError("T4_OODA_STUCK", inner, here, ""))(t)
			if outer.Severity != tt.want || outer.RetryEligible != tt.retry || outer.Category != signal.External || outer.Cause != inner {
				t.Errorf("got %+v", outer)
			}
			if outer.Message != "gate.call: timed out" {
				t.Errorf("message %q", outer.Message)
			}
			if !errors.Is(outer, &signal.KernelError{Code: "T1_CLASSIFY_TIMEOUT"}) || errors.Is(outer, &signal.KernelError{Code: "T1_CLASSIFY_OTHER"}) {
				t.Error("errors.Is does not find the cause, or finds too much")
			}
		})
	}
	inner := signal.PolicyError("no", there, nil)
	if outer := must(signal.WrapError("T4_A_B", inner, here, "while planning"))(t); outer.Message != "while planning" {
		t.Errorf("message %q", outer.Message)
	}
	if _, err := signal.WrapError("A_B", inner, here, "m"); !errors.Is(err, signal.ErrInvalidCode) {
		t.Errorf("a malformed code: %v", err)
	}
	if _, err := signal.WrapError("T4_A_B", nil, here, "m"); !errors.Is(err, signal.ErrInvalidError) {
		t.Errorf("wrapping nothing: %v", err)
	}
	if errors.Unwrap(signal.InputError("m", here, nil)) != nil {
		t.Error("an error without a cause unwraps to something")
	}
}

// Table "Error Code Convention": category and severity of each row.
func TestErrorCodes(t *testing.T) {
	rows := []struct {
		code     string
		category signal.Category
		severity signal.Severity
	}{
		{"T0_VALIDATION_SCHEMA_MISMATCH", signal.Input, signal.Transient},
		{"T0_CACHE_PRESSURE_EVICTION", signal.Resource, signal.Degraded},
		{"T1_CLASSIFY_LOW_CONFIDENCE", signal.Processing, signal.Degraded},
		{"T1_CLASSIFY_TIMEOUT", signal.External, signal.Transient},
		{"T2_DECOMPOSE_CYCLE_DETECTED", signal.Processing, signal.Fatal},
		{"T3_DAG_COMPILE_UNRESOLVED_DEPS", signal.Processing, signal.Fatal},
		{"T4_TOOL_EXECUTION_FAILED", signal.External, signal.Transient},
		{"T4_TOOL_TIMEOUT", signal.External, signal.Transient},
		{"T5_BUDGET_EXHAUSTED", signal.Resource, signal.Fatal},
		{"T5_IDENTITY_VIOLATION", signal.Policy, signal.Fatal},
		{"T6_HALLUCINATION_DETECTED", signal.Processing, signal.Degraded},
		{"T6_OVERCONFIDENCE_DETECTED", signal.Processing, signal.Degraded},
		{"T6_LOOP_DETECTED", signal.Processing, signal.Degraded},
		{"T7_SPAWN_INSUFFICIENT_RESOURCES", signal.Resource, signal.Transient},
	}
	for _, row := range rows {
		e, err := signal.ErrorFor(row.code, "m", here, nil, nil)
		if err != nil {
			t.Error(err)
		} else if e.Code != row.code || e.Category != row.category || e.Severity != row.severity {
			t.Errorf("%s: got %s %s", row.code, e.Category, e.Severity)
		}
	}
	if _, err := signal.ErrorFor("T4_SOMETHING_ELSE", "m", here, nil, nil); !errors.Is(err, signal.ErrInvalidCode) {
		t.Errorf("an unknown code: %v", err)
	}
	if e := must(signal.ErrorFor(signal.CodeRateLimited, "slow down", here, nil, nil))(t); !e.RetryEligible {
		t.Errorf("a rate limit is to be retried: %+v", e)
	}
}

func TestARingOfCausesHasAnEnd(t *testing.T) {
	ring := signal.InputError("m", here, nil)
	ring.Cause = ring
	if err := ring.Validate(); !errors.Is(err, signal.ErrInvalidError) {
		t.Errorf("got %v", err)
	}
	if raw := must(ring.MarshalJSON())(t); !json.Valid(raw) {
		t.Error("no JSON")
	}
}

func TestADetailJSONCannotHold(t *testing.T) {
	e := signal.InputError("m", here, map[string]any{"c": make(chan int)})
	raw, _ := member(t, e, "detail")
	if !strings.HasPrefix(raw, `{"unencodable":"`) {
		t.Errorf("detail %s", raw)
	}
}

func TestKernelErrorRoundTrip(t *testing.T) {
	inner := must(signal.ErrorFor(signal.CodeToolTimeout, "too slow", there, map[string]any{"ms": json.Number("12345678901234567890")}, nil))(t)
	outer := must(signal.WrapError(signal.CodeToolFailed, inner, here, ""))(t)
	var back signal.KernelError
	if err := json.Unmarshal(must(json.Marshal(outer))(t), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outer, &back); diff != "" {
		t.Error(diff)
	}
}
