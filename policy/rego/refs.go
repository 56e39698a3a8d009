package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// withValue makes the steps that follow a term that has the value e.
type withValue func(e expr, v *scope) node

// term finds the values of t.
func (s *splitter) term(t *ast.Term, v *scope, next withValue) node {
	s.spend()
	switch x := t.Value.(type) {
	case ast.Var:
		if e := s.get(x, v); e != nil {
			return next(e, v)
		}
		return s.refuse("variable %v has no value here", x)
	case ast.Ref:
		return s.ref(x, v, next)
	case *ast.ArrayComprehension:
		return next(s.gather(t, sinkArray, x.Body, nil, x.Term, v), v)
	case *ast.SetComprehension:
		return next(s.gather(t, sinkSet, x.Body, nil, x.Term, v), v)
	case *ast.ObjectComprehension:
		return next(s.gather(t, sinkObject, x.Body, x.Key, x.Value, v), v)
	}
	if ast.IsConstant(t.Value) {
		return next(constant{t}, v)
	}
	return s.composite(t.Value, v, next)
}

func (s *splitter) composite(of ast.Value, v *scope, next withValue) node {
	var keys, vals []*ast.Term
	switch of := of.(type) {
	case *ast.Array:
		of.Foreach(func(t *ast.Term) { vals = append(vals, t) })
	case ast.Set:
		of.Foreach(func(t *ast.Term) { vals = append(vals, t) })
	case ast.Object:
		of.Foreach(func(k, t *ast.Term) { keys, vals = append(keys, k), append(vals, t) })
	default:
		return s.refuse("a term of this kind is not split")
	}
	return s.terms(keys, v, nil, func(keys []expr, v *scope) node {
		return s.terms(vals, v, nil, func(vals []expr, v *scope) node {
			c := &composite{of: of, keys: keys, vals: vals}
			_, knownKeys := allConstant(keys)
			_, knownVals := allConstant(vals)
			if !knownKeys || !knownVals {
				return next(c, v)
			}
			t, _ := c.value(nil)
			return next(constant{t}, v)
		})
	})
}

// terms finds the values of ts, after those in found.
func (s *splitter) terms(ts []*ast.Term, v *scope, found []expr, next func([]expr, *scope) node) node {
	if len(ts) == 0 {
		return next(found, v)
	}
	return s.term(ts[0], v, func(e expr, v *scope) node {
		return s.terms(ts[1:], v, append(found[:len(found):len(found)], e), next)
	})
}

// gather is the value of a comprehension.
func (s *splitter) gather(t *ast.Term, kind sinkKind, b ast.Body, key, val *ast.Term, v *scope) expr {
	if s.program.compiler.ComprehensionIndex(t) != nil && !simple(b) {
		// Evaluation groups it by its outer variables, and so looks at more.
		s.refuse("a comprehension that OPA groups is not split")
	}
	body := s.body(b, 0, v, func(v *scope) node { return s.leaf(key, val, v) })
	out := &gathered{kind: kind, body: body}
	if leaves, ok := constantLeaves(body); ok {
		if t := gatherNow(kind, leaves); t != nil {
			return constant{t}
		}
	}
	return out
}

// gatherNow is what solutions come to that are known; nil when they disagree.
func gatherNow(kind sinkKind, leaves []*leaf) *ast.Term {
	s := sink{kind: kind}
	for _, l := range leaves {
		if l.run(&state{sink: &s}) != nil {
			return nil
		}
	}
	t, err := s.gathered()
	if err != nil {
		return nil
	}
	return t
}

// leaf is the end of a body that gives a value.
func (s *splitter) leaf(key, val *ast.Term, v *scope) node {
	return s.term(val, v, func(val expr, v *scope) node {
		if key == nil {
			return &leaf{val: val}
		}
		return s.term(key, v, func(key expr, _ *scope) node { return &leaf{key: key, val: val} })
	})
}

// constantLeaves are the solutions of a body that has the same ones in every
// call, and cannot fail.
func constantLeaves(n node) ([]*leaf, bool) {
	var out []*leaf
	nodes, ok := n.(fork)
	if !ok && n != nil {
		nodes = fork{n}
	}
	for _, n := range nodes {
		l, ok := n.(*leaf)
		if !ok {
			return nil, false
		}
		_, ok = isConstant(l.val)
		if ok && l.key != nil {
			_, ok = isConstant(l.key)
		}
		if !ok {
			return nil, false
		}
		out = append(out, l)
	}
	return out, true
}

