package garbage_test

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage"
)

func TestPercent(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC takes precedence")
	}
	const starting, serving, own = 400, 200, 50
	if got := debug.SetGCPercent(starting); got != starting {
		t.Errorf("the collector starts with percent %d, want %d", got, starting)
	}
	garbage.Serving()
	if got := debug.SetGCPercent(own); got != serving {
		t.Errorf("the collector serves with percent %d, want %d", got, serving)
	}
	t.Setenv("GOGC", "50")
	garbage.Serving()
	if got := debug.SetGCPercent(own); got != own {
		t.Errorf("the collector has percent %d, want that of GOGC, %d", got, own)
	}
}
