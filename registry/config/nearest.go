package config

import (
	"maps"
	"slices"
)

func keys(f fields) []string { return slices.Sorted(maps.Keys(f)) }

// nearest gives the word that was probably meant, "" when none is near. Words
// that differ only in case are nearest.
func nearest(s string, words []string) string {
	best, least := "", 3
	switch {
	case len(s) < 3:
		least = 1
	case len(s) == 3:
		least = 2
	}
	for _, w := range words {
		if d := distance(fold(s), fold(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance counts the edits (insert, delete, replace) from a to b. Long words
// are not near to anything.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
