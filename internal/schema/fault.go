package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
)

const (
	// maxFaults is how many faults one validation reports.
	maxFaults = 20
	// maxText cuts wanted and got, in bytes.
	maxText = 80
)

// Fault is one place where an instance is not as the schema wants it, in words
// from which a model can mend its call.
type Fault struct {
	// Pointer is the JSON Pointer (RFC 6901) of the value; for missing and
	// unknown members, of the object.
	Pointer string `json:"pointer"`
	// Keyword is the schema keyword that was not met.
	Keyword string `json:"keyword"`
	// Want is what would be accepted: types, values, bounds, a member's name.
	Want string `json:"want"`
	// Got is what is there: type and value, cut to 80 bytes.
	Got string `json:"got"`
	// Note says that the value is the wanted one in another type, such as "1" in
	// place of 1; "" where it is not.
	Note string `json:"note,omitzero"`
}

// String says it in one line.
func (f Fault) String() string {
	at, fault := f.Pointer, f.Note
	if at == "" {
		at = "the value"
	}
	if fault == "" {
		fault = "want " + f.Want + ", got " + f.Got
	}
	return at + ": " + f.Keyword + ": " + fault
}

// report turns the library's tree of errors into faults.
type report struct {
	g        *graph // nil for faults of a schema against its metaschema
	instance any
	faults   map[Fault]bool
	broken   error
}

func newReport(g *graph, instance any) *report {
	return &report{g: g, instance: instance, faults: map[Fault]bool{}}
}

// read gives the faults, sorted by pointer, keyword, want and got. The error
// is for a tree that says that the validator failed.
func (r *report) read(e *jsonschema.ValidationError) ([]Fault, error) {
	r.walk(e)
	if r.broken == nil && len(r.faults) == 0 {
		r.broken = fmt.Errorf("the validator gave no reason")
	}
	if r.broken != nil {
		return nil, fmt.Errorf("validating against the schema: %w", r.broken)
	}
	out := slices.SortedFunc(maps.Keys(r.faults), func(a, b Fault) int {
		return slices.Compare([]string{a.Pointer, a.Keyword, a.Want, a.Got}, []string{b.Pointer, b.Keyword, b.Want, b.Got})
	})
	return out[:min(len(out), maxFaults)], nil
}

// walk goes down to the leaves; some kinds are leaves for us although they
// have causes, because the causes speak of other values.
func (r *report) walk(e *jsonschema.ValidationError) {
	switch k := e.ErrorKind.(type) {
	case *kind.RefCycle, *kind.InvalidJsonValue, nil:
		r.broken = fmt.Errorf("the validator stopped with %T", k)
	case *kind.PropertyNames:
		r.names(e, k)
	case *kind.Contains, *kind.MinContains, *kind.MaxContains:
		r.leaf(e)
	default:
		if len(e.Causes) == 0 {
			r.leaf(e)
			return
		}
		for _, cause := range e.Causes {
			r.walk(cause)
		}
	}
}

// names reports a member whose name is not allowed.
func (r *report) names(e *jsonschema.ValidationError, k *kind.PropertyNames) {
	inner := newReport(r.g, k.Property)
	want := "another name"
	if faults, err := inner.read(&jsonschema.ValidationError{ErrorKind: &kind.Group{}, Causes: e.Causes}); err == nil {
		want = "a name with " + faults[0].Keyword + " " + faults[0].Want
	}
	r.add(r.holder(e.InstanceLocation, k.Property), "propertyNames", want, "member "+quoted(k.Property))
}

// holder gives the pointer of the object that has the member. The library
// reuses the path that it reports for names, so that it may have moved on to a
// neighbour.
func (r *report) holder(path []string, member string) string {
	if at, ok := lookup(r.instance, path); ok {
		if object, ok := at.(map[string]any); ok {
			if _, ok := object[member]; ok {
				return pointer(path)
			}
		}
	}
	found, _ := search(r.instance, member, "")
	return found
}

// search finds the first object with the member, in sorted order.
func search(v any, member, at string) (string, bool) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v[member]; ok {
			return at, true
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if found, ok := search(v[key], member, at+pointer([]string{key})); ok {
				return found, true
			}
		}
	case []any:
		for i, item := range v {
			if found, ok := search(item, member, at+"/"+strconv.Itoa(i)); ok {
				return found, true
			}
		}
	}
	return "", false
}

// leaf reports one error without causes.
func (r *report) leaf(e *jsonschema.ValidationError) {
	at := pointer(e.InstanceLocation)
	value, _ := lookup(r.instance, e.InstanceLocation)
	if keyword, names := missing(e.ErrorKind); keyword != "" {
		for _, name := range names {
			r.add(at, keyword, "member "+quoted(name), "no such member")
		}
		return
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			r.add(at, "additionalProperties", r.allowed(e), "member "+quoted(name))
		}
	case *kind.FalseSchema:
		keyword := lastToken(e.SchemaURL)
		if !strings.HasPrefix(keyword, "unevaluated") && !strings.HasPrefix(keyword, "additional") {
			keyword = "false"
		}
		r.add(at, keyword, "nothing here", describe(value))
	case *kind.Format:
		want := "a " + k.Want
		if r.g == nil && k.Err != nil {
			want += " (" + k.Err.Error() + ")"
		}
		r.add(at, "format", want, describe(value))
	default:
		keyword, want := wanted(e.ErrorKind)
		r.addNoted(at, keyword, want, describe(value), mistyped(e.ErrorKind, value))
	}
}

