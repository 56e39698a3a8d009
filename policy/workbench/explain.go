package workbench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	opa "github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// Explanation is a decision with what people ask about it.
type Explanation struct {
	Decision policy.Decision `json:"decision"`
	// Failure says why the policy did not come to a decision of its own; "" = it did.
	Failure string `json:"failure,omitempty"`
	// Title and Description are those of the METADATA of the rule that decided.
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Where       string `json:"where,omitempty"` // file:row of that rule; "" = no rule did
	// Facts are what that rule and the rules that it asks have read.
	Facts []Fact `json:"facts"`
	// Whole says why it is not known what would be allowed; see Outline.
	Whole string `json:"whole,omitempty"`
	// Ways are the verdicts other than a denial that other arguments of the same
	// principal and tool would get, and what of their conditions does not hold.
	Ways []Way `json:"ways,omitempty"`
	// Trace is the evaluation, step by step, when it was asked for.
	Trace string `json:"trace,omitempty"`
}

// Fact is something that a rule has looked at.
type Fact struct {
	Path  string          `json:"path"`            // in words of Rego: input.arguments.amount
	Value json.RawMessage `json:"value,omitempty"` // nil = there is nothing
}

// Way is a verdict that is there to be had.
type Way struct {
	Decision policy.Decision `json:"decision"`
	// Lacking are the conditions that do not hold for the call, Open those of
	// which that cannot be said.
	Lacking []string `json:"lacking"`
	Open    []string `json:"open,omitempty"`
}

// Explain judges in as e does, and evaluates it once more, whole and
// watched, to say why: it is for people, and costs many times as much. An error
// means that there is nothing to explain; a policy that fails is explained.
func Explain(ctx context.Context, e *rego.Engine, in *policy.Input, trace bool) (Explanation, error) {
	input, err := e.Input(in)
	if err != nil {
		return Explanation{}, fmt.Errorf("explaining: %w", err)
	}
	var out Explanation
	if out.Decision, err = e.Decide(ctx, in); err != nil {
		out.Failure = rego.Cause(err)
	}
	w := &watcher{engine: e, decision: out.Decision, input: input, owner: map[uint64]*ast.Rule{}, read: map[*ast.Rule][]ast.Ref{}, asked: map[*ast.Rule][]*ast.Rule{}}
	tracers, steps := []topdown.QueryTracer{w}, topdown.NewBufferTracer()
	if trace {
		tracers = append(tracers, steps)
	}
	if err := e.Trace(ctx, in, tracers...); err != nil && out.Failure == "" {
		out.Failure = rego.Cause(err)
	}
	out.Trace = prettyTrace(*steps)
	if w.decided != nil && out.Failure == "" {
		out.tell(w.decided)
	}
	if out.Facts, err = w.facts(); err != nil {
		return Explanation{}, fmt.Errorf("explaining: %w", err)
	}
	if in.Calls() && out.Decision.Effect != policy.Allow {
		out.Whole, out.Ways = ways(ctx, e, in, input)
	}
	return out, ctx.Err()
}

// tell takes over what the METADATA of a rule says.
func (x *Explanation) tell(r *ast.Rule) {
	x.Where = rego.WhereOf(r.Location)
	for _, a := range r.Annotations {
		if a.Title != "" {
			x.Title = a.Title
		}
		if a.Description != "" {
			x.Description = strings.TrimSpace(a.Description)
		}
	}
}

// watcher learns of an evaluation which rule read what, and which asked which.
type watcher struct {
	engine   *rego.Engine
	input    *ast.Term
	owner    map[uint64]*ast.Rule // :: query ⇒ the rule that it is part of
	read     map[*ast.Rule][]ast.Ref
	asked    map[*ast.Rule][]*ast.Rule
	decision policy.Decision
	decided  *ast.Rule // the rule that came to this decision
}

// Enabled implements topdown.QueryTracer.
func (w *watcher) Enabled() bool { return true }

// Config implements topdown.QueryTracer: names stand for values.
func (w *watcher) Config() topdown.TraceConfig { return topdown.TraceConfig{PlugLocalVars: true} }

// TraceEvent implements topdown.QueryTracer.
func (w *watcher) TraceEvent(e topdown.Event) {
	rule, isRule := e.Node.(*ast.Rule)
	switch e.Op {
	case topdown.EnterOp:
		if !isRule {
			rule = w.owner[e.ParentID]
		}
		w.owner[e.QueryID] = rule
	case topdown.ExitOp:
		if isRule && rego.Decides(rule, &w.decision) {
			w.decided = rule
		}
	case topdown.EvalOp:
		if expr, ok := e.Node.(*ast.Expr); ok && w.owner[e.QueryID] != nil {
			w.look(w.owner[e.QueryID], expr, e.Locals)
		}
	}
}

// look takes in the references of an expression, names replaced by what they
// stand for at that moment. One that goes on with something unknown ends there.
func (w *watcher) look(rule *ast.Rule, expr *ast.Expr, locals *ast.ValueMap) {
	ast.WalkRefs(expr, func(r ast.Ref) bool {
		switch {
		case r.HasPrefix(ast.InputRootRef):
			w.read[rule] = append(w.read[rule], w.known(r, locals))
		case r.HasPrefix(ast.DefaultRootRef):
			if asked := w.engine.Compiler().GetRulesForVirtualDocument(r); len(asked) > 0 {
				w.asked[rule] = append(w.asked[rule], asked...)
			} else if full := w.known(r, locals); len(full) == len(r) { // what is left of it may be very large
				w.read[rule] = append(w.read[rule], full)
			}
		}
		return false
	})
}

