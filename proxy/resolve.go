package proxy

import (
	"context"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// resolve finds the tool that is called. A call of the gate's own tool, which no
// server has, leaves the road here.
func (t *toolCall) resolve(ctx context.Context) *Failure {
	f := t.findTool(ctx)
	if t.name == StatusName && t.subject.Exposed == "" { // no server has it, or had it before a wait
		return t.leave(ctx)
	}
	return f
}

// findTool finds the tool of the call as this principal sees it. A tool that does
// not exist and one that is hidden get the same answer.
func (t *toolCall) findTool(ctx context.Context) *Failure {
	tool, ok := t.gate.opts.Upstreams.View(ctx, t.in.Route, t.from()).Lookup(t.name)
	if !ok {
		return t.unknownTool()
	}
	t.subject = toolInput(tool)
	if !t.gate.visible(ctx, t.engine, t.principal, t.subject) {
		return t.unknownTool()
	}
	t.tool, t.server = tool, tool.Server
	if tool.Quarantine != "" {
		return t.fail(signal.CodeToolQuarantined, tool.Quarantine)
	}
	if v := t.in.Message.Variants; v != nil && !tool.AllowVariants {
		return t.ambiguous(v)
	}
	return nil
}

func (t *toolCall) unknownTool() *Failure {
	return t.fail(signal.CodeToolNotFound, fmt.Sprintf("unknown tool %q", t.name)).
		remedy("list the tools with tools/list")
}

// ambiguous refuses keys that some JSON parsers take for the same.
func (c *call) ambiguous(v *jsonrpc.Variants) *Failure {
	return c.fail(signal.CodeEnvelopeInvalid, fmt.Sprintf("arguments name %q and %q, which differ only by case", v.First, v.Second)).
		with("pointer", v.Pointer).remedy("send one of the two")
}

// List returns the tools that who sees on the route of in, in catalogue order,
// and StatusTool at the end for principals with tickets. From in it takes the
// route, session, capabilities, level and peers. It asks the same question as
// the resolve stage, so that what is not listed cannot be called and the
// reverse. It waits for upstreams that are still starting.
func (g *Gate) List(ctx context.Context, in *Call, who policy.Principal) []*registry.Tool {
	engine, view := *g.policy.Load(), g.view(ctx, in, who)
	var seen []*registry.Tool
	for _, t := range view.Tools() {
		if g.visible(ctx, engine, who, toolInput(t)) {
			seen = append(seen, t)
		}
	}
	if g.offersStatus(ctx, view, who) {
		seen = append(seen, StatusTool())
	}
	return seen
}

// Find returns the one tool that List gives under name, nil when there is none.
func (g *Gate) Find(ctx context.Context, in *Call, who policy.Principal, name string) *registry.Tool {
	view := g.view(ctx, in, who)
	t, ok := view.Lookup(name)
	if !ok && name == StatusName && g.offersStatus(ctx, view, who) {
		return StatusTool()
	}
	if !ok || t.Quarantine != "" || !g.visible(ctx, *g.policy.Load(), who, toolInput(t)) {
		return nil
	}
	return t
}

// view returns the tools of the route of in, as who's connections offer them.
func (g *Gate) view(ctx context.Context, in *Call, who policy.Principal) registry.View {
	c := &call{gate: g, in: in, principal: who}
	return g.opts.Upstreams.View(ctx, in.Route, c.from())
}

// visible hides a tool when the policy says that every call is denied, and
// when the policy fails.
func (g *Gate) visible(ctx context.Context, engine Policy, p policy.Principal, t policy.Tool) bool {
	ok, err := engine.Visible(ctx, p, t)
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "tool", t.Exposed, "error", err)
		return false
	}
	return ok
}

// toolInput is what a policy knows of t.
func toolInput(t *registry.Tool) policy.Tool {
	return policy.Tool{
		Server: t.Server, Name: t.Name, Exposed: t.Exposed,
		Risk: t.Risk, Annotations: t.Annotations, Fingerprint: t.Fingerprint,
	}
}
