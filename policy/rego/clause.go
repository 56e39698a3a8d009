package rego

import (
	"slices"
	"strings"
)

// clause is one condition, for people: what text says, or that not all of not
// hold.
type clause struct {
	text string
	not  []clause
}

// said is the only way in which text holds.
func said(text string) [][]clause { return [][]clause{{{text: text}}} }

func (c clause) String() string {
	switch len(c.not) {
	case 0:
		return c.text
	case 1:
		return "not " + c.not[0].String()
	}
	return "not {" + clauses(c.not) + "}"
}

func clauses(cs []clause) string {
	texts := make([]string, len(cs))
	for i, c := range cs {
		texts[i] = c.String()
	}
	return strings.Join(texts, "; ")
}

// unless is that cs do not hold together.
func unless(cs []clause) clause {
	if len(cs) == 1 && len(cs[0].not) == 1 {
		return cs[0].not[0]
	}
	return clause{not: cs}
}

func (c clause) same(d clause) bool { return c.String() == d.String() }

func has(cs []clause, c clause) bool { return slices.ContainsFunc(cs, c.same) }

// negate are the ways in which none of ways holds.
func negate(ways [][]clause) [][]clause {
	var out []clause
	for _, way := range ways {
		switch {
		case len(way) == 0:
			return nil
		case len(way) == 1 && len(way[0].not) > 0:
			out = both(out, way[0].not)
		default:
			out = both(out, []clause{unless(way)})
		}
	}
	return [][]clause{out}
}

// product are the ways in which one of a and one of b holds.
func product(a, b [][]clause) [][]clause {
	var out [][]clause
	for _, x := range a {
		for _, y := range b {
			out = append(out, both(x, y))
		}
	}
	return out
}

// both are the conditions of a and b, each said once.
func both(a, b []clause) []clause {
	out := slices.Clone(a)
	for _, c := range b {
		if !has(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// plain says cs in as few words as there are without knowing what they mean;
// false when they contradict each other.
func plain(cs []clause) ([]string, bool) {
	for {
		simpler, possible := simplify(cs)
		if !possible {
			return nil, false
		}
		if clauses(simpler) == clauses(cs) {
			break
		}
		cs = simpler
	}
	var out []string
	for _, c := range cs {
		out = append(out, c.String())
	}
	return out, true
}

func simplify(cs []clause) ([]clause, bool) {
	var out []clause
	for _, c := range cs {
		if has(cs, unless([]clause{c})) {
			return nil, false
		}
		if len(c.not) == 0 {
			out = both(out, []clause{c})
			continue
		}
		if len(c.not) == 1 && len(c.not[0].not) > 0 {
			out = both(out, c.not[0].not)
			continue
		}
		// What of it holds anyhow says nothing; if something of it fails, it is true.
		rest := slices.DeleteFunc(slices.Clone(c.not), func(d clause) bool { return has(cs, d) })
		if len(rest) == 0 {
			return nil, false
		}
		if !slices.ContainsFunc(rest, func(d clause) bool { return len(c.not) > 1 && has(cs, unless([]clause{d})) }) {
			out = both(out, []clause{unless(rest)})
		}
	}
	return out, true
}
