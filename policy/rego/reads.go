package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// reads says which members of input.principal any rule looks at, and whether one looks at
// input.request. Principals that differ elsewhere cannot be told apart by the policy.
type reads struct {
	subject, roles, client, tenant bool
	facts                          bool // any other member of input.principal
	request                        bool
}

var principalPath = ast.MustParseRef("input.principal")

// readsOf walks every compiled rule but those that wait for data which the
// policy does not have: a library brings rules that most policies never feed. It also
// returns the terms of the names that references to the input have.
func readsOf(c *ast.Compiler, data ast.Value) (reads, map[string]*ast.Term) {
	var r reads
	w := reader{rules: c.RuleTree, data: data, reads: &r, names: map[string]*ast.Term{}, replaced: replacesData(c)}
	for _, m := range c.Modules {
		w.walk(m)
	}
	return r, w.names
}

// replacesData reports whether a rule puts other data in place of the policy's.
func replacesData(c *ast.Compiler) bool {
	found := false
	for _, m := range c.Modules {
		ast.WalkWiths(m, func(w *ast.With) bool {
			ref, ok := w.Target.Value.(ast.Ref)
			found = found || ok && ref.HasPrefix(ast.DefaultRootRef)
			return found
		})
	}
	return found
}

// reader collects what rules read.
type reader struct {
	rules    *ast.TreeNode
	data     ast.Value
	reads    *reads
	names    map[string]*ast.Term
	replaced bool
}

func (w *reader) walk(x any) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Rule:
			if !w.replaced && w.dead(x.Body) {
				if x.Else != nil {
					w.walk(x.Else)
				}
				return true
			}
		case ast.Ref:
			w.reads.add(x)
			for _, t := range x[1:] {
				if name, ok := t.Value.(ast.String); ok && x[0].Equal(ast.InputRootDocument) {
					w.names[string(jsonrpc.Quote(string(name)))] = ast.NewTerm(name)
				}
				w.walk(t)
			}
			return true
		case ast.Var:
			if x == "input" {
				w.reads.addAll()
			}
		}
		return false
	}).Walk(x)
}

// dead reports whether b asks for data that is not there, and nothing before
// that can fail: it holds for nobody, whoever is asked about.
func (w *reader) dead(b ast.Body) bool {
	for _, x := range b {
		operands := x.Operands()
		if t, ok := x.Terms.(*ast.Term); ok {
			operands = []*ast.Term{t}
		}
		if x.Negated || len(x.With) > 0 || operands == nil || x.IsCall() && !x.IsEquality() {
			return false
		}
		for _, t := range operands {
			ref, isRef := t.Value.(ast.Ref)
			_, isVar := t.Value.(ast.Var)
			switch {
			case isRef && w.absent(ref):
				return true
			case !isRef && !isVar && !ast.IsConstant(t.Value): // it has to be evaluated
				return false
			}
		}
	}
	return false
}

// absent reports whether ref leads to neither a rule nor data.
func (w *reader) absent(ref ast.Ref) bool {
	if !ref.HasPrefix(ast.DefaultRootRef) {
		return false
	}
	rules, data := w.rules.Child(ref[0].Value), w.data
	for _, key := range ref[1:] {
		if !isString(key) || rules != nil && len(rules.Values) > 0 {
			return false
		}
		if rules != nil {
			rules = rules.Child(key.Value)
		}
		if data != nil {
			data, _ = data.Find(ast.Ref{key}) // an error comes with nil
		}
		if rules == nil && data == nil {
			return true
		}
	}
	return false
}

// add counts a reference. One that stops at input or input.principal, or goes on
// with a variable, reads all members.
func (r *reads) add(ref ast.Ref) {
	switch {
	case len(ref) == 0 || !ref[0].Equal(ast.InputRootDocument):
		return
	case len(ref) == 1 || !isString(ref[1]):
		r.addAll()
	case ref[1].Equal(keyRequest):
		r.request = true
	case !ref[1].Equal(principalPath[1]):
		return
	case len(ref) == 2 || !isString(ref[2]):
		r.addAll()
	default:
		name := ref[2].Value.(ast.String)
		r.subject = r.subject || name == "subject"
		r.roles = r.roles || name == "roles"
		r.client = r.client || name == "client"
		r.tenant = r.tenant || name == "tenant"
		r.facts = r.facts || name != "subject" && name != "roles" && name != "client" && name != "tenant"
	}
}

func (r *reads) addAll() {
	*r = reads{subject: true, roles: true, client: true, tenant: true, facts: true, request: true}
}
