package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// Quorum returns the largest number of approvals that the text of the policy or its data
// asks for, as the member quorum of an object; 0 = none is written out. A policy can
// compute others.
func (e *Engine) Quorum() (most int) {
	look := func(o ast.Object) {
		q := o.Get(ast.StringTerm("quorum"))
		if q == nil {
			return
		}
		n, _ := count(q.Value) // 0 for what is no number
		if each, ok := q.Value.(ast.Object); ok {
			each.Foreach(func(_, v *ast.Term) {
				one, _ := count(v.Value)
				n += one
			})
		}
		most = max(most, n)
	}
	visit := ast.NewGenericVisitor(func(x any) bool {
		if o, ok := x.(ast.Object); ok {
			look(o)
		}
		return false
	})
	visit.Walk(e.program.data)
	for _, m := range e.program.compiler.Modules {
		visit.Walk(m)
	}
	return most
}
