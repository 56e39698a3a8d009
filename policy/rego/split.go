package rego

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Bounds of one splitting. What is beyond is evaluated whole.
const (
	maxSplitSteps = 100_000
	maxTreeSlots  = 10_000
)

// unsplit says what forbids to split a policy. It is thrown by the splitter and
// goes no further than newTree.
type unsplit struct {
	why string
	at  *ast.Location
}

func (u unsplit) String() string {
	if u.at == nil {
		return u.why
	}
	return fmt.Sprintf("%s:%d: %s", strings.TrimPrefix(u.at.File, "/"), u.at.Row, u.why)
}

// splitter walks the compiled rules of a policy for one principal and one tool:
// with the values that are known it does what evaluation would do, of the
// others it leaves the steps. It only reads what it shares with other
// evaluations, so any number of them may work at once.
type splitter struct {
	program *program
	input   ast.Object // what is known of it
	context topdown.BuiltinContext
	at      *ast.Location // the expression that is being split
	rules   map[*ast.TreeNode]expr
	used    []bool // by slot: a later step reads it
	groups  int
	steps   int
}

func (s *splitter) refuse(why string, args ...any) node {
	panic(unsplit{fmt.Sprintf(why, args...), s.at})
}

// spend counts a step against the bounds.
func (s *splitter) spend() {
	if s.steps++; s.steps > maxSplitSteps || len(s.used) > maxTreeSlots {
		s.refuse("it comes to too many cases")
	}
	if s.steps%256 == 0 && s.context.Cancel.Cancelled() {
		s.refuse("it takes too long")
	}
}

// scope is the variables of a body that have a value; nil has none.
type scope struct {
	outer *scope
	name  ast.Var
	is    expr
}

func (v *scope) get(name ast.Var) expr {
	for ; v != nil; v = v.outer {
		if v.name == name {
			return v.is
		}
	}
	return nil
}

func (v *scope) with(name ast.Var, is expr) *scope { return &scope{v, name, is} }

// then makes the steps that follow, with the variables that have a value there.
type then func(*scope) node

// body splits the expressions of b from i on. Nil is what can never hold and
// cannot fail either.
func (s *splitter) body(b ast.Body, i int, v *scope, next then) node {
	s.spend()
	if i == len(b) {
		return next(v)
	}
	s.at = b[i].Location
	return s.expression(b[i], v, func(v *scope) node { return s.body(b, i+1, v, next) })
}

func (s *splitter) expression(x *ast.Expr, v *scope, next then) node {
	if len(x.With) > 0 {
		return s.refuse("with is not split")
	}
	if x.Negated {
		return s.not(ast.NewBody(x.ComplementNoWith()), v, next)
	}
	switch t := x.Terms.(type) {
	case *ast.Term:
		return s.term(t, v, func(e expr, v *scope) node { return s.test(e, v, next) })
	case []*ast.Term:
		if x.IsEquality() {
			return s.unify(t[1], t[2], v, next)
		}
		return s.call(t, v, next)
	case *ast.Every:
		return s.every(t, v, next)
	case *ast.Not:
		return s.not(t.Body, v, next)
	case *ast.LogicalAnd:
		return s.exists(t.Lhs, v, func(v *scope) node { return s.exists(t.Rhs, v, next) })
	case *ast.LogicalOr:
		return s.or(t, v, next)
	}
	return s.refuse("an expression of this kind is not split")
}

// test goes on where e is not false.
func (s *splitter) test(e expr, v *scope, next then) node {
	if t, ok := isConstant(e); ok {
		if isFalse(t) {
			return nil
		}
		return next(v)
	}
	return keep(&test{val: e, next: next(v)}, e.fails())
}

// keep drops a step that nothing follows, unless it can fail.
func keep(n step, fails bool) node {
	if n.following() == nil && !fails {
		return nil
	}
	return n
}

// solution is the end of a body of which only counts that it holds.
func solution(*scope) node { return &leaf{val: constant{ast.InternedTerm(true)}} }

// certain reports whether n has a solution in every call, and cannot fail.
func certain(n node) bool {
	switch n := n.(type) {
	case *leaf:
		return true
	case fork:
		found := false
		for _, way := range n {
			_, ok := way.(*leaf)
			found = found || ok
		}
		return found && !n.fails()
	}
	return false
}

