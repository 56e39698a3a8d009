package jsonrpc_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// TestMapTexts: only what is made to be read is changed, never what names, addresses or
// validates.
func TestMapTexts(t *testing.T) {
	for name, text := range map[string]string{
		"of a tool":        `{"name":"x","title":"T","description":"T","annotations":{"title":"T"}}`,
		"of a schema":      `{"inputSchema":{"description":"T","$comment":"T","properties":{"x":{"title":"T","enum":["x","x"],"const":"x","default":"x","pattern":"x"}}}}`,
		"of parameters":    `{"properties":{"title":{"description":"T"},"description":{"type":"x","title":"T"},"x":{"type":"x"}},"required":["x","title"]}`,
		"named as keyword": `{"properties":{"default":{"description":"T"},"enum":{"title":"T"},"properties":{"title":"T","properties":{"const":{"title":"T"}}}}}`,
		"values":           `{"const":{"description":"x"},"default":{"title":"x"},"enum":[{"title":"x"}],"examples":[{"text":"x"}]}`,
		"defined":          `{"$defs":{"examples":{"title":"T"}},"patternProperties":{"x":{"description":"T"}},"anyOf":[{"title":"T","const":"x"}]}`,
		"no schema":        `{"properties":{"title":"x","text":"x"}}`,
		"of resources":     `{"resources":[{"uri":"x","name":"x","title":"T","description":"T","mimeType":"x"}],"nextCursor":"x"}`,
		"contents":         `{"contents":[{"uri":"x","text":"T","blob":"x","_meta":{"x":"x"}}]}`,
		"of prompts":       `{"description":"T","messages":[{"role":"x","content":{"type":"text","text":"T"}},{"content":[{"text":"T"}]}]}`,
		"a question":       `{"message":"T","mode":"x","url":"x","requestedSchema":{"properties":{"x":{"title":"T","enum":["x"],"enumNames":["x"]}}}}`,
		"sampling":         `{"systemPrompt":"T","messages":[{"content":{"text":"T"}}],"stopSequences":["x"],"modelPreferences":{"hints":[{"name":"x"}]}}`,
		"alone":            `"x"`, "in an array": `["x",["x"]]`, "a number": `1e2`, "text in text": `{"text":["x",{"text":"T"}]}`,
	} {
		raw := strings.ReplaceAll(strings.ReplaceAll(text, `"x"`, `"x*"`), `"T"`, `"T*"`)
		got := string(jsonrpc.MapTexts(json.RawMessage(raw), func(s string) string { return strings.ReplaceAll(s, "*", "!") }))
		if want := strings.ReplaceAll(raw, `"T*"`, `"T!"`); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
		got = string(jsonrpc.MapStrings(json.RawMessage(raw), func(s string) string { return strings.ReplaceAll(s, "*", "!") }))
		if want := strings.ReplaceAll(raw, "*", "!"); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	if got := jsonrpc.MapTexts(json.RawMessage(`{"a":`), strings.ToUpper); string(got) != "null" {
		t.Errorf("half a value became %s", got)
	}
}
