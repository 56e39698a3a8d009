package rego

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/toolgate/toolgate/policy"
)

// partialTimeout bounds the partial evaluation of one rule for one pair, unless the
// engine's own timeout is longer.
const partialTimeout = 500 * time.Millisecond

// Partial is what is known of the decisions on all calls of a principal and a tool, by partial
// evaluation. That is for people: it loses errors, and never decides a call.
type Partial struct {
	// Constant is the decision on every call; nil = it depends on the call.
	Constant *policy.Decision
	// Exclusive is true where one rule answers, of whose verdicts one holds at most. Otherwise the
	// sets of verdicts come in the order of their strength, deny first.
	Exclusive bool

	engine  *Engine
	known   *pair
	unknown []*ast.Term
}

// A Residual is one verdict that partial evaluation leaves. Its bodies must not be changed.
type Residual struct {
	Decision policy.Decision // members that come from the arguments of a call are empty
	When     ast.Body        // expressions that must all hold
	Support  []*ast.Module   // the rules that conditions ask and that partial evaluation made
}

// residuals is a compiled copy of a policy for partial evaluation, which writes
// to what it evaluates.
type residuals struct {
	mu       sync.Mutex // held by the one partial evaluation at a time
	compiler func() (*ast.Compiler, error)
}

// Partial returns what the policy answers p about t, whatever the arguments. A principal without a
// subject stands for every caller with its roles: what the policy says about subjects, clients and
// tenants is then a condition. An error means that nothing is known.
func (e *Engine) Partial(ctx context.Context, p policy.Principal, t policy.Tool) (*Partial, error) {
	known, unknown, err := e.outlined(p, t)
	if err != nil {
		return nil, err
	}
	out := &Partial{engine: e, known: known, unknown: unknown, Exclusive: e.program.form.refs[0].Equal(decisionRef)}
	if len(unknown) == len(callMembers) {
		c, err := e.constantOf(ctx, known, max(tryTimeout, e.timeout))
		if err != nil {
			return nil, err
		}
		if c.verdict != nil {
			d := cloneDecision(c.verdict)
			out.Constant = &d
		}
	}
	return out, nil
}

// outlined gives the pair that an outline is about, and what is unknown of its
// input. A policy that does not read who calls is asked about any subject.
func (e *Engine) outlined(p policy.Principal, t policy.Tool) (*pair, []*ast.Term, error) {
	if p.Subject == "" && len(p.Roles) == 0 {
		return nil, nil, errors.New("no principal")
	}
	r := e.program.reads
	if p.Subject != "" || !r.subject && !r.client && !r.tenant {
		p.Subject = cmp.Or(p.Subject, "somebody")
		known, err := e.pairs.find(&p, &t)
		return known, callMembers, err
	}
	known, err := newPair(&policy.Principal{Roles: p.Roles}, &t, e.program.facts)
	if err != nil {
		return nil, nil, err
	}
	roles := ast.StringTerm("roles")
	known.principal = ast.ObjectTerm([2]*ast.Term{roles, known.principal.Get(roles)})
	return known, slices.Concat(callMembers, callerMembers), nil
}

var (
	callMembers = []*ast.Term{ast.MustParseTerm("input.arguments"), ast.MustParseTerm("input.facts"), ast.MustParseTerm("input.request"), ast.MustParseTerm("input.usage")}
	// callerMembers are unknown where only the roles of the caller are given.
	callerMembers = []*ast.Term{ast.MustParseTerm("input.principal.subject"), ast.MustParseTerm("input.principal.client"), ast.MustParseTerm("input.principal.tenant")}
	verdictVar    = ast.Var("verdict")
)

// Sets yields the verdicts of each set, or why they are not known.
func (p *Partial) Sets(ctx context.Context) iter.Seq2[[]Residual, error] {
	return func(yield func([]Residual, error) bool) {
		for _, ref := range p.engine.program.form.refs {
			if found, err := p.engine.partial(ctx, ref, p.known, p.unknown); !yield(found, err) {
				return
			}
		}
	}
}

// partial evaluates the rules at ref with part of the input unknown.
func (e *Engine) partial(ctx context.Context, ref ast.Ref, known *pair, unknown []*ast.Term) ([]Residual, error) {
	r := e.program.residuals
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, max(partialTimeout, e.timeout))
	defer stop()
	compiler, err := r.compiler()
	if err != nil {
		return nil, err
	}
	query := ast.NewBody(ast.Equality.Expr(ast.NewTerm(verdictVar), ast.NewTerm(ref)))
	if !ref.Equal(decisionRef) {
		query = ast.NewBody(ast.NewExpr(ast.NewTerm(ref.Append(ast.NewTerm(verdictVar)))))
	}
	left, err := rego.New(rego.Compiler(compiler), rego.Store(e.program.store), rego.ParsedQuery(query), rego.ParsedUnknowns(unknown),
		rego.ParsedInput(known.input(isCall)),
	).Partial(ctx)
	if err != nil {
		return nil, err
	}
	var out []Residual
	for _, q := range left.Queries {
		one, err := e.residual(ref, q, left.Support)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// residual reads one query that is left: the verdict is bound to a variable, the
// other expressions are conditions.
func (e *Engine) residual(ref ast.Ref, q ast.Body, support []*ast.Module) (out Residual, err error) {
	verdict := slices.IndexFunc(q, func(x *ast.Expr) bool { return boundVerdict(x) != nil })
	if verdict < 0 {
		return out, errors.New("the verdict comes from the call")
	}
	if out.Decision, err = e.sketch(ref, boundVerdict(q[verdict])); err != nil {
		return out, err
	}
	rest := slices.Delete(slices.Clone(q), verdict, verdict+1)
	out.When = slices.DeleteFunc(rest, func(x *ast.Expr) bool { // a verdict whose reason asks a rule stands there twice
		return x.IsEquality() && !x.Negated && x.Operand(1).Equal(boundVerdict(q[verdict]))
	})
	out.Support = support
	return out, nil
}

// boundVerdict is what x binds the verdict to; nil when x is a condition.
func boundVerdict(x *ast.Expr) *ast.Term {
	if x.Negated || !x.IsEquality() {
		return nil
	}
	for i := range 2 {
		if v, ok := x.Operand(i).Value.(ast.Var); ok && v == verdictVar {
			return x.Operand(1 - i)
		}
	}
	return nil
}

// sketch is the decision that a verdict comes to, without members that come
// from a call.
func (e *Engine) sketch(ref ast.Ref, verdict *ast.Term) (policy.Decision, error) {
	o, ok := verdict.Value.(ast.Object)
	if !ok {
		return policy.Decision{}, errors.New("the verdict comes from the call")
	}
	var members [][2]*ast.Term
	o.Foreach(func(k, v *ast.Term) {
		if ast.IsConstant(v.Value) {
			members = append(members, [2]*ast.Term{k, v})
		}
	})
	known := ast.NewObject(members...)
	if effect, ok := effectAt(ref); ok {
		known.Insert(keyEffect, ast.StringTerm(string(effect)))
	}
	if d, err := e.close(decodeDecision(known)); err == nil {
		return d, nil
	}
	effect := known.Get(keyEffect)
	if effect == nil {
		return policy.Decision{}, errors.New("the effect comes from the call, or is none")
	}
	name, err := stringOf[policy.Effect](effect.Value)
	return policy.Decision{Effect: name, Revision: e.revision}, err
}

var keyEffect = ast.StringTerm("effect")