// simple reports whether a body calls only built-in functions that never fail,
// and reads no rules.
func simple(b ast.Body) bool {
	ok := true
	ast.WalkExprs(b, func(x *ast.Expr) bool {
		if x.IsCall() && !x.IsEquality() && !total[x.Operator().String()] {
			ok = false
		}
		return !ok
	})
	ast.WalkRefs(b, func(r ast.Ref) bool {
		if r.HasPrefix(ast.DefaultRootRef) {
			ok = false
		}
		return !ok
	})
	return ok
}

func (s *splitter) ref(r ast.Ref, v *scope, next withValue) node {
	head, ok := r[0].Value.(ast.Var)
	switch {
	case !ok:
		return s.refuse("a reference into a call is not split")
	case head.Equal(ast.InputRootDocument.Value):
		return s.inputRef(r[1:], v, next)
	case head.Equal(ast.DefaultRootDocument.Value):
		return s.data(s.program.compiler.RuleTree.Child(head), s.program.data, r[1:], v, next)
	}
	e := s.get(head, v)
	if e == nil {
		return s.refuse("variable %v has no value here", head)
	}
	return s.walk(e, r[1:], false, v, next)
}

func (s *splitter) inputRef(path []*ast.Term, v *scope, next withValue) node {
	if len(path) > 0 {
		if name, ok := path[0].Value.(ast.String); ok {
			if r, ok := unknowns[name]; ok {
				return s.walk(r, path[1:], false, v, next)
			}
			t := s.input.Get(path[0])
			if t == nil {
				return nil
			}
			return s.walk(constant{t}, path[1:], false, v, next)
		}
	}
	return s.walk(rootInput, path, false, v, next)
}

// walk goes from of along path; stored as in element.
func (s *splitter) walk(of expr, path []*ast.Term, stored bool, v *scope, next withValue) node {
	s.spend()
	if len(path) == 0 {
		return next(of, v)
	}
	if s.isPattern(path[0], v) {
		return s.iterate(of, func(key, val expr) node {
			return s.match(path[0], key, v, func(v *scope) node { return s.walk(val, path[1:], stored, v, next) })
		})
	}
	return s.term(path[0], v, func(key expr, v *scope) node {
		val := s.member(of, key, stored)
		if val == nil {
			return nil
		}
		return s.walk(val, path[1:], stored, v, next)
	})
}

// member is what of has at key; nil when it has nothing there in any call.
func (s *splitter) member(of, key expr, stored bool) expr {
	o, known := isConstant(of)
	k, also := isConstant(key)
	if known && !isCollection(o.Value) {
		return nil
	}
	if !known || !also {
		return &element{of: of, key: key, stored: stored}
	}
	if stored && !isPathKey(o.Value, k.Value) {
		s.refuse("data with a key of another type than its own is not split")
	}
	if t := lookUp(o.Value, k); t != nil {
		return constant{t}
	}
	return nil
}

// iterate goes on with each element of a value.
func (s *splitter) iterate(of expr, next func(key, val expr) node) node {
	if t, ok := isConstant(of); ok {
		var out []node
		_ = elements(t.Value, func(key, val *ast.Term) error {
			s.spend()
			out = append(out, next(constant{key}, constant{val}))
			return nil
		})
		return ways(out)
	}
	key, val := s.slot("_"), s.slot(of.text()+"[_]")
	return keep(&each{of: of, key: key.slot, val: val.slot, next: next(key, val)}, of.fails())
}

// data goes along path where rules and stored data meet.
func (s *splitter) data(rules *ast.TreeNode, stored ast.Value, path []*ast.Term, v *scope, next withValue) node {
	switch {
	case rules == nil && stored == nil:
		return nil
	case rules == nil:
		return s.walk(constant{ast.NewTerm(stored)}, path, true, v, next)
	case len(path) == 0 || s.isPattern(path[0], v):
		return s.refuse("a reference to all rules of a package is not split")
	}
	return s.term(path[0], v, func(key expr, v *scope) node {
		name, ok := isConstant(key)
		if !ok {
			return s.refuse("a reference to a rule by an unknown name is not split")
		}
		var below ast.Value
		if o, ok := stored.(ast.Object); ok {
			if t := o.Get(name); t != nil {
				below = t.Value
			}
		}
		child := rules.Child(name.Value)
		if child == nil || len(child.Values) == 0 {
			return s.data(child, below, path[1:], v, next)
		}
		e := s.rule(child)
		if e == nil {
			return nil
		}
		return s.walk(e, path[1:], false, v, next)
	})
}
