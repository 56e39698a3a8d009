package text_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
)

func TestKinds(t *testing.T) {
	for given, want := range map[string]string{
		"plain\ttext\n": "", "é 日本 👍🏽": "", "👨\u200d👩\u200d👧": "", "می\u200cخواهم": "", "❤\ufe0f": "",
		"a\u001b[31mred": "control", "a\u0007": "control", "x\u009b1m": "control", "\u007f": "control", "a\bb": "control", "a\fb": "control",
		"a\u202eb": "bidi", "\u2066x": "bidi", "a\u200bb": "invisible", "a\u200db": "invisible", "\ufeffx": "invisible",
		"x\U000e0041\U000e0042": "tag", "😀\U000e0100\U000e0101": "tag", "a\ufe00\ufe01": "tag",
		"\u202e\u001b": "bidi control",
	} {
		quoted := jsonrpc.Quote(given)
		for _, raw := range []string{`{"a":[` + string(quoted) + `]}`, `{` + string(quoted) + `:1}`} {
			if got := strings.Join(text.HiddenKinds(json.RawMessage(raw)), " "); got != want {
				t.Errorf("%q: %q, want %q", given, got, want)
			}
		}
		once := text.EscapeHidden(given)
		if want == "" && once != given || want != "" && text.HiddenKinds(jsonrpc.Quote(once)) != nil || text.EscapeHidden(once) != once {
			t.Errorf("%q is escaped as %q", given, once)
		}
	}
}

// FuzzEscape: what is escaped has nothing hidden, and escaping it again changes nothing.
// TestKindsEverywhere: a hidden character is found wherever it stands.
func TestKindsEverywhere(t *testing.T) {
	for at := range 40 {
		for _, c := range []string{"\x7f", "\u200b", `\u200b`} {
			given := `"` + strings.Repeat("a", at) + c + strings.Repeat("~", 40-at) + `"`
			if got := text.HiddenKinds(json.RawMessage(given)); len(got) != 1 {
				t.Errorf("%q: %v", given, got)
			}
		}
	}
	if got := text.HiddenKinds(json.RawMessage(`"` + strings.Repeat("~", 41) + `"`)); got != nil {
		t.Error(got)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a\u202e\u200d\U000e0041\ufe0f")
	f.Add("0123456\x7f89\b")
	f.Fuzz(func(t *testing.T, given string) {
		if quoted := jsonrpc.Quote(given); jsonrpc.IsPlain(quoted) && text.RemoveHidden(given) != given {
			t.Errorf("%s is plain", quoted)
		}
		once := text.EscapeHidden(given)
		if got := text.HiddenKinds(jsonrpc.Quote(once)); !slices.Equal(got, nil) {
			t.Errorf("%q is escaped as %q, which has %v", given, once, got)
		}
		if text.EscapeHidden(once) != once {
			t.Errorf("%q is escaped twice", given)
		}
	})
}
