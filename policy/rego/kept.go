package rego

import (
	"context"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
)

// keepWithin bounds the time in which the rules of a policy are evaluated that read
// only data. OPA evaluates what is left at each call.
const keepWithin = 5 * time.Second

// kept are the values of rules that read only data, by the last name of each rule. All
// evaluations of a policy share them; a changed policy or data is another program.
type kept map[ast.Value][]keptRule

type keptRule struct {
	ref   ast.Ref
	value *ast.Term
}

// find returns the value of the rule at ref, nil = it is not kept.
func (k kept) find(ref ast.Ref) *ast.Term {
	if last, ok := ref[len(ref)-1].Value.(ast.String); ok && len(k) > 0 {
		for _, r := range k[last] {
			if r.ref.Equal(ref) {
				return r.value
			}
		}
	}
	return nil
}

// keepRules evaluates every complete rule that reads only data. Each is evaluated
// alone and without early exit, so that a value is kept only where no order in which
// calls ask for the rule ends in an error. What is undefined, fails or takes too long
// is not kept, and then OPA evaluates the rule as it does any other.
func (p *program) keepRules(ctx context.Context, patterns cache.InterQueryValueCache) error {
	p.kept = kept{}
	constant := constants{compiler: p.compiler, known: map[*ast.Rule]bool{}}
	begin := time.Now()
	for _, m := range p.compiler.Modules {
		for _, r := range m.Rules {
			ref := r.Ref()
			if !ref.IsGround() || p.kept.find(ref) != nil || !constant.complete(ref) {
				continue
			}
			q, err := p.compileQuery(p.compiler, patterns, nil, ref.String())
			if err != nil {
				return err
			}
			p.kept.add(ctx, ref, q, keepWithin-time.Since(begin))
		}
	}
	return nil
}

// add keeps the value of the rule at ref, which q asks for, if it has one in time.
func (k kept) add(ctx context.Context, ref ast.Ref, q *query, within time.Duration) {
	var v ast.Value
	err := bounded(ctx, within, func(c topdown.Cancel) (err error) {
		v, err = q.run(ctx, ast.NewObject(), c, func(q *topdown.Query) { q.WithEarlyExit(false) })
		return err
	})
	if err == nil {
		last := ref[len(ref)-1].Value
		k[last] = append(k[last], keptRule{ref, ast.NewTerm(v)})
	}
}

// constants finds rules that have the same value at every call: neither they nor any
// rule that they may ask mention the input or replace anything with the keyword with.
// Policies have no built-in functions whose result can change; see capabilities.
type constants struct {
	compiler *ast.Compiler
	known    map[*ast.Rule]bool
}

// complete reports whether all rules that have to do with ref are constant, and
// define a complete document at ref.
func (c *constants) complete(ref ast.Ref) bool {
	rules := c.compiler.GetRulesDynamicWithOpts(ref, ast.RulesOptions{IncludeHiddenModules: true})
	for _, r := range rules {
		if len(r.Head.Args) > 0 || r.Head.RuleKind() != ast.SingleValue || !r.Ref().Equal(ref) || !c.rule(r) {
			return false
		}
	}
	return len(rules) > 0
}

func (c *constants) rule(r *ast.Rule) bool {
	if is, ok := c.known[r]; ok {
		return is
	}
	replaces := false
	ast.WalkWiths(r, func(*ast.With) bool {
		replaces = true
		return true
	})
	is := !replaces && !mentionsInput(r, nil) && (r.Else == nil || c.rule(r.Else))
	for d := range c.compiler.Graph.Dependencies(r) {
		asked, ok := d.(*ast.Rule)
		is = is && (!ok || c.rule(asked))
	}
	c.known[r] = is
	return is
}
