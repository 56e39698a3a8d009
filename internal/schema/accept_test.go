package schema_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// TestAccept holds what is accepted where it stands. The library judges the rest, and
// agrees with what was accepted.
func TestAccept(t *testing.T) {
	for _, tt := range []struct{ schema, accepted, left string }{
		{`{"type":"object","properties":{"q":{"type":"string"},"n":{"type":"integer","maximum":10}},"required":["q"]}`,
			`{"q":""} {"q":"x","n":10} {"n":-0,"q":"\"}"} {"\u0071":"x"} { "q" : "x" , "n" : 1 } {"q":"x","other":[{}]}`,
			`{} {"q":1} {"n":1} {"q":"x","n":11} {"q":"x","n":1.0} {"q":"x","n":1e0} [] null`},
		{`{"properties":{"q":true},"additionalProperties":false}`, `{} {"q":{}}`, `{"Q":1} {"":1}`},
		{`{"additionalProperties":{"type":"null"}}`, `{} {"a":null} 1`, `{"a":0}`},
		{`{"minProperties":1,"maxProperties":2}`, `{"a":1} {"a":1,"b":2}`, `{} {"a":1,"b":2,"c":3}`},
		{`{"properties":{"a/b":{"const":"1"},"é\"":{"const":"2"}}}`, `{"a/b":"1"} {"\u00e9\u0022":"2"} {"a\/b":"1"}`, `{"a\/b":"2"} {"é\"":"1"}`},
		{`{"type":"integer"}`, `0 -0 10000000000000000000000 9007199254740993`, `1.0 1e22 1.5 "1"`},
		{`{"type":"number"}`, `1 1.5 1e22 -0.0`, `"1" null`},
		{`{"minimum":9007199254740993}`, `"a"`, `9007199254740993 9007199254740992 9007199254740994 9007199254740992.5`},
		{`{"minimum":9007199254740992}`, `9007199254740994 1e22`, `9007199254740993 9007199254740992 9007199254740991.9`},
		{`{"exclusiveMinimum":-1.5,"exclusiveMaximum":1}`, `-1 -0 0 -1.4 9e-1`, `-2 1 -1.5 1.0 0.99999999999999999999`},
		{`{"minimum":-1.5,"maximum":1.5}`, `-1 1 1.4`, `-2 2 1.5`},
		{`{"minimum":0,"maximum":1}`, `0 -0 1 0.5`, `0.0 1.0 -1e-400 1e-400 1.00000000000000000001 2`},
		{`{"minimum":0.1}`, `"a"`, `1 0.1`},
		{`{"minimum":1e22,"maximum":1e22}`, `"a"`, `1 10000000000000000000000 1e22`},
		{`{"maximum":1e18}`, `999999999999999 1.5`, `1000000000000000000 1000000000000000001 1e400`},
		{`{"enum":["a","\u00e9",1,true,null]}`, `"a" "é" "\u0061" "\u00e9"`, `"b" 1 1.0 true false null "1" "null"`},
		{`{"enum":[[1],{}]}`, ``, `[1] {} 1`},
		{`{"enum":[]}`, ``, `1 "a"`},
		{`{"const":"a","enum":["a","b"]}`, `"a"`, `"b" "c"`},
		{`{"const":null}`, ``, `null 0 "null"`},
		{`{"const":"x"}`, `"x" "\u0078"`, `"y" "x "`},
		{`{"minLength":2,"maxLength":3}`, `"ab" "éé" "\ud83d\ude00a" "😀😀😀" 1`, `"a" "😀" "\ud83d\ude00" "abcd"`},
		{`{"pattern":"^a+$"}`, `"aa" "\u0061" 1`, `"b"`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","format":"date"}`, ``, `"x" "2026-11-23"`},
		{`{"format":"date"}`, `"x"`, ``},
		{`{"pattern":"^(?!b)"}`, ``, `"a" "b"`},
		{`{"anyOf":[{"patternProperties":{"^(?!b)":{}}},true]}`, ``, `{"a":1} 1`},
		{`{"type":["string","null"]}`, `"a" null`, `1`},
		{`{"type":"array","items":{"type":"string"},"minItems":1,"maxItems":2}`, `["a"] ["a","b"]`, `[] [1] ["a","b","c"]`},
		{`{"anyOf":[{"type":"string","maxLength":1},{"type":"null"}]}`, `"a" null`, `"ab" 1`},
		{`{"allOf":[{"minimum":1},{"maximum":2}]}`, `1 2 "a"`, `0 3`},
		{`{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s"}}}`, `{"a":"b"}`, `{"a":1}`},
		{`{"$schema":"http://json-schema.org/draft-04/schema#","minimum":1,"exclusiveMinimum":true}`, `2`, `1`},
		{`{"properties":{"a":{"multipleOf":2},"b":{"type":"string"}}}`, `{"b":"x"}`, `{"a":2} {"a":3}`},
		{`{"properties":{"a":{"$ref":"#"}}}`, ``, `{} {"a":{}}`},
		{`true`, `1 {}`, ``},
		{`false`, ``, `1 {}`},
	} {
		for _, instance := range fields(tt.accepted) {
			held(t, tt.schema, instance, true)
		}
		for _, instance := range fields(tt.left) {
			held(t, tt.schema, instance, false)
		}
	}
}

// fields splits JSON values at the spaces between them.
func fields(values string) (out []string) {
	d := json.NewDecoder(strings.NewReader(values))
	for {
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return out
		}
		out = append(out, string(v))
	}
}

