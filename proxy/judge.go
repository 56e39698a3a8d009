package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// resolve finds the tool as this principal sees it. A call of our own tool, which
// no server has, leaves the road here.
func resolve(ctx context.Context, g *Gate, p *passage) *Failure {
	tool := g.lookup(ctx, p)
	if tool == nil && p.name == StatusName && p.tool == nil { // not judged again after a wait
		return g.leave(ctx, p)
	}
	return g.see(ctx, p, tool)
}

// lookup gives the tool that the route has under the name of the call, nil for
// none.
func (g *Gate) lookup(ctx context.Context, p *passage) *registry.Tool {
	tool, ok := g.opts.Upstreams.View(ctx, p.in.Route, g.from(p)).Lookup(p.name)
	if !ok {
		return nil
	}
	return tool
}

// see makes tool the one that is called, if the principal may see it. A tool that
// does not exist and one that is hidden give the same answer.
func (g *Gate) see(ctx context.Context, p *passage, tool *registry.Tool) *Failure {
	if tool == nil {
		return p.unknownTool()
	}
	p.subject = toolInput(tool)
	if !g.visible(ctx, p.engine, p.principal, p.subject) {
		return p.unknownTool()
	}
	p.tool = tool
	if tool.Quarantine != "" {
		return p.fail(signal.CodeToolQuarantined, tool.Quarantine)
	}
	if v := p.in.Message.Variants; v != nil && !tool.AllowVariants {
		return p.twoReadings(v)
	}
	return nil
}

func (p *passage) unknownTool() *Failure {
	return p.fail(signal.CodeToolNotFound, fmt.Sprintf("no tool is called %q", p.name)).
		remedy("list the tools with tools/list")
}

// twoReadings refuses keys that parsers may take for one.
func (p *passage) twoReadings(v *jsonrpc.Variants) *Failure {
	return p.fail(signal.CodeEnvelopeInvalid, fmt.Sprintf("arguments name %q and %q, which differ only by case", v.First, v.Second)).
		with("pointer", v.Pointer).remedy("send one of the two")
}

// decide asks the policy about a tool call, with what the caller has used so far.
func decide(ctx context.Context, g *Gate, p *passage) *Failure {
	if f := g.gauge(ctx, p); f != nil {
		return f
	}
	g.judge(ctx, p, p.input(), "call")
	switch p.decision.Effect {
	case policy.Allow, policy.Hold:
		return nil
	}
	return p.denied()
}

// ruleFailed is the rule of a decision that the policy could not make.
const ruleFailed = "policy_error"

// judge asks the policy about in, a call or another request. A policy that
// fails denies.
func (g *Gate) judge(ctx context.Context, p *passage, in *policy.Input, what string) {
	d, err := p.engine.Decide(ctx, in)
	p.decision, p.asked = d, in
	if err != nil {
		g.opts.Log.Error("judging a "+what, "decision", p.decisionID, "tool", p.subject.Exposed, "method", p.in.Message.Method, "error", err)
		p.decision = policy.Decision{Effect: policy.Deny, Rule: ruleFailed, Reason: "the policy could not judge this " + what, Revision: p.engine.Revision()}
	}
}

// denied refuses what the policy does not let pass.
func (p *passage) denied() *Failure { return p.deniedFor(p.decision.Reason) }

func (p *passage) deniedFor(reason string) *Failure {
	p.decision.Effect = policy.Deny
	return p.fail(signal.CodePolicyDenied, reason).
		with("rule", p.decision.Rule).remedy(p.decision.Remedy)
}

// request is what a policy may know of the envelope.
func (p *passage) request() policy.Request {
	return policy.Request{
		ID: p.id, Transport: p.in.Transport, Era: p.in.Era, TraceID: p.traceID, Time: p.moment.UTC(),
	}
}

func (p *passage) input() *policy.Input {
	return &policy.Input{
		Principal: p.principal,
		Tool:      p.subject,
		Arguments: p.args,
		Request:   p.request(),
		Usage:     p.usage,
	}
}

// spend takes quota, after the call has been found allowed: what is denied
// costs nobody a token.
func spend(_ context.Context, g *Gate, p *passage) *Failure {
	over := g.opts.Limiter.Spend(p.now, p.principal, p.subject, p.decision.Limit)
	if over == nil {
		return nil
	}
	reason := fmt.Sprintf("the limit of %s for %s is used up", over.Limit, over.Scope)
	f := p.fail(signal.CodeRateLimited, reason).with("limit", over.Limit).with("scope", over.Scope).with("rule", over.Rule)
	f.RetryAfter = over.RetryAfter
	wait := (f.RetryAfter + time.Millisecond - 1).Milliseconds() // no earlier than retry_after_ms
	return f.remedy(fmt.Sprintf("call again in %d ms", wait))
}

// validate holds the arguments to the tool's schema. A validator that fails
// refuses the call.
func validate(_ context.Context, g *Gate, p *passage) *Failure {
	if p.tool.Input == nil {
		return p.fail(signal.CodeToolQuarantined, "the tool has no usable schema")
	}
	faults, err := p.tool.Input.Validate(p.args)
	if err != nil {
		g.opts.Log.Error("validating arguments", "decision", p.decisionID, "tool", p.subject.Exposed, "error", err)
		return p.fail(signal.CodeInternal, "")
	}
	if len(faults) == 0 {
		return nil
	}
	return p.fail(signal.CodeSchemaMismatch, faults[0].String()).with("faults", faults).
		remedy("correct the arguments at the pointers given and call again")
}
