package signal_test

import (
	"math"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/signal"
)

// The form of a compact view, for a general encoder.
type (
	compactView struct {
		Status  signal.Status       `json:"status"`
		Signals []compactSignal     `json:"signals"`
		Error   *signal.KernelError `json:"error,omitzero"`
		Metrics signal.Metrics      `json:"metrics"`
		Reason  string              `json:"reason,omitzero"`
	}
	compactSignal struct {
		ID        string            `json:"id"`
		Kind      signal.Kind       `json:"kind"`
		Ref       string            `json:"ref"`
		Origin    signal.ModuleRef  `json:"origin"`
		TraceID   string            `json:"trace_id"`
		Tags      map[string]string `json:"tags"`
		CreatedAt time.Time         `json:"created_at"`
		ParentID  *string           `json:"parent_id"`
	}
)

// FuzzCompact: the compact view has the bytes that a general encoder writes.
func FuzzCompact(f *testing.F) {
	f.Add("gate", "forward", "trc_1", "sig_1", "echo", "dec_1", "why", 1.234, 3, true, true)
	f.Add("\"\n\xff\u2028", "ü", "", "", "", "", "", 1e-7, -1, false, false)
	f.Add("m", "f", "t", "p", "tool", "", "", 1e22, 0, false, true)
	f.Add("m", "f", "t", "p", "tool", "", "", math.Inf(1), 0, false, false)
	f.Fuzz(func(t *testing.T, module, function, trace, parent, tool, decision, reason string, duration float64, tokens int, hit, failed bool) {
		from := signal.Lineage{Origin: signal.ModuleRef{Tier: 4, Module: module, Function: function}, Tool: tool, TraceID: trace, ParentID: parent, DecisionID: decision}
		signals, refs, err := signal.FromToolResult([]byte(`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`), from)
		if err != nil {
			return // an origin without module or function
		}
		r := signal.OK(signals, signal.Metrics{DurationMS: duration, TokenCount: tokens, CacheHit: hit, ModuleRef: from.Origin})
		r.Reason = reason
		if failed {
			r.Error, _ = signal.CreateError("T4_TEST_FAILED", signal.Resource, signal.Degraded, "it "+reason, from.Origin, false, nil, nil)
		}
		want := compactView{Status: r.Status, Error: r.Error, Metrics: r.Metrics, Reason: reason}
		if math.IsNaN(duration) || math.IsInf(duration, 0) {
			want.Metrics.DurationMS = 0
		}
		for i, s := range signals {
			c := compactSignal{s.ID(), s.Kind(), refs[i], s.Origin(), s.TraceID(), s.Tags(), s.CreatedAt(), nil}
			if id := s.ParentID(); id != "" {
				c.ParentID = &id
			}
			want.Signals = append(want.Signals, c)
		}
		text, err := json.Marshal(want, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		if got := signal.Compact(r, refs); string(got) != string(text) {
			t.Errorf(" got %s\nwant %s", got, text)
		}
	})
}
