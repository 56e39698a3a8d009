package mirror_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/mirror"
)

// What is written into a header is read out of it again.
func FuzzEncode(f *testing.F) {
	for _, text := range []string{"", "a b", " a", "\u00fcber", "=?base64?YQ==?=", "a\r\nb", "\t"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, ok := mirror.Decode(mirror.Encode(text)); !ok || got != text {
			t.Errorf("%q became %q, %t", text, got, ok)
		}
	})
}

// One annotation that breaks the rules is told, and hides no other.
func TestParameters(t *testing.T) {
	got, err := mirror.Parameters(json.RawMessage(`{"inputSchema":{"properties":{
		"a":{"type":"string","x-mcp-header":"Re gion"},
		"b":{"properties":{"c":{"type":"integer","x-mcp-header":"n-1"}}},
		"d":{"anyOf":[{"type":"string","x-mcp-header":"E"}]}}}}`))
	if err == nil {
		t.Error("no fault")
	}
	if diff := cmp.Diff([]mirror.Parameter{{Path: []string{"b", "c"}, Header: "Mcp-Param-N-1"}}, got); diff != "" {
		t.Error(diff)
	}
}
