package rego

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// clause is a condition for people: not all of its members hold. A condition
// that must hold is the clause of its negation.
type clause []string

func (c clause) String() string {
	if len(c) == 1 {
		return negated(c[0])
	}
	return "not {" + strings.Join(c, "; ") + "}"
}

// negation is what must hold where c does not.
func (c clause) negation() []clause {
	var out []clause
	for _, one := range c {
		out = append(out, clause{negated(one)})
	}
	return out
}

func clauseTexts(list []clause) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.String())
	}
	return out
}

func negated(condition string) string {
	if plain, ok := strings.CutPrefix(condition, "not "); ok && !strings.HasPrefix(plain, "{") {
		return plain
	}
	return "not " + condition
}

// simplify says list with fewer words: each condition once, and without what
// others settle. It reports whether all of list can hold.
func simplify(list []clause) ([]clause, bool) {
	for {
		settled := map[string]bool{}
		for _, c := range list {
			if len(c) == 1 {
				settled[c[0]], settled[negated(c[0])] = false, true
			}
		}
		settled["true"], settled["not true"] = true, false
		var out []clause
		for _, c := range list {
			if len(c) == 1 && c[0] != "not true" {
				if v := settled[c[0]]; v {
					return nil, false
				}
				out = appendClause(out, c)
				continue
			}
			rest := slices.DeleteFunc(slices.Clone(c), func(one string) bool { return settled[one] })
			switch holds := slices.ContainsFunc(rest, func(one string) bool { v, known := settled[one]; return known && !v }); {
			case len(rest) == 0:
				return nil, false
			case !holds:
				out = appendClause(out, rest)
			}
		}
		if slices.EqualFunc(out, list, func(a, b clause) bool { return slices.Equal(a, b) }) {
			return out, true
		}
		list = out
	}
}

func appendClause(list []clause, c clause) []clause {
	if slices.ContainsFunc(list, func(have clause) bool { return slices.Equal(have, c) }) {
		return list
	}
	return append(list, c)
}

var generated = regexp.MustCompile(`__local\d+__\d*`)

// nameVariables gives variables that the compiler made short names: _ where one
// is used once.
func nameVariables(list []clause) {
	uses, names := map[string]int{}, map[string]string{}
	for _, c := range list {
		for _, text := range c {
			for _, v := range generated.FindAllString(text, -1) {
				uses[v]++
			}
		}
	}
	for _, c := range list {
		for i := range c {
			c[i] = generated.ReplaceAllStringFunc(c[i], func(v string) string {
				switch {
				case uses[v] == 1:
					return "_"
				case names[v] == "":
					names[v] = fmt.Sprintf("x%d", len(names)+1)
				}
				return names[v]
			})
		}
	}
}

var typeTest = regexp.MustCompile(`^is_[a-z]+\((.+)\)$`)

// WithoutTypeTests are the conditions of a Branch without tests of a type where
// another condition is about the same value: people take the type for granted.
func WithoutTypeTests(when []string) []string {
	var out []string
	for i, w := range when {
		m := typeTest.FindStringSubmatch(w)
		if m == nil || !slices.ContainsFunc(slices.Concat(when[:i], when[i+1:]), func(other string) bool { return strings.HasPrefix(other, m[1]+" ") }) {
			out = append(out, w)
		}
	}
	return out
}

var comparison = regexp.MustCompile(`^(.+) (<|<=|>|>=|==|!=) (.+)$`)

// opposites are the operators of comparisons that hold where the others do not.
var opposites = map[string]string{"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}

// opposite says in one line what must hold for when not to: one of its conditions
// must not.
func opposite(when []string) string {
	var out []string
	for _, w := range WithoutTypeTests(when) {
		if inner, ok := strings.CutPrefix(w, "not {"); ok {
			out = append(out, strings.ReplaceAll(strings.TrimSuffix(inner, "}"), "; ", " and "))
		} else if m := comparison.FindStringSubmatch(w); m != nil && !strings.HasPrefix(w, "not ") && !strings.ContainsAny(w, "{[(") {
			out = append(out, m[1]+" "+opposites[m[2]]+" "+m[3])
		} else {
			out = append(out, negated(w))
		}
	}
	return strings.Join(out, " or ")
}
