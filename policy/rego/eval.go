package rego

import (
	"context"
	"errors"
	"fmt"
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

// errTimeout is what an evaluation that was stopped by the engine's own clock
// comes to; one that the caller's context stopped gives the context's error.
var errTimeout = errors.New("evaluation took too long")

// Decide judges in. The Decision is always usable and belongs to the caller;
// an error, which is for logs, comes only with a denial whose rule is
// RuleError. A policy that says nothing denies with RuleUndefined and no error.
func (e *Engine) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	if in == nil || !in.Principal.Valid() {
		return e.failed(errors.New("no principal"))
	}
	if in.Action != "" && in.Action != policy.ActionCall {
		d, err := e.judge(ctx, in)
		return e.close(d, err)
	}
	known, err := e.pair(ctx, &in.Principal, &in.Tool)
	if err != nil {
		return e.failed(err)
	}
	if known.verdict != nil {
		return cloneDecision(known.verdict), nil
	}
	if known.tree != nil {
		if d, err, ok := e.decideQuickly(ctx, in, known); ok {
			return e.close(d, err)
		}
	}
	d, err := e.evaluate(ctx, in, known)
	return e.close(d, err)
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

// judge evaluates a request that calls no tool, each time whole.
func (e *Engine) judge(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	subject, err := subjectMember(in)
	if err != nil {
		return policy.Decision{}, err
	}
	args, err := argumentsTerm(in.Arguments)
	if err != nil {
		return policy.Decision{}, err
	}
	answer, err := e.run(ctx, &e.program.decision, ast.NewObject(
		[2]*ast.Term{keyAction, ast.StringTerm(in.Action)},
		[2]*ast.Term{keyPrincipal, principalTerm(&in.Principal)},
		subject,
		[2]*ast.Term{keyArguments, args},
		[2]*ast.Term{keyRequest, requestTerm(&in.Request)},
	))
	if err != nil {
		return policy.Decision{}, err
	}
	return e.program.form.decode(answer)
}

func (e *Engine) evaluate(ctx context.Context, in *policy.Input, known *pair) (policy.Decision, error) {
	args, err := argumentsTerm(in.Arguments)
	if err != nil {
		return policy.Decision{}, err
	}
	input, err := known.input(in, args)
	if err != nil {
		return policy.Decision{}, err
	}
	answer, err := e.run(ctx, &e.program.decision, input)
	if err != nil {
		return policy.Decision{}, err
	}
	return e.program.form.decode(answer)
}

// input is what a policy sees of a call.
func (k *pair) input(in *policy.Input, args *ast.Term) (ast.Object, error) {
	members := append(make([][2]*ast.Term, 0, 6),
		[2]*ast.Term{keyAction, actionCall},
		[2]*ast.Term{keyPrincipal, k.principalTerm},
		[2]*ast.Term{keyTool, k.toolTerm},
		[2]*ast.Term{keyArguments, args},
		[2]*ast.Term{keyRequest, requestTerm(&in.Request)},
	)
	if in.Usage != nil {
		usage, err := usageTerm(in.Usage)
		if err != nil {
			return nil, err
		}
		members = append(members, [2]*ast.Term{keyUsage, usage})
	}
	return ast.NewObject(members...), nil
}

// run evaluates one prepared query to its only value. The clock that bounds it
// also runs while a busy machine gives the process no turn, so an evaluation
// that took too long is given one more chance: it has no effects to repeat.
func (e *Engine) run(ctx context.Context, q *rego.PreparedEvalQuery, input ast.Value) (ast.Value, error) {
	v, err := e.runOnce(ctx, q, input)
	if errors.Is(err, errTimeout) {
		v, err = e.runOnce(ctx, q, input)
	}
	return v, err
}

func (e *Engine) runOnce(ctx context.Context, q *rego.PreparedEvalQuery, input ast.Value) (v ast.Value, err error) {
	err = e.bounded(ctx, func(c topdown.Cancel) error {
		rs, err := q.Eval(ctx,
			rego.EvalParsedInput(input),
			rego.EvalExternalCancel(c),
			rego.EvalMetrics(metrics.NoOp()),
			rego.EvalInterQueryBuiltinValueCache(e.program.patterns))
		switch {
		case err != nil:
			return err
		case len(rs) == 0:
			return errUndefined
		case len(rs) > 1 || len(rs[0].Expressions) != 1:
			return errors.New("more than one result")
		}
		t, ok := rs[0].Expressions[0].Value.(*ast.Term)
		if !ok {
			return errors.New("result is no term")
		}
		v = t.Value
		return nil
	})
	return v, err
}

// bounded runs f with a cancel that fires when the engine's time is up or ctx
// ends, and turns a panic of f into an error. A timer instead of a goroutine
// per decision costs a tenth of a microsecond.
func (e *Engine) bounded(ctx context.Context, f func(topdown.Cancel) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("evaluation panicked: %v", p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	c := topdown.NewCancel()
	timer := time.AfterFunc(e.timeout, c.Cancel)
	defer timer.Stop()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, c.Cancel)()
	}
	err = f(c)
	switch {
	case err == nil || !topdown.IsCancel(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: more than %v", errTimeout, e.timeout)
}

// cloneDecision copies what d points to, so that no caller can change what the
// next one is served.
func cloneDecision(d *policy.Decision) policy.Decision {
	out := *d
	if d.Approval != nil {
		a := *d.Approval
		a.Roles = append([]string(nil), a.Roles...)
		out.Approval = &a
	}
	if d.Limit != nil {
		l := *d.Limit
		out.Limit = &l
	}
	out.Redact = append([]string(nil), d.Redact...)
	return out
}
