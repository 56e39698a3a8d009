package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Own is a schema that the project itself publishes, for files that people
// write. Unlike Schema it asserts formats in every dialect, reports every fault,
// and says what a caller needs to word a fault for a person: the keyword, the
// names it speaks of and the schema's own description. It is immutable and safe
// for concurrent use.
type Own struct {
	doc     any
	pointer string
	formats map[string]func(string) error
	compile func() (*jsonschema.Schema, error)

	published bool // by ReadOwn
}

// Violation is one keyword of an Own schema that an instance does not meet.
type Violation struct {
	// Path leads to the value; for names that are missing or not allowed, to
	// the object.
	Path []string
	// Keyword is the schema keyword, such as required or format.
	Keyword string
	// Of is the member that dependentRequired speaks of, "" for other keywords.
	Of string
	// Names holds the one member that is missing or not allowed, or the members of
	// which the alternatives of oneOf and anyOf require one each.
	Names []string
	// Want lists what would be accepted: types, values, a bound, known members.
	Want []string
	// Got is the text that enum does not list, "" for other keywords and values.
	Got string
	// Format is the format that holds for the value, "" when there is none.
	Format string
	// Description is the schema's own: of the missing member where Names has
	// one, else of the value.
	Description string
	// Message is the schema's own word for a person: patternErrorMessage or
	// errorMessage, which editors show too.
	Message string
	// Err is what the format's function returned.
	Err error
}

// CompileOwn compiles raw at a JSON Pointer, "" for the whole. Formats replace
// those of the dialect; a function gets strings only. The error says what is wrong with raw.
func CompileOwn(raw json.RawMessage, pointer string, formats map[string]func(string) error) (*Own, error) {
	o, err := ReadOwn(raw, pointer, formats)
	if err == nil {
		o.published = false
		_, err = o.compile()
	}
	return o, err
}

// ReadOwn is CompileOwn for a schema that is part of the program, and that a test has
// compiled: it is compiled when the first value does not certainly meet it.
func ReadOwn(raw json.RawMessage, pointer string, formats map[string]func(string) error) (*Own, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	o := &Own{doc: doc, pointer: pointer, formats: formats, published: true}
	o.compile = sync.OnceValues(o.compiled)
	return o, nil
}

// compiled compiles o.
func (o *Own) compiled() (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.UseLoader(nothing{})
	c.AssertFormat()
	for name, check := range o.formats {
		c.RegisterFormat(&jsonschema.Format{Name: name, Validate: func(v any) error {
			if s, ok := v.(string); ok {
				return check(s)
			}
			return nil
		}})
	}
	if err := c.AddResource(location, o.doc); err != nil {
		return nil, fmt.Errorf("adding the schema: %w", err)
	}
	compiled, err := c.Compile(location + "#" + o.pointer)
	if err != nil {
		return nil, fmt.Errorf("compiling the schema: %w", err)
	}
	return compiled, nil
}

// Check gives every violation of an instance, in no particular order. The error
// means that instance is not strict JSON or that the validator failed.
func (o *Own) Check(instance json.RawMessage) ([]Violation, error) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(instance))
	if err != nil {
		return nil, fmt.Errorf("reading the value to validate: %w", err)
	}
	return o.CheckValue(v)
}

// CheckValue is Check for a value that was read from JSON, numbers as json.Number.
func (o *Own) CheckValue(v any) ([]Violation, error) {
	if o.published && o.certainly(v) {
		return nil, nil
	}
	compiled, err := o.compile()
	if err != nil {
		return nil, err
	}
	err = compiled.Validate(v)
	var failed *jsonschema.ValidationError
	if err != nil && !errors.As(err, &failed) {
		return nil, fmt.Errorf("validating against the schema: %w", err)
	}
	if err == nil {
		return nil, nil
	}
	return o.violations(nil, failed), nil
}

