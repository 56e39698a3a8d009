package rego

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
)

// keepWithin bounds the time in which the rules of a policy are evaluated that read
// only data. OPA evaluates what is left at each call.
const keepWithin = 5 * time.Second

// invariants are the rules of a policy that have the same value whatever is called: in
// every evaluation, or in every call of a pair of principal and tool.
type invariants struct {
	rules []invariant         // those that a rule asks before it
	named map[ast.Value][]int // :: last name of a rule ⇒ positions in rules
}

// invariant is one such rule, or several with one name.
type invariant struct {
	ref    ast.Ref
	alone  *query // asks for the rule only
	ofPair bool   // it reads pairInput; else nothing of the input
}

// kept are values of invariants, by position; nil = OPA evaluates the rule. Evaluations
// share them, and nobody writes to them.
type kept []*ast.Term

// pairKept is what is kept of a pair: values of invariants and, where all verdict sets that
// are invariants have been read, their verdicts.
type pairKept struct {
	values   kept
	verdicts *verdicts // nil = the whole decision is asked for
}

// undefinedTerm stands for the value of a rule that is undefined.
var undefinedTerm = new(ast.Term)

// pairInput are the members of input that are the same in every call of a pair.
var pairInput = inputMembers{ast.String("action"): true, ast.String("principal"): true, ast.String("tool"): true}

// find returns the value of the rule at ref in k, nil = it is not kept.
func (s *invariants) find(k kept, ref ast.Ref) *ast.Term {
	if last, ok := ref[len(ref)-1].Value.(ast.String); ok && s != nil && k != nil {
		for _, i := range s.named[last] {
			if k[i] != nil && s.rules[i].ref.Equal(ref) {
				return k[i]
			}
		}
	}
	return nil
}

// findInvariants finds the invariants of p and evaluates those that read only data. A rule
// that also reads the input of a pair is an invariant only if a decision can ask for it.
func (p *program) findInvariants(ctx context.Context, patterns cache.InterQueryValueCache) error {
	p.invariants = &invariants{named: map[ast.Value][]int{}}
	always := constants{compiler: p.compiler, known: map[*ast.Rule]bool{}}
	ofPair := constants{compiler: p.compiler, input: pairInput, known: map[*ast.Rule]bool{}}
	decide := rulesBelow(p.compiler, p.form.refs...)
	sorted, _ := p.compiler.Graph.Sort() // without a circle, as the compiler holds
	for _, n := range sorted {
		r := n.(*ast.Rule)
		k := invariant{ref: r.Ref()}
		if !k.ref.IsGround() || p.invariants.has(k.ref) {
			continue
		}
		if k.ofPair = !always.whole(k.ref); k.ofPair && !(decide[r] && ofPair.whole(k.ref)) {
			continue
		}
		var err error
		if k.alone, err = p.compileQuery(p.compiler, patterns, p.invariants, k.ref.String()); err != nil {
			return err
		}
		p.invariants.add(k)
	}
	p.kept = p.invariants.evaluate(ctx, nil, ast.NewObject(), keepWithin)
	return nil
}

// at returns the position of the rule at ref in s.rules, or -1.
func (s *invariants) at(ref ast.Ref) int {
	return slices.IndexFunc(s.rules, func(k invariant) bool { return k.ref.Equal(ref) })
}

// has reports whether the rule at ref is in s.
func (s *invariants) has(ref ast.Ref) bool { return s.at(ref) >= 0 }

func (s *invariants) add(k invariant) {
	last := k.ref[len(k.ref)-1].Value
	s.named[last] = append(s.named[last], len(s.rules))
	s.rules = append(s.rules, k)
}

// evaluate evaluates the rules that read only data where known is nil, else those that
// read the input of a pair too. Each is asked alone and without early exit, so that a
// value is kept only where no order in which calls ask for the rule ends in an error.
// What fails or takes too long is not kept, and then OPA evaluates the rule as it does
// any other.
func (s *invariants) evaluate(ctx context.Context, known kept, input ast.Value, within time.Duration) kept {
	out := make(kept, len(s.rules))
	copy(out, known)
	begin := time.Now()
	for i, k := range s.rules {
		if k.ofPair != (known != nil) {
			continue
		}
		var v ast.Value
		err := bounded(ctx, within-time.Since(begin), func(c topdown.Cancel) (err error) {
			v, err = k.alone.run(ctx, input, out, c, func(q *topdown.Query) { q.WithEarlyExit(false) })
			return err
		})
		switch {
		case err == nil:
			out[i] = ast.NewTerm(v)
		case errors.Is(err, errUndefined):
			out[i] = undefinedTerm
		}
	}
	return out
}

// keepFor keeps the values of rules that are the same in every call of a pair, as far
// as they are found in the time within. What an ended context cuts short is not
// remembered.
func (e *Engine) keepFor(ctx context.Context, known *pair, within time.Duration) {
	k := pairKept{values: e.program.invariants.evaluate(ctx, e.program.kept, known.input(isCall), within)}
	k.verdicts = e.program.verdictsIn(k.values)
	if ctx.Err() == nil {
		known.kept.Store(&k)
	}
}

// verdictsIn reads the verdict sets that are invariants. It returns nil when there are none,
// or when one was not evaluated or is not well formed: then each call finds that out.
func (p *program) verdictsIn(values kept) *verdicts {
	var out *verdicts
	for i, s := range verdictSets {
		at := p.invariants.at(s.ref)
		if at < 0 || !p.form.sets() {
			continue
		}
		if values[at] == nil || values[at] == undefinedTerm {
			return nil
		}
		read, err := decodeSet(values[at].Value, i, p.form.order)
		if err != nil {
			return nil
		}
		if out == nil {
			out = new(verdicts)
		}
		out[i] = read
	}
	return out
}

// constants finds rules whose value depends only on data and on the members of the input
// in input: neither they nor any rule that they may ask mention other members, or replace
// anything with the keyword with. Policies have no built-in functions whose
// result can change; see builtin.Capabilities.
type constants struct {
	compiler *ast.Compiler
	input    inputMembers
	known    map[*ast.Rule]bool
}

// whole reports whether all rules that have to do with ref are constant, and define
// one document at ref.
func (c *constants) whole(ref ast.Ref) bool {
	rules := c.compiler.GetRulesDynamicWithOpts(ref, ast.RulesOptions{IncludeHiddenModules: true})
	for _, r := range rules {
		if len(r.Head.Args) > 0 || !r.Ref().Equal(ref) || !c.rule(r) {
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
	is := !replaces && !mentionsInput(r, c.input.has) && (r.Else == nil || c.rule(r.Else))
	for d := range c.compiler.Graph.Dependencies(r) {
		asked, ok := d.(*ast.Rule)
		is = is && (!ok || c.rule(asked))
	}
	c.known[r] = is
	return is
}
