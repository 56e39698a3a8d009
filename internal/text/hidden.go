package text

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// The kinds of hidden characters, which a reader does not see, or which change what a reader or a
// terminal shows. Joiners between letters or emoji, and one variation selector after a character,
// are how some scripts and emoji are written, and are not hidden.
const (
	Control   = "control"   // control characters, the escapes of terminals among them
	Bidi      = "bidi"      // they change the direction of what follows
	Invisible = "invisible" // zero width, interlinear annotation
	Tag       = "tag"       // tags and runs of variation selectors, which can spell whole texts
)

// kindOf returns the kind of a character, "" for one that is seen; before is the
// visible character before it, 0 for none, and after the character after it.
func kindOf(before, r, after rune) string {
	switch {
	case r == '\n' || r == '\t' || r == '\r' || r >= ' ' && r < 0x7f:
		return ""
	case r < ' ' || r >= 0x7f && r < 0xa0:
		return Control
	case unicode.Is(unicode.Bidi_Control, r):
		return Bidi
	case r == 0x200c || r == 0x200d:
		if before >= 0x80 && unicode.In(after, unicode.L, unicode.M, unicode.So) && !unicode.Is(unicode.Variation_Selector, after) {
			return ""
		}
		return Invisible
	case r == 0x200b || r >= 0x2060 && r <= 0x2064 || r == 0xfeff || r >= 0xfff9 && r <= 0xfffb || r == 0x180e:
		return Invisible
	case unicode.Is(unicode.Variation_Selector, r):
		selects := before >= 0x80 || strings.ContainsRune("0123456789#*", before)
		if !selects || unicode.Is(unicode.Variation_Selector, before) || r > 0xffff && !unicode.Is(unicode.Han, before) {
			return Tag
		}
	case r >= 0xe0000 && r <= 0xe007f:
		return Tag
	}
	return ""
}

// walk calls visit for each character of text with its kind.
func walk(text string, visit func(r rune, kind string)) {
	before := rune(0)
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		after, _ := utf8.DecodeRuneInString(text[i+size:])
		kind := kindOf(before, r, after)
		if before = r; kind != "" {
			before = 0
		}
		visit(r, kind)
	}
}

// HiddenKinds returns the kinds of hidden characters in the strings of a JSON value, in
// order, nil for none. It costs one look at the bytes where all strings are plain, as in
// jsonrpc.Message.
func HiddenKinds(value json.RawMessage) (kinds []string) {
	if jsonrpc.IsPlain(value) {
		return nil
	}
	jsonrpc.MapStrings(value, func(text string) string {
		walk(text, func(_ rune, kind string) {
			if kind != "" && !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		})
		return text
	})
	slices.Sort(kinds)
	return kinds
}

// RemoveHidden returns text without its hidden characters.
func RemoveHidden(text string) string {
	var b strings.Builder
	walk(text, func(r rune, kind string) {
		if kind == "" {
			b.WriteRune(r)
		}
	})
	return b.String()
}

// EscapeHidden returns text with every hidden character spelled out, as <U+202E>.
func EscapeHidden(text string) string {
	var b strings.Builder
	walk(text, func(r rune, kind string) {
		if kind == "" {
			b.WriteRune(r)
			return
		}
		fmt.Fprintf(&b, "<U+%04X>", r)
	})
	return b.String()
}
