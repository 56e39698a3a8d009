package workbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// maxBranches bounds an outline.
const maxBranches = 64

// Outline is what a principal may do with a tool, for people: partial
// evaluation loses errors, and never decides a call.
type Outline struct {
	// Whole says why no branches are known; "" when Branches hold every verdict
	// that there is. What no branch decides is denied: with RuleUndefined, or with
	// RuleError if a built-in function fails.
	Whole    string
	Branches []Branch

	Exclusive bool // at most one branch holds
}

// Branch is one verdict and when it holds. It decides where no branch of a stronger
// effect holds too: deny is stronger than hold, and hold than allow.
type Branch struct {
	// Decision is the verdict; members that come from the arguments of a call are
	// empty in it.
	Decision policy.Decision
	// When are the conditions, all of which must hold, in words of Rego:
	// "input.arguments.amount > 100". None means always.
	When []string
	// Idle marks a denial under whose conditions no other branch holds: it says why
	// a call is denied that nothing allows.
	Idle bool
}

// OutlineOf tells people what e answers p about t, whatever the arguments. A principal without a
// subject stands for every caller with its roles: what the policy says about subjects, clients and
// tenants is then a condition. It is safe for concurrent use; an error means that nothing is known.
func OutlineOf(ctx context.Context, e *rego.Engine, p policy.Principal, t policy.Tool) (Outline, error) {
	known, err := e.Partial(ctx, p, t)
	if err != nil {
		return Outline{}, fmt.Errorf("outlining: %w", err)
	}
	if known.Constant != nil {
		return Outline{Branches: []Branch{{Decision: *known.Constant}}}, nil
	}
	branches, err := branchesOf(ctx, known)
	if ctx.Err() != nil {
		return Outline{}, fmt.Errorf("outlining: %w", ctx.Err())
	}
	if err != nil {
		return Outline{Whole: rego.Cause(err)}, nil
	}
	return Outline{Branches: branches, Exclusive: known.Exclusive}, nil
}

// branchesOf returns the verdicts that are left of a policy, with their conditions in words.
func branchesOf(ctx context.Context, known *rego.Partial) ([]Branch, error) {
	var all []residual
	// otherwise are conditions of every weaker set: a stronger verdict with one
	// condition does not hold.
	var otherwise []clause
	for found, err := range known.Sets(ctx) {
		if err != nil {
			return nil, err
		}
		weaker, always := otherwise, false
		for _, left := range found {
			r, err := residualOf(left)
			if err != nil {
				return nil, err
			}
			when, possible := simplify(slices.Concat(r.when, otherwise))
			if !possible {
				continue
			}
			if len(r.when) == 1 {
				weaker = append(slices.Clip(weaker), r.when[0].negation()...)
			}
			r.when = when
			all = append(all, r)
			always = always || len(when) == 0
		}
		if len(all) > maxBranches {
			return nil, fmt.Errorf("more than %d verdicts", maxBranches)
		}
		if known.Exclusive {
			continue // its verdicts exclude each other
		}
		if always {
			break // weaker sets never decide
		}
		otherwise = weaker
	}
	var out []Branch
	for _, r := range all {
		out = addBranch(out, Branch{Decision: r.decision, When: clauseTexts(r.when), Idle: r.idle(all)})
	}
	return out, nil
}

// idle reports whether r denies only what no other effect would let through.
func (r residual) idle(all []residual) bool {
	return r.decision.Effect == policy.Deny && !slices.ContainsFunc(all, func(other residual) bool {
		_, together := simplify(slices.Concat(r.when, other.when))
		return together && other.decision.Effect != policy.Deny
	})
}

// residual is what partial evaluation leaves of one way to a verdict.
type residual struct {
	decision policy.Decision
	when     []clause
}

// residualOf writes the conditions of a verdict out.
func residualOf(left rego.Residual) (residual, error) {
	when, err := allConditions(left.When, left.Support)
	if err == nil {
		nameVariables(when)
	}
	return residual{left.Decision, when}, err
}

