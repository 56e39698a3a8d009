package schema

import (
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// What says that the validator failed, or says nothing, is an error and no verdict. No
// schema that compiles is known to bring the library there, so the test stands inside.
func TestTheValidatorFails(t *testing.T) {
	for name, e := range map[string]*jsonschema.ValidationError{
		"no kind":     {},
		"a cycle":     {ErrorKind: &kind.RefCycle{}},
		"below":       {ErrorKind: &kind.Group{}, Causes: []*jsonschema.ValidationError{{ErrorKind: &kind.InvalidJsonValue{}}}},
		"no property": {ErrorKind: &kind.AdditionalProperties{}},
	} {
		if faults, err := newReport(nil, nil).read(e); err == nil {
			t.Errorf("%s: no error, faults %v", name, faults)
		}
	}
}

// The library reports some places that are not there.
func TestLookup(t *testing.T) {
	instance := map[string]any{"a": []any{"x", map[string]any{"b": nil}}}
	for _, tc := range []struct {
		tokens []string
		ok     bool
	}{
		{nil, true},
		{[]string{"a", "0"}, true},
		{[]string{"a", "1", "b"}, true},
		{[]string{"c"}, false},
		{[]string{"a", "2"}, false},
		{[]string{"a", "-1"}, false},
		{[]string{"a", "x"}, false},
		{[]string{"a", "0", "0"}, false},
	} {
		if v, ok := lookup(instance, tc.tokens); ok != tc.ok {
			t.Errorf("%v: %v, %v", tc.tokens, v, ok)
		}
	}
}
