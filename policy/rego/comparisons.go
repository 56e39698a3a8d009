package rego

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// ofArguments reports whether a reference leads to arguments, or to facts about them.
func ofArguments(ref ast.Ref) bool { return ref.HasPrefix(argumentsRef) || ref.HasPrefix(factsRef) }

// typeTests are the built-ins after which a comparison is safe, and what else
// of the same body tells the type of its operand.
var typeTests = map[string]bool{
	ast.IsNumber.Name: true, ast.IsString.Name: true, ast.IsBoolean.Name: true, ast.IsArray.Name: true,
	ast.IsObject.Name: true, ast.IsSet.Name: true, ast.IsNull.Name: true, ast.TypeNameBuiltin.Name: true,
}

var (
	comparisons = map[string]bool{ast.GreaterThan.Name: true, ast.GreaterThanEq.Name: true, ast.LessThan.Name: true, ast.LessThanEq.Name: true}
	arithmetic  = map[string]bool{ast.Plus.Name: true, ast.Minus.Name: true, ast.Multiply.Name: true, ast.Divide.Name: true, ast.Rem.Name: true}

	argumentsRef = ast.MustParseRef("input.arguments")
	factsRef     = ast.MustParseRef("input.facts")
)

// typing is what is known of types in one body: what was tested, and which
// variables stand for arguments. Inner bodies know what the outer ones do.
type typing struct {
	outer  *typing
	tested map[string]bool
	names  map[ast.Var]ast.Ref
}

func (t *typing) test(name string) bool {
	return t != nil && (t.tested[name] || t.outer.test(name))
}

func (t *typing) name(v ast.Var) (ast.Ref, bool) {
	if t == nil {
		return nil, false
	}
	if r, ok := t.names[v]; ok {
		return r, true
	}
	return t.outer.name(v)
}

// lintComparisons finds comparisons of arguments whose type nobody has tested.
// Rego compares across types, so that a text is larger than every number.
func lintComparisons(m *ast.Module) []Finding {
	var found []Finding
	said := map[string]bool{}
	lintCalls(m, func(t *typing, op string, operands []*ast.Term, l *ast.Location) {
		if !comparisons[op] {
			return
		}
		t.compare(l, operands, func(l *ast.Location, what string) {
			f := at(l, LevelWarning, codeComparison, fmt.Sprintf("%s is compared, and no test of its type is next to it: in Rego a text is above every number and null below", what),
				fmt.Sprintf("is_number(%s), or whatever it has to be, before it in the same body", what))
			if key := f.Where() + what; !said[key] {
				said[key] = true
				found = append(found, f)
			}
		})
	})
	return found
}

// callVisitor is called for each call of a function, with the types and names that
// are known there.
type callVisitor func(t *typing, op string, operands []*ast.Term, l *ast.Location)

// lintKeys finds object literals with a computed key. Where two of the keys are the same,
// OPA can leave a variable of a pattern without a value; see memo.Put.
func lintKeys(modules map[string]*ast.Module) []Finding {
	var found []Finding
	for _, m := range modules {
		ast.WalkTerms(m, func(t *ast.Term) bool {
			o, ok := t.Value.(ast.Object)
			if ok && o.Len() > 1 && slices.ContainsFunc(o.Keys(), isComputed) {
				found = append(found, at(t.Location, LevelWarning, codeKeys, "a key of this object is computed: where two keys are the same, OPA may be unable to judge the call, which is then denied with "+RuleError,
					"write a set, or an object comprehension"))
			}
			return false
		})
	}
	return found
}

// lintCalls visits the calls of a module as it was written.
func lintCalls(m *ast.Module, visit callVisitor) {
	imported := &typing{names: map[ast.Var]ast.Ref{}}
	for _, i := range m.Imports {
		if r, ok := i.Path.Value.(ast.Ref); ok && r[0].Equal(ast.InputRootDocument) {
			imported.names[i.Name()] = r
		}
	}
	for _, r := range m.Rules {
		for e := r; e != nil; e = e.Else {
			known := imported.within(e.Body)
			known.visit(e.Body, visit)
			known.visit(e.Head, visit)
		}
	}
}

// within is what is known in b: what the bodies around it know, and what its own
// expressions test and name.
func (t *typing) within(b ast.Body) *typing {
	known := &typing{outer: t, tested: map[string]bool{}, names: map[ast.Var]ast.Ref{}}
	for _, e := range b {
		known.learn(e)
	}
	return known
}

// visit visits the calls in x, a body of t or a part of one, and in the bodies
// within.
func (t *typing) visit(x any, visit callVisitor) {
	root, _ := x.(ast.Body)
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Expr:
			if x.IsCall() {
				visit(t, x.Operator().String(), x.Operands(), x.Location)
			}
		case ast.Call:
			visit(t, x[0].String(), x[1:], x[0].Location)
		case ast.Body:
			if len(x) > 0 && len(root) > 0 && x[0] == root[0] {
				return false
			}
			t.within(x).visit(x, visit)
			return true
		}
		return false
	}).Walk(x)
}

// learn takes in a test or a name; what stands below a not is none.
func (t *typing) learn(e *ast.Expr) {
	if e.Negated || !e.IsCall() || len(e.Operands()) == 0 {
		return
	}
	switch op := e.Operator().String(); {
	case typeTests[op]:
		t.tested[t.text(e.Operand(0))] = true
	case (op == ast.Assign.Name || op == ast.Equality.Name || op == ast.Equal.Name) && len(e.Operands()) == 2:
		if v, ok := e.Operand(0).Value.(ast.Var); ok && op != ast.Equal.Name {
			if r := t.ref(e.Operand(1)); r != nil {
				t.names[v] = r
			}
		}
		for i := range 2 { // type_name(x) == "number"
			if c, ok := e.Operand(i).Value.(ast.Call); ok && c[0].String() == ast.TypeNameBuiltin.Name && len(c) == 2 {
				t.tested[t.text(c[1])] = true
			}
		}
	}
}

// compare speaks of the operands that are arguments, or a sum of them.
func (t *typing) compare(l *ast.Location, operands []*ast.Term, say func(*ast.Location, string)) {
	for _, o := range operands {
		if c, ok := o.Value.(ast.Call); ok && arithmetic[c[0].String()] {
			t.compare(l, c[1:], say)
			continue
		}
		if r := t.ref(o); r != nil && ofArguments(r) && !t.test(r.String()) {
			say(l, r.String())
		}
	}
}

// ref is the term as a reference whose names are spelled out; nil for a term
// that is none.
func (t *typing) ref(term *ast.Term) ast.Ref {
	switch v := term.Value.(type) {
	case ast.Var:
		r, _ := t.name(v)
		return r
	case ast.Ref:
		if head, ok := v[0].Value.(ast.Var); ok {
			if r, ok := t.name(head); ok {
				return append(r[:len(r):len(r)], v[1:]...)
			}
		}
		return v
	}
	return nil
}

func (t *typing) text(term *ast.Term) string {
	if r := t.ref(term); r != nil {
		return r.String()
	}
	return term.String()
}
