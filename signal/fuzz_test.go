package signal_test

import (
	"bytes"
	"encoding/json"
	"testing"

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
		roundTrip(t, s, &back)
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
			return
		}
		roundTrip(t, r, &back)
		if err := signal.ValidateResult(r); err != nil {
			t.Fatal(err)
		}
	})
}

func roundTrip(t *testing.T, v json.Marshaler, into json.Unmarshaler) {
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
}

// Any tool result gives valid signals which its compact view gives back, on
// one line, or is refused with nothing; the scanner never takes what
// encoding/json refuses.
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
		view := signal.Compact(r, refs)
		expanded, err := signal.Expand(view, data)
		if err != nil {
			t.Fatalf("%v in %s", err, view)
		}
		if !bytes.Equal(signal.Full(r), signal.Full(expanded)) || bytes.ContainsAny(signal.Full(r), "\r\n") {
			t.Fatalf("expanded to another result\n%s\n%s", signal.Full(r), signal.Full(expanded))
		}
	})
}
