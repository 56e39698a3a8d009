package schema_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
)

// TestMask holds which values of arguments a schema calls secret.
func TestMask(t *testing.T) {
	const pin = `{"type":"string","writeOnly":true}`
	for _, tt := range []struct{ name, schema, in, want string }{
		{"writeOnly", `{"properties":{"pin":` + pin + `}}`, `{"pin":"1234","n":1.0}`, `{"n":1.0,"pin":"*"}`},
		{"format password", `{"properties":{"pin":{"format":"password"}}}`, `{"pin":{"a":[1]}}`, `{"pin":"*"}`},
		{"format password in draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"pin":{"format":"password"}}}`, `{"pin":"a"}`, `{"pin":"*"}`},
		{"another format", `{"properties":{"at":{"format":"date"}}}`, `{"at":"a"}`, ``},
		{"readOnly", `{"properties":{"at":{"readOnly":true}}}`, `{"at":"a"}`, ``},
		{"writeOnly false", `{"properties":{"at":{"writeOnly":false}}}`, `{"at":"a"}`, ``},
		{"absent", `{"properties":{"pin":` + pin + `}}`, `{"n":1}`, ``},
		{"a name with a slash", `{"properties":{"a/b~ %":{"format":"password"}}}`, `{"a/b~ %":1}`, `{"a/b~ %":"*"}`},
		{"reference", `{"$defs":{"s":{"format":"password"}},"properties":{"pin":{"$ref":"#/$defs/s"}}}`, `{"pin":"1"}`, `{"pin":"*"}`},
		{"anchor under an id", `{"$id":"https://example.org/s","$defs":{"s":{"$anchor":"x","format":"password"}},"properties":{"pin":{"$ref":"#x"}}}`, `{"pin":"1"}`, `{"pin":"*"}`},
		{"every branch", `{"anyOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"a":` + pin + `}}]}`, `{"a":1}`, `{"a":"*"}`},
		{"items", `{"properties":{"l":{"prefixItems":[true,` + pin + `],"items":{"properties":{"p":` + pin + `}}}}}`, `{"l":[1,2,{"p":3,"q":4}]}`, `{"l":[1,"*",{"p":"*","q":4}]}`},
		{"pattern", `{"patternProperties":{"^s_":` + pin + `}}`, `{"s_a":1,"a":2}`, `{"a":2,"s_a":"*"}`},
		{"other members", `{"properties":{"a":true},"additionalProperties":` + pin + `}`, `{"a":1,"b":2}`, `{"a":1,"b":"*"}`},
		{"recursion", `{"properties":{"n":{"$ref":"#"},"p":` + pin + `}}`, `{"n":{"n":{"p":1}}}`, `{"n":{"n":{"p":"*"}}}`},
		{"the whole", `{"writeOnly":true}`, `{"a":1}`, `"*"`},
	} {
		s, err := schema.Compile(json.RawMessage(tt.schema))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		v, err := jsonrpc.Value([]byte(tt.in), jsonrpc.Limits{Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if tt.want != "" && !s.Secret() {
			t.Errorf("%s: the schema has no secret", tt.name)
		}
		out, n := s.Mask(v, "*")
		got, _ := json.Marshal(out)
		want := tt.want
		if want == "" {
			want = tt.in
		}
		if string(got) != want || (n > 0) != (tt.want != "") {
			t.Errorf("%s: %s with %d values, want %s", tt.name, got, n, want)
		}
	}
}

// TestNoSecret holds that a schema without a secret subschema says so.
func TestNoSecret(t *testing.T) {
	for _, raw := range []string{`true`, `{"properties":{"at":{"format":"date","writeOnly":false}}}`} {
		if s, err := schema.Compile(json.RawMessage(raw)); err != nil || s.Secret() {
			t.Errorf("%s: %v, or it has a secret", raw, err)
		}
	}
}

// TestMaskIsBounded holds that a schema that doubles its work with each level masks
// everything rather than nothing.
func TestMaskIsBounded(t *testing.T) {
	s, err := schema.Compile(json.RawMessage(`{"properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]},"pin":{"writeOnly":true}}}`))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonrpc.Value([]byte(strings.Repeat(`{"a":`, 60)+`{"pin":"1234"}`+strings.Repeat("}", 60)), jsonrpc.Limits{Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if out, n := s.Mask(v, "*"); n == 0 || strings.Contains(fmt.Sprint(out), "1234") {
		t.Errorf("%d values masked in %v", n, out)
	}
}