// addBranch adds b unless another branch with the same verdict says more.
func addBranch(list []Branch, b Branch) []Branch {
	wider := func(a, b Branch) bool {
		return reflect.DeepEqual(a.Decision, b.Decision) &&
			!slices.ContainsFunc(a.When, func(c string) bool { return !slices.Contains(b.When, c) })
	}
	if slices.ContainsFunc(list, func(a Branch) bool { return wider(a, b) }) {
		return list
	}
	return append(slices.DeleteFunc(list, func(a Branch) bool { return wider(b, a) }), b)
}

var errUnreduced = errors.New("its conditions cannot be told apart before a call")

// conditionsOf are the conditions that x stands for, with the rules that partial
// evaluation made written out.
func conditionsOf(x *ast.Expr, support []*ast.Module) ([]clause, error) {
	if len(x.With) > 0 {
		return nil, errUnreduced
	}
	if rego.IsGroundCheck(x) {
		return nil, nil
	}
	inner := ast.NewBody(x.ComplementNoWith())
	if n, ok := x.Terms.(*ast.Not); ok {
		inner = n.Body
	} else if !x.Negated {
		if !mentionsData(x) {
			return []clause{{negated(conditionText(x))}}, nil
		}
		if bodies := supportOf(x, support); len(bodies) == 1 {
			return allConditions(bodies[0], support)
		}
		return nil, errUnreduced
	}
	bodies := []ast.Body{inner}
	if _, nested := inner[0].Terms.(*ast.Not); len(inner) == 1 && !nested && !inner[0].Negated && mentionsData(inner[0]) {
		if bodies = supportOf(inner[0], support); bodies == nil {
			return nil, errUnreduced
		}
	}
	var out []clause
	for _, body := range bodies {
		inside, err := allConditions(body, support)
		if err != nil {
			return nil, err
		}
		out = append(out, clauseTexts(inside))
	}
	return out, nil
}

func allConditions(b ast.Body, support []*ast.Module) ([]clause, error) {
	var out []clause
	for _, x := range b {
		conditions, err := conditionsOf(x, support)
		if err != nil {
			return nil, err
		}
		out = append(out, conditions...)
	}
	return out, nil
}

// supportOf are the bodies of the rule or function that x asks, any of which makes
// it true; nil when x asks anything else.
func supportOf(x *ast.Expr, support []*ast.Module) []ast.Body {
	var asked ast.Value
	switch terms := x.Terms.(type) {
	case *ast.Term:
		asked = terms.Value
	case []*ast.Term:
		asked = x.Operator()
	}
	if asked == nil || len(x.With) > 0 {
		return nil
	}
	var out []ast.Body
	for _, m := range support {
		for _, r := range m.Rules {
			if !r.Ref().Equal(asked) {
				continue
			}
			if r.Else != nil || r.Default || r.Head.Value == nil || !ast.Boolean(true).Equal(r.Head.Value.Value) {
				return nil
			}
			body, ok := bodyWith(r, x.Operands())
			if !ok {
				return nil
			}
			out = append(out, body)
		}
	}
	return out
}

// bodyWith is the body of r with its parameters replaced by arguments. It reports
// false for a parameter that is a pattern.
func bodyWith(r *ast.Rule, arguments []*ast.Term) (ast.Body, bool) {
	if len(r.Head.Args) != len(arguments) {
		return nil, false
	}
	values := make(map[ast.Var]ast.Value, len(arguments))
	for i, parameter := range r.Head.Args {
		name, ok := parameter.Value.(ast.Var)
		if !ok {
			return nil, false
		}
		values[name] = arguments[i].Value
	}
	body, err := ast.TransformVars(r.Body.Copy(), func(v ast.Var) (ast.Value, error) {
		if value, ok := values[v]; ok {
			return value, nil
		}
		return v, nil
	})
	out, ok := body.(ast.Body)
	return out, ok && err == nil
}

// mentionsData reports whether x uses a rule, or data that is not known.
func mentionsData(x any) bool {
	found := false
	ast.WalkRefs(x, func(r ast.Ref) bool {
		found = found || r.HasPrefix(ast.DefaultRootRef)
		return found
	})
	return found
}

