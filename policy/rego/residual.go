package rego

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"github.com/toolgate/toolgate/policy"
)

// residualVar stands for the decision in what partial evaluation leaves over.
const residualVar = "toolgate_verdict"

// unknowns are what a principal and a tool do not settle.
var unknowns = []*ast.Term{
	ast.MustParseTerm("input.arguments"), ast.MustParseTerm("input.request"),
	ast.MustParseTerm("input.usage"), ast.MustParseTerm("input.facts"),
}

// pair is what is known of one principal and one tool before any call; it is
// never modified after it is published.
type pair struct {
	principal     policy.Principal
	tool          policy.Tool
	principalTerm *ast.Term
	toolTerm      *ast.Term
	verdict       *policy.Decision // the same for every call; nil = evaluate each
	hidden        bool             // every call is denied, proven, or the policy says so
	visibleErr    error            // data.toolgate.visible failed
}

// splitter evaluates partially, on a program of its own and one evaluation at a
// time: OPA's copy propagation writes to the terms of the policy while it
// works, and what it leaves over shares terms with it. Nothing of a residual
// may therefore be kept once mu is free.
type splitter struct {
	query    rego.PreparedPartialQuery
	patterns cache.InterQueryValueCache
	mu       sync.Mutex // held from the start of an evaluation until its residual has been read
}

// newSplitter compiles s again.
func newSplitter(ctx context.Context, s *sources) (*splitter, error) {
	p, err := s.compile(ctx)
	if err != nil {
		return nil, err
	}
	split := &splitter{patterns: p.patterns}
	if split.query, err = p.query(p.compiler, decisionPath+" = "+residualVar).PrepareForPartial(ctx); err != nil {
		return nil, fmt.Errorf("preparing %s: %w", decisionPath, err)
	}
	return split, nil
}

// Visible reports whether p may see t: false only when partial evaluation,
// with the arguments unknown, proves that every call is denied, or when
// data.toolgate.visible is defined and says so. A policy that cannot be split
// shows the tool. When data.toolgate.visible fails or is no boolean the answer
// is false and the error says why.
func (e *Engine) Visible(ctx context.Context, p policy.Principal, t policy.Tool) (bool, error) {
	if !p.Valid() {
		return false, errors.New("judging visibility: no principal")
	}
	known, err := e.pair(ctx, &p, &t)
	if err == nil {
		err = known.visibleErr
	}
	if err != nil {
		return false, fmt.Errorf("judging visibility: %w", err)
	}
	return !known.hidden, nil
}

// pair recalls or works out what is known of p and t. What a context cut short
// is not remembered.
func (e *Engine) pair(ctx context.Context, p *policy.Principal, t *policy.Tool) (*pair, error) {
	hash := e.pairs.hash(p, t)
	if known := e.pairs.get(hash, p, t); known != nil {
		return known, nil
	}
	known := &pair{principal: clonePrincipal(p), tool: cloneTool(t), principalTerm: principalTerm(p)}
	var err error
	if known.toolTerm, err = toolTerm(t); err != nil {
		return nil, err
	}
	e.settle(ctx, known)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.pairs.put(hash, known)
	return known, nil
}

// settle fills in what partial evaluation and data.toolgate.visible say.
func (e *Engine) settle(ctx context.Context, known *pair) {
	input := ast.NewObject([2]*ast.Term{keyAction, actionCall},
		[2]*ast.Term{keyPrincipal, known.principalTerm}, [2]*ast.Term{keyTool, known.toolTerm})
	e.split(ctx, known, input)
	if e.program.visible == nil {
		return
	}
	v, err := e.run(ctx, e.program.visible, input)
	if errors.Is(err, errUndefined) {
		return
	}
	said, ok := v.(ast.Boolean)
	if err == nil && !ok {
		err = fmt.Errorf("%s is %s, not a boolean", visiblePath, ast.ValueName(v))
	}
	known.hidden, known.visibleErr = err != nil || !bool(said), err
}

// split fills in what partial evaluation says. A policy that cannot be split
// leaves known as it is: every call is evaluated, and the tool is shown.
func (e *Engine) split(ctx context.Context, known *pair, input ast.Value) {
	e.splitter.mu.Lock()
	defer e.splitter.mu.Unlock()
	left, err := e.partial(ctx, input)
	if errors.Is(err, errTimeout) {
		// What is found now is kept, so a moment without a turn must not
		// decide it; a policy that cannot be split in this time stays whole.
		patient := *e
		patient.timeout *= 4
		left, err = patient.partial(ctx, input)
	}
	if err == nil {
		known.verdict = e.constant(ctx, known, left)
		known.hidden = left.denies()
	}
}