// held compares the two ways of judging instance, and whether it is accepted where it
// stands.
func held(t *testing.T, text, instance string, accepted bool) {
	t.Helper()
	s, err := schema.Compile(json.RawMessage(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if got := s.Accepts(json.RawMessage(instance)); got != accepted {
		t.Errorf("%s accepts %s where it stands: %v", text, instance, got)
	}
	agree(t, s, text, instance)
}

// agree compares the two ways of judging instance.
func agree(t *testing.T, s *schema.Schema, text, instance string) {
	t.Helper()
	want, wantErr := s.Library(json.RawMessage(instance))
	got, err := s.ValidateAccepted(json.RawMessage(instance))
	if diff := cmp.Diff(want, got); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(err) {
		t.Fatalf("%s and %s: %s%v, then %v", text, instance, diff, wantErr, err)
	}
}

// TestAcceptCostly: what the library would refuse as too costly is not accepted.
func TestAcceptCostly(t *testing.T) {
	text := `{"type":"array","items":{"enum":[` + strings.Repeat(`"a",`, 200) + `1]}}`
	s, err := schema.Compile(json.RawMessage(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{10, 100_000} {
		agree(t, s, "a long enum", "["+strings.Repeat("1,", n)+"1]")
	}
	if _, err := s.ValidateAccepted(json.RawMessage("[" + strings.Repeat("1,", 100_000) + "1]")); err == nil {
		t.Error("accepted what is too costly")
	}
}

// TestAcceptGenerated compares the two ways with schemas and instances that are put
// together at random.
func TestAcceptGenerated(t *testing.T) {
	parts.Long(t, "generates 80,000 instances")
	r := rand.New(rand.NewPCG(14, 1))
	accepted := 0
	for range 4000 {
		text := randomSchema(r, 3)
		s, err := schema.Compile(json.RawMessage(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for range 20 {
			instance := randomValue(r, 3)
			agree(t, s, text, instance)
			if s.Accepts(json.RawMessage(instance)) {
				accepted++
			}
		}
	}
	if accepted < 10_000 {
		t.Errorf("only %d instances were accepted where they stand", accepted)
	}
}

var (
	scalars = []string{`0`, `-0`, `1`, `-1`, `1.0`, `1.5`, `1e0`, `1e22`, `10000000000000000000000`, `9007199254740993`, `9007199254740992`, `999999999999999999`,
		`1000000000000000000`, `true`, `false`, `null`, `""`, `"a"`, `"\u0061"`, `"b"`, `"é"`, `"\u00e9"`, `"😀"`, `"\ud83d\ude00"`, `"ab"`, `"1"`, `"null"`, `"\\"`, `"}"`}
	names = []string{`"a"`, `"b"`, `"\u0061\u0062"`, `""`, `"a\/b"`}
)

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

// randomValue returns a value without repeated names.
func randomValue(r *rand.Rand, depth int) string {
	switch n := r.IntN(10); {
	case depth == 0 || n < 4:
		return pick(r, scalars)
	case n < 6:
		return "[" + randomValue(r, depth-1) + strings.Repeat(", "+pick(r, scalars), r.IntN(3)) + "]"
	default:
		var members []string
		for _, i := range r.Perm(len(names))[:r.IntN(4)] {
			members = append(members, names[i]+" : "+randomValue(r, depth-1))
		}
		return "{ " + strings.Join(members, ",") + "}"
	}
}

// randomSchema returns a schema with keywords that are accepted in place and some that
// are not.
func randomSchema(r *rand.Rand, depth int) string {
	if depth == 0 {
		return pick(r, []string{`true`, `{}`, `{"type":"string"}`, `{"type":"integer"}`, `false`})
	}
	sub := func() string { return randomSchema(r, depth-1) }
	keywords := []func() string{
		func() string {
			return `"type":` + pick(r, []string{`"object"`, `"string"`, `"integer"`, `"number"`, `["integer","null"]`, `["array","object"]`})
		},
		func() string { return `"properties":{` + pick(r, names) + `:` + sub() + `,"c":` + sub() + `}` },
		func() string { return `"required":[` + pick(r, names) + `]` },
		func() string { return `"additionalProperties":` + sub() },
		func() string {
			return `"` + pick(r, []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) + `":` + pick(r, scalars[:13])
		},
		func() string {
			return `"` + pick(r, []string{"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}) + `":` + pick(r, []string{"0", "1", "2"})
		},
		func() string { return `"enum":[` + pick(r, scalars) + `,[0]]` },
		func() string { return `"const":` + pick(r, scalars) },
		func() string { return `"pattern":` + pick(r, []string{`"a"`, `"^.$"`, `"^\\\\w*$"`}) },
		func() string { return `"items":` + sub() },
		func() string {
			return `"` + pick(r, []string{"anyOf", "allOf", "oneOf"}) + `":[` + sub() + `,` + sub() + `]`
		},
		func() string {
			return pick(r, []string{`"not":` + sub(), `"multipleOf":2`, `"uniqueItems":true`, `"format":"date"`, `"title":"t"`, `"if":` + sub() + `,"then":` + sub()})
		},
	}
	var out []string
	for _, i := range r.Perm(len(keywords))[:1+r.IntN(3)] {
		out = append(out, keywords[i]())
	}
	return "{" + strings.Join(out, ",") + "}"
}
