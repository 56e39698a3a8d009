package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// TextBytes is how much of a ticket's arguments is shown as text.
const TextBytes = 64 << 10

// Visible returns s with every character that a reader would not see, or that
// would change what the reader sees, as a JSON escape (\u202e): control
// characters, line breaks, bidirectional and zero-width characters, tags,
// variation selectors, blanks other than the space, private and unassigned code
// points, and stray bytes (as \ufffd). For JSON text without line breaks and
// tabs between tokens the result is the same value, because such characters
// stand only inside strings, where the escape means the character.
func Visible(s string) string {
	if !strings.ContainsFunc(s, Hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !Hidden(r):
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

// Hidden reports whether r is to be escaped. unicode.IsPrint leaves out all
// control, format, private, surrogate and unassigned code points, and every
// separator but the space.
func Hidden(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return !unicode.IsPrint(r) || unicode.Is(blanks, r)
}

// Shorten cuts a visible text to TextBytes and says how many bytes are missing.
func Shorten(s string) string {
	if len(s) <= TextBytes {
		return s
	}
	start := Start(s, TextBytes)
	return fmt.Sprintf("%s… (cut: %d of %d bytes are not shown)", start, len(s)-len(start), len(s))
}

// Start returns at most the first n bytes of s, and whole characters.
func Start(s string, n int) string {
	n = min(n, len(s))
	for n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// VisibleLines is Visible, but line feeds stay.
func VisibleLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Visible(line)
	}
	return strings.Join(lines, "\n")
}

// Text is a visible text in parts, so that a page can mark the escapes.
type Text []part

type part struct {
	Text   string
	Escape bool // whether Text is an escape, such as \u0000
}

// escapes finds the escapes of a visible text. An escaped backslash escapes
// nothing.
var escapes = regexp.MustCompile(`(?s)\\(u[0-9a-fA-F]{4}|.)`)

// TextOf splits the result of Visible. In a JSON string, the escapes that were sent count like
// those that Visible has added.
func TextOf(visible string) (t Text) {
	from := 0
	for _, at := range escapes.FindAllStringIndex(visible, -1) {
		if at[1]-at[0] < len(`\u0000`) {
			continue
		}
		if from < at[0] {
			t = append(t, part{Text: visible[from:at[0]]})
		}
		t = append(t, part{Text: visible[at[0]:at[1]], Escape: true})
		from = at[1]
	}
	if from < len(visible) {
		t = append(t, part{Text: visible[from:]})
	}
	return t
}

// String joins the parts.
func (t Text) String() string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.Text)
	}
	return b.String()
}

// VisibleAll returns the visible forms of texts, never nil.
func VisibleAll(all []string) []string {
	shown := make([]string, len(all))
	for i, one := range all {
		shown[i] = Visible(one)
	}
	return shown
}

// OneLine puts the hint of a warning on the line of the warning.
func OneLine(warning string) string { return strings.ReplaceAll(warning, "\nhint: ", "; hint: ") }

// Indented is the visible form of JSON, a member on each line.
func Indented(text json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") != nil {
		return VisibleLines(string(text))
	}
	return VisibleLines(out.String())
}
