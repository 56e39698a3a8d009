package text_test

import (
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/text"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 tools", 1: "1 tool", 2: "2 tools"} {
		if got := text.Count(n, "tool"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{24 * time.Hour: "24h", 90 * time.Minute: "1h30m", 10 * time.Minute: "10m", time.Hour + time.Second: "1h0m1s", 1500 * time.Millisecond: "1.5s", 0: "0s"} {
		if got := text.Duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
