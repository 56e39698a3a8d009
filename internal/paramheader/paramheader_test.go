package paramheader_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
)

// What is written into a header is read back, and never breaks a line.
func FuzzEncode(f *testing.F) {
	for _, text := range []string{"", "a b", " a", "\u00fcber", "=?base64?YQ==?=", "a\r\nb", "\t"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value := paramheader.Encode(text)
		if got, ok := paramheader.Decode(value); !ok || got != text {
			t.Errorf("%q became %q, %t", text, got, ok)
		}
		if !paramheader.Plain(value) || strings.TrimSpace(value) != value || value == "" {
			t.Errorf("%q becomes %q, which a header may lose", text, value)
		}
	})
}

// One annotation that breaks the rules is told, and hides no other.
func TestParameters(t *testing.T) {
	got, err := paramheader.Parameters(json.RawMessage(`{"inputSchema":{"properties":{
		"a":{"type":"string","x-mcp-header":"Re gion"},
		"b":{"properties":{"c":{"type":"integer","x-mcp-header":"n-1"}}},
		"d":{"anyOf":[{"type":"string","x-mcp-header":"E"}]}}}}`))
	if err == nil {
		t.Error("no fault")
	}
	if diff := cmp.Diff([]paramheader.Parameter{{Path: []string{"b", "c"}, Header: "Mcp-Param-N-1"}}, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzDecodeHeader: what a value stands for is spelt in one way only, or as
// base64 says it; nothing is given with a refusal.
func FuzzDecodeHeader(f *testing.F) {
	for _, value := range []string{"", "eu", "=?base64?ZXU=?=", "=?base64?ZXU?=", "=?base64?Z\nXU=?=", "é", "=?base64?", "=?base64??="} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		text, ok := paramheader.Decode(value)
		switch {
		case !ok && text != "":
			t.Errorf("%q is refused and gives %q", value, text)
		case ok && text != value && value != "=?base64?"+base64.StdEncoding.EncodeToString([]byte(text))+"?=":
			t.Errorf("%q gives %q", value, text)
		}
	})
}

// What a client sets is what a server accepts, and no other header is, whatever
// the argument is.
func FuzzSetCheck(f *testing.F) {
	for _, value := range []string{`9007199254740993`, `1e22`, `-1E+022`, `4.25`, `1e-400`, `""`, `" a"`, `"=?base64?YQ==?="`, `true`, `null`, `{"a":1}`, `[]`,
		strings.Repeat("9", 400) + "e400"} {
		f.Add(value)
	}
	bound := []paramheader.Parameter{{Path: []string{"v"}, Header: "Mcp-Param-V"}}
	f.Fuzz(func(t *testing.T, value string) {
		params := json.RawMessage(`{"name":"t","arguments":{"v":` + value + `}}`)
		if _, _, err := jsonrpc.CheckValue(params, jsonrpc.Limits{}); err != nil {
			t.Skip()
		}
		arguments, _ := jsonrpc.Get(params, "arguments")
		h := http.Header{}
		paramheader.Set(h, "tools/call", params, bound)
		if fault := paramheader.Check(h, bound, arguments); fault != "" {
			t.Errorf("%s: %v: %s", value, h, fault)
		}
		h["Mcp-Param-V"] = []string{"another value"}
		if fault := paramheader.Check(h, bound, arguments); fault == "" && value != `"another value"` {
			t.Errorf("%s: any header is accepted", value)
		}
	})
}

// Numbers agree when their exact values do.
func TestNumbers(t *testing.T) {
	bound := []paramheader.Parameter{{Path: []string{"v"}, Header: "Mcp-Param-V"}}
	for _, tt := range []struct {
		argument, header string
		agree            bool
	}{
		{"9007199254740993", "9007199254740993", true}, {"9007199254740993", "9007199254740992", false},
		{"1e22", "10000000000000000000000", true}, {"10000000000000000000000", "1E+022", true}, {"1e22", "1e21", false},
		{"42", "42.0", true}, {"-0", "0", true}, {"0.1", "0.10", true}, {"0.1", "0.1000000000000000055", false},
		{"42", "0x2A", false}, {"42", "84/2", false}, {"42", " 42", false}, {"1", "1e999999999", false}, {`"42"`, "42.0", false},
	} {
		fault := paramheader.Check(http.Header{"Mcp-Param-V": {tt.header}}, bound, json.RawMessage(`{"v":`+tt.argument+`}`))
		if (fault == "") != tt.agree {
			t.Errorf("%s and %s: %q", tt.argument, strconv.Quote(tt.header), fault)
		}
	}
}

// Annotations that break the rules are refused.
func TestParametersAreChecked(t *testing.T) {
	property := func(p string) string { return `{"type":"object","properties":{"p":` + p + `}}` }
	for _, tt := range []struct {
		name, schema string
		fine         bool
	}{
		{"none", `{"type":"object"}`, true},
		{"boolean schema", `true`, true},
		{"string", property(`{"type":"string","x-mcp-header":"Region"}`), true},
		{"nested", property(property(`{"type":"integer","x-mcp-header":"R"}`)), true},
		{"a property of that name", `{"properties":{"x-mcp-header":{"type":"object"}}}`, true},
		{"data", property(`{"type":"object","default":{"x-mcp-header":1},"enum":[{"x-mcp-header":""}]}`), true},
		{"empty", property(`{"type":"string","x-mcp-header":""}`), false},
		{"not text", property(`{"type":"string","x-mcp-header":5}`), false},
		{"space", property(`{"type":"string","x-mcp-header":"a b"}`), false},
		{"line end", property(`{"type":"string","x-mcp-header":"a\r\nb"}`), false},
		{"not ASCII", property(`{"type":"string","x-mcp-header":"ä"}`), false},
		{"number", property(`{"type":"number","x-mcp-header":"R"}`), false},
		{"object", property(`{"type":"object","x-mcp-header":"R"}`), false},
		{"no type", property(`{"x-mcp-header":"R"}`), false},
		{"twice", `{"properties":{"a":{"type":"string","x-mcp-header":"R"},"b":{"properties":{"c":{"type":"string","x-mcp-header":"r"}}}}}`, false},
		{"root", `{"type":"string","x-mcp-header":"R"}`, false},
		{"items", property(`{"type":"array","items":{"type":"string","x-mcp-header":"R"}}`), false},
		{"anyOf", property(`{"anyOf":[{"type":"string","x-mcp-header":"R"}]}`), false},
		{"then", `{"then":{"properties":{"p":{"type":"string","x-mcp-header":"R"}}}}`, false},
		{"$defs", `{"$defs":{"d":{"type":"string","x-mcp-header":"R"}}}`, false},
		{"patternProperties", `{"patternProperties":{"^a":{"type":"string","x-mcp-header":"R"}}}`, false},
	} {
		if _, err := paramheader.Parameters(json.RawMessage(`{"name":"t","inputSchema":` + tt.schema + `}`)); (err == nil) != tt.fine {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Whatever a definition holds is read or refused.
func FuzzParameters(f *testing.F) {
	for _, seed := range []string{
		`{"name":"a","inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"R"}}}}`,
		`{"inputSchema":{"items":[{"x-mcp-header":1}],"properties":[]}}`, `{"inputSchema":true}`, `[]`, `{"inputSchema":{"properties":{"p":null}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, definition []byte) { _, _ = paramheader.Parameters(definition) })
}
