package rego

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy/rego/builtin"
)

// NewCompiler returns the compiler of everything that toolgate evaluates. Its policies
// hold only ground values in their variables.
//
// Where two keys of an object pattern are the same, OPA unifies one of their values and
// leaves the variables of the other without a value. It then takes such a variable for one
// of another rule that has the same name, and can follow it without end, into a stack
// overflow that nothing recovers from (docs/evidence/opa-overflow.md). The compiler
// therefore adds calls that tell: OPA's evaluator calls no built-in function with an
// operand that is not ground, but ends with an error.
func NewCompiler() *ast.Compiler {
	return ast.NewCompiler().WithCapabilities(builtin.Capabilities()).
		WithStageAfterID(ast.StageCheckSafetyRuleBodies, ast.CompilerStageDefinition{Name: "CheckPatterns", MetricName: "check_patterns", Stage: checkPatterns})
}

// checkPatterns is a stage of the compiler. It comes after the one that orders the
// expressions of bodies, so that each check stays where it is.
func checkPatterns(c *ast.Compiler) *ast.Error {
	for _, m := range c.Modules {
		ast.NewGenericVisitor(func(x any) bool {
			switch x := x.(type) {
			case *ast.Rule:
				x.Body = checkBody(x.Body)
				if _, values := patternVars(x.Head.Args); len(values) > 0 {
					x.Body = ast.NewBody(append(groundChecks(values, x.Body[0].Location), x.Body...)...)
				}
			case *ast.ArrayComprehension:
				x.Body = checkBody(x.Body)
			case *ast.SetComprehension:
				x.Body = checkBody(x.Body)
			case *ast.ObjectComprehension:
				x.Body = checkBody(x.Body)
			case *ast.Every:
				x.Body = checkBody(x.Body)
			case *ast.Not:
				x.Body = checkBody(x.Body)
			}
			return false
		}).Walk(m)
	}
	return nil
}

// checkBody adds checks to b: before each expression, of the variables in keys of objects
// and in elements of sets, which OPA does not ask for, so that no variable gets a value that
// contains it; after each expression with an object that has a computed key, of the
// variables in its values. A negated expression gives variables no values.
func checkBody(b ast.Body) ast.Body {
	var out []*ast.Expr
	for _, e := range b {
		keys, values := patternVars(e)
		out = append(append(out, groundChecks(keys, e.Location)...), e)
		if !e.Negated {
			out = append(out, groundChecks(values, e.Location)...)
		}
	}
	if len(out) == len(b) {
		return b
	}
	return ast.NewBody(out...)
}

// patternVars returns the variables in object literals with a computed key of x, and in
// set literals, whose elements are like keys. Bodies in x are left out, and so are
// references, which have ground values.
func patternVars(x any) (keys, values []*ast.Term) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension, *ast.Every, *ast.Not:
			return true
		case ast.Object:
			if slices.ContainsFunc(x.Keys(), isComputed) {
				x.Foreach(func(k, v *ast.Term) { keys, values = append(keys, varsOf(k)...), append(values, varsOf(v)...) })
			}
		case ast.Set:
			x.Foreach(func(element *ast.Term) { keys = append(keys, varsOf(element)...) })
		}
		return false
	}).Walk(x)
	return keys, values
}

// varsOf returns the variables of x but wildcards, which nothing reads.
func varsOf(x *ast.Term) (vars []*ast.Term) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension, ast.Ref:
			return true
		case *ast.Term:
			if v, ok := x.Value.(ast.Var); ok && !v.IsWildcard() {
				vars = append(vars, x)
			}
		}
		return false
	}).Walk(x)
	return vars
}

func isComputed(key *ast.Term) bool { return !ast.IsConstant(key.Value) }

// groundChecks are expressions that always hold, and end the evaluation with an error
// unless all of vars are ground.
func groundChecks(vars []*ast.Term, l *ast.Location) []*ast.Expr {
	var out []*ast.Expr
	for _, v := range vars {
		e := ast.IsArray.Expr(ast.ArrayTerm(v))
		e.Location, e.Generated = l, true
		out = append(out, e)
	}
	return out
}

// IsGroundCheck reports whether x is one of groundChecks, which partial evaluation leaves and which
// say nothing to people.
func IsGroundCheck(x *ast.Expr) bool {
	if !x.IsCall() || !x.Operator().Equal(ast.IsArray.Ref()) {
		return false
	}
	_, ok := x.Operand(0).Value.(*ast.Array)
	return ok
}
