package rego

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/builtins"

	"github.com/toolgate/toolgate/policy"
)

// pair is what is known of one principal and one tool before any call; it is
// never modified after it is published.
type pair struct {
	principal     policy.Principal
	tool          policy.Tool
	principalTerm *ast.Term
	toolTerm      *ast.Term
	verdict       *policy.Decision // the same for every call
	tree          *tree            // else: what is left to look at in each; nil = evaluate each whole
	whole         string           // why there is neither
	hidden        bool             // every call is denied, proven, or the policy says so
	visibleErr    error            // data.toolgate.visible failed
}

// tree is a decision as far as it is known before a call.
type tree struct {
	decision *group
	slots    int
	groups   int
}

// Visible reports whether p may see t: false only when it is proven, with the
// arguments unknown, that every call is denied, or when data.toolgate.visible
// is defined and says so. A policy that cannot be split shows the tool. When
// data.toolgate.visible fails or is no boolean the answer is false and the
// error says why.
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

// settle fills in what the policy says before any call.
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

// split fills in the verdict or the tree. A policy that cannot be split leaves
// both: every call is evaluated whole, and the tool is shown.
func (e *Engine) split(ctx context.Context, known *pair, input ast.Object) {
	var left expr
	var s *splitter
	// What is found now is kept, so a moment without a turn must not decide it.
	patient := *e
	patient.timeout *= 4
	err := patient.bounded(ctx, func(c topdown.Cancel) error {
		s = &splitter{program: e.program, input: input, context: e.builtins(ctx, c), rules: make(map[*ast.TreeNode]expr)}
		var err error
		left, err = s.decision()
		return err
	})
	if err != nil {
		known.whole = cause(err)
		return
	}
	if g, ok := left.(*group); ok {
		known.tree = &tree{decision: g, slots: len(s.used), groups: s.groups}
		known.hidden = allDeny(g)
		g.decode()
		return
	}
	e.settleConstant(ctx, known, left)
}

// settleConstant finds the verdict that holds for every call: that of any. It
// is evaluated whole, and has to be what was found.
func (e *Engine) settleConstant(ctx context.Context, known *pair, left expr) {
	whole, err := e.evaluate(ctx, &policy.Input{}, known)
	if whole, err = e.close(whole, err); err != nil {
		known.whole = "the policy fails: " + cause(err)
		return
	}
	found, err := e.close(decodeConstant(left))
	if err != nil || !reflect.DeepEqual(found, whole) {
		known.whole = "the verdict before the call is not that of a call"
		return
	}
	known.verdict = &whole
	known.hidden = whole.Effect == policy.Deny
}

// decodeConstant reads a decision; nil is undefined.
func decodeConstant(e expr) (policy.Decision, error) {
	t, ok := isConstant(e)
	if !ok {
		return policy.Decision{}, errUndefined
	}
	return decodeDecision(t.Value)
}

// decision splits the decision of the policy.
func (s *splitter) decision() (e expr, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case unsplit:
			err = errors.New(p.String())
		default:
			panic(p)
		}
	}()
	if s.program.form.query != decisionPath {
		s.refuse("sets of verdicts are not split")
	}
	at := s.program.compiler.RuleTree.Find(ast.MustParseRef(decisionPath))
	if at == nil || len(at.Values) == 0 {
		s.refuse("%s is no rule", decisionPath)
	}
	return s.rule(at), nil
}

var (
	keyEffect  = ast.StringTerm("effect")
	effectDeny = ast.StringTerm(string(policy.Deny))
)

// allDeny reports whether every value that g can have is a denial. Undefined
// and every failure is one too.
func allDeny(g *group) bool {
	if g.kind != sinkValue || g.other != nil && !deniesAlways(g.other) {
		return false
	}
	for _, c := range g.chains {
		for _, body := range c {
			if !allLeaves(body, func(l *leaf) bool { return deniesAlways(l.val) }) {
				return false
			}
		}
	}
	return true
}

