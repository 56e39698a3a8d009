package page_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console/page"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"":            "",
		`{"a":"b c"}`: `{"a":"b c"}`,
		"Grüße, 支付 тест, עברית 🙂":     "Grüße, 支付 тест, עברית 🙂",
		"<script>alert(1)</script>":   "<script>alert(1)</script>",
		"\x1b[2J\x1b[31m":             `\u001b[2J\u001b[31m`,
		"a\nb\r\tc\x00\x7f":           `a\u000ab\u000d\u0009c\u0000\u007f`,
		"\u0085\u009b":                `\u0085\u009b`,              // C1 controls, the second starts an escape sequence
		"pay \u202e001\u202c to":      `pay \u202e001\u202c to`,    // right-to-left override
		"\u2066x\u2069\u061c\u200f":   `\u2066x\u2069\u061c\u200f`, // isolates and marks
		"a\u200bb\u200c\u200d\ufeffc": `a\u200bb\u200c\u200d\ufeffc`,
		"a\u00a0b\u2003c\u3000d":      `a\u00a0b\u2003c\u3000d`, // blanks that are no space
		"a\u2028b\u2029c":             `a\u2028b\u2029c`,
		"a\u00adb\u034fc":             `a\u00adb\u034fc`,
		"\U000E0041\U000E007F":        `\udb40\udc41\udb40\udc7f`, // tags
		"x\ufe0f\U000E0100":           `x\ufe0f\udb40\udd00`,      // variation selectors
		"\u3164\u115f\u2800\uffa0":    `\u3164\u115f\u2800\uffa0`, // letters that print nothing
		"\ue000\U000F0000\u0378":      `\ue000\udb80\udc00\u0378`, // private and unassigned
		"bad \xff byte":               `bad \ufffd byte`,
	} {
		if got := page.Visible(in); got != want {
			t.Errorf("Visible(%+q) = %s, want %s", in, got, want)
		}
	}
}

// Of a JSON text the visible form is the same value, and it is all visible.
func FuzzVisible(f *testing.F) {
	for _, seed := range []string{`"a"`, "{\"\u202ea\":[\"\U000E0041\"]}", "\"\u0085\"", `["\u202e"]`, "\"\xff\""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shown := page.Visible(text)
		if again := page.Visible(shown); again != shown {
			t.Fatalf("%q is shown as %q, that as %q", text, shown, again)
		}
		if strings.ContainsAny(shown, "\n\r\x1b\u202e\u2066\u200b\ufeff") {
			t.Fatalf("%q is shown as %q", text, shown)
		}
		var before, after any
		if strings.ContainsAny(text, "\n\r\t") || json.Unmarshal([]byte(text), &before) != nil {
			return // raw line breaks and tabs stand between tokens, where there are no escapes
		}
		if err := json.Unmarshal([]byte(shown), &after); err != nil || !cmp.Equal(before, after) {
			t.Fatalf("%q is shown as %q: %v", text, shown, err)
		}
	})
}
