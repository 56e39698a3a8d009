package rego

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// A tree is what the rules of a policy come to for one principal and one tool:
// everything that these settle is worked out, and the steps that look at the
// call are left, in the order in which the policy has them.
//
// It answers what full evaluation answers because it takes every step that full
// evaluation takes, and perhaps more: full evaluation skips bodies by its
// indexes and stops early where one solution is enough, the tree does neither.
// So if no step of the tree fails, none of full evaluation does, and both come
// to the same values. If one fails, the tree does not answer, and the call is
// evaluated whole. A step that cannot fail and cannot change the answer any
// more is left out; one that can fail stays even then.

// node is one step with all that follow it. It is immutable.
type node interface {
	// run takes the step for each of its solutions and passes what comes out at
	// the end to the sink of st. Every error means that the tree cannot answer.
	run(st *state) error
	// fails reports whether run may give an error.
	fails() bool
}

// step is a node that is not the end of a body.
type step interface {
	node
	following() node
}

// follow runs next; nil is the end of what can never hold.
func follow(next node, st *state) error {
	if next == nil {
		return nil
	}
	return next.run(st)
}

func failsOn(next node) bool { return next != nil && next.fails() }

// state is one evaluation of a tree.
type state struct {
	in      *policy.Input
	known   *pair
	parts   [roots]*ast.Term // of the input, as far as they were read
	slots   []*ast.Term
	answers []answer // of groups
	sink    *sink
	context topdown.BuiltinContext
}

// answer is the value of a group in one call.
type answer struct {
	done  bool
	value *ast.Term // nil = undefined
}

// into runs n with s as the sink.
func (st *state) into(s *sink, n node) error {
	outer := st.sink
	st.sink = s
	err := follow(n, st)
	st.sink = outer
	return err
}

// holds reports whether n has a solution.
func (st *state) holds(n node) (bool, error) {
	s := sink{kind: sinkAny}
	err := st.into(&s, n)
	return s.found, err
}

type sinkKind int

const (
	sinkAny   sinkKind = iota // is there a solution?
	sinkValue                 // the one value of a rule
	sinkArray
	sinkSet
	sinkObject
)

// sink takes in solutions.
type sink struct {
	kind  sinkKind
	found bool
	one   *ast.Term
	leaf  *leaf // that gave one
	list  []*ast.Term
	keys  []*ast.Term
}

func (s *sink) take(l *leaf, key, value *ast.Term) error {
	s.found = true
	switch s.kind {
	case sinkAny:
	case sinkValue:
		if s.one != nil && !identical(s.one, value) {
			return errWhole
		}
		s.one, s.leaf = value, l
	case sinkObject:
		for i, k := range s.keys {
			if k.Equal(key) {
				if !identical(k, key) || !identical(s.list[i], value) {
					return errWhole
				}
				return nil
			}
		}
		s.keys, s.list = append(s.keys, key), append(s.list, value)
	default:
		s.list = append(s.list, value)
	}
	return nil
}

// gathered is everything that was taken in.
func (s *sink) gathered() (*ast.Term, error) {
	switch s.kind {
	case sinkArray:
		return ast.ArrayTerm(s.list...), nil
	case sinkSet:
		out := ast.NewSet(s.list...)
		if out.Len() < len(s.list) && !eachIdentical(s.list) {
			return nil, errWhole
		}
		return ast.NewTerm(out), nil
	}
	members := make([][2]*ast.Term, len(s.keys))
	for i := range s.keys {
		members[i] = [2]*ast.Term{s.keys[i], s.list[i]}
	}
	return ast.ObjectTerm(members...), nil
}

// identical reports whether two values are equal and written alike: 1 and 1.0
// are equal, and which of them a rule has depends on OPA's order.
func identical(a, b *ast.Term) bool {
	return a == b || a.Equal(b) && a.String() == b.String()
}

// eachIdentical reports whether those of list that are equal are identical.
func eachIdentical(list []*ast.Term) bool {
	for i, a := range list {
		for _, b := range list[:i] {
			if a.Equal(b) && !identical(a, b) {
				return false
			}
		}
	}
	return true
}

