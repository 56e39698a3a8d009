package signal_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/signal"
)

func textResult(size int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"content":[{"type":"text","text":"%s"}]}`, strings.Repeat("word ", size/5)))
}

// What one governed call costs here: result to signals to compact view.
func BenchmarkCompactResult(b *testing.B) {
	for _, size := range []int{100, 1024, 64 * 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			result := textResult(size)
			b.ReportAllocs()
			for b.Loop() {
				signals, _, err := signal.FromToolResult(result, signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_01JD4V0Z5N9Q8C7B6A5X4W3V2T"})
				if err != nil {
					b.Fatal(err)
				}
				signal.Compact(signal.OK(signals, timing), "dec_1", "trc_1")
			}
		})
	}
}

func BenchmarkFromToolResultJSONText(b *testing.B) {
	result := json.RawMessage(`{"content":[{"type":"text","text":"{\"items\":[` + strings.Repeat(`{\"id\":1,\"name\":\"n\"},`, 40) + `1]}"}]}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := signal.FromToolResult(result, signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		signal.NewID("dec_")
	}
}

// The budget of the call path for a one-text result is 25 allocations. The fewest of
// many runs count: the race detector makes pools forget what they hold now and then.
func TestCompactResultAllocations(t *testing.T) {
	result, got := textResult(1024), math.Inf(1)
	for range 300 {
		got = min(got, testing.AllocsPerRun(1, func() {
			signals, _, _ := signal.FromToolResult(result, signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1"})
			signal.Compact(signal.OK(signals, timing), "dec_1", "trc_1")
		}))
	}
	if got > 25 {
		t.Errorf("%v allocations, want at most 25", got)
	}
}
