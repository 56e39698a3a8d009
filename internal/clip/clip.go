// Package clip shortens texts that others wrote, for messages and records.
package clip

import "strings"

// Bytes returns text if it has at most n bytes, and otherwise as many of its first n as
// whole characters have, with mark behind them.
func Bytes(text string, n int, mark string) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + mark
}

// Runes returns text if it has at most n characters, and otherwise its first n-1 with an
// ellipsis behind them.
func Runes(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}
