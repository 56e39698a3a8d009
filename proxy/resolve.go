package proxy

import (
	"context"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// resolve finds the tool of the call as this principal sees it. A tool that does
// not exist and one that is hidden get the same answer. A call of the gate's own
// tool, where no server has one of its name, leaves the road here.
func (t *toolCall) resolve(ctx context.Context) *Failure {
	view := t.gate.opts.Upstreams.View(ctx, t.in.Route, t.from(t.server))
	tool, ok := view.Lookup(t.name)
	if t.in.resumed != nil { // it belongs to no client, and so is offered what all are
		tool, ok = view.Bound(t.name, t.in.resumed.Fingerprint)
	}
	switch {
	case !ok && t.name == StatusName && t.ticket.ID == "":
		return t.leave(ctx)
	case !ok:
		return t.unknownTool(ctx)
	}
	if t.subject, ok = t.gate.visible(ctx, t.engine, t.principal, tool); !ok {
		return t.unknownTool(ctx)
	}
	t.tool, t.server = tool, tool.Server
	if tool.Quarantine != "" {
		return t.fail(signal.CodeToolQuarantined, tool.Refusal()).remedy(useAnother)
	}
	if v := t.in.Message.Variants; v != nil && !tool.AllowVariants {
		return t.ambiguous(v)
	}
	return t.stop(ctx)
}

// ambiguous refuses keys that some JSON parsers take for the same.
func (c *call) ambiguous(v *jsonrpc.Variants) *Failure {
	return c.fail(signal.CodeEnvelopeInvalid, fmt.Sprintf("arguments name %q and %q, which differ only by case", v.First, v.Second)).
		with("pointer", v.Pointer).remedy("send one of the two")
}

// visible returns what a policy knows of t, and whether p sees it. It hides a tool
// when the policy says that every call is denied, and when the policy fails.
func (g *Gate) visible(ctx context.Context, engine Policy, p policy.Principal, t *registry.Tool) (policy.Tool, bool) {
	subject := subjectOf(t)
	ok, err := engine.Visible(ctx, p, subject)
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "tool", t.Exposed, "error", err)
		return subject, false
	}
	return subject, ok
}

// subjectOf returns what a policy knows of t.
func subjectOf(t *registry.Tool) policy.Tool {
	return policy.Tool{
		Server: t.Server, Name: t.Name, Exposed: t.Exposed,
		Risk: t.Risk, Annotations: t.Annotations, Fingerprint: t.Fingerprint,
	}
}
