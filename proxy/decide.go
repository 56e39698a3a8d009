package proxy

import (
	"cmp"
	"context"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// decide asks the policy about a tool call, with what the caller has used so far.
func (t *toolCall) decide(ctx context.Context) *Failure {
	if f := t.readUsage(ctx); f != nil {
		return f
	}
	t.judge(ctx, &policy.Input{Tool: t.subject, Arguments: t.body, Usage: t.usage.readings})
	switch t.decision.Effect {
	case policy.Allow, policy.Hold:
		return nil
	}
	return t.denied(t.decision.Reason)
}

// judge is the origin of the policy's denials.
var judge = signal.ModuleRef{Tier: 5, Module: "policy", Function: "decide"}

// ruleFailed is the rule of a decision that the policy could not make.
const ruleFailed = "policy_error"

// judge asks the policy about in, of which it fills in what all requests have. A
// policy that fails denies.
func (c *call) judge(ctx context.Context, in *policy.Input) {
	in.Principal = c.principal
	in.Request = policy.Request{ID: c.id, Transport: c.in.Transport, Era: c.in.Era, TraceID: c.traceID, Time: c.asOf.UTC()}
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
}

// denied refuses a request for the decision's rule.
func (c *call) denied(reason string) *Failure {
	c.decision.Effect = policy.Deny
	said := signal.PolicyError(cmp.Or(c.decision.Reason, "the policy gives no reason"), judge, map[string]any{"rule": c.decision.Rule, "revision": c.decision.Revision})
	return c.wrap(signal.CodePolicyDenied, said, reason).with("rule", c.decision.Rule).remedy(c.decision.Remedy)
}