// deniesAlways reports whether a decision has the effect of a denial, whatever
// else is in it.
func deniesAlways(e expr) bool {
	effect := effectOf(e)
	return effect != nil && effect.Equal(effectDeny)
}

// effectOf is the effect of a decision; nil when it comes from the call.
func effectOf(e expr) *ast.Term {
	switch e := e.(type) {
	case constant:
		if o, ok := e.term.Value.(ast.Object); ok {
			return o.Get(keyEffect)
		}
	case *composite:
		for i, k := range e.keys {
			if t, ok := isConstant(k); !ok {
				return nil
			} else if t.Equal(keyEffect) {
				effect, _ := isConstant(e.vals[i])
				return effect
			}
		}
	}
	return nil
}

// decode reads the verdicts of g that are constant, once for all calls.
func (g *group) decode() {
	for _, c := range g.chains {
		for _, body := range c {
			allLeaves(body, func(l *leaf) bool {
				if t, ok := isConstant(l.val); ok {
					if d, err := decodeDecision(t.Value); err == nil {
						l.verdict = &d
					}
				}
				return true
			})
		}
	}
}

// builtins is what built-in functions may use.
func (e *Engine) builtins(ctx context.Context, c topdown.Cancel) topdown.BuiltinContext {
	return topdown.BuiltinContext{
		Context: ctx, Metrics: metrics.NoOp(), Cancel: c, Cache: make(builtins.Cache),
		InterQueryBuiltinValueCache: e.program.patterns, Capabilities: e.program.compiler.Capabilities(),
	}
}

var states = sync.Pool{New: func() any { return new(state) }}

// decideQuickly judges in by the tree of known; false means that only a whole
// evaluation can.
func (e *Engine) decideQuickly(ctx context.Context, in *policy.Input, known *pair) (policy.Decision, error, bool) {
	st := states.Get().(*state)
	defer func() {
		st.clear()
		states.Put(st)
	}()
	var s sink
	err := e.bounded(ctx, func(c topdown.Cancel) error {
		if err := st.prepare(in, known); err != nil {
			return err
		}
		st.context = e.builtins(ctx, c)
		s.kind = known.tree.decision.kind
		return known.tree.decision.run(st, &s)
	})
	switch {
	case err != nil:
		return policy.Decision{}, nil, false
	case s.kind != sinkValue:
		return policy.Decision{}, nil, false // no decision, but an error tells why
	case s.leaf != nil && s.leaf.verdict != nil:
		return cloneDecision(s.leaf.verdict), nil, true
	case s.one == nil:
		return policy.Decision{}, errUndefined, true
	}
	d, err := decodeDecision(s.one.Value)
	return d, err, true
}

// prepare reads what the call brings. What cannot be read is an error, whether
// or not the tree looks at it.
func (st *state) prepare(in *policy.Input, known *pair) error {
	st.in, st.known = in, known
	st.slots = grown(st.slots, known.tree.slots)
	st.answers = grown(st.answers, known.tree.groups)
	var err error
	if st.parts[rootArguments], err = argumentsTerm(in.Arguments); err != nil {
		return err
	}
	if in.Usage != nil {
		st.parts[rootUsage], err = usageTerm(in.Usage)
	}
	return err
}

// grown is s with n elements, all of them empty.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// clear forgets the call.
func (st *state) clear() {
	clear(st.slots)
	clear(st.answers)
	*st = state{slots: st.slots[:0], answers: st.answers[:0]}
}

// root is a part of the input; nil means that it is not there.
func (st *state) root(r root) (*ast.Term, error) {
	if st.parts[r] != nil {
		return st.parts[r], nil
	}
	switch r {
	case rootRequest:
		st.parts[r] = requestTerm(&st.in.Request)
	case rootInput:
		o, err := st.known.input(st.in, st.parts[rootArguments])
		if err != nil {
			return nil, err
		}
		st.parts[r] = ast.NewTerm(o)
	}
	return st.parts[r], nil
}
