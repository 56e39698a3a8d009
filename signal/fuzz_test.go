package signal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/signal"
)

// What is read is written back and read again to the same; what is refused
// leaves nothing behind.
func FuzzSignalJSON(f *testing.F) {
	f.Add([]byte(goodSignal))
	f.Add([]byte(`{"id":"sig_01JD4V0Z5N9Q8C7B6A5X4W3V2T","kind":"stream","body":{"chunk":"x","sequence":0,"final":false}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s, back signal.Signal
		if err := s.UnmarshalJSON(data); err != nil {
			if s.ID() != "" {
				t.Fatal("a signal beside the error")
			}
			return
		}
		keepsSchema(t, "signal", roundTrip(t, s, &back))
		keepsSchema(t, "notification", must(signal.SignalToNotification(s).MarshalJSON())(t))
		if err := signal.ValidateSignal(s); err != nil {
			t.Fatal(err)
		}
		if s.Body() == nil {
			t.Fatal("no body")
		}
	})
}

func FuzzResultJSON(f *testing.F) {
	f.Add([]byte(`{"status":"ok","signals":[` + goodSignal + `],"error":null,"metrics":{"duration_ms":1.5e-7,"token_count":0,"cache_hit":false,"module_ref":{"tier":0,"module":"m","function":"f"}}}`))
	f.Add([]byte(signal.Full(signal.Fail(signal.InputError("m", here, map[string]any{"a": 1}), timing))))
	f.Add([]byte(signal.Full(signal.Skip("apr_1", timing))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, back signal.Result
		if err := r.UnmarshalJSON(data); err != nil {
			if r.Status != "" {
				t.Fatal("a result beside the error")
			}
			return
		}
		keepsSchema(t, "result", roundTrip(t, r, &back))
		keepsSchema(t, "result-view", signal.Compact(r, "dec_1", "trc_1"))
		if success, problem := signal.ResultToHTTPResponse(r, time.Second); problem == nil {
			keepsSchema(t, "success-response", must(success.MarshalJSON())(t))
		} else {
			keepsSchema(t, "problem-details", must(problem.MarshalJSON())(t))
		}
		if err := signal.ValidateResult(r); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzKernelErrorJSON(f *testing.F) {
	f.Add([]byte(okError))
	f.Add([]byte(strings.Replace(okError, `"cause":null`, `"cause":`+okError, 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var e, back signal.KernelError
		if err := e.UnmarshalJSON(data); err != nil {
			if e.Code != "" {
				t.Fatal("an error beside the error")
			}
			return
		}
		keepsSchema(t, "kernel-error", roundTrip(t, &e, &back))
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzJobRequestJSON(f *testing.F) {
	f.Add([]byte(goodJob))
	f.Add([]byte(`{"tool":"t","args":{"\u0061":[1,"x"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, back signal.JobRequest
		if err := r.UnmarshalJSON(data); err != nil {
			if r.Query != "" || r.Tool != "" || r.Args != nil {
				t.Fatal("a request beside the error")
			}
			return
		}
		keepsSchema(t, "job-request", roundTrip(t, r, &back))
		s := must(signal.HTTPRequestToSignal(r, "trc_1"))(t)
		if err := signal.ValidateSignal(s); err != nil || s.Body()["text"] != r.Query {
			t.Fatalf("%v: %v of %+v", err, s.Body(), r)
		}
		if r.Tool == "" {
			return
		}
		child := must(signal.ToolCallSignal(r, s))(t)
		roundTrip(t, child, new(signal.Signal))
		call := must(signal.SignalToToolCall(child))(t)
		if call.Name != r.Tool || r.Args != nil && !bytes.Equal(call.Arguments, r.Args) {
			t.Fatalf("%+v became %+v", r, call)
		}
	})
}

// keepsSchema holds what was written to its document. What would take the
// validator too much work is not decided.
func keepsSchema(t *testing.T, name string, raw []byte) {
	t.Helper()
	got, err := must(compiled())(t)[name].Validate(raw)
	if err == nil && got != nil {
		t.Fatalf("%s: %v in %s", name, got, raw)
	}
}

// roundTrip gives what it wrote.
func roundTrip(t *testing.T, v json.Marshaler, into json.Unmarshaler) []byte {
	t.Helper()
	first, err := v.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := into.UnmarshalJSON(first); err != nil {
		t.Fatalf("refuses what it wrote: %v in %s", err, first)
	}
	second, err := into.(json.Marshaler).MarshalJSON()
	if err != nil || !bytes.Equal(first, second) {
		t.Fatalf("changed, %v\n%s\n%s", err, first, second)
	}
	if bytes.ContainsAny(first, "\r\n") {
		t.Fatalf("on several lines: %s", first)
	}
	return first
}

// inlineFiles holds InlineFile to the signals: the bytes are there for each
// FILE that has a size and for nothing else.
func inlineFiles(t *testing.T, result []byte, signals []signal.Signal, refs []string) {
	t.Helper()
	for i, s := range signals {
		body := s.Body()
		data, media, ok := signal.InlineFile(result, refs[i])
		if _, sized := body["size"]; ok != (s.Kind() == signal.File && sized) {
			t.Fatalf("bytes %v for %v", ok, body)
		}
		if ok && (body["file_id"] != fmt.Sprintf("sha256:%x", sha256.Sum256(data)) || body["file_type"] != media || fmt.Sprint(body["size"]) != fmt.Sprint(len(data))) {
			t.Fatalf("%d bytes of %s for %v", len(data), media, body)
		}
	}
}

// Any tool result gives valid signals, with a compact view that points into it, on
// one line, or is refused with nothing. What encoding/json refuses is refused.
func FuzzFromToolResult(f *testing.F) {
	for _, tt := range toolResults {
		f.Add([]byte(tt.result))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		signals, refs, err := signal.FromToolResult(data, signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1"})
		if err != nil {
			if signals != nil || refs != nil {
				t.Fatal("signals beside the error")
			}
			return
		}
		if !json.Valid(data) {
			t.Fatal("took what is not JSON")
		}
		r, back := signal.OK(signals, timing), signal.Result{}
		if err := signal.ValidateResult(r); err != nil {
			t.Fatal(err)
		}
		roundTrip(t, r, &back)
		inlineFiles(t, data, signals, refs)
		view := signal.Compact(r, "dec_1", "trc_1")
		keepsSchema(t, "result-view", view)
		pointsInto(t, r, refs, data)
		if bytes.ContainsAny(signal.Full(r), "\r\n") {
			t.Fatalf("on several lines: %s", signal.Full(r))
		}
	})
}
