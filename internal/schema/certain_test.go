package schema_test

import (
	"errors"
	"testing"

	"github.com/toolgate/toolgate/internal/schema"
)

// A value certainly meets a schema exactly when the compiled form accepts it: for every
// keyword that is judged without that form, values on both sides of its bound.
func TestCertainly(t *testing.T) {
	t.Parallel()
	formats := map[string]func(string) error{"even": func(s string) error {
		if len(s)%2 == 1 {
			return errors.New("odd")
		}
		return nil
	}}
	for doc, instances := range map[string][]string{
		`true`:                                 {`1`, `null`},
		`false`:                                {`1`},
		`{"type": "null"}`:                     {`null`, `0`, `""`},
		`{"type": "boolean"}`:                  {`true`, `false`, `0`},
		`{"type": "integer"}`:                  {`1`, `-10`, `1.5`, `"1"`},
		`{"type": ["number", "string"]}`:       {`1.5`, `"1"`, `[]`, `{}`},
		`{"type": "array"}`:                    {`[]`, `{}`},
		`{"type": "object"}`:                   {`{}`, `[]`},
		`{"enum": ["a", true, null]}`:          {`"a"`, `true`, `null`, `"b"`, `false`, `0`, `[]`, `{}`},
		`{"const": "a"}`:                       {`"a"`, `"b"`, `1`},
		`{"allOf": [true, {"minLength": 2}]}`:  {`"aa"`, `"a"`},
		`{"anyOf": [false, {"minLength": 2}]}`: {`"äa"`, `"ä"`},
		`{"oneOf": [{"minLength": 2}, {"maxLength": 3}]}`:     {`"a"`, `"aaa"`, `"aaaa"`},
		`{"not": {"minLength": 2}}`:                           {`"a"`, `"aa"`, `1`},
		`{"if": {"minLength": 2}, "then": {"pattern": "^b"}}`: {`"a"`, `"aa"`, `"bb"`},
		`{"if": {"minLength": 2}}`:                            {`"aa"`},
		`{"format": "even"}`:                                  {`"aa"`, `"a"`, `1`},
		`{"minimum": 2}`:                                      {`2`, `1.9999999999999999999`, `3`, `"1"`},
		`{"maximum": 2.5}`:                                    {`2.5`, `2.50000000000000000001`, `-3`},
		`{"exclusiveMinimum": 0}`:                             {`0`, `0.0000000000000000001`, `-1`},
		`{"items": {"type": "string"}}`:                       {`[]`, `["a"]`, `["a", 1]`, `1`},
		`{"minItems": 1}`:                                     {`[]`, `[1]`},
		`{"uniqueItems": true}`:                               {`["a", "b"]`, `["a", "a"]`, `[]`},
		`{"required": ["a", "b"]}`:                            {`{"a": 1, "b": 1}`, `{"a": 1}`, `1`},
		`{"dependentRequired": {"a": ["b"]}}`:                 {`{"a": 1, "b": 1}`, `{"a": 1}`, `{"c": 1}`},
		`{"minProperties": 1}`:                                {`{}`, `{"a": 1}`},
		`{"properties": {"a": {"type": "string"}}}`:           {`{"a": "x"}`, `{"a": 1}`, `{"b": 1}`},
		`{"patternProperties": {"^a": {"type": "string"}}}`:   {`{"ab": "x"}`, `{"ab": 1}`, `{"b": 1}`},
		`{"additionalProperties": false}`:                     {`{}`, `{"a": 1}`},
		`{"properties": {"a": true}, "additionalProperties": {"enum": []}, "patternProperties": {"^b": true}}`: {`{"a": 1, "b": 1}`, `{"c": 1}`},
		`{"$id": "urn:x", "$defs": {"n": {"type": "null"}}, "items": {"$ref": "#/$defs/n"}}`:                   {`[null]`, `[1]`},
		`{"properties": {"down": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "null"}}}`:               {`{"down": null}`, `{"down": 1}`},
	} {
		own, compiled := read(t, doc, formats)
		for _, instance := range instances {
			violations, err := compiled.Check([]byte(instance))
			if err != nil {
				t.Fatal(err)
			}
			if own.Certainly([]byte(instance)) != (len(violations) == 0) {
				t.Errorf("%s certainly meets %s: %v, and the compiled form says %v", instance, doc, own.Certainly([]byte(instance)), violations)
			}
			if again, err := own.Check([]byte(instance)); err != nil || len(again) != len(violations) {
				t.Errorf("%s on %s: %v, %v, want %v", doc, instance, again, err, violations)
			}
		}
	}
}

// What only the compiled form judges is not certain, and refused where that form refuses it.
func TestUncertain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		doc, instance string
		faults        int
	}{
		{`{"type": "integer"}`, `1.0`, 0},
		{`{"type": "integer"}`, `1e-1`, 1},
		{`{"minimum": 10}`, `1e1`, 0},
		{`{"enum": [1]}`, `1.0`, 0},
		{`{"enum": [1]}`, `2`, 1},
		{`{"uniqueItems": true}`, `[1, 1.0]`, 1},
		{`{"not": {"uniqueItems": false}}`, `["a", "a"]`, 1},
		{`{"$ref": "#/$defs/n", "$defs": {"n": false}}`, `1`, 1},
		{`{"multipleOf": 2}`, `3`, 1},
		{`{"not": {"multipleOf": 2}}`, `2`, 1},
		{`{"format": "date"}`, `"x"`, 1},
		{`{"prefixItems": [{"type": "null"}]}`, `[1]`, 1},
		{`{"properties": {"a": {"$id": "https://x.example/a", "$defs": {"n": {"enum": []}}, "$ref": "#/$defs/n"}}, "$defs": {"n": {}}}`, `{"a": 1}`, 1},
		{`{"$schema": "http://json-schema.org/draft-07/schema", "$ref": "#/definitions/n", "definitions": {"n": true}, "type": "null"}`, `1`, 0},
		{`{"$ref": "#"}`, `1`, 1},
	} {
		own, _ := read(t, c.doc, nil)
		if own.Certainly([]byte(c.instance)) {
			t.Errorf("%s certainly meets %s", c.instance, c.doc)
		}
		if violations, err := own.Check([]byte(c.instance)); err != nil || len(violations) != c.faults {
			t.Errorf("%s on %s: %v, %v, want %d faults", c.doc, c.instance, violations, err, c.faults)
		}
	}
}

// read returns a schema in its two forms.
func read(t *testing.T, doc string, formats map[string]func(string) error) (own, compiled *schema.Own) {
	t.Helper()
	own, err := schema.ReadOwn([]byte(doc), "", formats)
	if err != nil {
		t.Fatal(err)
	}
	if compiled, err = schema.CompileOwn([]byte(doc), "", formats); err != nil {
		t.Fatal(err)
	}
	return own, compiled
}