// conditionText is x as people write it: the unknown on the left of ==.
func conditionText(x *ast.Expr) string {
	if x.IsEquality() && !x.Negated {
		a, b := x.Operand(0), x.Operand(1)
		if ast.IsConstant(a.Value) {
			a, b = b, a
		}
		return a.String() + " == " + b.String()
	}
	raw, err := format.AstWithOpts(x.Copy(), format.Opts{IgnoreLocations: true, RegoVersion: ast.RegoV1})
	if err != nil {
		return x.String()
	}
	return strings.Join(strings.Fields(string(raw)), " ")
}

// clause is a condition for people: not all of its members hold. A condition
// that must hold is the clause of its negation.
type clause []string

func (c clause) String() string {
	if len(c) == 1 {
		return negated(c[0])
	}
	return "not {" + strings.Join(c, "; ") + "}"
}

// negation is what must hold where c does not.
func (c clause) negation() []clause {
	var out []clause
	for _, one := range c {
		out = append(out, clause{negated(one)})
	}
	return out
}

func clauseTexts(list []clause) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.String())
	}
	return out
}

func negated(condition string) string {
	if plain, ok := strings.CutPrefix(condition, "not "); ok && !strings.HasPrefix(plain, "{") {
		return plain
	}
	return "not " + condition
}

// simplify says list with fewer words: each condition once, and without what
// others settle. It reports whether all of list can hold.
func simplify(list []clause) ([]clause, bool) {
	for {
		settled := map[string]bool{}
		for _, c := range list {
			if len(c) == 1 {
				settled[c[0]], settled[negated(c[0])] = false, true
			}
		}
		settled["true"], settled["not true"] = true, false
		settleLists(settled, list)
		var out []clause
		for _, c := range list {
			if len(c) == 1 && c[0] != "not true" {
				if v := settled[c[0]]; v {
					return nil, false
				}
				out = appendClause(out, c)
				continue
			}
			rest := slices.DeleteFunc(slices.Clone(c), func(one string) bool { return settled[one] })
			switch holds := slices.ContainsFunc(rest, func(one string) bool { v, known := settled[one]; return known && !v }); {
			case len(rest) == 0:
				return nil, false
			case !holds:
				out = appendClause(out, rest)
			}
		}
		if slices.EqualFunc(out, list, func(a, b clause) bool { return slices.Equal(a, b) }) {
			return out, true
		}
		list = out
	}
}

// settleLists settles conditions X in […] that another one about X decides.
func settleLists(settled map[string]bool, list []clause) {
	for _, one := range slices.Concat(list...) {
		condition := strings.TrimPrefix(one, "not ")
		x, values := splitList(condition)
		for known, holds := range settled {
			y, among := splitList(known)
			if x == "" || x != y || !holds || known == condition {
				continue
			}
			inside := func(v string) bool { return slices.Contains(values, v) }
			if none := !slices.ContainsFunc(among, inside); none || !slices.ContainsFunc(among, func(v string) bool { return !inside(v) }) {
				settled[condition], settled[negated(condition)] = !none, none
			}
		}
	}
}

// splitList splits a condition X in ["a", "b"]; X is "" for any other one.
func splitList(condition string) (x string, values []string) {
	x, list, _ := strings.Cut(condition, " in ")
	if strings.HasPrefix(x, "not ") || json.Unmarshal([]byte(list), &values) != nil {
		return "", nil
	}
	return x, values
}

func appendClause(list []clause, c clause) []clause {
	if slices.ContainsFunc(list, func(have clause) bool { return slices.Equal(have, c) }) {
		return list
	}
	return append(list, c)
}

var generated = regexp.MustCompile(`__local\d+__\d*`)

// nameVariables gives variables that the compiler made short names: _ where one
// is used once.
func nameVariables(list []clause) {
	uses, names := map[string]int{}, map[string]string{}
	for _, c := range list {
		for _, text := range c {
			for _, v := range generated.FindAllString(text, -1) {
				uses[v]++
			}
		}
	}
	for _, c := range list {
		for i := range c {
			c[i] = generated.ReplaceAllStringFunc(c[i], func(v string) string {
				switch {
				case uses[v] == 1:
					return "_"
				case names[v] == "":
					names[v] = fmt.Sprintf("x%d", len(names)+1)
				}
				return names[v]
			})
		}
	}
}
