package builtin

import (
	"fmt"
	"math"
	"net/netip"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/util"
)

// MaxDigits bounds the digits of a number whose exponent is written out:
// arithmetic takes more than linear time in them.
const MaxDigits = 10_000

// maxWork bounds the work of one call of a built-in function, in steps of at most about
// ten nanoseconds.
const maxWork = 50_000_000

// Works estimate, from its operands, the work of a call of each built-in function that
// takes more than linear time or memory: OPA cannot cancel one that runs. A call above
// maxWork ends the evaluation with an error. docs/policy.md has this table for
// people. Nobody may change it.
var Works = map[string]func(o []*ast.Term) float64{
	"glob.match":                       globWork,
	"regex.match":                      func(o []*ast.Term) float64 { return patternWork(textOf(o[0]), size(o[1])) },
	"regex.template_match":             func(o []*ast.Term) float64 { return patternWork(textOf(o[0]), size(o[1])) },
	"regex.is_valid":                   func(o []*ast.Term) float64 { return patternWork(textOf(o[0]), 100) },
	"regex.find_n":                     searchWork(0, 1),
	"regex.find_all_string_submatch_n": searchWork(0, 1),
	"regex.split":                      searchWork(0, 1),
	"regex.replace":                    func(o []*ast.Term) float64 { return searchWork(1, 0)(o) + size(o[0])*size(o[2]) },

	"trim":                      product,
	"trim_left":                 product,
	"trim_right":                product,
	"indexof":                   product,
	"indexof_n":                 product,
	"strings.replace_n":         product,
	"time.parse_ns":             product,
	"object.subset":             product,
	"net.cidr_contains_matches": product,
	"json.match_schema":         func(o []*ast.Term) float64 { return size(o[0]) * (size(o[0]) + schemaSize(o[1], size(o[0]))) },
	"json.verify_schema":        func(o []*ast.Term) float64 { return schemaSize(o[0], 100) * 100 },

	"concat":                    concatWork,
	"replace":                   replaceWork,
	"sprintf":                   sprintfWork,
	"json.marshal_with_options": func(o []*ast.Term) float64 { return size(o[0]) * size(o[1]) * float64(depth(o[0])) },
	"yaml.unmarshal":            func(o []*ast.Term) float64 { return size(o[0]) * 250 },
	"yaml.is_valid":             func(o []*ast.Term) float64 { return size(o[0]) * 250 },

	"graph.reachable":    reachableWork,
	"net.cidr_merge":     func(o []*ast.Term) float64 { return length(o[0]) * length(o[0]) },
	"net.cidr_expand":    expandWork,
	"numbers.range":      rangeWork,
	"numbers.range_step": rangeWork,

	"plus": numberWork, "minus": numberWork, "mul": numberWork, "div": numberWork, "rem": numberWork,
	"abs": numberWork, "round": numberWork, "ceil": numberWork, "floor": numberWork,
	"bits.and": numberWork, "bits.or": numberWork, "bits.xor": numberWork, "bits.negate": numberWork, "bits.rsh": numberWork,
	"product":    func(o []*ast.Term) float64 { return square(digits(o[0])) },
	"bits.lsh":   func(o []*ast.Term) float64 { return square(digits(o[0]) + number(o[1])) },
	"to_number":  numberWork,
	"format_int": numberWork, "units.parse": numberWork, "units.parse_bytes": numberWork,
	"sum": func(o []*ast.Term) float64 { return length(o[0]) * square(longest(o[0])) },

	"io.jwt.verify_rs256": keyWork, "io.jwt.verify_rs384": keyWork, "io.jwt.verify_rs512": keyWork,
	"io.jwt.verify_ps256": keyWork, "io.jwt.verify_ps384": keyWork, "io.jwt.verify_ps512": keyWork,
}

// unmarshals are the built-in functions whose results may hold numbers of any length.
var unmarshals = []string{"json.unmarshal", "yaml.unmarshal"}

// The built-in functions of OPA are the same for the whole process, and so are their
// bounds: decisions, the reference, replays, explanations and tests have them.
func init() {
	for _, name := range unmarshals {
		f := topdown.GetBuiltin(name)
		topdown.RegisterBuiltinFunc(name, func(b topdown.BuiltinContext, o []*ast.Term, iter func(*ast.Term) error) error {
			return f(b, o, func(result *ast.Term) error {
				if longest(result) > MaxDigits {
					return beyond(b, name, fmt.Sprintf("a number has more than %d digits", MaxDigits))
				}
				return iter(result)
			})
		})
	}
	for name, work := range Works {
		f := topdown.GetBuiltin(name)
		topdown.RegisterBuiltinFunc(name, func(b topdown.BuiltinContext, o []*ast.Term, iter func(*ast.Term) error) error {
			if !(work(o) <= maxWork) { // nor not a number
				return beyond(b, name, "its operands are too large")
			}
			return f(b, o, iter)
		})
	}
}

