package config

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/agnivade/levenshtein"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
)

// The published schema: of mcp.json with the settings in it, and of a file of
// client profiles.
var (
	fileSchema    = sync.OnceValue(func() *schema.Own { return compile("config.json", "", formats) })
	profileSchema = sync.OnceValue(func() *schema.Own { return compile("config.json", "/$defs/profiles", formats) })
)

func compile(name, pointer string, formats map[string]func(string) error) *schema.Own {
	text, err := schemas.Files.ReadFile(name)
	if err != nil {
		panic("reading the embedded schema: " + err.Error())
	}
	own, err := schema.CompileOwn(text, pointer, formats)
	if err != nil { // a test compiles it
		panic("compiling the embedded schema: " + err.Error())
	}
	return own
}

// checkShape reports what a schema says against n, and then the variables that
// are not set: a string where none belongs is reported as such, whatever
// variables it has.
func (l *loader) checkShape(n *node, s *schema.Own) {
	violations, err := s.Check(n.json(true))
	if err != nil {
		l.fault(n, "cannot be checked", "")
	}
	for _, v := range violations {
		if at := n.at(v.Path...); at != nil {
			l.violation(at, v)
		}
	}
	n.walk(func(n *node) {
		if n.unset != nil {
			l.faults = append(l.faults, *n.unset)
		}
	})
}

// violation reports a keyword that n does not meet.
func (l *loader) violation(n *node, v schema.Violation) {
	if v.Keyword == "pattern" && v.Format != "" {
		return // the format says it more precisely
	}
	v.Description = v.Hint()
	switch v.Keyword {
	case "required":
		l.fault(n, fmt.Sprintf("missing key %q", v.Names[0]), v.Description)
	case "dependentRequired":
		l.fault(n.get(v.Of), fmt.Sprintf("requires key %q", v.Names[0]), v.Description)
	case "oneOf", "anyOf":
		l.alternatives(n, v)
	case "additionalProperties":
		l.unknown(n, v.Names[0], v)
	case "type":
		n.unset = nil
		l.wrongType(n, v)
		n.faulty = true
	default:
		if !n.faulty {
			l.wrongValue(n, v)
			n.faulty = true
		}
	}
}

// alternatives reports an object that has none, or more than one, of the keys
// that exclude each other.
func (l *loader) alternatives(n *node, v schema.Violation) {
	found := slices.DeleteFunc(slices.Clone(n.members), func(m *node) bool { return !slices.Contains(v.Names, m.key) })
	if len(found) == 0 {
		l.fault(n, fmt.Sprintf("has neither %q nor %q", v.Names[0], v.Names[1]), v.Description)
		return
	}
	last := found[len(found)-1]
	l.fault(last.named(), fmt.Sprintf("conflicts with %q", found[0].key), "keep one of them")
}

// unknown reports a key that no schema allows.
func (l *loader) unknown(n *node, key string, v schema.Violation) {
	m := n.get(key)
	m.faulty, m.unset = true, nil
	message, near := "unknown key", Nearest(key, v.Want)
	var hint string
	switch {
	case len(v.Want) == 0:
		message, hint = "invalid name", v.Description
	case key == "toolgate" && n.path == "toolgate":
		hint = "an overlay is the settings object itself, without the member toolgate around it"
	case near != "":
		hint = fmt.Sprintf("did you mean %q?", near)
	default:
		hint = "the keys here are " + strings.Join(v.Want, ", ")
	}
	l.fault(m.named(), message, hint)
}

// kindNames say a kind to people, and what the schema calls it.
var kindNames = map[kind]string{
	kindString: "a string", kindNumber: "a number", kindObject: "an object", kindArray: "a list",
	kindTrue: "a boolean", kindFalse: "a boolean", 'n': "null",
}

var typeNames = map[string]string{
	"string": "a string", "integer": "a whole number", "object": "an object", "array": "a list", "boolean": "true or false",
}

// typeHints say how a type is written.
var typeHints = map[string]string{
	"string": "write a text between double quotes", "integer": "write digits, without quotes", "object": `put "KEY": VALUE between { and }`,
	"array": "put the items between [ and ]", "boolean": "write true or false, without quotes",
}

func (l *loader) wrongType(n *node, v schema.Violation) {
	var want []string
	for _, t := range v.Want {
		want = append(want, typeNames[t])
	}
	got, hint := kindNames[n.kind], typeHints[v.Want[0]]
	if n.kind == kindNumber {
		got = clip(n.text)
	}
	switch {
	case n.kind == 'n':
		hint = "leave the key out"
	case n.kind == kindNumber && strings.HasPrefix(v.Format, "duration"):
		hint = fmt.Sprintf("write a string with a unit, such as %q", got+"s")
	}
	l.fault(n, "want "+strings.Join(want, " or ")+", got "+got, hint)
}

// wrongValue reports a value of the right type.
func (l *loader) wrongValue(n *node, v schema.Violation) {
	switch v.Keyword {
	case "enum":
		if n.kind != kindString {
			l.wrongType(n, schema.Violation{Want: []string{"string"}})
			return
		}
		hint := ""
		if near := Nearest(n.value, v.Want); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.fault(n, fmt.Sprintf("invalid value %q: want %s", clip(n.text), strings.Join(v.Want, " or ")), hint)
	case "format":
		message, hint, _ := strings.Cut(v.Err.Error(), "\n")
		if strings.Contains(message, "%q") {
			message = fmt.Sprintf(message, clip(n.text))
		}
		l.fault(n, message, hint)
	case "minimum":
		l.fault(n, fmt.Sprintf("want at least %s, got %s", v.Want[0], clip(n.text)), v.Description)
	case "maximum":
		l.fault(n, fmt.Sprintf("want at most %s, got %s", v.Want[0], clip(n.text)), "")
	case "uniqueItems":
		l.fault(n, "is in the list twice", "keep one of them")
	case "minItems", "minProperties":
		l.fault(n, "must not be empty", v.Description)
	case "pattern", "not":
		l.fault(n, v.Message, v.Description)
	default:
		l.fault(n, "is not valid", v.Description)
	}
}

// Nearest returns the word that was probably meant, "" when none is near. Words
// that differ only in case are nearest.
func Nearest(s string, words []string) string {
	best, least := "", 3
	switch {
	case len(s) > 64:
		return ""
	case len(s) < 3:
		least = 1
	case len(s) == 3:
		least = 2
	}
	for _, w := range words {
		if d := levenshtein.ComputeDistance(fold(s), fold(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// clip keeps what people read short.
func clip(s string) string {
	const most = 40
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most]) + "…"
}
