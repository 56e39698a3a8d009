package signal_test

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/signal"
)

// The form of a compact view, for a general encoder.
type (
	compactView struct {
		Status     signal.Status `json:"status"`
		DecisionID string        `json:"decision_id"`
		TraceID    string        `json:"trace_id"`
		Signals    []string      `json:"signals"`
		Error      *compactError `json:"error,omitzero"`
	}
	compactError struct {
		Code    string `json:"code"`
		Message string `json:"message,omitzero"`
	}
)

// FuzzCompact: the compact view has the bytes that a general encoder writes.
func FuzzCompact(f *testing.F) {
	f.Add("dec_1", "trc_1", "why", true)
	f.Add("\"\n\xff\u2028", "ü", "\\", true)
	f.Add("", "", "", false)
	f.Fuzz(func(t *testing.T, decision, trace, reason string, failed bool) {
		signals, _, err := signal.FromToolResult([]byte(`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`), signal.Lineage{Origin: here, Tool: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		r := signal.OK(signals, timing)
		want := compactView{Status: r.Status, DecisionID: decision, TraceID: trace, Signals: []string{signals[0].ID(), signals[1].ID()}}
		if failed {
			fault, err := signal.CreateError("T4_TEST_FAILED", signal.Resource, signal.Degraded, "it "+reason, here, false, nil, nil)
			if err != nil {
				return // a message that no error has
			}
			r = signal.Partial(signals, fault, timing)
			want.Status, want.Error = signal.StatusPartial, &compactError{fault.Code, fault.Message}
		}
		text, err := json.Marshal(want, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			t.Fatal(err)
		}
		if got := signal.Compact(r, decision, trace); string(got) != string(text) {
			t.Errorf(" got %s\nwant %s", got, text)
		}
	})
}
