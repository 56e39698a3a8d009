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
