package upstream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/registry/upstream"
)

// The condition of a client names what it declares, in one form, whatever a client writes.
func TestConditionOf(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf(`"a%02d":{}`, i))
	}
	for capabilities, want := range map[string]string{
		``:                             "",
		`{}`:                           "",
		`[{"a":{}}]`:                   "",
		`{"sampling":{},"roots":null}`: "client:sampling",
		`{"sampling":{"tools":{}},"elicitation":{"url":{}},"roots":{"listChanged":true}}`: "client:elicitation,roots,sampling",
		`{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":[]}}}`:                  "client:io.modelcontextprotocol/ui",
		`{"experimental":{"io.modelcontextprotocol/ui":{}},"extensions":{}}`:              "client:io.modelcontextprotocol/ui",
		`{"roots":{},"extensions":{"b":{}},"experimental":{"b":{},"a":true}}`:             "client:a,b,roots",
		`{"extensions":"x","experimental":[1]}`:                                           "",
		`{"extensions":{"a,b":{},"a\u202eb":{},"":{}}}`:                                   "",
		`{"extensions":{` + strings.Join(many, ",") + `}}`:                                "client:a00,a01,a02,a03,a04,a05,a06,a07,a08,a09,a10,a11,a12,a13,a14,a15",
	} {
		if got := upstream.ConditionOf(json.RawMessage(capabilities)); string(got) != want {
			t.Errorf("%s: %q, want %q", capabilities, got, want)
		}
	}
}

// A condition admits clients that declare one of the capabilities that it names, and is
// said in words. One of an unknown kind admits nobody.
func TestCondition(t *testing.T) {
	const ui, able = "client:io.modelcontextprotocol/ui", "client:elicitation,roots,sampling"
	for _, tt := range []struct {
		condition upstream.Condition
		words     string
		admits    []upstream.Condition
		refuses   []upstream.Condition
	}{
		{"", "", []upstream.Condition{"", ui, able}, nil},
		{ui, "for clients with io.modelcontextprotocol/ui", []upstream.Condition{ui, "client:io.modelcontextprotocol/ui,roots"}, []upstream.Condition{"", able, "client:io.modelcontextprotocol"}},
		{able, "for clients with elicitation, roots or sampling", []upstream.Condition{able, "client:roots"}, []upstream.Condition{"", ui}},
		{"person:ann", "under the condition person:ann", nil, []upstream.Condition{"", ui, "person:ann"}},
	} {
		if got := tt.condition.Words(); got != tt.words {
			t.Errorf("%q in words: %q, want %q", tt.condition, got, tt.words)
		}
		for _, client := range tt.admits {
			if !tt.condition.Admits(client) {
				t.Errorf("%q refuses %q", tt.condition, client)
			}
		}
		for _, client := range tt.refuses {
			if tt.condition.Admits(client) {
				t.Errorf("%q admits %q", tt.condition, client)
			}
		}
	}
}
