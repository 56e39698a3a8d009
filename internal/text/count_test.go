package text_test

import (
	"testing"

	"github.com/toolgate/toolgate/internal/text"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 tools", 1: "1 tool", 2: "2 tools"} {
		if got := text.Count(n, "tool"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
