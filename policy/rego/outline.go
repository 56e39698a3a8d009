package rego

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
)

// maxBranches bounds an outline; conditions that would come to more are told by
// the name of their rule.
const maxBranches = 64

// Outline is what a principal may do with a tool, as far as it is known before
// any call.
type Outline struct {
	// Whole says why every call is evaluated whole; "" when the policy could be
	// split, and Branches then hold every verdict that there is. What no branch
	// decides is denied: with RuleUndefined, or with RuleError if a built-in
	// function fails on the way.
	Whole    string
	Branches []Branch
}

// Branch is one verdict and when it holds.
type Branch struct {
	// Decision is the verdict; members that come from the arguments of a call are
	// empty in it.
	Decision policy.Decision
	// When are the conditions, all of which must hold, in words of Rego:
	// "input.arguments.amount > 100". None means always.
	When []string
}

// Outline tells for people what Decide answers p about t, whatever the
// arguments. It is safe for concurrent use; an error means that nothing is known.
func (e *Engine) Outline(ctx context.Context, p policy.Principal, t policy.Tool) (Outline, error) {
	if !p.Valid() {
		return Outline{}, errors.New("outlining: no principal")
	}
	known, err := e.pair(ctx, &p, &t)
	if err != nil {
		return Outline{}, fmt.Errorf("outlining: %w", err)
	}
	switch {
	case known.verdict != nil:
		return Outline{Branches: []Branch{{Decision: cloneDecision(known.verdict)}}}, nil
	case known.tree == nil:
		return Outline{Whole: known.whole}, nil
	}
	return e.outline(known.tree.decision), nil
}

func (e *Engine) outline(g *group) Outline {
	var out Outline
	for _, c := range casesOf(g) {
		d, err := e.close(sketch(c.is))
		if err != nil {
			return Outline{Whole: "the effect comes from the call, or is none"}
		}
		if when, possible := plain(c.when); possible {
			out.add(Branch{Decision: d, When: when})
		}
	}
	return out
}

// add takes in a branch unless another with the same verdict says more.
func (o *Outline) add(b Branch) {
	wider := func(a, b Branch) bool {
		return reflect.DeepEqual(a.Decision, b.Decision) &&
			!slices.ContainsFunc(a.When, func(c string) bool { return !slices.Contains(b.When, c) })
	}
	if slices.ContainsFunc(o.Branches, func(a Branch) bool { return wider(a, b) }) {
		return
	}
	o.Branches = append(slices.DeleteFunc(o.Branches, func(a Branch) bool { return wider(b, a) }), b)
}

// sketch is the decision that e comes to, without what comes from a call.
func sketch(e expr) (policy.Decision, error) {
	if t, ok := isConstant(e); ok {
		return decodeDecision(t.Value)
	}
	c, ok := e.(*composite)
	effect := effectOf(e)
	if !ok || effect == nil {
		return policy.Decision{}, errors.New("the effect comes from the call")
	}
	var members [][2]*ast.Term
	for i, k := range c.keys {
		key, _ := isConstant(k)
		if val, ok := isConstant(c.vals[i]); ok && key != nil {
			members = append(members, [2]*ast.Term{key, val})
		}
	}
	if d, err := decodeDecision(ast.NewObject(members...)); err == nil {
		return d, nil
	}
	name, err := text(effect.Value)
	return policy.Decision{Effect: policy.Effect(name)}, err
}

// a kase is one way to come to a value.
type kase struct {
	when []clause
	is   expr
}

// casesOf are the ways in which g has a value.
func casesOf(g *group) []kase {
	var out []kase
	rest := [][]clause{nil} // when no rule has a value
	for _, c := range g.chains {
		before := [][]clause{nil}
		for _, body := range c {
			ends := endsOf(body)
			for _, b := range before {
				for _, k := range ends {
					out = append(out, kase{both(b, k.when), k.is})
				}
			}
			before = product(before, negate(conditions(ends)))
		}
		rest = product(rest, before)
	}
	if g.other != nil {
		for _, r := range rest {
			out = append(out, kase{r, g.other})
		}
	}
	return out
}

// endsOf are the ways through n.
func endsOf(n node) []kase {
	switch n := n.(type) {
	case *leaf:
		return []kase{{nil, n.val}}
	case fork:
		var out []kase
		for _, way := range n {
			out = append(out, endsOf(way)...)
		}
		return out
	case *choice:
		return n.ends()
	case step:
		next := endsOf(n.following())
		if len(next) == 0 {
			return nil
		}
		ways := words(n)
		if len(ways)*len(next) > maxBranches {
			ways = said(brief(n, ways))
		}
		var out []kase
		for _, when := range ways {
			for _, k := range next {
				out = append(out, kase{both(when, k.when), k.is})
			}
		}
		return out
	}
	return nil
}

func (n *choice) ends() []kase {
	cases := casesOf(n.of)
	next := make([][]kase, len(n.vals))
	for i := range n.vals {
		next[i] = endsOf(n.nexts[i])
	}
	if len(cases) > maxBranches {
		cases = cases[:0]
		for _, v := range n.vals {
			cases = append(cases, kase{said(n.of.text() + " == " + v.String())[0], constant{v}})
		}
	}
	var out []kase
	for _, c := range cases {
		t, _ := isConstant(c.is)
		i := slices.IndexFunc(n.vals, func(v *ast.Term) bool { return identical(v, t) })
		for _, k := range next[i] {
			out = append(out, kase{both(c.when, k.when), k.is})
		}
	}
	return out
}

func conditions(cases []kase) [][]clause {
	out := make([][]clause, len(cases))
	for i, c := range cases {
		out[i] = c.when
	}
	return out
}

// words are the ways in which the condition of one step holds.
func words(n step) [][]clause {
	switch n := n.(type) {
	case *let:
		if n.seen {
			return said(n.val.text())
		}
	case *test:
		return truths(n.val)
	case *same:
		return said(n.a.text() + " == " + n.b.text())
	case *call:
		if n.slot < 0 {
			return said(callText(n.name, n.args))
		}
	case *condition:
		inner := conditions(endsOf(n.body))
		if n.not {
			return negate(inner)
		}
		return inner
	case *either:
		return append(conditions(endsOf(n.left)), conditions(endsOf(n.right))...)
	case *all:
		return said(everyText(n))
	}
	return [][]clause{nil}
}

// brief says a condition that comes to too many ways in one.
func brief(n step, ways [][]clause) string {
	if t, ok := n.(*test); ok {
		return t.val.text()
	}
	texts := make([]string, len(ways))
	for i, w := range ways {
		texts[i] = clauses(w)
	}
	return strings.Join(texts, " or ")
}

// truths are the ways in which a value is not false: those of the rules that
// give it, where they are not too many.
func truths(e expr) [][]clause {
	g, ok := e.(*group)
	if !ok || g.kind != sinkValue {
		return said(e.text())
	}
	var out [][]clause
	for _, c := range casesOf(g) {
		t, ok := isConstant(c.is)
		switch {
		case !ok:
			return said(e.text())
		case !isFalse(t):
			out = append(out, c.when)
		}
	}
	if len(out) > maxBranches {
		return said(e.text())
	}
	return out
}
