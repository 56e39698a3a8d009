package signal_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

func TestValidateResult(t *testing.T) {
	text := must(signal.CreateText("x", here, "trc_1", nil))(t)
	bad := must(signal.Create(signal.Text, nil, here, "trc_1", nil, ""))(t)
	list := []signal.Signal{text}
	fault := signal.PolicyError("no", here, nil)
	tests := []struct {
		name   string
		result signal.Result
		ok     bool
	}{
		{"ok", signal.OK(list, timing), true},
		{"ok without signals", signal.OK(nil, timing), true},
		{"ok with an error", signal.Result{Status: signal.StatusOK, Error: fault, Metrics: timing}, false},
		{"ok with a reason", signal.Result{Status: signal.StatusOK, Metrics: timing, Reason: "r"}, false},
		{"partial", signal.Partial(list, fault, timing), true},
		{"partial without error", signal.Partial(list, nil, timing), false},
		{"partial without signals", signal.Partial(nil, fault, timing), false},
		{"error", signal.Fail(fault, timing), true},
		{"error with an error signal", signal.Result{Status: signal.StatusError, Signals: list, Error: fault, Metrics: timing}, true},
		{"error without error", signal.Fail(nil, timing), false},
		{"error that is malformed", signal.Fail(&signal.KernelError{Code: "x"}, timing), false},
		{"skip", signal.Skip("dormant", timing), true},
		{"skip without a reason", signal.Skip("", timing), true},
		{"skip with signals", signal.Result{Status: signal.StatusSkip, Signals: list, Metrics: timing}, false},
		{"skip with an error", signal.Result{Status: signal.StatusSkip, Error: fault, Metrics: timing}, false},
		{"unknown status", signal.Result{Status: "maybe", Metrics: timing}, false},
		{"no metrics", signal.Result{Status: signal.StatusOK}, false},
		{"negative time", signal.OK(nil, signal.Metrics{DurationMS: -1, ModuleRef: here}), false},
		{"time without a number", signal.OK(nil, signal.Metrics{DurationMS: math.NaN(), ModuleRef: here}), false},
		{"negative tokens", signal.OK(nil, signal.Metrics{TokenCount: -1, ModuleRef: here}), false},
		{"a signal that breaks its conventions", signal.OK([]signal.Signal{text, bad}, timing), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			judge(t, signal.ValidateResult(tt.result), tt.ok)
			raw := signal.Full(tt.result)
			if !json.Valid(raw) {
				t.Fatalf("no JSON: %s", raw)
			}
			var back signal.Result
			err := json.Unmarshal(raw, &back)
			if math.IsNaN(tt.result.Metrics.DurationMS) {
				return // written as 0
			}
			if (err == nil) != tt.ok {
				t.Fatalf("decoding: %v", err)
			}
			if !tt.ok && !errors.Is(err, signal.ErrInvalidResult) {
				t.Errorf("decoding: %v", err)
			}
			if diff := cmp.Diff(tt.result, back); tt.ok && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Table "Result Composition Rules".
func TestCompose(t *testing.T) {
	signals := some(t)
	final, again := signal.PolicyError("no", here, nil), signal.ResourceError("later", here, nil)
	tests := []struct {
		name   string
		result signal.Result
		want   signal.Next
	}{
		{"ok: consume the signals", signal.OK(signals, timing), signal.Next{Signals: signals}},
		{"partial: consume them, log the error", signal.Partial(signals, final, timing), signal.Next{Signals: signals, Log: final}},
		{"error: stop", signal.Fail(final, timing), signal.Next{Stop: final}},
		{"error: stop and retry", signal.Fail(again, timing), signal.Next{Stop: again, Retry: true}},
		{"error: its signals are not consumed", signal.Result{Status: "error", Signals: signals, Error: final, Metrics: timing}, signal.Next{Stop: final}},
		{"skip: pass", signal.Skip("dormant", timing), signal.Next{Pass: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, signal.Compose(tt.result)); diff != "" {
				t.Error(diff)
			}
		})
	}
	broken := []signal.Result{{}, {Status: "error"}, {Status: "ok", Signals: signals, Error: final}, {Status: "partial", Signals: signals}, {Status: "skip", Signals: signals}}
	for _, r := range broken {
		next := signal.Compose(r)
		if next.Stop == nil || next.Stop.Category != signal.Input || next.Signals != nil || next.Pass || next.Retry {
			t.Errorf("a result that contradicts itself, %+v: got %+v", r, next)
		}
	}
}

// goodSignal is the JSON form as others may write it: their order, their
// white space, their time zone.
const goodSignal = `{ "kind":"text", "id":"sig_01JD4V0Z5N9Q8C7B6A5X4W3V2T", "created_at":"2026-11-20T14:00:00.5+01:00",
 "body":{"text":"\u00e9", "n": 1e2}, "trace_id":"trc_1", "tags":{"z":"1","a":"2"}, "origin":{"function":"f","module":"m","tier":0}, "parent_id":null}`

func TestSignalJSONIsReadStrictly(t *testing.T) {
	var s signal.Signal
	if err := json.Unmarshal([]byte(goodSignal), &s); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"sig_01JD4V0Z5N9Q8C7B6A5X4W3V2T","kind":"text","body":{"text":"\u00e9","n":1e2},"origin":{"tier":0,"module":"m","function":"f"},` +
		`"trace_id":"trc_1","tags":{"a":"2","z":"1"},"created_at":"2026-11-20T13:00:00.5Z","parent_id":null}`
	if got := string(must(s.MarshalJSON())(t)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	tests := []struct{ name, from, to string }{
		{"an unknown kind", `"text", "id"`, `"image", "id"`},
		{"a kind in capitals", `"text", "id"`, `"TEXT", "id"`},
		{"an unknown member", `"kind"`, `"extra":1, "kind"`},
		{"a member twice", `"kind":"text"`, `"kind":"text", "kind":"text"`},
		{"a member twice in the body", `"n": 1e2`, `"n": 1e2, "n": 1`},
		{"a case variant", `"kind"`, `"Kind"`},
		{"a ref", `"kind"`, `"ref":"/content/0", "kind"`},
		{"another prefix", `sig_01JD`, `dec_01JD`},
		{"a short id", `W3V2T"`, `W3V2"`},
		{"an id in small letters", `W3V2T"`, `w3v2t"`},
		{"an id beyond 128 bits", `sig_01`, `sig_91`},
		{"no time", `2026-11-20T14:00:00.5+01:00`, ``},
		{"a time without a zone", `00.5+01:00`, `00.5`},
		{"the year 0", `2026-11-20`, `0000-11-20`},
		{"a body that is a list", `{"text":"\u00e9", "n": 1e2}`, `["text"]`},
		{"a body that is null", `{"text":"\u00e9", "n": 1e2}`, `null`},
		{"a body against its kind", `{"text":`, `{"words":`},
		{"half a surrogate", `\u00e9`, `\ud83d`},
		{"tier 9", `"tier":0`, `"tier":9`},
		{"tier 1.5", `"tier":0`, `"tier":1.5`},
		{"no tier", `,"tier":0`, ``},
		{"no trace", `"trc_1"`, `""`},
		{"a strange source", `"z":"1"`, `"source_type":"moon"`},
		{"a tag that is no string", `"z":"1"`, `"z":1`},
		{"a tag that is null", `"z":"1"`, `"z":null`},
		{"tags that are null", `{"z":"1","a":"2"}`, `null`},
		{"a trace that is null", `"trc_1"`, `null`},
		{"a broken end", `null}`, `null`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(goodSignal, tt.from, tt.to, 1)
			if text == goodSignal {
				t.Fatal("nothing was changed")
			}
			var got signal.Signal
			if err := got.UnmarshalJSON([]byte(text)); !errors.Is(err, signal.ErrInvalidSignal) {
				t.Errorf("got %v", err)
			}
			if got.ID() != "" {
				t.Error("a signal beside the error")
			}
		})
	}
}

func TestErrorJSONIsReadStrictly(t *testing.T) {
	const good = `{"code":"T4_A_B","category":"input","severity":"fatal","message":"m","source":{"tier":0,"module":"m","function":"f"},` +
		`"retry_eligible":true,"detail":{"a":1},"cause":null}`
	var e signal.KernelError
	if err := json.Unmarshal([]byte(good), &e); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, from, to string }{
		{"a malformed code", "T4_A_B", "A_B"},
		{"an unknown category", "input", "weather"},
		{"an unknown severity", "fatal", "FATAL"},
		{"no message", `"m","source"`, `"","source"`},
		{"no source", `"source":{"tier":0,"module":"m","function":"f"},`, ``},
		{"an unknown member", `"code"`, `"kode":1,"code"`},
		{"no word on a retry", `"retry_eligible":true,`, ``},
		{"a detail that is a list", `{"a":1}`, `[1]`},
		{"a detail that is null", `{"a":1}`, `null`},
		{"a detail with two readings", `{"a":1}`, `{"a":1,"a":2}`},
		{"a malformed cause", `"cause":null`, `"cause":{}`},
		{"too many causes", `"cause":null`, `"cause":` + strings.Repeat(strings.TrimSuffix(good, "null}"), 40) + "null" + strings.Repeat("}", 40)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(good, tt.from, tt.to, 1)
			if text == good {
				t.Fatal("nothing was changed")
			}
			if err := new(signal.KernelError).UnmarshalJSON([]byte(text)); !errors.Is(err, signal.ErrInvalidError) {
				t.Errorf("got %v", err)
			}
		})
	}
	if err := new(signal.KernelError).UnmarshalJSON([]byte("null")); !errors.Is(err, signal.ErrInvalidError) {
		t.Errorf("null: %v", err)
	}
}
