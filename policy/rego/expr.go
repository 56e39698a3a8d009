package rego

import (
	"errors"
	"strconv"

	"github.com/open-policy-agent/opa/v1/ast"
)

// expr is a value that is known only with a call. It is immutable.
type expr interface {
	// value is the value in one call; nil means undefined. Every error means
	// that the tree cannot answer.
	value(*state) (*ast.Term, error)
	// fails reports whether value may give an error.
	fails() bool
	// text is the value in words of Rego, for people.
	text() string
}

// errWhole is what a step gives that only a whole evaluation can judge: a
// built-in function failed, or rules disagree.
var errWhole = errors.New("needs a whole evaluation")

// constant is a value that is known before any call.
type constant struct{ term *ast.Term }

func (c constant) value(*state) (*ast.Term, error) { return c.term, nil }
func (constant) fails() bool                       { return false }

// local is a value that an earlier step has put aside.
type local struct {
	slot int
	of   string // what it is, for people
}

func (l *local) value(st *state) (*ast.Term, error) { return st.slots[l.slot], nil }
func (*local) fails() bool                          { return false }

// root is a part of the input that comes with the call.
type root int

const (
	rootInput root = iota // all of it
	rootArguments
	rootRequest
	rootUsage
	rootFacts
	roots
)

var unknowns = map[ast.String]root{
	"arguments": rootArguments, "request": rootRequest, "usage": rootUsage, "facts": rootFacts,
}

func (r root) value(st *state) (*ast.Term, error) { return st.root(r) }
func (root) fails() bool                          { return false } // but for input that no evaluation reads

// element is what of has at key.
type element struct {
	of, key expr
	stored  bool // of is policy data, where OPA reads keys as parts of a path
	sure    bool // of has been found to have it
}

func (m *element) fails() bool { return m.stored || m.of.fails() || m.key.fails() }

func (m *element) value(st *state) (*ast.Term, error) {
	of, err := m.of.value(st)
	if of == nil || err != nil {
		return nil, err
	}
	key, err := m.key.value(st)
	if key == nil || err != nil {
		return nil, err
	}
	if m.stored && !isPathKey(of.Value, key.Value) {
		return nil, errWhole
	}
	return lookUp(of.Value, key), nil
}

// lookUp is OPA's look-up of one key in a value.
func lookUp(of ast.Value, key *ast.Term) *ast.Term {
	switch of := of.(type) {
	case ast.Object:
		return of.Get(key)
	case *ast.Array:
		return of.Get(key)
	case ast.Set:
		if of.Contains(key) {
			return key
		}
	}
	return nil
}

// isPathKey reports whether a look-up in stored data by key is what it would
// be in any other value. OPA turns the keys into text there.
func isPathKey(of, key ast.Value) bool {
	switch of.(type) {
	case ast.Object:
		_, ok := key.(ast.String)
		return ok
	case *ast.Array:
		n, ok := key.(ast.Number)
		if !ok {
			return false
		}
		i, ok := n.Int()
		return ok && string(n) == strconv.Itoa(i)
	}
	return ast.IsScalar(key)
}

// composite is an array, object or set of values, some known only with a call.
type composite struct {
	of   ast.Value // *ast.Array, ast.Object or ast.Set: which of them it is
	keys []expr    // of an object
	vals []expr
}

func (c *composite) fails() bool { return anyFails(c.keys) || anyFails(c.vals) }

func anyFails(es []expr) bool {
	for _, e := range es {
		if e.fails() {
			return true
		}
	}
	return false
}

func (c *composite) value(st *state) (*ast.Term, error) {
	vals, err := values(st, c.vals)
	if vals == nil || err != nil {
		return nil, err
	}
	switch c.of.(type) {
	case *ast.Array:
		return ast.ArrayTerm(vals...), nil
	case ast.Set:
		return ast.SetTerm(vals...), nil
	}
	keys, err := values(st, c.keys)
	if keys == nil || err != nil {
		return nil, err
	}
	members := make([][2]*ast.Term, len(keys))
	for i := range keys {
		members[i] = [2]*ast.Term{keys[i], vals[i]}
	}
	return ast.ObjectTerm(members...), nil
}

// values gives nil when one of es is undefined.
func values(st *state, es []expr) ([]*ast.Term, error) {
	out := make([]*ast.Term, len(es))
	for i, e := range es {
		v, err := e.value(st)
		if v == nil || err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// gathered is a comprehension.
type gathered struct {
	kind sinkKind // sinkArray, sinkSet or sinkObject
	body node
}

func (g *gathered) fails() bool { return g.kind == sinkObject || g.body.fails() }

func (g *gathered) value(st *state) (*ast.Term, error) {
	s := sink{kind: g.kind}
	if err := st.into(&s, g.body); err != nil {
		return nil, err
	}
	return s.gathered()
}

func isConstant(e expr) (*ast.Term, bool) {
	c, ok := e.(constant)
	return c.term, ok
}

func allConstant(es []expr) ([]*ast.Term, bool) {
	out := make([]*ast.Term, len(es))
	for i, e := range es {
		t, ok := isConstant(e)
		if !ok {
			return nil, false
		}
		out[i] = t
	}
	return out, true
}
