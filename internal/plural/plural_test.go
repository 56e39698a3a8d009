package plural_test

import (
	"testing"

	"github.com/toolgate/toolgate/internal/plural"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 tools", 1: "1 tool", 2: "2 tools"} {
		if got := plural.Count(n, "tool"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
