package proxy

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/signal"
)

// decide asks the policy about a tool call, with what the caller has used so far. A
// meter that cannot be read refuses the call.
func (t *toolCall) decide(ctx context.Context) *Failure {
	t.usage.use, t.usage.readings = nil, nil
	if engine, ok := t.engine.(Metered); ok {
		if meters := engine.Meters(t.subject); len(meters) > 0 {
			err := errors.New("the gate has no store of usage")
			if store := t.gate.opts.Usage; store != nil {
				if t.usage.use, err = limit.Measure(t.principal, t.subject.Exposed, t.digest, t.body, meters); err == nil {
					t.usage.readings, err = store.Read(ctx, t.usage.use)
				}
			}
			if err != nil {
				return t.uncounted(ctx, "reading what has been used", err)
			}
		}
	}
	t.input = policy.Input{Tool: t.subject, Arguments: t.body, Usage: t.usage.readings}
	t.judge(ctx, &t.input)
	if t.decision.Effect == policy.Allow || t.decision.Effect == policy.Hold {
		return nil
	}
	return t.deniedCall()
}

// judge is the origin of the policy's denials.
var judge = signal.ModuleRef{Tier: 5, Module: "policy", Function: "decide"}

// ruleFailed is the rule of a decision that the policy could not make.
const ruleFailed = "policy_error"

// judge asks the policy about in, of which it fills in what all requests have. A
// policy that fails denies.
func (c *call) judge(ctx context.Context, in *policy.Input) {
	in.Principal = c.principal
	in.Request = policy.Request{ID: c.id, Transport: c.in.Transport, Era: c.in.Era, TraceID: c.traceID, Time: c.asOf.UTC(), Tags: c.in.Tags}
	d, err := c.engine.Decide(ctx, in)
	c.decision, c.asked = d, in
	if err != nil {
		what := "request"
		if c.method == "" {
			what = "call"
		}
		c.gate.opts.Log.Error("judging a "+what, "decision", c.decisionID, "tool", in.Tool.Exposed, "method", c.in.Message.Method, "error", err)
		c.decision = policy.Decision{Effect: policy.Deny, Rule: ruleFailed, Reason: "the policy could not judge this " + what, Revision: c.engine.Revision()}
	}
	c.obligations = judgement.EncodeObligations(&c.decision)
}

// denied refuses a request for the decision's rule.
func (c *call) denied(reason string) *Failure {
	c.decision.Effect = policy.Deny
	said := signal.PolicyError(cmp.Or(c.decision.Reason, "the policy gives no reason"), judge, map[string]any{"rule": c.decision.Rule, "revision": c.decision.Revision})
	f := c.wrap(signal.CodePolicyDenied, said, reason).with("rule", c.decision.Rule).
		about(c.decision.Rule, &c.principal).remedy(c.decision.Remedy)
	if lacks := c.decision.Scopes; lacks != nil && c.principal.Issuer != "" { // who else could get a token with them
		f.Scopes = slices.Compact(slices.Sorted(slices.Values(slices.Concat(lacks, c.principal.Scopes))))
	}
	return f
}
