package jsonrpc_test

import (
	"bytes"
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

// Messages are mended at any place, in names too, and only where the limits say so; the
// caller's bytes stay as they are.
func TestMendUTF8(t *testing.T) {
	data := []byte("{\"jsonrpc\":\"2.0\",\"id\":\"1\",\r\n\"result\":{\"structuredContent\":{\"a\xe9\":\"\xed\xa0\xbd\xed\xb8\x80 \xc0\xaf.\"}}}")
	before := bytes.Clone(data)
	if m, err := jsonrpc.Decode(data, jsonrpc.Limits{}); err == nil || !strings.Contains(err.Error(), "invalid UTF-8") {
		t.Fatalf("%+v, %v", m, err)
	}
	m, err := jsonrpc.Decode(data, jsonrpc.Limits{Mend: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := "{\"structuredContent\":{\"a\ufffd\":\"\ufffd \ufffd.\"}}"; string(m.Result) != want || !bytes.Equal(before, data) {
		t.Errorf("got %s, want %s", m.Result, want)
	}
	if _, err := jsonrpc.Value([]byte("\"\xe9\""), jsonrpc.Limits{Mend: true, Bytes: 4}); err == nil || jsonrpc.FaultOf(err).Kind != jsonrpc.TooLarge {
		t.Errorf("beyond the bound: %v", err)
	}
}
