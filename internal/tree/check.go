package tree

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/text"
)

// Check reports what a schema says against n, and then the variables that
// are not set: a string where none belongs is reported as such, whatever
// variables it has.
func (r *Report) Check(n *Node, s *schema.Own) {
	violations, err := s.Check(n.JSON(true))
	if err != nil {
		r.Fault(n, "cannot be checked", "")
	}
	for _, v := range violations {
		if at := n.At(v.Path...); at != nil {
			r.violation(at, v)
		}
	}
	n.Walk(func(n *Node) {
		if n.Unset != nil {
			r.Faults = append(r.Faults, *n.Unset)
		}
	})
}

// violation reports a keyword that n does not meet.
func (r *Report) violation(n *Node, v schema.Violation) {
	if v.Keyword == "pattern" && v.Format != "" {
		return // the format says it more precisely
	}
	v.Description = v.Hint()
	switch v.Keyword {
	case "required":
		r.Fault(n, fmt.Sprintf("missing key %q", v.Names[0]), v.Description)
	case "dependentRequired":
		r.Fault(n.Get(v.Of), fmt.Sprintf("requires key %q", v.Names[0]), v.Description)
	case "oneOf", "anyOf":
		found := slices.DeleteFunc(slices.Clone(n.Members), func(m *Node) bool { return !slices.Contains(v.Names, m.Key) })
		if len(found) == 0 {
			r.Fault(n, fmt.Sprintf("has neither %q nor %q", v.Names[0], v.Names[1]), v.Description)
			return
		}
		r.Fault(found[len(found)-1].Named(), fmt.Sprintf("conflicts with %q", found[0].Key), "keep one of them")
	case "additionalProperties":
		m := n.Get(v.Names[0])
		m.Faulty, m.Unset = true, nil
		message, near := "unknown key", text.Nearest(v.Names[0], v.Want)
		var hint string
		switch {
		case len(v.Want) == 0:
			message, hint = "invalid name", v.Description
		case v.Names[0] == "toolgate" && n.Path == "toolgate":
			hint = "an overlay is the settings object itself, without the member toolgate around it"
		case near != "":
			hint = fmt.Sprintf("did you mean %q?", near)
		default:
			hint = "the keys here are " + strings.Join(v.Want, ", ")
		}
		r.Fault(m.Named(), message, hint)
	case "type":
		n.Unset = nil
		r.wrongType(n, v)
		n.Faulty = true
	default:
		if !n.Faulty {
			r.wrongValue(n, v)
			n.Faulty = true
		}
	}
}

// kindNames say a kind to people, and what the schema calls it.
var kindNames = map[hujson.Kind]string{
	String: "a string", Number: "a number", Object: "an object", Array: "a list",
	True: "a boolean", False: "a boolean", Null: "null",
}

var typeNames = map[string]string{
	"string": "a string", "integer": "a whole number", "object": "an object", "array": "a list", "boolean": "true or false",
}

// typeHints say how a type is written.
var typeHints = map[string]string{
	"string": "write a text between double quotes", "integer": "write digits, without quotes", "object": `put "KEY": VALUE between { and }`,
	"array": "put the items between [ and ]", "boolean": "write true or false, without quotes",
}

// WrongType reports a value of another type than the wanted ones: types of JSON Schema.
func (r *Report) WrongType(n *Node, want ...string) { r.wrongType(n, schema.Violation{Want: want}) }

func (r *Report) wrongType(n *Node, v schema.Violation) {
	var want []string
	for _, t := range v.Want {
		want = append(want, typeNames[t])
	}
	got, hint := kindNames[n.Kind], typeHints[v.Want[0]]
	if n.Kind == Number {
		got = Clip(n.Text)
	}
	switch {
	case n.Kind == Null:
		hint = "leave the key out"
	case n.Kind == Number && strings.HasPrefix(v.Format, "duration"):
		hint = fmt.Sprintf("write a string with a unit, such as %q", got+"s")
	}
	r.Fault(n, "want "+strings.Join(want, " or ")+", got "+got, hint)
}

// wrongValue reports a value of the right type.
func (r *Report) wrongValue(n *Node, v schema.Violation) {
	switch v.Keyword {
	case "enum":
		if n.Kind != String {
			r.WrongType(n, "string")
			return
		}
		hint := ""
		if near := text.Nearest(n.Value, v.Want); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		r.Fault(n, fmt.Sprintf("invalid value %q: want %s", Clip(n.Text), strings.Join(v.Want, " or ")), hint)
	case "format":
		message, hint, _ := strings.Cut(v.Err.Error(), "\n")
		if strings.Contains(message, "%q") {
			message = fmt.Sprintf(message, Clip(n.Text))
		}
		r.Fault(n, message, hint)
	case "minimum":
		r.Fault(n, fmt.Sprintf("want at least %s, got %s", v.Want[0], Clip(n.Text)), v.Description)
	case "maximum":
		r.Fault(n, fmt.Sprintf("want at most %s, got %s", v.Want[0], Clip(n.Text)), "")
	case "uniqueItems":
		r.Fault(n, "is in the list twice", "keep one of them")
	case "minItems", "minProperties":
		r.Fault(n, "must not be empty", v.Description)
	case "pattern", "not":
		r.Fault(n, v.Message, v.Description)
	default:
		r.Fault(n, "is not valid", v.Description)
	}
}

// Clip keeps what people read short.
func Clip(s string) string {
	const most = 40
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most]) + "…"
}