// beyond ends an evaluation, strict or not: an undefined result could hide a denial.
func beyond(b topdown.BuiltinContext, name, why string) error {
	return topdown.Halt{Err: &topdown.Error{Code: topdown.BuiltinErr, Message: name + ": " + why + " (hint: docs/policy.md has the bounds)", Location: b.Location}}
}

// measure visits the scalars of t, keys included, and returns the sum of what f gives
// for each and of 1 for each collection.
func measure(t *ast.Term, f func(ast.Value) float64) float64 {
	sum := 1.0
	add := func(t *ast.Term) { sum += measure(t, f) }
	switch v := t.Value.(type) {
	case *ast.Array:
		v.Foreach(add)
	case ast.Set:
		v.Foreach(add)
	case ast.Object:
		v.Foreach(func(key, value *ast.Term) { add(key); add(value) })
	default:
		return f(v)
	}
	return sum
}

// size is the length of texts and numbers in t, and 1 for everything else in it.
func size(t *ast.Term) float64 {
	return measure(t, func(v ast.Value) float64 {
		switch v := v.(type) {
		case ast.String:
			return float64(1 + len(v))
		case ast.Number:
			return float64(len(v))
		}
		return 1
	})
}

// depth is how deep collections are nested in t.
func depth(t *ast.Term) (deepest int) {
	below := func(t *ast.Term) { deepest = max(deepest, depth(t)) }
	switch v := t.Value.(type) {
	case *ast.Array:
		v.Foreach(below)
	case ast.Set:
		v.Foreach(below)
	case ast.Object:
		v.Foreach(func(_, value *ast.Term) { below(value) })
	}
	return deepest + 1
}

// length is the number of elements of a collection, or 1.
func length(t *ast.Term) float64 {
	if c, ok := t.Value.(interface{ Len() int }); ok {
		return float64(c.Len())
	}
	return 1
}

// textOf returns the text of t, "" for any other value.
func textOf(t *ast.Term) string {
	s, _ := t.Value.(ast.String)
	return string(s)
}

// number returns the value of a number as far as a float has it; 0 for any other value.
func number(t *ast.Term) float64 {
	n, _ := t.Value.(ast.Number)
	f, _ := strconv.ParseFloat(string(n), 64) // infinite beyond the range of floats
	return f
}

// Digits is how many digits a number has when its exponent is written out.
func Digits(s string) float64 {
	n := float64(len(s))
	if i := strings.LastIndexAny(s, "eE"); i >= 0 {
		exponent := strings.TrimLeft(s[i+1:], "+-")
		if end := strings.IndexFunc(exponent, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			exponent = exponent[:end]
		}
		if exponent != "" {
			e, _ := strconv.ParseFloat(exponent, 64)
			n += e
		}
	}
	return n
}

// digits is the sum of Digits of all numbers in t; a text counts as a number.
func digits(t *ast.Term) float64 {
	return measure(t, func(v ast.Value) float64 {
		if n, ok := v.(ast.Number); ok {
			return Digits(string(n))
		}
		s, _ := v.(ast.String)
		return Digits(string(s))
	})
}

// longest is Digits of the longest number in t.
func longest(t *ast.Term) (most float64) {
	measure(t, func(v ast.Value) float64 {
		if n, ok := v.(ast.Number); ok {
			most = max(most, Digits(string(n)))
		}
		return 0
	})
	return most
}

// square is the work of arithmetic with n digits, which is maxWork for MaxDigits.
func square(n float64) float64 { return n * n / 2 }

// numberWork is that of operands which together have a number of digits. The difference
// of sets is linear.
func numberWork(o []*ast.Term) float64 {
	var n float64
	for _, t := range o {
		if _, set := t.Value.(ast.Set); !set {
			n += digits(t)
		}
	}
	return square(n)
}

// product is the work of comparing every part of the first operand with every part of the second.
func product(o []*ast.Term) float64 { return size(o[0]) * size(o[1]) }

