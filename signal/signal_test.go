package signal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

var (
	here   = signal.ModuleRef{Tier: 4, Module: "gate", Function: "call"}
	there  = signal.ModuleRef{Tier: 1, Module: "classification", Function: "classify"}
	timing = signal.Metrics{DurationMS: 1.5, TokenCount: 7, CacheHit: true, ModuleRef: here}
)

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// member gives a member of the JSON form.
func member(t *testing.T, v any, key string) (string, bool) {
	t.Helper()
	// not json.Marshal: it would escape HTML in what MarshalJSON gave
	raw := must(v.(json.Marshaler).MarshalJSON())(t)
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	got, ok := m[key]
	return string(got), ok
}

func TestCreateSignalRefuses(t *testing.T) {
	empty := map[string]any{}
	tests := []struct {
		name   string
		kind   signal.Kind
		body   map[string]any
		origin signal.ModuleRef
		tags   map[string]string
		want   error
	}{
		{"an unknown kind", "picture", empty, here, nil, signal.ErrInvalidKind},
		{"a body that JSON cannot hold", signal.Data, map[string]any{"f": math.NaN()}, here, nil, signal.ErrInvalidBody},
		{"a body with two readings", signal.Data, map[string]any{"f": json.RawMessage(`{"a":1,"a":2}`)}, here, nil, signal.ErrInvalidBody},
		{"tier 8", signal.Text, empty, signal.ModuleRef{Tier: 8, Module: "m", Function: "f"}, nil, signal.ErrInvalidOrigin},
		{"tier -1", signal.Text, empty, signal.ModuleRef{Tier: -1, Module: "m", Function: "f"}, nil, signal.ErrInvalidOrigin},
		{"no module", signal.Text, empty, signal.ModuleRef{Function: "f"}, nil, signal.ErrInvalidOrigin},
		{"no function", signal.Text, empty, signal.ModuleRef{Module: "m"}, nil, signal.ErrInvalidOrigin},
		{"an empty tag key", signal.Text, empty, here, map[string]string{"": "x"}, signal.ErrInvalidTag},
		{"a tag key that is no UTF-8", signal.Text, empty, here, map[string]string{"\xff": "x"}, signal.ErrInvalidTag},
		{"a strange source", signal.Text, empty, here, map[string]string{"source_type": "moon"}, signal.ErrInvalidTag},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := signal.Create(tt.kind, tt.body, tt.origin, "trc_1", tt.tags, "")
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if s.ID() != "" {
				t.Error("a signal beside the error")
			}
		})
	}
	if _, err := signal.CreateCommand("retry", signal.ModuleRef{}, here, "trc_1", nil); !errors.Is(err, signal.ErrInvalidOrigin) {
		t.Errorf("a command without a target: %v", err)
	}
	if _, err := signal.CreateErrorSignal(nil, here, "trc_1"); !errors.Is(err, signal.ErrInvalidError) {
		t.Errorf("an error signal without an error: %v", err)
	}
}