func (s *splitter) not(b ast.Body, v *scope, next then) node {
	inner := s.body(b, 0, v, solution)
	switch {
	case inner == nil:
		return next(v)
	case certain(inner):
		return nil
	}
	return keep(&condition{body: inner, not: true, next: next(v)}, inner.fails())
}

// exists goes on once if b has a solution; its variables end with it.
func (s *splitter) exists(b ast.Body, v *scope, next then) node {
	inner := s.body(b, 0, v, solution)
	switch {
	case inner == nil:
		return nil
	case certain(inner):
		return next(v)
	}
	return keep(&condition{body: inner, next: next(v)}, inner.fails())
}

func (s *splitter) or(t *ast.LogicalOr, v *scope, next then) node {
	left := s.body(t.Lhs, 0, v, solution)
	if certain(left) {
		return next(v)
	}
	right := s.body(t.Rhs, 0, v, solution)
	switch {
	case left == nil && right == nil:
		return nil
	case left == nil && certain(right):
		return next(v)
	}
	return keep(&either{left: left, right: right, next: next(v)}, failsOn(left) || failsOn(right))
}

func (s *splitter) every(t *ast.Every, v *scope, next then) node {
	return s.term(t.Domain, v, func(domain expr, v *scope) node {
		if of, ok := isConstant(domain); ok {
			return s.everyOf(t, of.Value, v, next)
		}
		key, val := s.slot("_"), s.slot(domain.text()+"[_]")
		inner := v.with(t.Value.Value.(ast.Var), val)
		if t.Key != nil {
			inner = inner.with(t.Key.Value.(ast.Var), key)
		}
		n := &all{of: domain, key: key.slot, val: val.slot, body: s.body(t.Body, 0, inner, solution)}
		n.next = next(v)
		return keep(n, domain.fails() || failsOn(n.body))
	})
}

// everyOf is every over elements that are known: one condition for each.
func (s *splitter) everyOf(t *ast.Every, of ast.Value, v *scope, next then) node {
	if !isCollection(of) {
		return nil
	}
	var bodies []node
	_ = elements(of, func(key, val *ast.Term) error {
		inner := v.with(t.Value.Value.(ast.Var), constant{val})
		if t.Key != nil {
			inner = inner.with(t.Key.Value.(ast.Var), constant{key})
		}
		bodies = append(bodies, s.body(t.Body, 0, inner, solution))
		return nil
	})
	// Evaluation ends at the first element that has no solution.
	for i, b := range bodies {
		if b == nil {
			bodies = bodies[:i]
			next = func(*scope) node { return nil }
			break
		}
	}
	out := next(v)
	for i := len(bodies) - 1; i >= 0; i-- {
		if !certain(bodies[i]) {
			out = keep(&condition{body: bodies[i], next: out}, bodies[i].fails())
		}
	}
	return out
}

// slot makes room for a value that is put aside.
func (s *splitter) slot(of string) *local {
	s.used = append(s.used, false)
	return &local{slot: len(s.used) - 1, of: of}
}

// bind gives name the value e, which is put aside unless it is known.
func (s *splitter) bind(name ast.Var, e expr, v *scope, next then) node {
	return s.aside(e, func(e expr) node { return next(v.with(name, e)) })
}

// aside goes on with a value that is defined.
func (s *splitter) aside(e expr, next func(expr) node) node {
	if isDefined(e) {
		return next(e)
	}
	if g, ok := e.(*group); ok {
		if vals := g.values(); len(vals) > 0 {
			return s.choose(g, vals, next)
		}
	}
	put := s.slot(e.text())
	n := &let{slot: put.slot, val: e, next: next(put)}
	n.seen = !s.used[put.slot]
	return keep(n, e.fails())
}

// choose goes on with each value that g can have, so that what follows is split
// with a value that is known.
func (s *splitter) choose(g *group, vals []*ast.Term, next func(expr) node) node {
	n := &choice{of: g, vals: vals, nexts: make([]node, len(vals))}
	for i, t := range vals {
		n.nexts[i] = next(constant{t})
	}
	if !g.frail && !slices.ContainsFunc(n.nexts, func(n node) bool { return n != nil }) {
		return nil
	}
	return n
}

