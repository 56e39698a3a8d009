package console

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// textBytes is how much of a ticket's arguments is shown as text.
const textBytes = 64 << 10

// Visible returns s with every character that a reader would not see, or that
// would change what the reader sees, as a JSON escape (\u202e): control
// characters, line breaks, bidirectional and zero-width characters, tags,
// variation selectors, blanks other than the space, private and unassigned code
// points, and stray bytes (as \ufffd). For JSON text without line breaks and
// tabs between tokens the result is the same value, because such characters
// stand only inside strings, where the escape means the character.
func Visible(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// blanks are letters, symbols and marks that print nothing although Unicode
// counts them as printable.
var blanks = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, // combining grapheme joiner
		{Lo: 0x115f, Hi: 0x1160, Stride: 1}, // Hangul fillers
		{Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, // Khmer inherent vowels
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, // Mongolian variation selectors
		{Lo: 0x2800, Hi: 0x2800, Stride: 1}, // blank Braille pattern
		{Lo: 0x3164, Hi: 0x3164, Stride: 1}, // Hangul filler
		{Lo: 0xfe00, Hi: 0xfe0f, Stride: 1}, // variation selectors
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1}, // halfwidth Hangul filler
		{Lo: 0xfffc, Hi: 0xfffd, Stride: 1}, // object replacement, replacement
	},
	R32: []unicode.Range32{
		{Lo: 0x1d159, Hi: 0x1d159, Stride: 1}, // null notehead
		{Lo: 0xe0000, Hi: 0xe0fff, Stride: 1}, // tags and variation selectors
	},
}

// hidden reports whether r is to be escaped. unicode.IsPrint leaves out all
// control, format, private, surrogate and unassigned code points, and every
// separator but the space.
func hidden(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return !unicode.IsPrint(r) || unicode.Is(blanks, r)
}

// shorten cuts a visible text to textBytes and says how many bytes are missing.
func shorten(s string) string {
	if len(s) <= textBytes {
		return s
	}
	cut := textBytes
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s… (cut: %d of %d bytes are not shown)", s[:cut], len(s)-cut, len(s))
}
