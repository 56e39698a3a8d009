package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
)

const payment = `{
	"type": "object",
	"properties": {
		"amount": {"type": "number", "exclusiveMinimum": 0, "maximum": 9007199254740992},
		"currency": {"enum": ["EUR", "USD", "CHF"]},
		"to": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"},
		"memo": {"type": "string", "maxLength": 140},
		"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5, "uniqueItems": true}
	},
	"required": ["amount", "currency", "to"],
	"additionalProperties": false
}`

const paid = `{"amount":12.50,"currency":"EUR","to":"DE02120300000000202051","memo":"rent","tags":["a","b"]}`

func mustCompile(t testing.TB, raw string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(json.RawMessage(raw))
	if err != nil {
		t.Fatalf("compiling %.80s: %v", raw, err)
	}
	return s
}

func mustValidate(t testing.TB, s *schema.Schema, instance string) []schema.Fault {
	t.Helper()
	faults, err := s.Validate(json.RawMessage(instance))
	if err != nil {
		t.Fatalf("validating %.80s: %v", instance, err)
	}
	return faults
}

func TestValidateFaults(t *testing.T) {
	tests := []struct {
		name, schema, instance string
		want                   []schema.Fault
	}{
		{"valid", payment, paid, nil},
		{"boolean schema true", `true`, `1`, nil},
		{"boolean schema false", `false`, `1`, []schema.Fault{{"", "false", "nothing here", "number 1", ""}}},
		{"root type array", `{"type":"array"}`, `{}`, []schema.Fault{{"", "type", "array", "object with 0 members", ""}}},
		{"missing members, one fault each", payment, `{"amount":1}`, []schema.Fault{
			{"", "required", `member "currency"`, "no such member", ""},
			{"", "required", `member "to"`, "no such member", ""},
		}},
		{"unknown member names the known", `{"properties":{"a":{},"b":{}},"additionalProperties":false}`, `{"a":1,"c":2}`,
			[]schema.Fault{{"", "additionalProperties", `only "a", "b"`, `member "c"`, ""}}},
		{"unevaluated member", `{"properties":{"a":{}},"unevaluatedProperties":false}`, `{"a":1,"c":2}`,
			[]schema.Fault{{"/c", "unevaluatedProperties", "nothing here", "number 2", ""}}},
		{"enum", payment, strings.Replace(paid, "EUR", "GBP", 1),
			[]schema.Fault{{"/currency", "enum", `one of "EUR", "USD", "CHF"`, `string "GBP"`, ""}}},
		{"exact bound", payment, strings.Replace(paid, "12.50", "9007199254740993", 1),
			[]schema.Fault{{"/amount", "maximum", "at most 9007199254740992", "number 9007199254740993", ""}}},
		{"bound with a fraction", `{"minimum":0.1}`, `0.09999999999999999999999`,
			[]schema.Fault{{"", "minimum", "at least 0.1", "number 0.09999999999999999999999", ""}}},
		{"pattern", payment, strings.Replace(paid, "DE02", "de02", 1),
			[]schema.Fault{{"/to", "pattern", "a match of ^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$", `string "de02120300000000202051"`, ""}}},
		{"pointer is escaped", `{"properties":{"a/b":{"properties":{"c~d":{"type":"null"}}}}}`, `{"a/b":{"c~d":0}}`,
			[]schema.Fault{{"/a~1b/c~0d", "type", "null", "number 0", ""}}},
		{"element", `{"items":{"type":"integer"}}`, `[1,2.0,"x"]`, []schema.Fault{{"/2", "type", "integer", `string "x"`, ""}}},
		{"leaves of every alternative", `{"anyOf":[{"type":"string"},{"minimum":5}]}`, `1`, []schema.Fault{
			{"", "minimum", "at least 5", "number 1", ""}, {"", "type", "string", "number 1", `1 is a number where the text "1" is wanted`},
		}},
		{"two alternatives match", `{"oneOf":[{"type":"integer"},{"minimum":5}]}`, `7`,
			[]schema.Fault{{"", "oneOf", "exactly one of the alternatives", "number 7", ""}}},
		{"below a reference", `{"$ref":"#/$defs/a","$defs":{"a":{"const":{"x":1}}}}`, `2`,
			[]schema.Fault{{"", "const", `{"x":1}`, "number 2", ""}}},
		{"not", `{"not":{"type":"string"}}`, `"a"`,
			[]schema.Fault{{"", "not", "a value that does not match the schema below not", `string "a"`, ""}}},
		{"names", `{"properties":{"o":{"propertyNames":{"pattern":"^[a-z]+$"}}}}`, `{"o":{"B":1}}`,
			[]schema.Fault{{"/o", "propertyNames", "a name with pattern a match of ^[a-z]+$", `member "B"`, ""}}},
		{"contains is about the array", `{"contains":{"type":"string"}}`, `[1,2]`,
			[]schema.Fault{{"", "contains", "an element that matches the schema below contains", "array with 2 elements", ""}}},
		{"dependent", `{"dependentRequired":{"a":["b"]}}`, `{"a":1}`,
			[]schema.Fault{{"", "dependentRequired", `member "b"`, "no such member", ""}}},
		{"format is asserted in draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","format":"date"}`, `"x"`,
			[]schema.Fault{{"", "format", "a date", `string "x"`, ""}}},
		{"format is an annotation in 2020-12", `{"format":"date"}`, `"x"`, nil},
		{"legal recursion", `{"properties":{"child":{"$ref":"#"},"n":{"type":"integer"}}}`, `{"child":{"child":{"n":"x"}}}`,
			[]schema.Fault{{"/child/child/n", "type", "integer", `string "x"`, ""}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, mustValidate(t, mustCompile(t, tt.schema), tt.instance)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNamesPointAtTheirObject(t *testing.T) {
	s := mustCompile(t, `{"additionalProperties":{"propertyNames":{"maxLength":1}}}`)
	for range 50 { // the validator walks members in random order
		want := []schema.Fault{{"/a", "propertyNames", "a name with maxLength at most 1 characters", `member "bad"`, ""}}
		got := mustValidate(t, s, `{"z":{"k":1},"a":{"bad":1},"m":{"k":2}}`)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestFaultsAreBounded(t *testing.T) {
	s := mustCompile(t, `{"items":{"type":"string"}}`)
	big := "[" + strings.Repeat(`{"secret":"`+strings.Repeat("x", 500)+`"},`, 100) + "1]"
	faults := mustValidate(t, s, big)
	if len(faults) != 20 {
		t.Errorf("%d faults, want 20", len(faults))
	}
	long := mustValidate(t, mustCompile(t, `{"type":"null"}`), `"`+strings.Repeat("é", 5000)+`"`)
	if n := len(long[0].Got); n > 80 {
		t.Errorf("got has %d bytes, want at most 80", n)
	}
	for range 20 {
		if diff := cmp.Diff(faults, mustValidate(t, s, big)); diff != "" {
			t.Fatalf("the order changes:\n%s", diff)
		}
	}
}

func TestFaultString(t *testing.T) {
	f := schema.Fault{"/a", "type", "string", "number 1", ""}
	if got, want := f.String(), "/a: type: want string, got number 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A value that is the wanted one in another type is called so; what is wrong in any other
// way is not.
func TestMistyped(t *testing.T) {
	for _, tt := range []struct{ schema, value, want string }{
		{`{"type":"integer"}`, `"1"`, `/n: type: "1" is text where the number 1 is wanted`},
		{`{"type":["integer","null"]}`, `"-7"`, `/n: type: "-7" is text where the number -7 is wanted`},
		{`{"type":"number"}`, `"1.5e3"`, `/n: type: "1.5e3" is text where the number 1.5e3 is wanted`},
		{`{"type":"integer"}`, `"1.0"`, `/n: type: "1.0" is text where the number 1.0 is wanted`},
		{`{"type":"number"}`, `" 1 "`, `/n: type: " 1 " is text where the number 1 is wanted`},
		{`{"type":"boolean"}`, `"true"`, `/n: type: "true" is text where the boolean true is wanted`},
		{`{"enum":[1,2,true]}`, `"2"`, `/n: enum: "2" is text where the number 2 is wanted`},
		{`{"const":false}`, `"false"`, `/n: const: "false" is text where the boolean false is wanted`},
		{`{"type":"string"}`, `1e2`, `/n: type: 1e2 is a number where the text "1e2" is wanted`},
		{`{"type":"string"}`, `false`, `/n: type: false is a boolean where the text "false" is wanted`},
		{`{"enum":["1","2"]}`, `1`, `/n: enum: 1 is a number where the text "1" is wanted`},
		{`{"const":"true"}`, `true`, `/n: const: true is a boolean where the text "true" is wanted`},

		{`{"type":"integer"}`, `"1.5"`, `/n: type: want integer, got string "1.5"`},
		{`{"type":"integer"}`, `"one"`, `/n: type: want integer, got string "one"`},
		{`{"type":"integer"}`, `"1 2"`, `/n: type: want integer, got string "1 2"`},
		{`{"type":"integer"}`, `"true"`, `/n: type: want integer, got string "true"`},
		{`{"type":"boolean"}`, `"1"`, `/n: type: want boolean, got string "1"`},
		{`{"type":"boolean"}`, `"True"`, `/n: type: want boolean, got string "True"`},
		{`{"type":"boolean"}`, `1`, `/n: type: want boolean, got number 1`},
		{`{"type":"null"}`, `"null"`, `/n: type: want null, got string "null"`},
		{`{"type":"object"}`, `"{}"`, `/n: type: want object, got string "{}"`},
		{`{"enum":[{},null,2]}`, `"{}"`, `/n: enum: want one of {}, null, 2, got string "{}"`},
		{`{"enum":["2"]}`, `1`, `/n: enum: want one of "2", got number 1`},
		{`{"type":"string"}`, `null`, `/n: type: want string, got null`},
		{`{"minimum":5}`, `1`, `/n: minimum: want at least 5, got number 1`},
		{`{"type":"number"}`, `"1e999"`, `/n: type: want number, got string "1e999"`},
		{`{"type":"number"}`, `"` + strings.Repeat("1", 100) + `"`, `/n: type: want number, got string "` + strings.Repeat("1", 57) + `..."`},
	} {
		faults := mustValidate(t, mustCompile(t, `{"properties":{"n":`+tt.schema+`}}`), `{"n":`+tt.value+`}`)
		if len(faults) != 1 || faults[0].String() != tt.want {
			t.Errorf("%s for %s: %v, want %s", tt.value, tt.schema, faults, tt.want)
		}
	}
}

func TestValidateRefusesWhatIsNoStrictJSON(t *testing.T) {
	s := mustCompile(t, `{"properties":{"a":{"maximum":10}}}`)
	for _, instance := range []string{
		``, `{`, `{"a":1,"a":100}`, `{"a":1,"\u0061":100}`, `1e10000000`, `1e401`, `{"a":1} {}`, "\xef\xbb\xbf{}", "\"\xff\"",
		strings.Repeat("9", 401),
	} {
		faults, err := s.Validate(json.RawMessage(instance))
		var fault *jsonrpc.Fault
		if !errors.As(err, &fault) || faults != nil {
			t.Errorf("%.30q: faults %v, error %v, want a *jsonrpc.Fault", instance, faults, err)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	tests := []struct{ name, schema, reason string }{
		{"no JSON", `{`, "expected a member name"},
		{"array", `[]`, "object or a boolean"},
		{"repeated member", `{"type":"string","type":"number"}`, "duplicate key"},
		{"file", `{"$ref":"file:///etc/hostname"}`, "outside the schema"},
		{"http", `{"$ref":"http://127.0.0.1:9/x"}`, "outside the schema"},
		{"no scheme", `{"$ref":"//host/x"}`, "outside the schema"},
		{"relative file", `{"$ref":"other.json"}`, "outside the schema"},
		{"unknown dialect", `{"$schema":"https://example.com/dialect"}`, "outside the schema"},
		{"dialect that is no string", `{"$schema":7}`, "$schema"},
		{"misspelled type", `{"type":"strng"}`, "not a valid schema"},
		{"reference to nowhere", `{"$ref":"#/$defs/none"}`, ""},
		{"broken pattern", `{"pattern":"("}`, ""},
		{"self", `{"$ref":"#"}`, "refers to itself"},
		{"self below allOf", `{"allOf":[{"$ref":"#"}]}`, "refers to itself"},
		{"self below not", `{"not":{"$ref":"#"}}`, "refers to itself"},
		{"self below if", `{"if":{"$ref":"#"}}`, "refers to itself"},
		{"self below dependentSchemas", `{"dependentSchemas":{"a":{"$ref":"#"}}}`, "refers to itself"},
		{"mutual", `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, "refers to itself"},
		{"mutual in a property", `{"properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}}}`, "refers to itself"},
		{"dynamic loop", `{"$dynamicAnchor":"n","$dynamicRef":"#n"}`, "refers to itself"},
		{"dynamic loop by override", `{"$dynamicAnchor":"n","$ref":"inner","$defs":{"i":{"$id":"inner","$defs":{"n":{"$dynamicAnchor":"n"}},"$dynamicRef":"#n"}}}`, "refers to itself"},
		{"recursive loop", `{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"$recursiveRef":"#"}`, "refers to itself"},
		{"too many bytes", `{"description":"` + strings.Repeat("x", 64<<10) + `"}`, "more than 65536 bytes"},
		{"nested not", strings.Repeat(`{"not":`, 1000) + `true` + strings.Repeat(`}`, 1000), "nested deeper"},
		{"chain of references", chain(100), "in a chain"},
		{"too many subschemas", `{"anyOf":[` + strings.Repeat(`{"type":"null"},`, 2001) + `true]}`, "more than 2000 subschemas"},
		{"too many objects that are no subschemas", `{"enum":[` + strings.Repeat(`{},`, 2001) + `1]}`, "more than 2000 subschemas"},
		{"doubling on the way back to itself", doublingBack(20), "look at the same value"},
		{"too many subschemas that are no objects", `{"properties":{` + booleans(2001) + `}}`, "more than 2000 subschemas"},
		{"too many bytes of patterns", `{"anyOf":[` + patterns(17) + `]}`, "more than 16384 bytes"},
		{"too many references", `{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/a"},`, 1001) + `true],"$defs":{"a":true}}`, "more than 1000 references"},
		{"too many odd references", oddRefs(101), "other places than definitions"},
		{"too many ids", manyIDs(65), "more than 64 ids"},
		{"doubling allOf", doubling("allOf", 20), "more than 10000"},
		{"doubling anyOf", doubling("anyOf", 22), "more than 10000"},
		{"doubling through properties", doublingDown(20), "more than 10000"},
		{"long pattern", `{"pattern":"` + strings.Repeat("a", 2000) + `"}`, "pattern"},
		{"huge program", `{"pattern":"` + strings.Repeat("x{1000}", 100) + `"}`, "instructions"},
		{"number bomb", `{"maximum":1e10000000}`, "exponent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := schema.Compile(json.RawMessage(tt.schema))
			var r *schema.Refused
			if !errors.As(err, &r) || s != nil {
				t.Fatalf("got %v, %v; want a refusal", s, err)
			}
			if !strings.Contains(r.Reason, tt.reason) {
				t.Errorf("reason %q, want %q in it", r.Reason, tt.reason)
			}
			if strings.ContainsAny(r.Reason, "\n\r") || len(r.Reason) > 400 {
				t.Errorf("reason is no short line: %q", r.Reason)
			}
		})
	}
}

