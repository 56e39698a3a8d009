package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// Holds reports whether the text of the policy can hold a call: it has a rule named hold, or the
// text "hold".
func (e *Engine) Holds() (holds bool) {
	visit := ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Rule:
			holds = holds || x.Head.Ref()[0].Equal(ast.VarTerm("hold"))
		case ast.String:
			holds = holds || x == "hold"
		}
		return holds
	})
	for _, m := range e.program.compiler.Modules {
		visit.Walk(m)
	}
	return holds
}
