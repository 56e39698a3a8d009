package text_test

import (
	"testing"

	"github.com/toolgate/toolgate/internal/text"
)

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 0, ""}, {"whole", 5, "whole"}, {"longer", 5, "longe+"}, {"aé", 3, "aé"}, {"aéb", 2, "a+"}, {"aéb", 3, "aé+"}, {"é", 1, "+"}, {"b\xff", 2, "b\xff"}, {"b\xffcd", 3, "bc+"},
	} {
		if got := text.Clip(c.text, c.n, "+"); got != c.want {
			t.Errorf("Bytes(%q, %d) = %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestRunes(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 1, ""}, {"éé", 2, "éé"}, {"ééé", 2, "é…"}, {"ab", 1, "…"},
	} {
		if got := text.ClipRunes(c.text, c.n); got != c.want {
			t.Errorf("Runes(%q, %d) = %q, want %q", c.text, c.n, got, c.want)
		}
	}
}
