package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// reads says which members of input.principal any rule looks at. Principals
// that differ elsewhere cannot be told apart by the policy.
type reads struct{ subject, roles, client, tenant bool }

var principalPath = ast.MustParseRef("input.principal")

// readsOf walks every compiled rule but those that wait for data which the
// policy does not have: a library brings rules that most policies never feed.
func readsOf(c *ast.Compiler, data ast.Value) reads {
	var r reads
	w := reader{rules: c.RuleTree, data: data, reads: &r, replaced: replacesData(c)}
	for _, m := range c.Modules {
		w.walk(m)
	}
	return r
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

// total are the built-ins that fail for no operands.
var total = map[string]bool{
	ast.Equal.Name: true, ast.NotEqual.Name: true, ast.Member.Name: true,
	ast.LessThan.Name: true, ast.LessThanEq.Name: true, ast.GreaterThan.Name: true, ast.GreaterThanEq.Name: true,
	ast.IsNumber.Name: true, ast.IsString.Name: true, ast.IsBoolean.Name: true, ast.IsArray.Name: true,
	ast.IsSet.Name: true, ast.IsObject.Name: true, ast.IsNull.Name: true, ast.TypeNameBuiltin.Name: true,
}

// dead reports whether b asks for data that is not there, and nothing before
// that can fail: it holds for nobody, whoever is asked about.
func (w *reader) dead(b ast.Body) bool {
	for _, x := range b {
		if x.Negated || len(x.With) > 0 {
			return false
		}
		var operands []*ast.Term
		sure := true
		switch t := x.Terms.(type) {
		case *ast.Term:
			operands = []*ast.Term{t}
		case []*ast.Term:
			operands = t[1:]
			sure = x.IsEquality() || total[x.Operator().String()]
		}
		for _, t := range operands {
			ref, isRef := t.Value.(ast.Ref)
			switch {
			case isRef && w.absent(ref):
				return true
			case !isRef && !isPlain(t.Value):
				return false
			}
		}
		if !sure || operands == nil {
			return false
		}
	}
	return false
}

// isPlain reports whether v is found without evaluating anything.
func isPlain(v ast.Value) bool {
	_, isVar := v.(ast.Var)
	return isVar || ast.IsConstant(v)
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
		below, _ := data.(ast.Object)
		if data = nil; below != nil {
			if t := below.Get(key); t != nil {
				data = t.Value
			}
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
	case !ref[1].Equal(principalPath[1]):
		return
	case len(ref) == 2 || !isString(ref[2]):
		r.addAll()
	default:
		r.addMember(string(ref[2].Value.(ast.String)))
	}
}

func (r *reads) addMember(name string) {
	switch name {
	case "subject":
		r.subject = true
	case "roles":
		r.roles = true
	case "client":
		r.client = true
	case "tenant":
		r.tenant = true
	}
}

func (r *reads) addAll() { *r = reads{subject: true, roles: true, client: true, tenant: true} }