// booleans are members that are schemas.
func booleans(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"k%d":true`, i)
	}
	return strings.Join(all, ",")
}

// patterns are schemas with patterns of the greatest length.
func patterns(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"pattern":"%s%04d"}`, strings.Repeat("x", 1020), i)
	}
	return strings.Join(all, ",")
}

// oddRefs refers to places where no keyword leads.
func oddRefs(n int) string {
	var to, from strings.Builder
	for i := range n {
		fmt.Fprintf(&to, `"k%d":{},`, i)
		fmt.Fprintf(&from, `{"$ref":"#/odd/k%d"},`, i)
	}
	return fmt.Sprintf(`{"odd":{%s"z":1},"anyOf":[%strue]}`, to.String(), from.String())
}

// manyIDs embeds resources.
func manyIDs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":{"$id":"x%d"},`, i, i)
	}
	return fmt.Sprintf(`{"$defs":{%s"z":true}}`, b.String())
}

// doubling builds levels of two references to the level below.
func doubling(keyword string, levels int) string {
	var b strings.Builder
	for i := range levels {
		fmt.Fprintf(&b, `"l%d":{"%s":[{"$ref":"#/$defs/l%d"},{"$ref":"#/$defs/l%d"}]},`, i, keyword, i+1, i+1)
	}
	return fmt.Sprintf(`{"$ref":"#/$defs/l0","$defs":{%s"l%d":{"type":"string"}}}`, b.String(), levels)
}

