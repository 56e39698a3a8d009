package rego

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
)

// reachTimeout bounds how long one rule is looked at: what is not proven in
// that time is not said.
const reachTimeout = 2 * time.Second

// Check loads a policy as Load does, and finds besides what can be found with
// time: rules that can never hold, rules and data that nothing reads. The
// findings are in the order of their places and have those that Warnings has;
// an error, as of Load, means that the policy cannot serve.
func Check(ctx context.Context, o Options) (*Engine, []Finding, error) {
	e, err := LoadUntried(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	if err := e.Try(ctx); err != nil {
		return nil, nil, err
	}
	if err := e.sources.checkOwn(o); err != nil {
		return nil, nil, err
	}
	found := append(slices.Clone(e.findings), lintKeys(e.sources.modules)...)
	p, err := e.sources.compile(ctx) // a program of its own: partial evaluation writes to the rules
	if err != nil {
		return nil, nil, err
	}
	found = append(found, lintVisible(p.compiler)...)
	found = append(found, p.neverFires(ctx)...)
	sortFindings(found)
	return e, found, ctx.Err()
}

// rulesBelow are the rules at refs, and all rules that they use.
func rulesBelow(c *ast.Compiler, refs ...ast.Ref) map[*ast.Rule]bool {
	used := map[*ast.Rule]bool{}
	var use func(r *ast.Rule)
	use = func(r *ast.Rule) {
		if used[r] {
			return
		}
		used[r] = true
		for d := range c.Graph.Dependencies(r) {
			if d, ok := d.(*ast.Rule); ok {
				use(d)
			}
		}
	}
	for _, ref := range refs {
		for _, r := range c.GetRulesWithPrefix(ref) {
			use(r)
		}
	}
	return used
}

// lintVisible finds what the rule visible reads of the input that it does not
// get, itself or through other rules.
func lintVisible(c *ast.Compiler) []Finding {
	if len(c.GetRules(visibleRef)) == 0 {
		return []Finding{{Level: LevelNote, Code: codeNoVisible, Message: "no rule defines " + visiblePath + ": tools are hidden only once every call of them is known to be denied",
			Hint: "visible if …, about input.principal and input.tool"}}
	}
	given := inputMembers{ast.String("principal"): true, ast.String("tool"): true}
	var found []Finding
	for r := range rulesBelow(c, visibleRef) {
		for e := r; e != nil; e = e.Else {
			place := e.Location
			ast.WalkExprs(e.Body, func(x *ast.Expr) bool {
				if mentionsInput(x, given.has) {
					if x.Location != nil {
						place = x.Location
					}
					found = append(found, at(place, LevelError, codeVisible, visiblePath+" depends on this, which reads more of input than principal and tool", "visibility is decided before any call: leave the call to "+decisionPath+" or the sets"))
				}
				return true
			})
			if mentionsInput(e.Head, given.has) {
				found = append(found, at(place, LevelError, codeVisible, visiblePath+" depends on this, which reads more of input than principal and tool", ""))
			}
		}
	}
	return found
}

// answers are the rules of package toolgate that toolgate asks.
var answers = func() []string {
	names := []string{"decision", "deny", "hold", "allow", "visible", "trail"}
	for _, right := range policy.Rights {
		names = append(names, string(right))
	}
	return names
}()

// rightRef returns the rule that decides who has a right.
func rightRef(right policy.Right) ast.Ref { return ast.MustParseRef("data.toolgate." + string(right)) }

// unusedRules finds rules of package toolgate that nothing asks, and packages next to it of
// which nothing asks any rule. It is a warning where the author probably meant them to decide.
func (p *program) unusedRules() []Finding {
	c := p.telling
	asks := append([]ast.Ref{visibleRef, trailRef, systemPackages}, p.form.refs...)
	for _, right := range policy.Rights {
		asks = append(asks, rightRef(right))
	}
	used := rulesBelow(c, asks...)
	idle := func(m *ast.Module) []*ast.Rule {
		return slices.DeleteFunc(slices.Clone(m.Rules), func(r *ast.Rule) bool { return used[r] })
	}
	others := map[string]*ast.Package{} // packages next to toolgate
	var asked []string
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(c.Modules)) {
		m := c.Modules[name]
		switch rules, path := idle(m), m.Package.Path; {
		case path.Equal(decisionRef[:2]):
			for _, r := range rules {
				found = append(found, idleRule(r))
			}
		case path.HasPrefix(decisionRef[:2]):
		case len(rules) < len(m.Rules):
			asked = append(asked, path.String())
		case len(rules) > 0:
			others[path.String()] = m.Package
		}
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if !slices.Contains(asked, name) {
			found = append(found, idlePackage(others[name]))
		}
	}
	return found
}

