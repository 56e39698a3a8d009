package hidden_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/hidden"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

func TestKinds(t *testing.T) {
	for text, want := range map[string]string{
		"plain\ttext\n": "", "é 日本 👍🏽": "", "👨\u200d👩\u200d👧": "", "می\u200cخواهم": "", "❤\ufe0f": "",
		"a\u001b[31mred": "control", "a\u0007": "control", "x\u009b1m": "control", "\u007f": "control", "a\bb": "control", "a\fb": "control",
		"a\u202eb": "bidi", "\u2066x": "bidi", "a\u200bb": "invisible", "a\u200db": "invisible", "\ufeffx": "invisible",
		"x\U000e0041\U000e0042": "tag", "😀\U000e0100\U000e0101": "tag", "a\ufe00\ufe01": "tag",
		"\u202e\u001b": "bidi control",
	} {
		quoted := jsonrpc.Quote(text)
		for _, raw := range []string{`{"a":[` + string(quoted) + `]}`, `{` + string(quoted) + `:1}`} {
			if got := strings.Join(hidden.Kinds(json.RawMessage(raw)), " "); got != want {
				t.Errorf("%q: %q, want %q", text, got, want)
			}
		}
		once := hidden.Escape(text)
		if want == "" && once != text || want != "" && hidden.Kinds(jsonrpc.Quote(once)) != nil || hidden.Escape(once) != once {
			t.Errorf("%q is escaped as %q", text, once)
		}
	}
}

// FuzzEscape: what is escaped has nothing hidden, and escaping it again changes nothing.
// TestKindsEverywhere: a hidden character is found wherever it stands.
func TestKindsEverywhere(t *testing.T) {
	for at := range 40 {
		for _, c := range []string{"\x7f", "\u200b", `\u200b`} {
			text := `"` + strings.Repeat("a", at) + c + strings.Repeat("~", 40-at) + `"`
			if got := hidden.Kinds(json.RawMessage(text)); len(got) != 1 {
				t.Errorf("%q: %v", text, got)
			}
		}
	}
	if got := hidden.Kinds(json.RawMessage(`"` + strings.Repeat("~", 41) + `"`)); got != nil {
		t.Error(got)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a\u202e\u200d\U000e0041\ufe0f")
	f.Add("0123456\x7f89\b")
	f.Fuzz(func(t *testing.T, text string) {
		if quoted := jsonrpc.Quote(text); jsonrpc.IsPlain(quoted) && hidden.Remove(text) != text {
			t.Errorf("%s is plain", quoted)
		}
		once := hidden.Escape(text)
		if got := hidden.Kinds(jsonrpc.Quote(once)); !slices.Equal(got, nil) {
			t.Errorf("%q is escaped as %q, which has %v", text, once, got)
		}
		if hidden.Escape(once) != once {
			t.Errorf("%q is escaped twice", text)
		}
	})
}