// doublingBack is doubling whose last level leads down to the first.
func doublingBack(levels int) string {
	return strings.Replace(doubling("anyOf", levels), `{"type":"string"}`, `{"items":{"$ref":"#/$defs/l0"}}`, 1)
}

// doublingDown doubles by two members on each level.
func doublingDown(levels int) string {
	var b strings.Builder
	for i := range levels {
		fmt.Fprintf(&b, `"l%d":{"properties":{"a":{"$ref":"#/$defs/l%d"},"b":{"$ref":"#/$defs/l%d"}}},`, i, i+1, i+1)
	}
	return fmt.Sprintf(`{"$ref":"#/$defs/l0","$defs":{%s"l%d":{"type":"string"}}}`, b.String(), levels)
}

// chain builds a list of references, one to the next.
func chain(links int) string {
	var b strings.Builder
	for i := range links {
		fmt.Fprintf(&b, `"l%d":{"not":{"$ref":"#/$defs/l%d"}},`, i, i+1)
	}
	return fmt.Sprintf(`{"$ref":"#/$defs/l0","$defs":{%s"l%d":true}}`, b.String(), links)
}

func TestCompileAccepts(t *testing.T) {
	tests := []struct{ name, schema string }{
		{"tree", `{"properties":{"children":{"items":{"$ref":"#"}}}}`},
		{"dynamic tree", `{"$dynamicAnchor":"n","properties":{"next":{"$dynamicRef":"#n"}}}`},
		{"list and tree", `{"$defs":{"a":{"properties":{"b":{"$ref":"#/$defs/b"}}},"b":{"items":{"$ref":"#/$defs/a"}}},"$ref":"#/$defs/a"}`},
		{"metaschema", `{"properties":{"schema":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`},
		{"some odd references", oddRefs(100)},
		{"some ids", manyIDs(64)},
		{"some doubling", doubling("allOf", 8)},
		{"members that differ by case", `{"properties":{"id":{},"ID":{}}}`},
		{"shared definition", `{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s"},"b":{"$ref":"#/$defs/s"}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { mustCompile(t, tt.schema) })
	}
}

// A reference must not make the process connect anywhere.
func TestCompileNeverConnects(t *testing.T) {
	hits := make(chan struct{}, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hits <- struct{}{}
		_, _ = w.Write([]byte(`true`))
	}))
	defer srv.Close()
	for _, text := range []string{
		`{"$ref":"%s/x"}`, `{"$schema":"%s/x"}`, `{"$id":"%s/a","$ref":"b"}`, `{"$dynamicRef":"%s/x#y"}`,
		`{"properties":{"a":{"$id":"%s/a","$schema":"%[1]s/x"}}}`,
	} {
		if _, err := schema.Compile(fmt.Appendf(nil, text, srv.URL)); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
	if len(hits) != 0 {
		t.Errorf("%d connections", len(hits))
	}
}

// A schema must not be able to read files: what it refers to would come back
// in the faults.
func TestCompileNeverReadsFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(file, []byte(`{"const":"secret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"$ref":"file://%s"}`, `{"$schema":"file://%s"}`, `{"$id":"file:///x/","$ref":"%s"}`} {
		if _, err := schema.Compile(fmt.Appendf(nil, text, file)); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

func TestRecursionThatDoublesIsCountedOut(t *testing.T) {
	s := mustCompile(t, `{"allOf":[{"properties":{"c":{"$ref":"#"}}},{"properties":{"c":{"$ref":"#"}}}]}`)
	nested := func(n int) string { return strings.Repeat(`{"c":`, n) + `{}` + strings.Repeat(`}`, n) }
	if faults := mustValidate(t, s, nested(5)); len(faults) != 0 {
		t.Errorf("five levels: %v", faults)
	}
	if _, err := s.Validate(json.RawMessage(nested(60))); !errors.Is(err, schema.ErrTooCostly) {
		t.Errorf("sixty levels: %v, want ErrTooCostly", err)
	}
}

func TestWorkPerValueIsCounted(t *testing.T) {
	enum := `{"items":{"enum":[` + strings.Repeat("1,", 16000) + `0]}}`
	s := mustCompile(t, enum)
	if _, err := s.Validate(json.RawMessage("[" + strings.Repeat("2,", 20_000) + "2]")); !errors.Is(err, schema.ErrTooCostly) {
		t.Errorf("long enum on a long array: %v, want ErrTooCostly", err)
	}
	plain := mustCompile(t, `{"items":{"type":"integer","minimum":0}}`)
	if faults := mustValidate(t, plain, "["+strings.Repeat("2,", 20_000)+"2]"); len(faults) != 0 {
		t.Errorf("long array: %v", faults)
	}
}

func TestPatterns(t *testing.T) {
	s := mustCompile(t, `{"pattern":"^(?!admin)[a-z]+$"}`)
	if faults := mustValidate(t, s, `"user"`); len(faults) != 0 {
		t.Error(faults)
	}
	if faults := mustValidate(t, s, `"admins"`); len(faults) != 1 {
		t.Error(faults)
	}
}

// A match that is cut off must be a fault wherever the pattern stands: below
// not, a mere mismatch would be a pass.
func TestSlowPatternIsAFault(t *testing.T) {
	victim, err := json.Marshal(strings.Repeat("a", 40) + "!")
	if err != nil {
		t.Fatal(err)
	}
	want := []schema.Fault{{"", "pattern", "a match of ^(?=a)(a+)+$", "a match that took too long", ""}}
	for _, text := range []string{
		`{"pattern":"^(?=a)(a+)+$"}`, `{"not":{"pattern":"^(?=a)(a+)+$"}}`, `{"anyOf":[{"pattern":"^(?=a)(a+)+$"},true]}`,
	} {
		if diff := cmp.Diff(want, mustValidate(t, mustCompile(t, text), string(victim))); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
	}
	long := `"` + strings.Repeat("a", 1<<20) + `!"`
	if faults := mustValidate(t, mustCompile(t, `{"pattern":"^(a+)+$"}`), long); len(faults) != 1 {
		t.Errorf("a megabyte on the linear engine: %v", faults)
	}
}

func TestFormatRegexOfAnInstanceIsNotKept(t *testing.T) {
	s := mustCompile(t, `{"$schema":"http://json-schema.org/draft-07/schema#","format":"regex"}`)
	for i := range 200 {
		text := fmt.Sprintf(`"%d%s"`, i, strings.Repeat("a", 500))
		if faults := mustValidate(t, s, text); len(faults) != 0 {
			t.Fatalf("value %d: %v", i, faults)
		}
	}
	if faults := mustValidate(t, s, `"("`); len(faults) != 1 {
		t.Errorf("broken expression: %v", faults)
	}
}

func TestSchemaIsSafeForConcurrentUse(t *testing.T) {
	s := mustCompile(t, payment)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if faults, err := s.Validate(json.RawMessage(paid)); err != nil || len(faults) > 0 {
					t.Error(faults, err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := schema.Compile(json.RawMessage(payment)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	wrong := strings.Replace(paid, "EUR", "GBP", 1)
	for name, text := range map[string]string{"valid": paid, "invalid": wrong} {
		b.Run(name, func(b *testing.B) {
			s, raw := mustCompile(b, payment), json.RawMessage(text)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Validate(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