func TestTagsMergeOverTheDefaults(t *testing.T) {
	tests := []struct {
		name        string
		given, want map[string]string
	}{
		{"defaults", nil, map[string]string{"tier": "4", "module": "gate", "source_type": "system"}},
		{"added", map[string]string{"urgency": "high", "source_type": "user"},
			map[string]string{"tier": "4", "module": "gate", "source_type": "user", "urgency": "high"}},
		{"given wins", map[string]string{"module": "other"}, map[string]string{"tier": "4", "module": "other", "source_type": "system"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := must(signal.CreateText("x", here, "trc_1", tt.given))(t)
			if diff := cmp.Diff(tt.want, s.Tags()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSignalNeverChanges(t *testing.T) {
	inner := map[string]any{"deep": []any{"a"}}
	tags := map[string]string{"domain": "code"}
	s := must(signal.Create(signal.Data, map[string]any{"data": inner, "schema": "x"}, here, "trc_1", tags, "sig_p"))(t)
	before := string(must(s.MarshalJSON())(t))

	inner["deep"].([]any)[0] = "changed"
	tags["domain"] = "changed"
	got := s.Body()
	got["data"].(map[string]any)["deep"].([]any)[0] = "changed"
	got["schema"] = "changed"
	s.Tags()["domain"] = "changed"

	if after := string(must(s.MarshalJSON())(t)); after != before {
		t.Errorf("changed\nfrom %s\nto   %s", before, after)
	}
	raw := []byte(`{"content":[{"type":"text","text":"hello"}]}`)
	signals, _, err := signal.FromToolResult(raw, signal.Lineage{Origin: here, Tool: "t", TraceID: "trc_1"})
	if err != nil {
		t.Fatal(err)
	}
	copy(raw, strings.Repeat("x", len(raw)))
	if got := signals[0].Body()["text"]; got != "hello" {
		t.Errorf("the signal holds on to the caller's bytes: %v", got)
	}
}

// TestSharedText: a signal that shares the bytes of a result is in all its forms equal
// to one that has a copy.
func TestSharedText(t *testing.T) {
	raw := []byte(`{"content":[{"type":"text","text":"a \"quoted\" <text>\u00e9"}]}`)
	from := signal.Lineage{Origin: here, Tool: "t", TraceID: "trc_1"}
	copied, _, err := signal.FromToolResult(raw, from)
	if err != nil {
		t.Fatal(err)
	}
	from.Accepted = true
	shared := must2(signal.FromToolResult(raw, from))(t)
	forms := func(s signal.Signal) string {
		id := strings.NewReplacer(s.ID(), "ID", s.CreatedAt().Format(time.RFC3339Nano), "NOW")
		return id.Replace(string(must(s.MarshalJSON())(t))) + id.Replace(string(signal.SignalToNotification(s).Params)) +
			id.Replace(string(signal.Full(signal.OK([]signal.Signal{s}, signal.Metrics{ModuleRef: here})))) + fmt.Sprint(s.Body(), signal.ValidateSignal(s))
	}
	if got, want := forms(shared[0]), forms(copied[0]); got != want || strings.Count(got, `"body":{"text":"a \"quoted\" <text>\u00e9"}`) != 3 { // each form has it
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// must2 is must for a function with a second result.
func must2[T, U any](v T, _ U, err error) func(*testing.T) T { return must(v, err) }

func TestNumbersStayExact(t *testing.T) {
	s := must(signal.CreateData(json.RawMessage(`[12345678901234567890123, 1e2, 0.10]`), "n", here, "trc_1", nil))(t)
	want := []any{json.Number("12345678901234567890123"), json.Number("1e2"), json.Number("0.10")}
	if diff := cmp.Diff(want, s.Body()["data"]); diff != "" {
		t.Error(diff)
	}
}

func TestValidateSignal(t *testing.T) {
	target := map[string]any{"tier": 4, "module": "m", "function": "f"}
	tests := []struct {
		name string
		kind signal.Kind
		body map[string]any
		ok   bool
	}{
		{"text", signal.Text, map[string]any{"text": "", "more": 1}, true},
		{"text without text", signal.Text, map[string]any{}, false},
		{"text that is no string", signal.Text, map[string]any{"text": 1}, false},
		{"data null", signal.Data, map[string]any{"data": nil, "schema": ""}, true},
		{"data without data", signal.Data, map[string]any{"schema": "x"}, false},
		{"data without schema", signal.Data, map[string]any{"data": 1}, false},
		{"file without path", signal.File, map[string]any{"file_id": "a", "file_type": "b"}, true},
		{"file without id", signal.File, map[string]any{"file_type": "b"}, false},
		{"file without type", signal.File, map[string]any{"file_id": "a"}, false},
		{"file with a path that is none", signal.File, map[string]any{"file_id": "a", "file_type": "b", "path": 1}, false},
		{"command", signal.Command, map[string]any{"action": "sleep", "target": target}, true},
		{"command without action", signal.Command, map[string]any{"target": target}, false},
		{"command without target", signal.Command, map[string]any{"action": "sleep"}, false},
		{"command with half a target", signal.Command, map[string]any{"action": "sleep", "target": map[string]any{"tier": 1}}, false},
		{"stream", signal.Stream, map[string]any{"chunk": "", "sequence": 3, "final": true}, true},
		{"stream without chunk", signal.Stream, map[string]any{"sequence": 3, "final": true}, false},
		{"stream before the first", signal.Stream, map[string]any{"chunk": "", "sequence": -1, "final": true}, false},
		{"stream between two", signal.Stream, map[string]any{"chunk": "", "sequence": 1.5, "final": true}, false},
		{"stream without final", signal.Stream, map[string]any{"chunk": "", "sequence": 3}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := must(signal.Create(tt.kind, tt.body, here, "trc_1", nil, ""))(t)
			judge(t, signal.ValidateSignal(s), tt.ok)
			var back signal.Signal
			if err := back.UnmarshalJSON(must(s.MarshalJSON())(t)); (err == nil) != tt.ok {
				t.Errorf("decoding: %v", err)
			}
		})
	}
	t.Run("the zero signal", func(t *testing.T) { judge(t, signal.ValidateSignal(signal.Signal{}), false) })
	t.Run("no trace", func(t *testing.T) {
		judge(t, signal.ValidateSignal(must(signal.CreateText("x", here, "", nil))(t)), false)
	})
}

// judge holds a validator's answer against what was wanted.
func judge(t *testing.T, err error, ok bool) {
	t.Helper()
	if ok {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var ke *signal.KernelError
	if !errors.As(err, &ke) {
		t.Fatalf("got %v, want a kernel error", err)
	}
	if ke.Category != signal.Input || ke.Code != signal.CodeSchemaMismatch || ke.Validate() != nil {
		t.Errorf("got %+v", ke)
	}
}

func TestIDsSortAndNeverRepeat(t *testing.T) {
	const makers, each = 4, 2000
	all := make([][]string, makers)
	var wg sync.WaitGroup
	for m := range makers {
		wg.Go(func() {
			for range each {
				all[m] = append(all[m], signal.NewID("dec_"))
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, list := range all {
		if !slices.IsSorted(list) {
			t.Error("ids of one goroutine are out of order")
		}
		for _, id := range list {
			if seen[id] || len(id) != len("dec_")+26 || !strings.HasPrefix(id, "dec_") {
				t.Fatalf("bad id %q", id)
			}
			seen[id] = true
		}
	}
}

func TestIDsGrowWhenTheClockStepsBack(t *testing.T) {
	before := signal.NewID("dec_")
	synctest.Test(t, func(t *testing.T) { // the bubble's clock starts in the year 2000
		if after := signal.NewID("dec_"); after <= before {
			t.Errorf("%s after %s", after, before)
		}
	})
}

func TestTag(t *testing.T) {
	s := must(signal.CreateText("x", here, "trc_1", nil))(t)
	if s.Tag(signal.TagModule) != "gate" || s.Tag("absent") != "" {
		t.Errorf("got %q and %q", s.Tag(signal.TagModule), s.Tag("absent"))
	}
}
