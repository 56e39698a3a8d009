package signal_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/signal"
)

// categories has the numbers of both mappings.
var categories = []struct {
	category signal.Category
	rpc      int
	http     int
}{
	{signal.Input, -32602, 400}, {signal.Processing, -32603, 500}, {signal.External, -32003, 502},
	{signal.Resource, -32603, 429}, {signal.Policy, -32600, 403}, {"unknown", -32603, 500},
}

func TestErrorToJSONRPCError(t *testing.T) {
	for _, tt := range categories {
		t.Run(string(tt.category), func(t *testing.T) {
			e := &signal.KernelError{Code: "T4_A_B", Category: tt.category, Severity: signal.Transient, Message: "m", Source: here, Detail: map[string]any{"k": 1}}
			want := signal.JSONRPCError{Code: tt.rpc, Message: "m", Data: json.RawMessage(`{"k":1}`)}
			if diff := cmp.Diff(want, signal.ErrorToJSONRPC(e)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// error_to_problem_details: the status is the category's, retry-after the
// severity's, and the extensions have the error with its causes.
func TestErrorToProblemDetails(t *testing.T) {
	waits := []struct {
		severity signal.Severity
		delay    time.Duration
		want     int
	}{
		{signal.Transient, 1200 * time.Millisecond, 2}, {signal.Transient, 2 * time.Second, 2}, {signal.Transient, 0, 0}, {signal.Transient, -time.Second, 0},
		{signal.Fatal, 2 * time.Second, -1}, {signal.Fatal, 0, -1}, {signal.Degraded, 2 * time.Second, 0},
	}
	inner := signal.InputError("inner", there, nil)
	for _, tt := range categories {
		for _, wait := range waits {
			e := &signal.KernelError{Code: "T4_A_B", Category: tt.category, Severity: wait.severity, Message: "m", Source: here, Cause: inner}
			want := signal.ProblemDetails{
				Type: "urn:toolgate:error:T4_A_B", Title: string(tt.category), Status: tt.http, Detail: "m",
				Extensions: signal.ProblemExtensions{Error: e}, RetryAfter: wait.want,
			}
			if diff := cmp.Diff(want, signal.ErrorToProblemDetails(e, wait.delay)); diff != "" {
				t.Errorf("%s, %s, %v: %s", tt.category, wait.severity, wait.delay, diff)
			}
		}
	}
}

func TestProblemDetailsJSON(t *testing.T) {
	inner := must(signal.ErrorFor(signal.KernelClassifyTimeout, "slow <b>", there, map[string]any{"n": json.Number("1e2")}, nil))(t)
	outer := must(signal.WrapError("T4_OODA_STUCK", inner, here, ""))(t)
	p := signal.ErrorToProblemDetails(outer, 3*time.Second)
	want := `{"type":"urn:toolgate:error:T4_OODA_STUCK","title":"external","status":502,"detail":"gate.call: slow <b>","extensions":{"error":` +
		`{"code":"T4_OODA_STUCK","category":"external","severity":"transient","message":"gate.call: slow <b>",` +
		`"source":{"tier":4,"module":"gate","function":"call"},"retry_eligible":true,"detail":{},"cause":` +
		`{"code":"T1_CLASSIFY_TIMEOUT","category":"external","severity":"transient","message":"slow <b>",` +
		`"source":{"tier":1,"module":"classification","function":"classify"},"retry_eligible":true,"detail":{"n":1e2},"cause":null}}},"retry_after":3}`
	raw := must(p.MarshalJSON())(t)
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Error(diff)
	}
	var back signal.ProblemDetails
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, back); diff != "" {
		t.Error(diff)
	}
}

// result_to_http_response: one of the two envelopes, never both.
func TestResultToHTTPResponse(t *testing.T) {
	signals := some(t)
	late := signal.ExternalError("late", here, true, nil)
	bad := must(signal.Create(signal.Text, nil, here, "trc_1", nil, ""))(t)
	tests := []struct {
		name    string
		result  signal.Result
		success *signal.SuccessResponse
		problem *signal.ProblemDetails
	}{
		{name: "ok", result: signal.OK(signals, timing), success: &signal.SuccessResponse{Status: "ok", Data: signals, Metrics: timing}},
		{name: "ok without signals", result: signal.OK(nil, timing), success: &signal.SuccessResponse{Status: "ok", Metrics: timing}},
		{name: "partial: the signals, and the error beside them", result: signal.Partial(signals, fault, timing),
			success: &signal.SuccessResponse{Status: "partial", Data: signals, Error: fault, Metrics: timing}},
		{name: "skip: the reason, no signals", result: signal.Skip("apr_1", timing),
			success: &signal.SuccessResponse{Status: "skip", Reason: "apr_1", Metrics: timing}},
		{name: "error: fatal", result: signal.Fail(fault, timing), problem: &signal.ProblemDetails{Type: "urn:toolgate:error:T4_GATE_POLICY",
			Title: "policy", Status: 403, Detail: "no", Extensions: signal.ProblemExtensions{Error: fault}, RetryAfter: -1}},
		{name: "error: transient", result: signal.Fail(late, timing), problem: &signal.ProblemDetails{Type: "urn:toolgate:error:T4_GATE_EXTERNAL",
			Title: "external", Status: 502, Detail: "late", Extensions: signal.ProblemExtensions{Error: late}, RetryAfter: 5}},
		{name: "error: its signals are not given", result: signal.Result{Status: "error", Signals: signals, Error: fault, Metrics: timing},
			problem: &signal.ProblemDetails{Type: "urn:toolgate:error:T4_GATE_POLICY", Title: "policy", Status: 403, Detail: "no",
				Extensions: signal.ProblemExtensions{Error: fault}, RetryAfter: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			success, problem := signal.ResultToHTTPResponse(tt.result, 5*time.Second)
			if diff := cmp.Diff(tt.problem, problem); diff != "" {
				t.Error(diff)
			}
			if tt.success == nil {
				tt.success = &signal.SuccessResponse{}
			}
			if diff := cmp.Diff(*tt.success, success); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, r := range []signal.Result{{}, {Status: "error", Metrics: timing}, signal.OK([]signal.Signal{bad}, timing), signal.Partial(nil, fault, timing)} {
		success, problem := signal.ResultToHTTPResponse(r, time.Second)
		if problem == nil || problem.Status != 500 || problem.Extensions.Error.Code != signal.CodeInternal || success.Status != "" {
			t.Errorf("an invalid result, %+v: got %+v, %+v", r, success, problem)
		} else if err := problem.Extensions.Error.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestSuccessResponseJSON(t *testing.T) {
	signals := some(t)
	one := string(must(signals[0].MarshalJSON())(t))
	failed := string(must(fault.MarshalJSON())(t))
	const metrics = `"metrics":{"duration_ms":1.5,"token_count":7,"cache_hit":true,"module_ref":{"tier":4,"module":"gate","function":"call"}}`
	tests := []struct {
		result signal.Result
		want   string
	}{
		{signal.OK(signals, timing), `{"status":"ok","data":[` + one + `],` + metrics + `}`},
		{signal.Partial(signals, fault, timing), `{"status":"partial","data":[` + one + `],"error":` + failed + `,` + metrics + `}`},
		{signal.Skip("apr_1", timing), `{"status":"skip","data":[],` + metrics + `,"reason":"apr_1"}`},
	}
	for _, tt := range tests {
		t.Run(string(tt.result.Status), func(t *testing.T) {
			s, _ := signal.ResultToHTTPResponse(tt.result, 0)
			raw := must(s.MarshalJSON())(t)
			if diff := cmp.Diff(tt.want, string(raw)); diff != "" {
				t.Error(diff)
			}
			var back signal.SuccessResponse
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s, back, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSignalToNotification(t *testing.T) {
	s := some(t)[0]
	n := signal.SignalToNotification(s)
	raw := must(n.MarshalJSON())(t)
	want := `{"jsonrpc":"2.0","method":"notifications/signal","params":{"signal":` + string(must(s.MarshalJSON())(t)) + `}}`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Error(diff)
	}
	var back signal.JSONRPCNotification
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n, back); diff != "" {
		t.Error(diff)
	}
	var params struct{ Signal signal.Signal }
	if err := json.Unmarshal(back.Params, &params); err != nil || !params.Signal.Equal(s) {
		t.Errorf("%v in %s", err, back.Params)
	}
}

func TestNotificationThatIsNoneIsNotWritten(t *testing.T) {
	for _, n := range []signal.JSONRPCNotification{{}, {Method: "m", Params: json.RawMessage(`[]`)}, {Method: "m", Params: json.RawMessage(`{`)}} {
		if raw, err := n.MarshalJSON(); !errors.Is(err, signal.ErrInvalidNotification) || raw != nil {
			t.Errorf("%+v: got %s, %v", n, raw, err)
		}
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
