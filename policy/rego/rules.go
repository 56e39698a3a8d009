package rego

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// total are the built-in functions that give a result for all operands.
var total = map[string]bool{
	ast.Equal.Name: true, ast.NotEqual.Name: true,
	ast.LessThan.Name: true, ast.LessThanEq.Name: true, ast.GreaterThan.Name: true, ast.GreaterThanEq.Name: true,
	ast.Member.Name:   true,
	ast.IsNumber.Name: true, ast.IsString.Name: true, ast.IsBoolean.Name: true, ast.IsArray.Name: true,
	ast.IsSet.Name: true, ast.IsObject.Name: true, ast.IsNull.Name: true,
	ast.TypeNameBuiltin.Name: true,
}

// group is the value of all rules of one name, or of one function for the
// operands of one place.
type group struct {
	name   string
	id     int      // of its answer in a state; -1 = not remembered
	kind   sinkKind // sinkValue, sinkSet or sinkObject
	chains []chain
	other  expr // the default; nil = none
	frail  bool // it can fail
}

// chain is a rule with its elses: the first that has a solution counts.
type chain []node

func (g *group) fails() bool { return g.frail }

func (g *group) value(st *state) (*ast.Term, error) {
	if g.id >= 0 && st.answers[g.id].done {
		return st.answers[g.id].value, nil
	}
	s := sink{kind: g.kind}
	if err := g.run(st, &s); err != nil {
		return nil, err
	}
	out := s.one
	if g.kind != sinkValue {
		var err error
		if out, err = s.gathered(); err != nil {
			return nil, err
		}
	}
	if g.id >= 0 {
		st.answers[g.id] = answer{true, out}
	}
	return out, nil
}

// run takes every solution into s.
func (g *group) run(st *state, s *sink) error {
	for _, c := range g.chains {
		for _, body := range c {
			one := sink{kind: g.kind, one: s.one, leaf: s.leaf, list: s.list, keys: s.keys}
			if err := st.into(&one, body); err != nil {
				return err
			}
			if one.found {
				*s = one
				break
			}
		}
	}
	if !s.found && g.other != nil {
		t, err := g.other.value(st)
		if err != nil {
			return err
		}
		s.found, s.one = true, t
	}
	return nil
}

// maxChoice is how many values of a rule are told apart.
const maxChoice = 16

// values are those that g can have, if they are constant and few; else nil.
func (g *group) values() []*ast.Term {
	var out []*ast.Term
	known := g.kind == sinkValue
	add := func(e expr) bool {
		t, ok := isConstant(e)
		if known = known && ok; known && !slices.ContainsFunc(out, func(o *ast.Term) bool { return identical(o, t) }) {
			out = append(out, t)
		}
		return known
	}
	if g.other != nil {
		add(g.other)
	}
	for _, c := range g.chains {
		for _, body := range c {
			allLeaves(body, func(l *leaf) bool { return add(l.val) })
		}
	}
	if !known || len(out) > maxChoice {
		return nil
	}
	return out
}

// rule is the value of the rules at at; nil when they have none in any call.
func (s *splitter) rule(at *ast.TreeNode) expr {
	if e, ok := s.rules[at]; ok {
		return e
	}
	outer := s.at
	e := s.split(at)
	s.at = outer
	s.rules[at] = e
	return e
}

func (s *splitter) split(at *ast.TreeNode) expr {
	first := at.Values[0]
	s.at = first.Location
	if len(at.Children) > 0 {
		s.refuse("rules with parts of their own are not split")
	}
	name := first.Ref().String()
	switch {
	case len(first.Head.Args) > 0:
		return nil // a function is no value
	case first.Head.RuleKind() == ast.MultiValue:
		return s.partial(at, name, sinkSet)
	case !first.Ref().IsGround():
		return s.partial(at, name, sinkObject)
	}
	return s.complete(at.Values, nil, name)
}

// partial is a rule that builds a set or an object.
func (s *splitter) partial(at *ast.TreeNode, name string, kind sinkKind) expr {
	g := &group{name: name, kind: kind}
	for _, r := range at.Values {
		ref := r.Ref()
		s.at = r.Location
		if r.Default || r.Else != nil || (r.Head.RuleKind() == ast.MultiValue) != (kind == sinkSet) {
			s.refuse("rules of several kinds under one name are not split")
		}
		key, val := (*ast.Term)(nil), r.Head.Key
		if kind == sinkSet && !ref.IsGround() || kind == sinkObject && !ref[:len(ref)-1].IsGround() {
			s.refuse("a rule with variables inside its name is not split")
		}
		if kind == sinkObject {
			key, val = ref[len(ref)-1], r.Head.Value
		}
		body := s.body(r.Body, 0, nil, func(v *scope) node { return s.leaf(key, val, v) })
		if body != nil {
			g.chains = append(g.chains, chain{body})
		}
	}
	if leaves, ok := g.constants(); ok {
		if t := gatherNow(kind, leaves); t != nil {
			return constant{t}
		}
	}
	return s.finish(g)
}

// complete is a rule that has one value, or a function with these operands.
func (s *splitter) complete(rules []*ast.Rule, args []expr, name string) expr {
	g := &group{name: name, kind: sinkValue}
	for _, r := range rules {
		if r.Default {
			s.at = r.Location
			if !ast.IsConstant(r.Head.Value.Value) {
				s.refuse("a default that is not constant is not split")
			}
			g.other = constant{r.Head.Value}
			continue
		}
		if c := s.chain(r, args); c != nil {
			g.chains = append(g.chains, c)
		}
	}
	if t, ok := g.constant(); ok {
		return t
	}
	return s.finish(g)
}

