package wire_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// TestProblem: one failure of each row as problem details. Status is the HTTP
// column; type, title and retry hint are as seed 002 maps them; the facts are
// those of error.data.
func TestProblem(t *testing.T) {
	for _, r := range wire.Rows() {
		t.Run(string(r.Code), func(t *testing.T) {
			f := failure(t, r)
			reply, err := wire.Problem(f)
			if err != nil {
				t.Fatal(err)
			}
			got := members(t, reply.Body)
			want := factsOf(t, r, f)
			want["type"], want["title"] = "urn:toolgate:error:"+r.Kernel, string(r.Category)
			want["status"], want["detail"] = float64(r.HTTP), r.Message+said
			if r.Code == wire.InternalError {
				want["detail"] = r.Message
			}
			retry := map[signal.Severity]int{signal.Fatal: -1, signal.Transient: 2}[r.Severity]
			if retry != 0 {
				want["retry_after"] = float64(retry)
			}
			var back signal.ProblemDetails
			if err := json.Unmarshal(reply.Body, &back); err != nil {
				t.Fatalf("not the problem details of seed 002: %v", err)
			}
			caused := r.Code != wire.InternalError
			if e := back.Extensions.Error; e.Code != r.Kernel || e.Message != want["detail"] || (e.Cause != nil) != caused || back.RetryAfter != retry {
				t.Errorf("extensions %+v, retry after %d", e, back.RetryAfter)
			}
			delete(got, "extensions")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if reply.Status != r.HTTP || reply.RetryAfter != retry {
				t.Errorf("status %d, retry after %d; want %d, %d", reply.Status, reply.RetryAfter, r.HTTP, retry)
			}
		})
	}
}

// factsOf is error.data of f in dialect gateway, with detail under the name
// that problem details leave for it.
func factsOf(t *testing.T, r wire.Row, f wire.Failure) map[string]any {
	t.Helper()
	if r.Form == wire.AsNothing { // no dialect answers it
		return map[string]any{
			"code": string(r.Code), "kernel_code": r.Kernel, "category": string(r.Category), "severity": string(r.Severity),
			"retry_eligible": f.Kernel.RetryEligible, "retry_after_ms": 1501.0, "reason": f.Reason, "remedy": f.Remedy,
			"decision_id": f.DecisionID, "trace_id": f.TraceID, "details": map[string]any{"n": 100.0},
		}
	}
	reply, err := wire.Answer(wire.Gateway, f)
	if err != nil {
		t.Fatal(err)
	}
	data, _ := jsonrpc.Get(reply.Error, "data")
	facts := members(t, data)
	facts["details"] = facts["detail"]
	delete(facts, "detail")
	return facts
}

func members(t *testing.T, raw json.RawMessage) map[string]any {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return got
}

func TestProblemRefuses(t *testing.T) {
	for _, kernel := range []*signal.KernelError{nil, {Code: "T9_NEW"}, {Code: ""}, {Code: "INTERNAL_ERROR"}} {
		if reply, err := wire.Problem(wire.Failure{Kernel: kernel}); !errors.Is(err, wire.ErrUnknownCode) || reply.Body != nil || reply.Status != 0 {
			t.Errorf("%v: %+v, %v", kernel, reply, err)
		}
	}
}

// TestProblemHidesCauses: of an INTERNAL_ERROR there are the ids and no more.
func TestProblemHidesCauses(t *testing.T) {
	f := wire.Failure{
		Kernel: &signal.KernelError{Code: signal.CodeInternal, Message: "SECRET", Detail: map[string]any{"a": "SECRET"}, Category: "SECRET", Severity: "SECRET"},
		Reason: "SECRET", Remedy: "SECRET", Upstream: json.RawMessage(`{"m":"SECRET"}`), DecisionID: "dec_1", TraceID: "trc_1", RetryAfter: time.Second,
	}
	got, errGot := wire.Problem(f)
	want, errWant := wire.Problem(wire.Failure{Kernel: &signal.KernelError{Code: signal.CodeInternal}, DecisionID: "dec_1", TraceID: "trc_1"})
	if diff := cmp.Diff(want, got); diff != "" || errGot != nil || errWant != nil {
		t.Errorf("%v %v %s", errGot, errWant, diff)
	}
	hidden := &signal.KernelError{Code: signal.CodeInternal, Category: signal.Processing, Severity: signal.Fatal, Message: "SECRET", Source: gate}
	told := signal.ProcessingError("the store is busy", gate, nil, hidden)
	f = wire.Failure{Kernel: &signal.KernelError{Code: signal.CodeAuditUnavailable, Message: "m", Category: signal.Processing, Severity: signal.Transient, Cause: told}}
	got, err := wire.Problem(f)
	if err != nil || strings.Contains(string(got.Body), "SECRET") || !strings.Contains(string(got.Body), "the store is busy") {
		t.Errorf("%v: %s", err, got.Body)
	}
}

// TestErrorDataIsTheSchema: error.data of every row in every dialect is as
// docs/schemas/error-data.json says, and the document knows exactly the table's
// codes.
func TestErrorDataIsTheSchema(t *testing.T) {
	raw := document(t, "error-data.json")
	s, err := schema.Compile(raw)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Properties struct{ Code struct{ Enum []wire.Code } }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	var codes []wire.Code
	for _, r := range wire.Rows() {
		codes = append(codes, r.Code)
		full := failure(t, r)
		bare := wire.Failure{Kernel: &signal.KernelError{Code: r.Kernel}}
		for _, d := range dialects {
			for _, f := range []wire.Failure{full, bare} {
				conformsTo(t, s, d, f)
			}
		}
	}
	if diff := cmp.Diff(codes, doc.Properties.Code.Enum); diff != "" {
		t.Errorf("codes (-table +document):\n%s", diff)
	}
}

func conformsTo(t *testing.T, s *schema.Schema, d wire.Dialect, f wire.Failure) {
	t.Helper()
	reply, err := wire.Answer(d, f)
	if err != nil {
		t.Fatal(err)
	}
	data, ok := jsonrpc.Get(reply.Error, "data")
	if reply.Result != nil {
		meta, _ := jsonrpc.Get(reply.Result, "_meta")
		data, ok = jsonrpc.Get(meta, wire.MetaError)
	}
	passedOn := string(reply.Error) == string(f.Upstream)
	if reply.Silent || passedOn {
		return
	}
	faults, err := s.Validate(data)
	if !ok || err != nil || len(faults) > 0 {
		t.Errorf("%s %s: %s: %v %v", d, f.Kernel.Code, data, faults, err)
	}
}
