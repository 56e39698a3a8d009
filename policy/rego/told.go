package rego

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// told are the members of input that any rule reads, as paths below input; the empty path
// is all of input. Inputs that differ elsewhere only are judged by the same evaluation.
type told []ast.Ref

// toldOf walks every compiled rule.
func toldOf(c *ast.Compiler) told {
	found := map[string]ast.Ref{}
	var walk func(x any)
	visitor := ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Ref:
			path := x[1:]
			for _, t := range path {
				walk(t)
			}
			if !x[0].Equal(ast.InputRootDocument) {
				walk(x[0])
				return true
			}
			if i := slices.IndexFunc(path, func(t *ast.Term) bool { return !isString(t) }); i >= 0 {
				path = path[:i]
			}
			found[path.String()] = path
			return true
		case ast.Var:
			if x == "input" {
				found[""] = nil
			}
		}
		return false
	})
	walk = visitor.Walk
	for _, m := range c.Modules {
		walk(m)
	}
	return slices.Collect(maps.Values(found))
}

// of returns what t reads of an input, as a text.
func (t told) of(input ast.Value) string {
	var b strings.Builder
	for _, path := range t {
		if v, err := input.Find(path); err == nil {
			b.WriteString(v.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// samples are the requests that are tried of each role, and the arguments that are tried
// of each tool without facts: those of others and odd that the policy can tell from the
// ones before them.
type samples struct {
	others    []policy.Input
	arguments []json.RawMessage
}

func (p *program) samples() (s samples, err error) {
	t := toldOf(p.compiler)
	s.others, err = distinct(t, others, func(in policy.Input) (ast.Value, error) {
		term, err := termOf(in, topdown.NewCancel())
		if err != nil {
			return nil, err
		}
		return term.Value, nil
	})
	if err != nil {
		return s, err
	}
	s.arguments, err = distinct(t, odd, func(raw json.RawMessage) (ast.Value, error) {
		arguments, err := argumentsTerm(raw, nil, topdown.NewCancel())
		return ast.NewObject([2]*ast.Term{keyArguments, arguments}), err
	})
	return s, err
}

// distinct returns those of all that differ in what t reads of their input.
func distinct[T any](t told, all []T, input func(T) (ast.Value, error)) (out []T, err error) {
	known := map[string]bool{}
	for _, one := range all {
		v, err := input(one)
		if err != nil {
			return nil, err
		}
		if read := t.of(v); !known[read] {
			known[read] = true
			out = append(out, one)
		}
	}
	return out, nil
}