// idleRule is the finding about a rule of package toolgate that nothing asks.
func idleRule(r *ast.Rule) Finding {
	member, _ := r.Ref()[2].Value.(ast.String)
	name, verdict := string(member), verdictOf(r)
	f := at(r.Location, LevelNote, codeUnused, fmt.Sprintf("no decision asks %v", r.Ref().GroundPrefix()), "take it away, or use it")
	near := text.Nearest(name, answers)
	if near == "" && verdict["effect"] == nil && (verdict["rule"] == nil || verdict["reason"] == nil) {
		return f
	}
	if i := slices.IndexFunc(answers, func(one string) bool { return strings.HasPrefix(name, one[:3]) }); near == "" && i >= 0 {
		name = answers[i] // such as denies for deny
	}
	f.Level, f.Hint = LevelWarning, meant(name, answers)
	f.Message += ", which looks like a rule that decides and decides nothing"
	return f
}

// idlePackage is the finding about a package of which nothing asks any rule.
func idlePackage(p *ast.Package) Finding {
	name := strings.TrimPrefix(p.Path.String(), "data.")
	hint := "rules of package toolgate decide, and what they use"
	if near := text.Nearest(name, []string{"toolgate"}); near != "" {
		hint = "did you mean package " + near + "? " + hint
	}
	return at(p.Location, LevelWarning, codePackage, "no decision asks any rule of package "+name, hint)
}

// neverFires finds rules that decide, whose conditions cannot all hold whatever
// is asked: with any data, or with the data as it is.
func (p *program) neverFires(ctx context.Context) []Finding {
	anyData := []*ast.Term{ast.NewTerm(ast.InputRootRef)}
	for name := range pathsOf(p.compiler).members {
		anyData = append(anyData, ast.NewTerm(ast.DefaultRootRef.Append(ast.StringTerm(name))))
	}
	var found []Finding
	for _, ref := range p.form.refs {
		for _, r := range p.compiler.GetRules(ref) {
			for e := r; e != nil; e = e.Else {
				switch {
				case p.impossible(ctx, e.Body, anyData):
					found = append(found, at(e.Location, LevelWarning, codeNever, "this rule never fires: its conditions cannot all hold", "remove it, or fix a condition"))
				case p.impossible(ctx, e.Body, anyData[:1]) && !awaits(e):
					found = append(found, at(e.Location, LevelNote, codeNever, "with the data as it is, this rule never fires", ""))
				}
			}
		}
	}
	return found
}

// awaits reports whether r is in a package that declares the form of its data: such a rule
// has no misspelt path, and waits for data that the author does not need.
func awaits(r *ast.Rule) bool {
	return len(declaredData(map[string]*ast.Module{"": r.Module})) > 0
}

// impossible reports whether partial evaluation proves that body never holds,
// with nothing known of unknown.
func (p *program) impossible(ctx context.Context, body ast.Body, unknown []*ast.Term) bool {
	ctx, stop := context.WithTimeout(ctx, reachTimeout)
	defer stop()
	left, err := rego.New(rego.Compiler(p.compiler), rego.Store(p.store), rego.ParsedQuery(body.Copy()),
		rego.ParsedUnknowns(unknown), rego.Metrics(metrics.NoOp())).Partial(ctx)
	if err != nil || ctx.Err() != nil {
		return false
	}
	return !slices.ContainsFunc(left.Queries, func(q ast.Body) bool {
		return !slices.ContainsFunc(q, notTrue) // it may hold
	})
}

// notTrue reports whether x is "not true". Partial evaluation leaves that of a
// not over a rule that speaks of unknowns somewhere but came true without any.
func notTrue(expr *ast.Expr) bool {
	if len(expr.With) > 0 {
		return false
	}
	if n, ok := expr.Terms.(*ast.Not); ok { // as rego.v2 has it
		return !expr.Negated && len(n.Body) == 1 && isTrue(n.Body[0])
	}
	return expr.Negated && isTrue(expr.Complement())
}

func isTrue(expr *ast.Expr) bool {
	t, ok := expr.Terms.(*ast.Term)
	return ok && !expr.Negated && len(expr.With) == 0 && ast.Boolean(true).Equal(t.Value)
}