// residual is what partial evaluation left over.
type residual struct {
	queries []ast.Body
	support bool // parts of it are rules of their own
	saved   int  // how often something unknown was met
}

// partial evaluates with everything of a call unknown, on copies of what other
// evaluations use too. The caller must hold e.splitter.mu for as long as it
// reads the residual.
func (e *Engine) partial(ctx context.Context, input ast.Value) (*residual, error) {
	input = ast.NewTerm(input).Copy().Value
	without := make([]*ast.Term, len(unknowns))
	for i, t := range unknowns {
		without[i] = t.Copy()
	}
	left := new(residual)
	saves := (*saveCounter)(&left.saved)
	err := e.bounded(ctx, func(c topdown.Cancel) error {
		pq, err := e.splitter.query.Partial(ctx,
			rego.EvalParsedInput(input),
			rego.EvalParsedUnknowns(without),
			rego.EvalExternalCancel(c),
			rego.EvalMetrics(metrics.NoOp()),
			rego.EvalInterQueryBuiltinValueCache(e.splitter.patterns),
			rego.EvalQueryTracer(saves))
		if err != nil {
			return err
		}
		if c.Cancelled() {
			return errTimeout // below a not, partial evaluation takes it for undefined
		}
		left.queries = slices.DeleteFunc(pq.Queries, impossible)
		left.support = len(pq.Support) > 0
		return nil
	})
	return left, err
}

// constant returns the verdict that holds for every call, or nil. It demands
// more than a residual without conditions: nothing unknown may have been met
// on the way, for an expression over arguments that partial evaluation puts
// aside and later drops could be an error, and thus a denial, in full
// evaluation. Without any, a full evaluation takes the same steps whatever the
// call, so the verdict is that of one: partial evaluation loses errors below a not.
func (e *Engine) constant(ctx context.Context, known *pair, left *residual) *policy.Decision {
	if left.saved > 0 || left.support || len(left.queries) > 1 {
		return nil
	}
	d, err := e.evaluate(ctx, &policy.Input{}, known)
	if d, err = e.close(d, err); err != nil {
		return nil
	}
	return &d
}

// denies reports whether every decision that is left over is a denial,
// whatever its conditions; none left over is undefined, which denies.
func (r *residual) denies() bool {
	for _, q := range r.queries {
		value := verdictOf(q)
		if value == nil {
			return false
		}
		o, ok := value.Value.(ast.Object)
		if !ok {
			return false
		}
		effect := o.Get(keyEffect)
		if effect == nil || !effect.Equal(effectDeny) {
			return false
		}
	}
	return true
}

var (
	keyEffect  = ast.StringTerm("effect")
	effectDeny = ast.StringTerm(string(policy.Deny))
	equality   = ast.Equality.Ref()
)

// verdictOf finds residualVar = value in a residual query; nil when the value
// is still a reference or a rule.
func verdictOf(q ast.Body) *ast.Term {
	for _, expr := range q {
		if expr.Negated || len(expr.With) > 0 || !expr.IsCall() || !expr.Operator().Equal(equality) || len(expr.Operands()) != 2 {
			continue
		}
		for i := range 2 {
			if v, ok := expr.Operand(i).Value.(ast.Var); ok && v == residualVar {
				return expr.Operand(1 - i)
			}
		}
	}
	return nil
}

// notTrue reports whether x is "not true". Partial evaluation leaves that of a
// not over a rule that speaks of unknowns somewhere but came true without any.
func notTrue(x any) bool {
	expr, ok := x.(*ast.Expr)
	if !ok || len(expr.With) > 0 {
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

// impossible reports whether q holds for no call.
func impossible(q ast.Body) bool {
	return slices.ContainsFunc(q, func(e *ast.Expr) bool { return notTrue(e) })
}

// saveCounter counts what partial evaluation puts aside as unknown.
type saveCounter int

// Enabled implements topdown.QueryTracer.
func (c *saveCounter) Enabled() bool { return true }

// Config implements topdown.QueryTracer.
func (c *saveCounter) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

// TraceEvent implements topdown.QueryTracer.
func (c *saveCounter) TraceEvent(e topdown.Event) {
	if e.Op == topdown.SaveOp && !notTrue(e.Node) {
		*c++
	}
}