// missing lists the members that a kind of error says are not there.
func missing(k jsonschema.ErrorKind) (keyword string, names []string) {
	switch k := k.(type) {
	case *kind.Required:
		return "required", k.Missing
	case *kind.Dependency:
		return "dependencies", k.Missing
	case *kind.DependentRequired:
		return "dependentRequired", k.Missing
	}
	return "", nil
}

// allowed names the members that the schema knows.
func (r *report) allowed(e *jsonschema.ValidationError) string {
	if r.g == nil || r.g.byAddress[e.SchemaURL] == nil {
		return "only known members"
	}
	s := r.g.byAddress[e.SchemaURL].sch
	if len(s.Properties) == 0 {
		return "no other members"
	}
	names := slices.Sorted(maps.Keys(s.Properties))
	for i, name := range names {
		names[i] = quoted(name)
	}
	return "only " + strings.Join(names, ", ")
}

func (r *report) add(at, keyword, want, got string) { r.addNoted(at, keyword, want, got, "") }

func (r *report) addNoted(at, keyword, want, got, note string) {
	r.faults[Fault{clip(at, 4*maxText), keyword, clip(want, 4*maxText), clip(got, maxText), note}] = true
}

// mistyped returns the note of a fault in the type or the value of v: that v is the text
// of the number or boolean that k wants, or the reverse. It returns "" for any other.
func mistyped(k jsonschema.ErrorKind, v any) string {
	other, types, note := retype(v)
	if other == nil {
		return ""
	}
	fits := false
	switch k := k.(type) {
	case *kind.Type:
		fits = slices.ContainsFunc(k.Want, func(want string) bool { return slices.Contains(types, want) })
	case *kind.Enum:
		fits = slices.Contains(k.Want, other)
	case *kind.Const:
		fits = k.Want == other
	}
	if !fits {
		return ""
	}
	return note
}

// retype returns the number or boolean that a text says, or the text of a number or a
// boolean, with its types and the note for it. It returns nil for any other value.
func retype(v any) (other any, types []string, note string) {
	switch v := v.(type) {
	case string:
		said, _ := jsonrpc.Value([]byte(v), jsonrpc.Limits{Bytes: maxText})
		switch said := said.(type) {
		case json.Number:
			types = []string{"number"}
			if r, ok := new(big.Rat).SetString(said.String()); ok && r.IsInt() {
				types = append(types, "integer")
			}
			return said, types, fmt.Sprintf("%s is text where the number %s is wanted", quoted(v), said)
		case bool:
			return said, []string{"boolean"}, fmt.Sprintf("%s is text where the boolean %t is wanted", quoted(v), said)
		}
	case json.Number:
		text := clip(v.String(), maxText)
		return v.String(), []string{"string"}, fmt.Sprintf("%s is a number where the text %q is wanted", text, text)
	case bool:
		return strconv.FormatBool(v), []string{"string"}, fmt.Sprintf("%t is a boolean where the text \"%[1]t\" is wanted", v)
	}
	return nil, nil, ""
}

// pointer joins tokens into a JSON Pointer.
func pointer(tokens []string) string {
	var p jsontext.Pointer
	for _, token := range tokens {
		p = p.AppendToken(token)
	}
	return string(p)
}

// pointerOf is the part of a schema's address after the number sign.
func pointerOf(address string) string {
	_, fragment, _ := strings.Cut(address, "#")
	return "#" + clip(fragment, maxText)
}

func lastToken(address string) string { return address[strings.LastIndexByte(address, '/')+1:] }

// lookup follows tokens into v.
func lookup(v any, tokens []string) (any, bool) {
	for _, token := range tokens {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[token]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// describe gives type and value in short.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean " + strconv.FormatBool(v)
	case json.Number:
		return "number " + v.String()
	case string:
		return "string " + quoted(v)
	case []any:
		return "array with " + text.Count(len(v), "element")
	case map[string]any:
		return "object with " + text.Count(len(v), "member")
	}
	return fmt.Sprintf("%T", v)
}

// quoted is s as JSON spells it, cut.
func quoted(s string) string { return strconv.QuoteToGraphic(clip(s, maxText-20)) }

// exact writes a bound without rounding.
func exact(r *big.Rat) string {
	if n, ok := r.FloatPrec(); ok && n <= 40 {
		return clip(r.FloatString(n), maxText)
	}
	return clip(r.RatString(), maxText)
}

// wants words what would meet a keyword whose error has the member Want.
var wants = map[string]string{
	"pattern": "a match of %v", "multipleOf": "a multiple of %v",
	"minimum": "at least %v", "maximum": "at most %v", "exclusiveMinimum": "more than %v", "exclusiveMaximum": "less than %v",
	"minLength": "at least %v characters", "maxLength": "at most %v characters", "minItems": "at least %v elements", "maxItems": "at most %v elements",
	"minProperties": "at least %v members", "maxProperties": "at most %v members",
	"minContains": "at least %v matching elements", "maxContains": "at most %v matching elements",
}

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
	case *kind.OneOf:
		want = "exactly one of the alternatives"
	case *kind.Not:
		keyword, want = "not", "a value that does not match the schema below not"
	case *kind.UniqueItems:
		want = fmt.Sprintf("elements %d and %d to differ", k.Duplicates[0], k.Duplicates[1])
	case *kind.AdditionalItems:
		want = text.Count(k.Count, "element") + " fewer"
	case *kind.Contains:
		want = "an element that matches the schema below contains"
	default:
		if form := wants[keyword]; form != "" {
			limit := reflect.ValueOf(k).Elem().FieldByName("Want").Interface()
			if number, ok := limit.(*big.Rat); ok {
				limit = exact(number)
			}
			want = fmt.Sprintf(form, limit)
		}
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
