package text

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest returns the word that was probably meant, "" when none is near. Words
// that differ only in case are nearest.
func Nearest(s string, words []string) string {
	best, least := "", 3
	switch {
	case len(s) > 64:
		return ""
	case len(s) < 3:
		least = 1
	case len(s) == 3:
		least = 2
	}
	for _, w := range words {
		if d := levenshtein.ComputeDistance(Fold(s), Fold(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// Fold maps strings that strings.EqualFold takes for equal to one string.
func Fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }
