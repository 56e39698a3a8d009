package schema

import (
	"encoding/json"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A reading judges a value by the JSON of an Own schema, without compiling it, which
// takes some ten times as long as reading it. It knows the keywords that the published
// schemas use, in the dialect 2020-12; unsure says that it met another one, or a value
// that it cannot compare. Its verdict then means nothing.
type reading struct {
	*Own
	patterns map[string]*regexp.Regexp
	depth    int
	unsure   bool
}

// certainly reports whether v certainly meets o. False says nothing.
func (o *Own) certainly(v any) bool {
	at, ok := lookup(o.doc, slices.Collect(jsontext.Pointer(o.pointer).Tokens()))
	r := reading{Own: o, patterns: make(map[string]*regexp.Regexp)}
	return ok && r.fits(at, v) && !r.unsure
}

// fits reports whether v meets a schema.
func (r *reading) fits(schema, v any) bool {
	keywords, ok := schema.(map[string]any)
	if !ok {
		return schema == true || r.doubt(schema != false)
	}
	r.depth++
	defer func() { r.depth-- }()
	if r.depth > maxNesting { // a reference to itself
		return r.doubt(true)
	}
	for keyword, want := range keywords {
		if !r.meets(keywords, keyword, want, v) {
			return false
		}
	}
	return true
}

// doubt makes the reading unsure if that is so. It returns false.
func (r *reading) doubt(so bool) bool {
	r.unsure = r.unsure || so
	return false
}

// meets reports whether v meets one keyword of a schema.
func (r *reading) meets(schema map[string]any, keyword string, want, v any) bool {
	fits := func(s any) bool { return r.fits(s, v) }
	list, _ := want.([]any)
	switch keyword {
	case "$comment", "$defs", "default", "description", "errorMessage", "patternErrorMessage", "then", "title":
		return true
	case "$schema":
		return want == jsonschema.Draft2020.String() || r.doubt(true)
	case "$id":
		return r.depth == 1 && r.pointer == "" || r.doubt(true) // references below it begin there
	case "$ref":
		to, _ := want.(string)
		at := r.subschema(to)
		if at == nil || to[0] != '#' {
			return r.doubt(true)
		}
		return r.fits(at, v)
	case "type":
		if list == nil {
			list = []any{want}
		}
		return slices.ContainsFunc(list, func(name any) bool { return r.isOf(name, v) })
	case "enum":
		return slices.ContainsFunc(list, func(one any) bool { return r.same(one, v) })
	case "const":
		return r.same(want, v)
	case "allOf":
		return !slices.ContainsFunc(list, func(s any) bool { return !fits(s) })
	case "anyOf":
		return slices.ContainsFunc(list, fits)
	case "oneOf":
		return len(slices.DeleteFunc(slices.Clone(list), func(s any) bool { return !fits(s) })) == 1
	case "not":
		return !fits(want)
	case "if":
		then, ok := schema["then"]
		return !fits(want) || !ok || fits(then)
	case "format", "pattern", "minLength", "maxLength":
		text, ok := v.(string)
		return !ok || r.text(keyword, want, text)
	case "minimum", "maximum", "exclusiveMinimum":
		n, ok := v.(json.Number)
		return !ok || r.number(keyword, want, n)
	case "items", "minItems", "uniqueItems":
		items, ok := v.([]any)
		return !ok || r.list(keyword, want, items)
	case "properties", "patternProperties", "additionalProperties", "required", "dependentRequired", "minProperties":
		members, ok := v.(map[string]any)
		return !ok || r.object(schema, keyword, want, members)
	}
	return r.doubt(true)
}

// isOf reports whether v is of a type.
func (r *reading) isOf(name, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	case json.Number:
		whole := !strings.ContainsAny(string(v), ".eE")
		return name == "number" || name == "integer" && (whole || r.doubt(true))
	}
	return r.doubt(true)
}

// same reports whether v is a value of the schema.
func (r *reading) same(want, v any) bool {
	switch want.(type) {
	case nil, bool, string:
		return want == v
	}
	return r.doubt(true)
}

// text judges a string.
func (r *reading) text(keyword string, want any, v string) bool {
	switch keyword {
	case "format":
		name, _ := want.(string)
		check := r.formats[name]
		return check != nil && check(v) == nil || r.doubt(check == nil)
	case "pattern":
		return r.matches(want, v)
	case "minLength":
		return r.size("minimum", want, utf8.RuneCountInString(v))
	}
	return r.size("maximum", want, utf8.RuneCountInString(v))
}

// matches reports whether a pattern of the schema occurs in v.
func (r *reading) matches(pattern any, v string) bool {
	source, _ := pattern.(string)
	compiled := r.patterns[source]
	if compiled == nil {
		var err error
		if compiled, err = regexp.Compile(source); err != nil {
			return r.doubt(true)
		}
		r.patterns[source] = compiled
	}
	return compiled.MatchString(v)
}

// number judges a number.
func (r *reading) number(keyword string, want any, v json.Number) bool {
	bound, isNumber := want.(json.Number)
	least, ok := exactly(bound)
	n, exact := exactly(v)
	if !isNumber || !ok || !exact {
		return r.doubt(true)
	}
	switch order := n.Cmp(least); keyword {
	case "minimum":
		return order >= 0
	case "exclusiveMinimum":
		return order > 0
	default:
		return order <= 0
	}
}

// exactly returns a number of few digits without an exponent.
func exactly(n json.Number) (*big.Rat, bool) {
	if len(n) > 30 || strings.ContainsAny(string(n), "eE") {
		return nil, false
	}
	return new(big.Rat).SetString(string(n))
}

// size judges a size as a number.
func (r *reading) size(keyword string, want any, n int) bool {
	return r.number(keyword, want, json.Number(strconv.Itoa(n)))
}

// list judges an array.
func (r *reading) list(keyword string, want any, items []any) bool {
	switch keyword {
	case "items":
		return !slices.ContainsFunc(items, func(v any) bool { return !r.fits(want, v) })
	case "minItems":
		return r.size("minimum", want, len(items))
	}
	seen := make(map[string]bool)
	for _, v := range items {
		text, ok := v.(string)
		if !ok || seen[text] {
			return r.doubt(!ok || want != true)
		}
		seen[text] = true
	}
	return true
}

// object judges an object.
func (r *reading) object(schema map[string]any, keyword string, want any, members map[string]any) bool {
	switch keyword {
	case "required":
		return r.has(members, want)
	case "dependentRequired":
		for name, others := range objectOf(want) {
			if _, there := members[name]; there && !r.has(members, others) {
				return false
			}
		}
		return true
	case "minProperties":
		return r.size("minimum", want, len(members))
	case "properties":
		for name, at := range objectOf(want) {
			if v, there := members[name]; there && !r.fits(at, v) {
				return false
			}
		}
		return true
	}
	properties, patterns := objectOf(schema["properties"]), objectOf(schema["patternProperties"])
	for name, v := range members {
		_, known := properties[name]
		for pattern, at := range patterns {
			matches := r.matches(pattern, name)
			if known = known || matches; matches && !r.fits(at, v) {
				return false
			}
		}
		if keyword == "additionalProperties" && !known && !r.fits(want, v) {
			return false
		}
	}
	return true
}

// has reports whether members has all names.
func (r *reading) has(members map[string]any, names any) bool {
	list, ok := names.([]any)
	r.doubt(!ok)
	return !slices.ContainsFunc(list, func(name any) bool {
		text, _ := name.(string)
		_, there := members[text]
		return !there
	})
}

func objectOf(v any) map[string]any {
	object, _ := v.(map[string]any)
	return object
}
