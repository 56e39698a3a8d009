package rego

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// DecideFully is Decide without what was worked out before the call.
func (e *Engine) DecideFully(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	known, err := newPair(&in.Principal, &in.Tool, e.program.facts)
	if err != nil {
		return e.failed(err)
	}
	return e.close(e.evaluate(ctx, in, known, e.timeout))
}

// Whole evaluates the policy for an input that was read before, as a later call of p
// and t is evaluated, and decodes nothing.
func (e *Engine) Whole(ctx context.Context, p policy.Principal, t policy.Tool, input ast.Value) func() (ast.Value, error) {
	known, err := newPair(&p, &t, e.program.facts)
	if err != nil {
		return func() (ast.Value, error) { return nil, err }
	}
	e.keepFor(ctx, known, e.timeout)
	q, k := e.program.decision, known.kept.Load()
	if k.verdicts != nil {
		q = e.program.rest
	}
	return func() (ast.Value, error) {
		return q.run(ctx, input, k.values, topdown.NewCancel())
	}
}

// Constant reports whether the verdict on p and t is the same for all calls.
func (e *Engine) Constant(ctx context.Context, p policy.Principal, t policy.Tool) bool {
	known, err := e.pairs.find(&p, &t)
	if err != nil {
		return false
	}
	c, err := e.constantOf(ctx, known, e.timeout)
	return err == nil && c.verdict != nil
}

// Remembered is the number of pairs in memory.
func (e *Engine) Remembered() int {
	e.pairs.mu.Lock()
	defer e.pairs.mu.Unlock()
	return len(e.pairs.young) + len(e.pairs.old)
}

// Bounded runs f as an evaluation.
func (e *Engine) Bounded(ctx context.Context, f func()) error {
	return bounded(ctx, e.timeout, func(topdown.Cancel) error { f(); return nil })
}

// RoundTrip parses one JSON value as arguments are parsed and writes it again.
func RoundTrip(raw json.RawMessage) (json.RawMessage, error) {
	t, err := readJSON(raw, nil, topdown.NewCancel())
	if err != nil {
		return nil, err
	}
	v, err := ast.ValueToInterface(t.Value, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// Poison makes the engine remember d as the verdict of every call of in's pair.
func (e *Engine) Poison(in *policy.Input, d policy.Decision) error {
	known, err := e.pairs.find(&in.Principal, &in.Tool)
	if err != nil {
		return err
	}
	known.constant.Store(&constant{verdict: &d})
	return nil
}

// Remembers reports whether the engine keeps what p sees.
func (e *Engine) Remembers(p policy.Principal) bool {
	s := e.sights.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	rights, _ := e.Rights(p)
	return s.rights.Contains(rights)
}

// Kept are the rules that were evaluated once for the policy, by their last names,
// sorted, and those that were evaluated once for the principal and the tool of in.
func (e *Engine) Kept(in *policy.Input) (always, ofPair []string) {
	values := e.program.kept
	if known, err := e.pairs.find(&in.Principal, &in.Tool); err == nil && known.kept.Load() != nil {
		values = known.kept.Load().values
	}
	for i, v := range values {
		switch k := e.program.invariants.rules[i]; {
		case v == nil:
		case k.ofPair:
			ofPair = append(ofPair, string(k.ref[len(k.ref)-1].Value.(ast.String)))
		default:
			always = append(always, string(k.ref[len(k.ref)-1].Value.(ast.String)))
		}
	}
	slices.Sort(always)
	slices.Sort(ofPair)
	return always, ofPair
}

// Keeps reports whether an evaluation keeps v as the result of a rule.
func Keeps(v *ast.Term) (kept bool) {
	defer func() { kept = recover() == nil }()
	new(memo).Put(ast.MustParseRef("data.toolgate.rule"), v)
	return true
}

// MaxLate is how many evaluations may go on beyond their time.
const MaxLate = maxLate

// Late is how many do.
func Late() int { return int(late.Load()) }

// Overrun runs f as an evaluation whose time is over at once.
func (e *Engine) Overrun(f func()) error {
	return bounded(context.Background(), time.Nanosecond, func(topdown.Cancel) error { f(); return nil })
}

// TryAll is Try with every sample, those included that the policy cannot tell apart, and
// says how many samples Try leaves out.
func (e *Engine) TryAll(ctx context.Context) (leftOut int, err error) {
	s, err := e.program.samples()
	if err != nil {
		return 0, err
	}
	all := samples{others: others, arguments: odd}
	for _, role := range append([]string{sampleRole}, e.Roles()...) {
		if err := e.tryRole(ctx, role, all); err != nil {
			return 0, err
		}
	}
	return len(others) + len(odd) - len(s.others) - len(s.arguments), nil
}
