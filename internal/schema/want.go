package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// wanted returns the keyword of an error that speaks of the value itself, and what
// would meet it.
func wanted(k jsonschema.ErrorKind) (keyword, want string) {
	keyword, want = "schema", "a value that meets it"
	if path := k.KeywordPath(); len(path) > 0 {
		keyword = path[0]
	}
	switch k := k.(type) {
	case *kind.Type:
		want = strings.Join(k.Want, " or ")
	case *kind.Enum:
		want = "one of " + literals(k.Want)
	case *kind.Const:
		want = literals([]any{k.Want})
	case *kind.Pattern:
		want = "a match of " + k.Want
	case *kind.Minimum:
		want = "at least " + exact(k.Want)
	case *kind.Maximum:
		want = "at most " + exact(k.Want)
	case *kind.ExclusiveMinimum:
		want = "more than " + exact(k.Want)
	case *kind.ExclusiveMaximum:
		want = "less than " + exact(k.Want)
	case *kind.MultipleOf:
		want = "a multiple of " + exact(k.Want)
	case *kind.MinLength:
		want = fmt.Sprintf("at least %d characters", k.Want)
	case *kind.MaxLength:
		want = fmt.Sprintf("at most %d characters", k.Want)
	case *kind.MinItems:
		want = fmt.Sprintf("at least %d elements", k.Want)
	case *kind.MaxItems:
		want = fmt.Sprintf("at most %d elements", k.Want)
	case *kind.MinProperties:
		want = fmt.Sprintf("at least %d members", k.Want)
	case *kind.MaxProperties:
		want = fmt.Sprintf("at most %d members", k.Want)
	case *kind.OneOf:
		want = "exactly one of the alternatives"
	case *kind.Not:
		keyword, want = "not", "a value that does not match the schema below not"
	case *kind.UniqueItems:
		want = fmt.Sprintf("elements %d and %d to differ", k.Duplicates[0], k.Duplicates[1])
	case *kind.AdditionalItems:
		want = fmt.Sprintf("%d elements fewer", k.Count)
	case *kind.Contains:
		want = "an element that matches the schema below contains"
	case *kind.MinContains:
		want = fmt.Sprintf("at least %d matching elements", k.Want)
	case *kind.MaxContains:
		want = fmt.Sprintf("at most %d matching elements", k.Want)
	}
	return keyword, want
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
