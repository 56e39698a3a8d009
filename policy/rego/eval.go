package rego

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// Rules of denials that no policy wrote.
const (
	RuleError     = "policy_error"     // the policy failed: Decide returns the error too
	RuleUndefined = "policy_undefined" // the policy says nothing about the call
)

var errUndefined = errors.New("undefined")

// errTimeout reports an evaluation that took longer than the engine's timeout;
// one that the caller's context stopped gives the context's error.
var errTimeout = errors.New("evaluation took too long")

// Decide judges in. The Decision is always usable and belongs to the caller;
// an error, which is for logs, comes only with a denial whose rule is
// RuleError. A policy that says nothing denies with RuleUndefined and no error.
//
// The first call of a principal and a tool is evaluated whole, and what is left
// of its time then serves to find out whether every call gets the same verdict.
// That takes well below a millisecond once, which is less than handing it to
// somebody else would need in code to own, stop and wait for.
func (e *Engine) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	if in == nil || !in.Principal.Valid() {
		return e.failed(errors.New("no principal"))
	}
	if !in.Calls() {
		return e.close(e.evaluate(ctx, in, nil, e.timeout))
	}
	known, err := e.pairs.find(&in.Principal, &in.Tool)
	if err != nil {
		return e.failed(err)
	}
	looked := known.constant.Load()
	if looked != nil && looked.verdict != nil {
		if d := looked.verdict; d.Approval != nil || d.Limit != nil || d.Redact != nil {
			return cloneDecision(d), nil
		}
		return *looked.verdict, nil
	}
	begin := time.Now()
	d, err := e.close(e.evaluate(ctx, in, known, e.timeout))
	if within := e.timeout - time.Since(begin); looked == nil && !known.forgotten && within > 0 {
		_, _ = e.constantOf(ctx, known, within) // what it finds is for later calls
	}
	return d, err
}

// Meters returns the meters of calls of t, data.usage[exposed], in the order of their
// names; nil for none. The slice is shared and must not be written to.
func (e *Engine) Meters(t policy.Tool) []policy.Meter { return e.program.meters[t.Exposed] }

// Visible reports whether p may see t, and so may ask to call it. The rule
// data.toolgate.visible decides, evaluated with input {principal, tool} once for
// each pair: undefined and false hide. When the rule fails or is no boolean,
// Visible returns false and an error; it asks again the next time.
//
// A policy without that rule shows every tool but those whose constant verdict
// is a denial.
func (e *Engine) Visible(ctx context.Context, p policy.Principal, t policy.Tool) (bool, error) {
	if !p.Valid() {
		return false, errors.New("judging visibility: no principal")
	}
	known, err := e.pairs.find(&p, &t)
	if err != nil {
		return false, fmt.Errorf("judging visibility: %w", err)
	}
	if shown := known.shown.Load(); shown != nil {
		return *shown, nil
	}
	shown, err := e.show(ctx, known)
	if err != nil {
		return false, fmt.Errorf("judging visibility: %w", err)
	}
	known.shown.Store(&shown)
	return shown, nil
}

// DefinesVisible reports whether the policy has the rule data.toolgate.visible.
func (e *Engine) DefinesVisible() bool { return e.program.visible != nil }

func (e *Engine) show(ctx context.Context, known *pair) (bool, error) {
	if e.program.visible == nil {
		c, err := e.constantOf(ctx, known, e.timeout)
		return err == nil && (c.verdict == nil || c.verdict.Effect != policy.Deny), err
	}
	v, err := e.eval(ctx, e.program.visible, e.timeout, func(topdown.Cancel) (ast.Value, error) {
		return ast.NewObject([2]*ast.Term{keyPrincipal, known.principalTerm}, [2]*ast.Term{keyTool, known.toolTerm}), nil
	})
	if errors.Is(err, errUndefined) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	shown, err := boolean(v)
	if err != nil {
		return false, fmt.Errorf("%s %w", visiblePath, err)
	}
	return shown, nil
}

