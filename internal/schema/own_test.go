package schema_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/schema"
)

// Every violation comes with its place, its keyword and what a person needs.
func TestOwnSaysEveryViolation(t *testing.T) {
	const doc = `{
	  "type": "object", "description": "the whole",
	  "properties": {
	    "a/b": { "type": "array", "items": { "enum": ["x", 1] }, "uniqueItems": true, "minItems": 1 },
	    "c": { "type": "integer", "minimum": 2, "description": "a count" },
	    "d": { "type": "string", "format": "even" },
	    "e": { "pattern": "^e$", "patternErrorMessage": "say e", "not": { "const": 1 }, "errorMessage": "not one" },
	    "f": { "type": "object", "additionalProperties": false, "properties": { "known": true },
	           "oneOf": [{ "required": ["known"] }, { "required": ["other"] }] }
	  },
	  "required": ["c"], "dependentRequired": { "d": ["c"] },
	  "if": { "required": ["e"] }, "then": { "required": ["c"] }
	}`
	even := map[string]func(string) error{"even": func(s string) error {
		if len(s)%2 == 1 {
			return errors.New("odd")
		}
		return nil
	}}
	own, err := schema.CompileOwn([]byte(doc), "", even)
	if err != nil {
		t.Fatal(err)
	}
	for instance, want := range map[string][]string{
		`{"c": 2, "d": "xx", "e": "e", "a/b": [1], "f": {"known": 0}}`: nil,
		`{"c": 1, "d": "x"}`:      {"c minimum [2] a count", "d format odd"},
		`{"d": ""}`:               {" dependentRequired d [c] a count", " required [c] a count"},
		`{"c": "2", "a/b": []}`:   {"a/b minItems", "c type [integer] a count"},
		`{"e": "e"}`:              {" required [c] a count", " required [c] a count"},
		`{"c": 2, "e": "x"}`:      {"e pattern say e"},
		`{"c": 2, "e": 1}`:        {"e not not one"},
		`{"c": 2, "a/b": ["y"]}`:  {"a/b/0 enum [x 1]"},
		`{"c": 2, "a/b": [1, 1]}`: {"a/b/1 uniqueItems"},
		`{"c": 2, "f": {"x": 1}}`: {"f additionalProperties [x] [known]", "f oneOf [known other]"},
		`[]`:                      {" type [object] the whole"},
	} {
		violations, err := own.Check([]byte(instance))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range violations {
			text := strings.Join(v.Path, "/") + " " + v.Keyword
			for _, part := range []any{v.Of, v.Names, v.Want, v.Description, v.Message, v.Err} {
				if s := fmt.Sprint(part); s != "" && s != "[]" && s != "<nil>" {
					text += " " + s
				}
			}
			got = append(got, text)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", instance, diff)
		}
	}
	if _, err := own.Check([]byte(`{`)); err == nil {
		t.Error("half an object is checked")
	}
}

func TestOwnCompilesAPart(t *testing.T) {
	own, err := schema.CompileOwn([]byte(`{"$defs": {"n": {"type": "number"}}}`), "/$defs/n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := own.Check([]byte(`"x"`)); err != nil || len(v) != 1 {
		t.Errorf("Check = %v, %v, want one violation", v, err)
	}
	for _, bad := range []string{`{`, `{"type": 1}`} {
		if _, err := schema.CompileOwn([]byte(bad), "", nil); err == nil {
			t.Errorf("%s compiles", bad)
		}
	}
}
