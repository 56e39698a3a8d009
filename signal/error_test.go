package signal_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

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

func TestConvenienceErrors(t *testing.T) {
	detail := map[string]any{"k": []any{"v"}}
	cause := signal.InputError("inner", there, nil)
	tests := []struct {
		got  *signal.KernelError
		want signal.KernelError
	}{
		{signal.InputError("m", here, detail), signal.KernelError{Code: "T4_GATE_INPUT", Category: signal.Input, Severity: signal.Transient}},
		{signal.ProcessingError("m", here, detail, cause), signal.KernelError{Code: "T4_GATE_PROCESSING", Category: signal.Processing, Severity: signal.Degraded, Cause: cause}},
		{signal.ExternalError("m", here, true, detail), signal.KernelError{Code: "T4_GATE_EXTERNAL", Category: signal.External, Severity: signal.Transient, RetryEligible: true}},
		{signal.ResourceError("m", here, detail), signal.KernelError{Code: "T4_GATE_RESOURCE", Category: signal.Resource, Severity: signal.Transient, RetryEligible: true}},
		{signal.PolicyError("m", here, detail), signal.KernelError{Code: "T4_GATE_POLICY", Category: signal.Policy, Severity: signal.Fatal}},
	}
	for _, tt := range tests {
		tt.want.Message, tt.want.Source, tt.want.Detail = "m", here, map[string]any{"k": []any{"v"}}
		if diff := cmp.Diff(&tt.want, tt.got); diff != "" {
			t.Error(diff)
		}
		if err := tt.got.Validate(); err != nil {
			t.Error(err)
		}
	}
	detail["k"].([]any)[0] = "changed"
	if got := tests[0].got.Detail["k"].([]any)[0]; got != "v" {
		t.Errorf("the detail is the caller's: %v", got)
	}
	odd := signal.ModuleRef{Tier: 2, Module: "2nd-ooda loop", Function: "f"}
	if err := signal.InputError("m", odd, nil).Validate(); err != nil {
		t.Errorf("a module with an odd name: %v", err)
	}
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

func TestWrapErrorPromotes(t *testing.T) {
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
	if _, err := signal.WrapError("T4_A_B", nil, here, "m"); !errors.Is(err, signal.ErrInvalidError) {
		t.Errorf("wrapping nothing: %v", err)
	}
	if errors.Unwrap(signal.InputError("m", here, nil)) != nil {
		t.Error("an error without a cause unwraps to something")
	}
}

func TestErrorFor(t *testing.T) {
	e := must(signal.ErrorFor(signal.CodeRateLimited, "slow down", here, nil, nil))(t)
	if e.Category != signal.Resource || e.Severity != signal.Transient || !e.RetryEligible {
		t.Errorf("got %+v", e)
	}
	if _, err := signal.ErrorFor("T4_SOMETHING_ELSE", "m", here, nil, nil); !errors.Is(err, signal.ErrInvalidCode) {
		t.Errorf("an unknown code: %v", err)
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

func TestBridgesMapByCategory(t *testing.T) {
	tests := []struct {
		category signal.Category
		rpc      int
		http     int
	}{
		{signal.Input, -32602, 400}, {signal.Processing, -32603, 500}, {signal.External, -32003, 502},
		{signal.Resource, -32603, 429}, {signal.Policy, -32600, 403}, {"unknown", -32603, 500},
	}
	for _, tt := range tests {
		t.Run(string(tt.category), func(t *testing.T) {
			e := &signal.KernelError{Code: "T4_A_B", Category: tt.category, Severity: signal.Transient, Message: "m", Source: here, Detail: map[string]any{"k": 1}}
			rpc := signal.ErrorToJSONRPC(e)
			if diff := cmp.Diff(signal.JSONRPCError{Code: tt.rpc, Message: "m", Data: json.RawMessage(`{"k":1}`)}, rpc); diff != "" {
				t.Error(diff)
			}
			p := signal.ErrorToProblemDetails(e, 1200*time.Millisecond)
			want := signal.ProblemDetails{Type: "urn:toolgate:error:T4_A_B", Title: string(tt.category), Status: tt.http, Detail: "m",
				Extensions: signal.ProblemExtensions{Error: e}, RetryAfter: 2}
			if diff := cmp.Diff(want, p); diff != "" {
				t.Error(diff)
			}
			e.Severity = signal.Fatal
			if p := signal.ErrorToProblemDetails(e, time.Second); p.RetryAfter != -1 {
				t.Errorf("fatal: retry after %d", p.RetryAfter)
			}
			e.Severity = signal.Degraded
			if p := signal.ErrorToProblemDetails(e, time.Second); p.RetryAfter != 0 {
				t.Errorf("degraded: retry after %d", p.RetryAfter)
			}
		})
	}
}

func TestSignalToToolCall(t *testing.T) {
	tests := []struct {
		name string
		kind signal.Kind
		body map[string]any
		want *signal.ToolCall
	}{
		{"a call", signal.Data, map[string]any{"tool": "t", "args": json.RawMessage(`{"b":1e2,"a":12345678901234567890}`)},
			&signal.ToolCall{Name: "t", Arguments: json.RawMessage(`{"b":1e2,"a":12345678901234567890}`)}},
		{"text", signal.Text, map[string]any{"tool": "t", "args": map[string]any{}}, nil},
		{"no tool", signal.Data, map[string]any{"args": map[string]any{}}, nil},
		{"a tool that is no string", signal.Data, map[string]any{"tool": 1, "args": map[string]any{}}, nil},
		{"no args", signal.Data, map[string]any{"tool": "t"}, nil},
		{"args that are no object", signal.Data, map[string]any{"tool": "t", "args": []int{1}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := must(signal.Create(tt.kind, tt.body, here, "trc_1", nil, ""))(t)
			got, err := signal.SignalToToolCall(s)
			if tt.want == nil {
				judge(t, err, false)
				return
			}
			if diff := cmp.Diff(*tt.want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}