// leaf is a solution.
type leaf struct {
	key, val expr             // key of objects only
	verdict  *policy.Decision // val decoded, where it is the constant value of the decision
}

func (l *leaf) fails() bool { return l.val.fails() || l.key != nil && l.key.fails() }

func (l *leaf) run(st *state) error {
	if st.sink.kind == sinkAny {
		st.sink.found = true
		return nil
	}
	val, err := l.val.value(st)
	if err != nil {
		return err
	}
	var key *ast.Term
	if l.key != nil {
		if key, err = l.key.value(st); err != nil {
			return err
		}
	}
	if val == nil || key == nil && l.key != nil {
		return errWhole
	}
	return st.sink.take(l, key, val)
}

// let puts a value aside; where it is undefined nothing follows.
type let struct {
	slot int
	val  expr
	next node
	seen bool // only that there is a value counts: nothing that follows uses it
}

func (n *let) following() node { return n.next }
func (n *let) fails() bool     { return n.val.fails() || failsOn(n.next) }

func (n *let) run(st *state) error {
	v, err := n.val.value(st)
	if v == nil || err != nil {
		return err
	}
	st.slots[n.slot] = v
	return follow(n.next, st)
}

// test goes on where a value is defined and not false.
type test struct {
	val  expr
	next node
}

func (n *test) following() node { return n.next }
func (n *test) fails() bool     { return n.val.fails() || failsOn(n.next) }

func (n *test) run(st *state) error {
	v, err := n.val.value(st)
	if v == nil || err != nil || isFalse(v) {
		return err
	}
	return follow(n.next, st)
}

func isFalse(t *ast.Term) bool {
	b, ok := t.Value.(ast.Boolean)
	return ok && !bool(b)
}

// same goes on where two values are equal.
type same struct {
	a, b expr
	next node
}

func (n *same) following() node { return n.next }
func (n *same) fails() bool     { return n.a.fails() || n.b.fails() || failsOn(n.next) }

func (n *same) run(st *state) error {
	a, err := n.a.value(st)
	if a == nil || err != nil {
		return err
	}
	b, err := n.b.value(st)
	if b == nil || err != nil || !a.Equal(b) {
		return err
	}
	return follow(n.next, st)
}

// shape goes on where a value is an array or an object of so many elements.
type shape struct {
	val   expr
	array bool
	size  int
	next  node
}

func (n *shape) following() node { return n.next }
func (n *shape) fails() bool     { return n.val.fails() || failsOn(n.next) }

func (n *shape) run(st *state) error {
	v, err := n.val.value(st)
	if v == nil || err != nil {
		return err
	}
	if !n.fits(v.Value) {
		return nil
	}
	return follow(n.next, st)
}

func (n *shape) fits(v ast.Value) bool {
	switch v := v.(type) {
	case *ast.Array:
		return n.array && v.Len() == n.size
	case ast.Object:
		return !n.array && v.Len() == n.size
	}
	return false
}

// call calls a built-in function and goes on with each of its results.
type call struct {
	name string
	f    topdown.BuiltinFunc
	bare bool // f needs no context
	args []expr
	slot int // for the result; -1 = it must not be false
	next node
}

func (n *call) following() node { return n.next }
func (n *call) fails() bool     { return !total[n.name] || anyFails(n.args) || failsOn(n.next) }

func (n *call) run(st *state) error {
	args, err := values(st, n.args)
	if args == nil || err != nil {
		return err
	}
	var context topdown.BuiltinContext
	if !n.bare {
		context = st.context
	}
	return n.f(context, args, func(result *ast.Term) error {
		if n.slot >= 0 {
			st.slots[n.slot] = result
		} else if isFalse(result) {
			return nil
		}
		return follow(n.next, st)
	})
}

// fork goes on with each of several ways.
type fork []node

func (n fork) fails() bool { return slices.ContainsFunc(n, node.fails) }

func (n fork) run(st *state) error {
	for _, way := range n {
		if err := way.run(st); err != nil {
			return err
		}
	}
	return nil
}

// each goes on with each element of a value that is known only with a call.
type each struct {
	of       expr
	key, val int // slots
	next     node
}

