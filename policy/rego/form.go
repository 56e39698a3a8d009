package rego

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
)

// form is how a policy answers: with the rule decision, or with sets.
type form struct {
	refs  []ast.Ref // of the rules that answer
	has   [len(verdictSets)]bool
	order map[string]int // of sets: the position of each rule id in the source
}

// sets reports whether the policy answers with sets.
func (f *form) sets() bool { return !f.refs[0].Equal(decisionRef) }

// query returns the query for the decision. Where one set alone is not known, the query is for
// that set. Otherwise it is for an array of all sets, with an empty set in place of each known one.
func (f *form) query(known func(ast.Ref) bool) string {
	if !f.sets() {
		return decisionPath
	}
	operands, asked := make([]string, len(verdictSets)), ""
	for i, s := range verdictSets {
		operands[i] = "set()"
		if f.has[i] && !known(s.ref) {
			operands[i] = s.ref.String()
			asked += operands[i]
		}
	}
	if slices.Contains(operands, asked) {
		return asked
	}
	return "[" + strings.Join(operands, ", ") + "]"
}

// alone returns the position of the only one of verdictSets that the policy has and that is
// not in known, -1 where there are several or none.
func (f *form) alone(known *verdicts) int {
	asked := -1
	for i, has := range f.has {
		switch {
		case !has || known != nil && known[i] != nil:
		case asked >= 0:
			return -1
		default:
			asked = i
		}
	}
	return asked
}

// decode reads the answer of a query. The verdicts of sets in known are not read.
func (f *form) decode(v ast.Value, known *verdicts) (policy.Decision, error) {
	if f.sets() {
		return f.decodeSets(v, known)
	}
	return decodeDecision(v)
}

// formOf finds the form in which the rules of c answer. A policy that uses both
// forms, or neither, is an error with the place of the rule.
//
// order is the position of each rule id in the source, which names the decision
// where a set has several elements.
func formOf(c *ast.Compiler, order map[string]int) (form, error) {
	f := form{order: order}
	var found Faults
	decides := c.GetRules(decisionRef)
	for i, s := range verdictSets {
		rules := c.GetRules(s.ref)
		set := slices.IndexFunc(rules, func(r *ast.Rule) bool { return r.Head.RuleKind() == ast.MultiValue })
		if len(rules) == 0 || set < 0 && len(decides) > 0 { // a helper of decision
			continue
		}
		switch name := string(s.effect); {
		case set < 0:
			found = append(found, at(rules[0].Location, LevelError, codeShape, fmt.Sprintf("%v is not a set of verdicts, and no rule defines %s", s.ref, decisionPath), name+` contains {"rule": …, "reason": …} if …`))
		case len(decides) > 0:
			found = append(found, at(rules[set].Location, LevelError, codeShape, fmt.Sprintf("the policy defines both %s and the set %s", decisionPath, s.ref),
				fmt.Sprintf("keep one form: remove decision (%s), or give the set another name", at(decides[0].Location, "", "", "", "").Where())))
		}
		f.refs, f.has[i] = append(f.refs, s.ref), true
	}
	switch {
	case len(found) > 0:
		return f, found.errorOf("compiling policy")
	case len(decides) > 0:
		return form{refs: []ast.Ref{decisionRef}}, nil
	case len(f.refs) == 0:
		return f, fmt.Errorf("no rule defines %s or one of the sets data.toolgate.deny, hold and allow (hint: package toolgate, rule decision, or allow contains {\"rule\": …})", decisionPath)
	}
	return f, nil
}
