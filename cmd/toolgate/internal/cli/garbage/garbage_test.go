package garbage_test

import (
	"os"
	"runtime/debug"
	"testing"

	_ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage"
)

func TestPercent(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC takes precedence")
	}
	const want = 200
	if got := debug.SetGCPercent(want); got != want {
		t.Errorf("the collector has percent %d, want %d", got, want)
	}
}