// isDefined reports whether e has a value in every call, with nothing to do for it.
func isDefined(e expr) bool {
	switch e := e.(type) {
	case constant, *local:
		return true
	case *element:
		return e.sure
	case *composite:
		return !slices.ContainsFunc(e.keys, isOpen) && !slices.ContainsFunc(e.vals, isOpen)
	}
	return false
}

func isOpen(e expr) bool { return !isDefined(e) }

// unify makes two terms equal and gives the variables in them their values.
func (s *splitter) unify(a, b *ast.Term, v *scope, next then) node {
	s.spend()
	if s.isPattern(b, v) && !s.isPattern(a, v) {
		a, b = b, a
	}
	if s.isPattern(a, v) {
		return s.term(b, v, func(e expr, v *scope) node { return s.match(a, e, v, next) })
	}
	return s.term(a, v, func(a expr, v *scope) node {
		return s.term(b, v, func(b expr, v *scope) node { return s.equal(a, b, v, next) })
	})
}

// isPattern reports whether t has variables without a value, outside of
// references, which find their values by themselves.
func (s *splitter) isPattern(t *ast.Term, v *scope) bool {
	switch t := t.Value.(type) {
	case ast.Var:
		return s.get(t, v) == nil
	case *ast.Array:
		return t.Until(func(t *ast.Term) bool { return s.isPattern(t, v) })
	case ast.Object:
		return t.Until(func(_, t *ast.Term) bool { return s.isPattern(t, v) })
	}
	return false
}

func (s *splitter) get(name ast.Var, v *scope) expr {
	e := v.get(name)
	s.use(e)
	return e
}

func (s *splitter) use(e expr) {
	if l, ok := e.(*local); ok {
		s.used[l.slot] = true
	}
}

func (s *splitter) equal(a, b expr, v *scope, next then) node {
	x, known := isConstant(a)
	y, also := isConstant(b)
	if known && also {
		if !x.Equal(y) {
			return nil
		}
		return next(v)
	}
	return keep(&same{a: a, b: b, next: next(v)}, a.fails() || b.fails())
}

// match is unify with a value.
func (s *splitter) match(pattern *ast.Term, e expr, v *scope, next then) node {
	if !s.isPattern(pattern, v) {
		return s.term(pattern, v, func(p expr, v *scope) node { return s.equal(p, e, v, next) })
	}
	switch p := pattern.Value.(type) {
	case ast.Var:
		return s.bind(p, e, v, next)
	case *ast.Array:
		parts := make([]part, p.Len())
		for i := range parts {
			parts[i] = part{ast.InternedTerm(i), p.Elem(i), true}
		}
		return s.matchParts(parts, true, e, v, next)
	case ast.Object:
		var parts []part
		p.Foreach(func(key, val *ast.Term) {
			if !ast.IsConstant(key.Value) {
				s.refuse("a pattern with an unknown key is not split")
			}
			parts = append(parts, part{key, val, false})
		})
		return s.matchParts(parts, false, e, v, next)
	}
	return s.refuse("a pattern of this kind is not split")
}

// part is one element of a pattern.
type part struct {
	key, pattern *ast.Term
	sure         bool // a value of the pattern's size has it
}

func (s *splitter) matchParts(parts []part, array bool, e expr, v *scope, next then) node {
	return s.aside(e, func(e expr) node {
		n := &shape{val: e, array: array, size: len(parts)}
		if t, ok := isConstant(e); ok {
			if !n.fits(t.Value) {
				return nil
			}
			return s.matchEach(parts, e, v, next)
		}
		s.use(e)
		n.next = s.matchEach(parts, e, v, next)
		return keep(n, false)
	})
}

func (s *splitter) matchEach(parts []part, e expr, v *scope, next then) node {
	if len(parts) == 0 {
		return next(v)
	}
	val := s.member(e, constant{parts[0].key}, false)
	if val == nil {
		return nil
	}
	if m, ok := val.(*element); ok {
		m.sure = parts[0].sure
	}
	return s.match(parts[0].pattern, val, v, func(v *scope) node { return s.matchEach(parts[1:], e, v, next) })
}

// ways is a fork of what can hold.
func ways(nodes []node) node {
	var out fork
	for _, n := range nodes {
		switch n := n.(type) {
		case nil:
		case fork:
			out = append(out, n...)
		default:
			out = append(out, n)
		}
	}
	switch len(out) {
	case 0:
		return nil
	case 1:
		return out[0]
	}
	return out
}