// searchWork is that of searching the rest of a text again after every match.
func searchWork(pattern, text int) func(o []*ast.Term) float64 {
	return func(o []*ast.Term) float64 {
		n := size(o[text])
		return patternWork(textOf(o[pattern]), n*n/10)
	}
}

// patternWork is that of looking at every part of a regular expression so many times,
// with its repetitions written out. They are counted only where that matters.
func patternWork(s string, times float64) float64 {
	const parsed, mostRepeated = 10_000, 1000 // a repetition is at most a thousandfold
	least := float64(1 + len(s))
	if !strings.Contains(s, "{") || mostRepeated*least*times <= maxWork {
		return least * times
	}
	if len(s) > parsed {
		return mostRepeated * least * times
	}
	re, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return 0 // the built-in function says what is wrong
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0
	}
	return max(least, float64(len(prog.Inst))) * times
}

// globWork is the pattern's length times the text's length to the power of the wildcards
// but one: that many places are tried for the texts between them.
func globWork(o []*ast.Term) float64 {
	pattern := textOf(o[0])
	wildcards := strings.Count(pattern, "*") - strings.Count(pattern, "**") + strings.Count(pattern, "{")
	return float64(1+len(pattern)) * math.Pow(size(o[2]), float64(max(1, wildcards-1)))
}

// schemaSize is the size of a JSON Schema, its patterns with repetitions written out where
// that matters for so many characters. It is infinite with a $ref: that may lead to a
// file, to the network, or to itself.
func schemaSize(t *ast.Term, characters float64) float64 {
	if s, ok := t.Value.(ast.String); ok {
		var document any
		if err := util.UnmarshalJSON([]byte(s), &document); err != nil {
			return 0 // the built-in function says what is wrong
		}
		v, err := ast.InterfaceToValue(document)
		if err != nil {
			return math.Inf(1)
		}
		t = ast.NewTerm(v)
	}
	return measure(t, func(v ast.Value) float64 {
		s, _ := v.(ast.String)
		if s == "$ref" {
			return math.Inf(1)
		}
		return patternWork(string(s), characters) / characters
	})
}

// outputByte is the work of a byte of output, so that there are at most 10 MB.
const outputByte = 5

func concatWork(o []*ast.Term) float64 {
	return outputByte * (size(o[1]) + size(o[0])*length(o[1]))
}

func replaceWork(o []*ast.Term) float64 {
	text := textOf(o[0])
	return outputByte * (float64(len(text)) + float64(strings.Count(text, textOf(o[1])))*size(o[2]))
}

// sprintfWork counts the arguments once for each verb, as explicit indexes may repeat
// them, and the widths and precisions of verbs. Package fmt refuses those above a million.
func sprintfWork(o []*ast.Term) float64 {
	const widest = 1_000_000
	format := textOf(o[0])
	output, arguments := float64(len(format)), size(o[1])
	for verb := range strings.SplitSeq(format, "%") {
		output += arguments
		flags := verb
		if end := strings.IndexFunc(verb, func(r rune) bool { return !strings.ContainsRune("+-# 0123456789.*[]", r) }); end >= 0 {
			flags = verb[:end]
		}
		output += widest * float64(strings.Count(flags, "*"))
		for run := range strings.FieldsFuncSeq(flags, func(r rune) bool { return r < '0' || r > '9' }) {
			width, _ := strconv.ParseFloat(run, 64)
			output += min(width, widest)
		}
	}
	return outputByte * output
}

// element is the work of making an element, so that there are at most 100,000.
const element = 500

func rangeWork(o []*ast.Term) float64 {
	step := 1.0
	if len(o) > 2 && number(o[2]) > 1 {
		step = number(o[2])
	}
	return element*math.Abs(number(o[0])-number(o[1]))/step + numberWork(o[:2])
}

func expandWork(o []*ast.Term) float64 {
	p, err := netip.ParsePrefix(textOf(o[0]))
	if err != nil {
		return 0 // the built-in function says what is wrong
	}
	return element * math.Pow(2, float64(p.Addr().BitLen()-p.Bits()))
}

// reachableWork is that of looking at the edges of a node once for every way to it.
func reachableWork(o []*ast.Term) float64 {
	edges, most := length(o[1]), 0.0
	if graph, ok := o[0].Value.(ast.Object); ok {
		graph.Foreach(func(_, to *ast.Term) {
			edges, most = edges+length(to), max(most, length(to))
		})
	}
	return 5 * edges * most
}

// keyWork is that of RSA, which grows with the square of the key's length.
func keyWork(o []*ast.Term) float64 { return size(o[1]) * size(o[1]) / 10 }