// violations walks down to the leaves. Alternatives are leaves: what each of
// them lacks is no fault by itself.
func (o *Own) violations(out []Violation, e *jsonschema.ValidationError) []Violation {
	_, one := e.ErrorKind.(*kind.OneOf)
	_, anyOf := e.ErrorKind.(*kind.AnyOf)
	_, not := e.ErrorKind.(*kind.Not)
	if !one && !anyOf && !not && len(e.Causes) > 0 {
		for _, cause := range e.Causes {
			out = o.violations(out, cause)
		}
		return out
	}
	v, names := o.violation(e)
	if names == nil {
		return append(out, v)
	}
	for _, name := range names {
		v.Names, v.Description = []string{name}, o.describe(e.SchemaURL, name)
		out = append(out, v)
	}
	return out
}

// violation reads one leaf. Members that are missing or not allowed come as
// names, for a violation each.
func (o *Own) violation(e *jsonschema.ValidationError) (v Violation, names []string) {
	at := o.subschema(e.SchemaURL)
	v = Violation{Path: e.InstanceLocation, Format: textOf(at["format"]), Description: textOf(at["description"])}
	v.Keyword, _ = wanted(e.ErrorKind)
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		v.Want = k.Want
	case *kind.Enum:
		v.Got = textOf(k.Got)
		for _, value := range k.Want {
			v.Want = append(v.Want, fmt.Sprint(value))
		}
	case *kind.Minimum:
		v.Want = []string{exact(k.Want)}
	case *kind.Maximum:
		v.Want = []string{exact(k.Want)}
	case *kind.Format:
		v.Err = k.Err
	case *kind.Pattern:
		v.Message = textOf(at["patternErrorMessage"])
	case *kind.Not:
		v.Message = textOf(at["errorMessage"])
	case *kind.Required:
		names = k.Missing
	case *kind.DependentRequired:
		v.Of, names = k.Prop, k.Missing
	case *kind.AdditionalProperties:
		v.Want, names = members(at), k.Properties
	case *kind.UniqueItems:
		v.Path = append(slices.Clone(v.Path), strconv.Itoa(k.Duplicates[1]))
	case *kind.OneOf, *kind.AnyOf:
		v.Names = required(at[v.Keyword])
	}
	return v, names
}

// describe gives the description of a member, or of the object that should not
// have it. A member that only "then" requires is described further up.
func (o *Own) describe(address, name string) string {
	own := textOf(o.subschema(address)["description"])
	for ; strings.Contains(address, "#"); address = address[:max(0, strings.LastIndexAny(address, "/#"))] {
		if d, ok := lookup(o.subschema(address), []string{"properties", name, "description"}); ok {
			return textOf(d)
		}
	}
	return own
}

// subschema gives the subschema at an address.
func (o *Own) subschema(address string) map[string]any { return subschema(o.doc, address) }

// subschema returns the subschema of doc at an address, nil when it is not an object.
func subschema(doc any, address string) map[string]any {
	_, fragment, _ := strings.Cut(address, "#")
	if plain, err := url.PathUnescape(fragment); err == nil {
		fragment = plain
	}
	found, _ := lookup(doc, slices.Collect(jsontext.Pointer(fragment).Tokens()))
	at, _ := found.(map[string]any)
	return at
}

// members lists the properties of a subschema, sorted.
func members(at map[string]any) []string {
	properties, _ := at["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(properties))
}

// required lists the first member that each alternative requires.
func required(alternatives any) (names []string) {
	list, _ := alternatives.([]any)
	for _, one := range list {
		if name, ok := lookup(one, []string{"required", "0"}); ok {
			names = append(names, textOf(name))
		}
	}
	return names
}

// Hint returns the description as a hint: without the capital and the full stop of a
// sentence.
func (v Violation) Hint() string {
	d := strings.TrimSuffix(v.Description, ".")
	if len(d) > 1 && (d[1] == ' ' || d[1] >= 'a' && d[1] <= 'z') {
		d = strings.ToLower(d[:1]) + d[1:]
	}
	return d
}

func textOf(v any) string {
	s, _ := v.(string)
	return s
}
