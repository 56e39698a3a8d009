package app

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
)

// The last calls of a server count, and noting them costs no allocation.
func TestLatencies(t *testing.T) {
	var l latencies
	if l.of("web") != nil {
		t.Error("a server that was never called has a latency")
	}
	for range 100 {
		l.note("web", time.Hour) // of which none remains
	}
	for i := range latencyCalls {
		l.note("web", time.Duration(i+1)*time.Millisecond)
	}
	l.note("other", 1500*time.Microsecond)
	for server, want := range map[string]*console.Latency{
		"web": {Calls: 512, MedianMS: 257, P99MS: 507}, "other": {Calls: 1, MedianMS: 1.5, P99MS: 1.5},
	} {
		if diff := cmp.Diff(want, l.of(server)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", server, diff)
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.note("web", time.Second) }); n != 0 {
		t.Errorf("noting a call allocates %v times", n)
	}
}
