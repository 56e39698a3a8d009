package rego

import (
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

func (c constant) text() string { return c.term.String() }

func (l *local) text() string { return l.of }

func (r root) text() string {
	switch r {
	case rootArguments:
		return "input.arguments"
	case rootRequest:
		return "input.request"
	case rootUsage:
		return "input.usage"
	case rootFacts:
		return "input.facts"
	}
	return "input"
}

func (m *element) text() string {
	if t, ok := isConstant(m.key); ok {
		if name, ok := t.Value.(ast.String); ok && ast.IsVarCompatibleString(string(name)) {
			return m.of.text() + "." + string(name)
		}
	}
	return m.of.text() + "[" + m.key.text() + "]"
}

func (c *composite) text() string {
	parts := make([]string, len(c.vals))
	for i, v := range c.vals {
		parts[i] = v.text()
		if c.keys != nil {
			parts[i] = c.keys[i].text() + ": " + parts[i]
		}
	}
	inside := strings.Join(parts, ", ")
	if _, ok := c.of.(*ast.Array); ok {
		return "[" + inside + "]"
	}
	return "{" + inside + "}"
}

func (*gathered) text() string { return "{…}" }

func (g *group) text() string { return g.name }

// infix are the built-in functions that are written between their operands.
var infix = func() map[string]string {
	out := make(map[string]string)
	for _, b := range ast.Builtins {
		if b.Infix != "" {
			out[b.Name] = b.Infix
		}
	}
	out[ast.Equal.Name], out[ast.Member.Name] = "==", "in"
	return out
}()

// callText is a call of a built-in function or one of the policy.
func callText(name string, args []expr) string {
	parts := make([]string, len(args))
	for i, a := range args {
		parts[i] = a.text()
	}
	if sign, ok := infix[name]; ok && len(parts) == 2 {
		return parts[0] + " " + sign + " " + parts[1]
	}
	return name + "(" + strings.Join(parts, ", ") + ")"
}

func everyText(n *all) string {
	ways := make([]string, 0, 1)
	for _, when := range conditions(endsOf(n.body)) {
		ways = append(ways, clauses(when))
	}
	return "every element of " + n.of.text() + ": " + strings.Join(ways, " or ")
}