func (s *splitter) chain(r *ast.Rule, args []expr) chain {
	var out chain
	for ; r != nil; r = r.Else {
		s.at = r.Location
		body := s.operands(r.Head.Args, args, nil, func(v *scope) node {
			return s.body(r.Body, 0, v, func(v *scope) node { return s.leaf(nil, r.Head.Value, v) })
		})
		if body != nil {
			out = append(out, body)
		}
		if certain(body) {
			break // no else counts
		}
	}
	return out
}

func (s *splitter) operands(patterns []*ast.Term, args []expr, v *scope, next then) node {
	if len(patterns) == 0 {
		return next(v)
	}
	return s.match(patterns[0], args[0], v, func(v *scope) node { return s.operands(patterns[1:], args[1:], v, next) })
}

// constants are the solutions of g when they are the same in every call.
func (g *group) constants() ([]*leaf, bool) {
	var out []*leaf
	for _, c := range g.chains {
		leaves, ok := constantLeaves(c[0])
		if !ok || len(c) > 1 {
			return nil, false
		}
		out = append(out, leaves...)
	}
	return out, true
}

// constant is the value of g when it is the same in every call; nil is
// undefined.
func (g *group) constant() (expr, bool) {
	if len(g.chains) == 0 {
		return g.other, true
	}
	var sure *ast.Term
	for _, c := range g.chains {
		if t := sureValue(c[0]); t != nil {
			sure = t
			break
		}
	}
	if sure == nil {
		return nil, false
	}
	for _, c := range g.chains {
		for _, body := range c {
			if body.fails() || !allLeaves(body, func(l *leaf) bool {
				t, ok := isConstant(l.val)
				return ok && identical(t, sure)
			}) {
				return nil, false
			}
		}
	}
	return constant{sure}, true
}

// sureValue is a value that n has in every call; nil when it may have none.
func sureValue(n node) *ast.Term {
	nodes, ok := n.(fork)
	if !ok {
		nodes = fork{n}
	}
	for _, n := range nodes {
		if l, ok := n.(*leaf); ok {
			if t, ok := isConstant(l.val); ok {
				return t
			}
		}
	}
	return nil
}

// finish makes a group that is worked out in each call.
func (s *splitter) finish(g *group) expr {
	g.id = s.groups
	s.groups++
	g.frail = g.kind == sinkObject
	var first *ast.Term
	for _, c := range g.chains {
		for _, body := range c {
			g.frail = g.frail || body.fails() || !allLeaves(body, func(l *leaf) bool {
				// Two values for one rule are a failure too.
				t, ok := isConstant(l.val)
				if first == nil {
					first = t
				}
				return g.kind == sinkSet || ok && identical(t, first)
			})
		}
	}
	return g
}

// call splits the call of a function.
func (s *splitter) call(terms []*ast.Term, v *scope, next then) node {
	name := terms[0].Value.(ast.Ref)
	if name.HasPrefix(ast.DefaultRootRef) {
		return s.function(name, terms[1:], v, next)
	}
	b := ast.BuiltinMap[name.String()]
	f := topdown.GetBuiltin(name.String())
	if b == nil || f == nil || b.Decl.Result() == nil || b.Decl.FuncArgs().Variadic != nil {
		return s.refuse("a call of %v is not split", name)
	}
	n := b.Decl.Arity()
	args, result := terms[1:n+1], (*ast.Term)(nil)
	if len(terms) > n+1 {
		result = terms[n+1]
	}
	return s.terms(args, v, nil, func(args []expr, v *scope) node {
		if known, ok := allConstant(args); ok {
			return s.callNow(f, known, result, v, next)
		}
		c := &call{name: b.Name, f: f, bare: b.CanSkipBctx, args: args, slot: -1}
		if result == nil {
			c.next = next(v)
		} else {
			out := s.slot(callText(b.Name, args))
			c.slot = out.slot
			c.next = s.match(result, out, v, next)
		}
		return keep(c, !total[b.Name] || anyFails(args))
	})
}

// callNow calls a built-in function whose operands are known.
func (s *splitter) callNow(f topdown.BuiltinFunc, args []*ast.Term, result *ast.Term, v *scope, next then) node {
	var results []*ast.Term
	if f(s.context, args, func(t *ast.Term) error {
		results = append(results, t)
		return nil
	}) != nil {
		return broken{}
	}
	var out []node
	for _, t := range results {
		switch {
		case result != nil:
			out = append(out, s.match(result, constant{t}, v, next))
		case !isFalse(t):
			out = append(out, next(v))
		}
	}
	return ways(out)
}

// function splits the call of a function of the policy.
func (s *splitter) function(name ast.Ref, args []*ast.Term, v *scope, next then) node {
	at := s.program.compiler.RuleTree.Find(name)
	if at == nil || len(at.Values) == 0 || len(at.Children) > 0 {
		return s.refuse("a call of %v is not split", name)
	}
	n := len(at.Values[0].Head.Args)
	var result *ast.Term
	if len(args) > n {
		args, result = args[:n], args[n]
	}
	return s.terms(args, v, nil, func(args []expr, v *scope) node {
		return s.allAside(args, nil, func(args []expr) node {
			outer := s.at
			e := s.complete(at.Values, args, callText(name.String(), args))
			s.at = outer
			if e == nil {
				return nil
			}
			if g, ok := e.(*group); ok {
				g.id = -1 // it depends on where it is called
			}
			if result == nil {
				return s.test(e, v, next)
			}
			return s.match(result, e, v, next)
		})
	})
}

// allAside goes on with values that are defined.
func (s *splitter) allAside(es, found []expr, next func([]expr) node) node {
	if len(es) == 0 {
		return next(found)
	}
	return s.aside(es[0], func(e expr) node { return s.allAside(es[1:], append(found[:len(found):len(found)], e), next) })
}