// known is the part of r that is known: names, and members of input that stand
// within, are replaced by their values.
func (w *watcher) known(r ast.Ref, locals *ast.ValueMap) ast.Ref {
	out := ast.Ref{r[0]}
	for _, t := range r[1:] {
		v := t.Value
		switch inner := v.(type) {
		case ast.Var:
			if v = nil; locals != nil {
				v = locals.Get(inner)
			}
		case ast.Ref:
			if v = nil; inner.HasPrefix(ast.InputRootRef) {
				full := w.known(inner, locals)
				if found, err := w.input.Value.Find(full[1:]); err == nil && len(full) == len(inner) {
					v = found
				}
			}
		}
		if v == nil || !ast.IsScalar(v) {
			return out
		}
		out = append(out, ast.NewTerm(v))
	}
	return out
}

// facts are what the rule that decided has read, or where none did, every rule:
// first what is about the call, then what is about the policy.
func (w *watcher) facts() ([]Fact, error) {
	rules := map[*ast.Rule]bool{}
	var take func(r *ast.Rule)
	take = func(r *ast.Rule) {
		if !rules[r] {
			rules[r] = true
			for _, next := range w.asked[r] {
				take(next)
			}
		}
	}
	if w.decided != nil {
		take(w.decided)
	}
	refs := map[string]ast.Ref{}
	for r, read := range w.read {
		for _, ref := range read {
			if rules[r] || w.decided == nil {
				refs[ref.String()] = ref
			}
		}
	}
	facts := []Fact{}
	for _, path := range slices.SortedFunc(maps.Keys(refs), func(a, b string) int {
		return cmp.Or(strings.Compare(b[:1], a[:1]), strings.Compare(a, b))
	}) {
		longer := func(other ast.Ref) bool { return len(other) > len(refs[path]) && other.HasPrefix(refs[path]) }
		if slices.ContainsFunc(slices.Collect(maps.Values(refs)), longer) {
			continue // what was read of it says more
		}
		raw, err := w.find(refs[path])
		if err != nil {
			return nil, err
		}
		facts = append(facts, Fact{path, raw})
	}
	return facts, nil
}

// find returns the value at ref as JSON, nil where there is none.
func (w *watcher) find(ref ast.Ref) (json.RawMessage, error) {
	root := w.engine.Data()
	if ref[0].Equal(ast.InputRootDocument) {
		root = w.input.Value
	}
	found, err := root.Find(ref[1:])
	if err != nil {
		return nil, nil //nolint:nilerr // the only error is that nothing is there
	}
	value, err := ast.JSON(found)
	if err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// ways finds what of the same tool the same principal may do, or may ask people
// for. It says why when that is not known.
func ways(ctx context.Context, e *rego.Engine, in *policy.Input, input *ast.Term) (whole string, ways []Way) {
	o, err := OutlineOf(ctx, e, in.Principal, in.Tool)
	if err != nil {
		return err.Error(), nil
	}
	for _, b := range o.Branches {
		if b.Decision.Effect == policy.Deny {
			continue
		}
		way := Way{Decision: b.Decision, Lacking: []string{}}
		way.Lacking, way.Open = unmet(ctx, b.When, input)
		for _, stronger := range o.Branches {
			if stronger.Decision.Effect.Compare(b.Decision.Effect) <= 0 || stronger.Idle || o.Exclusive {
				continue
			}
			if lacking, open := unmet(ctx, stronger.When, input); len(lacking)+len(open) == 0 {
				own := func(condition string) bool { return slices.Contains(b.When, condition) }
				way.Lacking = append(way.Lacking, opposite(slices.DeleteFunc(slices.Clone(stronger.When), own)))
			}
		}
		if len(way.Lacking)+len(way.Open) > 0 {
			ways = append(ways, way)
		}
	}
	slices.SortStableFunc(ways, func(a, b Way) int {
		return cmp.Or(cmp.Compare(a.Decision.Effect, b.Decision.Effect), len(a.Lacking)-len(b.Lacking)) // allow before hold
	})
	return o.Whole, ways
}

// unmet gives the conditions that do not hold for input. Conditions that share a
// variable cannot be told apart; they are open unless all of when holds.
func unmet(ctx context.Context, when []string, input *ast.Term) (lacking, open []string) {
	lacking = []string{}
	for _, condition := range when {
		switch holds, err := holds(ctx, condition, input); {
		case err != nil:
			open = append(open, condition)
		case !holds:
			lacking = append(lacking, condition)
		}
	}
	if len(lacking) == 0 && len(open) > 0 {
		if all, err := holds(ctx, strings.Join(when, "; "), input); err == nil && all {
			open = nil
		}
	}
	return lacking, open
}

// holds reports whether a condition of an Outline holds for input; an error
// means that it is no Rego that stands for itself.
func holds(ctx context.Context, condition string, input *ast.Term) (bool, error) {
	m, err := ast.ParseModule("condition", "package condition\nimport rego.v2\nholds if { "+condition+" }")
	if err != nil {
		return false, err
	}
	c := rego.NewCompiler()
	if c.Compile(map[string]*ast.Module{"condition": m}); c.Failed() {
		return false, c.Errors
	}
	rs, err := opa.New(opa.Compiler(c), opa.Query("data.condition.holds"), opa.ParsedInput(input.Value)).Eval(ctx)
	return rs.Allowed(), err
}
