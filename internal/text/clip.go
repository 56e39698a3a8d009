// Package text has the forms in which toolgate writes texts and reads those of others: shortened
// texts, counted things, characters that a reader does not see, exact amounts of an asset, and
// addresses on an EVM chain with their checksum. Everything here is safe for concurrent use.
package text

import "strings"

// Clip returns text if it has at most n bytes, and otherwise as many of its first n as
// whole characters have, with mark behind them.
func Clip(text string, n int, mark string) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + mark
}

// ShortDigest returns the beginning of a digest or revision, which tells it from others.
func ShortDigest(digest string) string { return Clip(digest, len("sha256:")+12, "") }

// ClipRunes returns text if it has at most n characters, and otherwise its first n-1 with an
// ellipsis behind them.
func ClipRunes(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}