func (n *each) following() node { return n.next }
func (n *each) fails() bool     { return n.of.fails() || failsOn(n.next) }

func (n *each) run(st *state) error {
	of, err := n.of.value(st)
	if of == nil || err != nil {
		return err
	}
	return elements(of.Value, func(key, val *ast.Term) error {
		if st.context.Cancel.Cancelled() {
			return errTimeout
		}
		st.slots[n.key], st.slots[n.val] = key, val
		return follow(n.next, st)
	})
}

// elements calls f in OPA's order; a value that has no elements has none.
func elements(of ast.Value, f func(key, val *ast.Term) error) error {
	switch of := of.(type) {
	case *ast.Array:
		for i := range of.Len() {
			if err := f(ast.InternedTerm(i), of.Elem(i)); err != nil {
				return err
			}
		}
	case ast.Object:
		keys := of.KeysIterator()
		for k, more := keys.Next(); more; k, more = keys.Next() {
			if err := f(k, of.Get(k)); err != nil {
				return err
			}
		}
	case ast.Set:
		for _, t := range of.Slice() {
			if err := f(t, t); err != nil {
				return err
			}
		}
	}
	return nil
}

func isCollection(v ast.Value) bool {
	switch v.(type) {
	case *ast.Array, ast.Object, ast.Set:
		return true
	}
	return false
}

// condition goes on where body has a solution, or where it has none.
type condition struct {
	body node
	not  bool
	next node
}

func (n *condition) following() node { return n.next }
func (n *condition) fails() bool     { return failsOn(n.body) || failsOn(n.next) }

func (n *condition) run(st *state) error {
	held, err := st.holds(n.body)
	if err != nil || held == n.not {
		return err
	}
	return follow(n.next, st)
}

// either goes on once where one of two bodies has a solution.
type either struct {
	left, right, next node
}

func (n *either) following() node { return n.next }
func (n *either) fails() bool     { return failsOn(n.left) || failsOn(n.right) || failsOn(n.next) }

func (n *either) run(st *state) error {
	held, err := st.holds(n.left)
	if err == nil && !held {
		held, err = st.holds(n.right)
	}
	if err != nil || !held {
		return err
	}
	return follow(n.next, st)
}

// all goes on where body has a solution for each element.
type all struct {
	of       expr
	key, val int // slots
	body     node
	next     node
}

func (n *all) following() node { return n.next }
func (n *all) fails() bool     { return n.of.fails() || failsOn(n.body) || failsOn(n.next) }

func (n *all) run(st *state) error {
	of, err := n.of.value(st)
	if of == nil || err != nil {
		return err
	}
	if !isCollection(of.Value) {
		return nil
	}
	every := true
	err = elements(of.Value, func(key, val *ast.Term) error {
		if !every {
			return nil
		}
		if st.context.Cancel.Cancelled() {
			return errTimeout
		}
		st.slots[n.key], st.slots[n.val] = key, val
		held, err := st.holds(n.body)
		every = held
		return err
	})
	if err != nil || !every {
		return err
	}
	return follow(n.next, st)
}

// choice goes on by which of its few values a rule has.
type choice struct {
	of    *group
	vals  []*ast.Term // different from each other
	nexts []node
}

func (n *choice) fails() bool { return n.of.frail || slices.ContainsFunc(n.nexts, failsOn) }

func (n *choice) run(st *state) error {
	v, err := n.of.value(st)
	if v == nil || err != nil {
		return err
	}
	for i, t := range n.vals {
		if identical(t, v) {
			return follow(n.nexts[i], st)
		}
	}
	return errWhole
}

// broken is a step that failed before any call.
type broken struct{}

func (broken) fails() bool      { return true }
func (broken) run(*state) error { return errWhole }

// allLeaves reports whether f holds of every solution that n can have.
func allLeaves(n node, f func(*leaf) bool) bool {
	switch n := n.(type) {
	case *leaf:
		return f(n)
	case fork:
		for _, way := range n {
			if !allLeaves(way, f) {
				return false
			}
		}
	case *choice:
		for _, next := range n.nexts {
			if !allLeaves(next, f) {
				return false
			}
		}
	case step:
		return allLeaves(n.following(), f)
	}
	return true
}
