package report

import (
	"cmp"
	"strings"
	"time"
)

// Dash returns s as a cell, and - in place of nothing.
func Dash(s string) string { return OneLine(cmp.Or(s, "-")) }

// FirstLine returns the first line of s.
func FirstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// Clock returns a time to the second in UTC.
func Clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// ClockOrDash returns a time as Clock does, and - for none.
func ClockOrDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Clock(t)
}

// Title returns an ASCII text with its first letter in upper case.
func Title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
