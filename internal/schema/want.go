package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// wanted gives keyword and want of an error that speaks of the value itself.
func wanted(k jsonschema.ErrorKind) (keyword, want string) {
	for _, table := range []func(jsonschema.ErrorKind) (string, string){wantedValue, wantedNumber, wantedSize, wantedChoice} {
		if keyword, want = table(k); keyword != "" {
			return keyword, want
		}
	}
	if path := k.KeywordPath(); len(path) > 0 {
		return path[0], "a value that meets it"
	}
	return "schema", "a value that meets it"
}

func wantedValue(k jsonschema.ErrorKind) (keyword, want string) {
	switch k := k.(type) {
	case *kind.Type:
		return "type", strings.Join(k.Want, " or ")
	case *kind.Enum:
		return "enum", "one of " + literals(k.Want)
	case *kind.Const:
		return "const", literals([]any{k.Want})
	case *kind.Pattern:
		return "pattern", "a match of " + k.Want
	}
	return "", ""
}

func wantedNumber(k jsonschema.ErrorKind) (keyword, want string) {
	switch k := k.(type) {
	case *kind.Minimum:
		return "minimum", "at least " + exact(k.Want)
	case *kind.Maximum:
		return "maximum", "at most " + exact(k.Want)
	case *kind.ExclusiveMinimum:
		return "exclusiveMinimum", "more than " + exact(k.Want)
	case *kind.ExclusiveMaximum:
		return "exclusiveMaximum", "less than " + exact(k.Want)
	case *kind.MultipleOf:
		return "multipleOf", "a multiple of " + exact(k.Want)
	}
	return "", ""
}

func wantedSize(k jsonschema.ErrorKind) (keyword, want string) {
	switch k := k.(type) {
	case *kind.MinLength:
		return "minLength", fmt.Sprintf("at least %d characters", k.Want)
	case *kind.MaxLength:
		return "maxLength", fmt.Sprintf("at most %d characters", k.Want)
	case *kind.MinItems:
		return "minItems", fmt.Sprintf("at least %d elements", k.Want)
	case *kind.MaxItems:
		return "maxItems", fmt.Sprintf("at most %d elements", k.Want)
	case *kind.MinProperties:
		return "minProperties", fmt.Sprintf("at least %d members", k.Want)
	case *kind.MaxProperties:
		return "maxProperties", fmt.Sprintf("at most %d members", k.Want)
	}
	return "", ""
}

func wantedChoice(k jsonschema.ErrorKind) (keyword, want string) {
	switch k := k.(type) {
	case *kind.OneOf:
		return "oneOf", "exactly one of the alternatives"
	case *kind.Not:
		return "not", "a value that does not match the schema below not"
	case *kind.UniqueItems:
		return "uniqueItems", fmt.Sprintf("elements %d and %d to differ", k.Duplicates[0], k.Duplicates[1])
	case *kind.AdditionalItems:
		return "additionalItems", fmt.Sprintf("%d elements fewer", k.Count)
	case *kind.Contains:
		return "contains", "an element that matches the schema below contains"
	case *kind.MinContains:
		return "minContains", fmt.Sprintf("at least %d matching elements", k.Want)
	case *kind.MaxContains:
		return "maxContains", fmt.Sprintf("at most %d matching elements", k.Want)
	}
	return "", ""
}

// literals writes allowed values as JSON, as many as fit.
func literals(values []any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, v := range values {
		if err := enc.Encode(v); err != nil || b.Len() > 4*maxText {
			break
		}
	}
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\n", ", ")
}