// close makes the denial of what did not come to a decision.
func (e *Engine) close(d policy.Decision, err error) (policy.Decision, error) {
	switch {
	case errors.Is(err, errUndefined):
		return policy.Decision{Effect: policy.Deny, Rule: RuleUndefined, Revision: e.revision,
			Reason: "the policy allows nothing of this kind"}, nil
	case err != nil:
		return e.failed(err)
	}
	d.Revision, d.Labels = e.revision, e.program.labels[d.Rule]
	return d, nil
}

// failed is the denial for err. The reason is for the agent: it names no cause.
func (e *Engine) failed(err error) (policy.Decision, error) {
	return policy.Decision{Effect: policy.Deny, Rule: RuleError, Revision: e.revision,
		Reason: "the policy could not judge this call"}, fmt.Errorf("judging call: %w", err)
}

// evaluate judges in by evaluating the whole policy; known is nil for a request
// that calls no tool. Reading the arguments counts as evaluation.
func (e *Engine) evaluate(ctx context.Context, in *policy.Input, known *pair, within time.Duration) (policy.Decision, error) {
	v, err := e.eval(ctx, &e.program.decision, within, func(c topdown.Cancel) (ast.Value, error) {
		return inputTerm(in, known, c)
	})
	if err != nil {
		return policy.Decision{}, err
	}
	return e.program.form.decode(v)
}

// eval evaluates one prepared query to its only value, with the input that read
// gives, in at most the time within. A value that comes later is an error.
func (e *Engine) eval(ctx context.Context, q *rego.PreparedEvalQuery, within time.Duration,
	read func(topdown.Cancel) (ast.Value, error), options ...rego.EvalOption) (v ast.Value, err error) {
	err = bounded(ctx, within, func(c topdown.Cancel) error {
		input, err := read(c)
		if err != nil {
			return err
		}
		rs, err := q.Eval(ctx, append(options,
			rego.EvalParsedInput(input),
			rego.EvalExternalCancel(c),
			rego.EvalMetrics(metrics.NoOp()),
			rego.EvalInterQueryBuiltinValueCache(e.program.patterns))...)
		if err != nil {
			return err
		}
		v, err = onlyValue(rs)
		return err
	})
	return v, err
}

// onlyValue returns the one value of a query with keepTerm.
func onlyValue(rs rego.ResultSet) (ast.Value, error) {
	switch {
	case len(rs) == 0:
		return nil, errUndefined
	case len(rs) > 1 || len(rs[0].Expressions) != 1:
		return nil, errors.New("more than one result")
	}
	t, ok := rs[0].Expressions[0].Value.(*ast.Term)
	if !ok {
		return nil, errors.New("result is no term")
	}
	return t.Value, nil
}

// bounded runs f with a cancel that fires after the time within or when ctx
// ends, and turns a panic of f into an error. What f returns after that time is
// errTimeout. A timer instead of a goroutine costs a tenth of a microsecond.
func bounded(ctx context.Context, within time.Duration, f func(topdown.Cancel) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("evaluation panicked: %v", p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	c := topdown.NewCancel()
	begin := time.Now()
	timer := time.AfterFunc(within, c.Cancel)
	defer timer.Stop()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, c.Cancel)()
	}
	err = f(c)
	switch {
	case ctx.Err() != nil && topdown.IsCancel(err):
		return ctx.Err()
	case time.Since(begin) >= within || topdown.IsCancel(err):
		return fmt.Errorf("%w: more than %v", errTimeout, within)
	}
	return err
}

// cloneDecision copies what d points to, so that no caller can change what the
// next one is served.
func cloneDecision(d *policy.Decision) policy.Decision {
	out := *d
	if d.Approval != nil {
		a := *d.Approval
		a.Roles, a.Each = slices.Clone(a.Roles), maps.Clone(a.Each)
		out.Approval = &a
	}
	if d.Limit != nil {
		l := *d.Limit
		out.Limit = &l
	}
	out.Redact = append([]string(nil), d.Redact...)
	return out
}
