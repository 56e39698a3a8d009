package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// receive reads the parts of a tools/call. The arguments are the bytes that
// were decoded: nothing marshals them again.
func (t *toolCall) receive(context.Context) *Failure {
	m := t.in.Message
	if m == nil {
		return t.undecoded(t.in.Fault)
	}
	t.id = jsonrpc.IDText(m.ID)
	if m.Kind != jsonrpc.Request {
		return t.fail(signal.CodeEnvelopeInvalid, "tools/call needs an id")
	}
	name, ok := m.Param("name")
	if !ok {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name is missing")
	}
	if t.name, ok = jsonrpc.Text(name); !ok || t.name == "" {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name must be a string that is not empty")
	}
	t.body = json.RawMessage("{}")
	if args, ok := m.Param("arguments"); ok {
		if args[0] != '{' {
			return t.fail(signal.CodeEnvelopeInvalid, "params.arguments must be an object")
		}
		t.body = args
	}
	t.digest = digest(t.body)
	task, ok := m.Param("task") // MCP 2025-11-25, tasks
	switch {
	case ok && task[0] != '{':
		return t.fail(signal.CodeEnvelopeInvalid, "params.task must be an object")
	case ok && t.in.Session == "":
		return t.fail(signal.CodeEnvelopeInvalid, "a task belongs to a session, and this call has none")
	}
	t.task = task
	if meta, ok := m.Param("_meta"); ok {
		return t.receiveMeta(meta)
	}
	return nil
}

// isObject reports whether raw, a JSON value or nothing, is an object.
func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// textMember returns a string member of an object, "" when there is none.
func textMember(object json.RawMessage, key string) string {
	raw, _ := jsonrpc.Get(object, key)
	text, _ := jsonrpc.Text(raw)
	return text
}

// digest names judged bytes.
func digest(judged []byte) string {
	sum := sha256.Sum256(judged)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// receiveMeta stores the caller's _meta without the members of this hop.
func (c *call) receiveMeta(meta json.RawMessage) *Failure {
	if !isObject(meta) {
		return c.fail(signal.CodeEnvelopeInvalid, "params._meta must be an object")
	}
	var ours []jsonrpc.Change
	for key := range jsonrpc.Members(meta) {
		// The related task concerns the ends beyond this connection too.
		mcp := strings.HasPrefix(key, "io.modelcontextprotocol/") && key != "io.modelcontextprotocol/related-task"
		if mcp || key == "progressToken" || strings.HasPrefix(key, "io.toolgate/") {
			ours = append(ours, jsonrpc.Change{Name: key})
		}
	}
	var err error
	if c.meta, err = jsonrpc.Edit(meta, ours...); err != nil {
		return c.fail(signal.CodeEnvelopeInvalid, "params._meta cannot be read")
	}
	return nil
}

// undecoded refuses bytes that are no request.
func (c *call) undecoded(f *jsonrpc.Fault) *Failure {
	if f == nil {
		return c.fail(signal.CodeEnvelopeInvalid, "there is no message")
	}
	c.id = jsonrpc.IDText(f.ID)
	codes := map[jsonrpc.FaultKind]string{jsonrpc.Parse: signal.CodeEnvelopeParse, jsonrpc.TooLarge: signal.CodeEnvelopeTooLarge}
	return c.fail(cmp.Or(codes[f.Kind], signal.CodeEnvelopeInvalid), f.Reason).with("pointer", f.Pointer).with("want", f.Want).with("got", f.Got)
}

// traceID reads version-trace-parent-flags of the W3C Trace Context, "" for what is
// none.
func traceID(raw json.RawMessage) string {
	traceparent, _ := jsonrpc.Text(raw)
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	return parts[1]
}

// identify takes the principal that the door has identified for this request,
// or identifies the credential; once more for a call that was held, because tokens
// are revoked and expire meanwhile. It fails closed: no principal, no call. Another
// principal behind the same credential is a refusal.
func (c *call) identify(ctx context.Context) *Failure {
	who, earlier := c.in.Principal, c.principal
	if earlier.Valid() || !who.Valid() {
		var f *Failure
		if who, f = c.gate.Identify(ctx, c.in.Credential); f != nil {
			return c.fail(f.Kernel.Code, f.Reason)
		}
	}
	if earlier.Valid() && (who.Subject != earlier.Subject || who.Tenant != earlier.Tenant) {
		return c.fail(signal.CodeUnauthenticated, "the credential names somebody else by now")
	}
	c.principal = who
	c.principal.Client = c.in.Client
	return nil
}

// Identify returns the principal of a credential, for doors that need one before
// there is a call: for sessions, lists, and Call.Principal. It leaves no record;
// a door records a refusal with Refuse.
func (g *Gate) Identify(ctx context.Context, cred identity.Credential) (policy.Principal, *Failure) {
	who, err := g.opts.Identifier.Identify(ctx, cred)
	if err == nil && who.Valid() {
		return who, nil
	}
	c, reason := call{gate: g, source: gateway}, "missing or unknown bearer token"
	c.source.Function = "identify"
	if err != nil && !errors.Is(err, identity.ErrUnauthenticated) {
		g.opts.Log.Error("identifying a caller", "error", err)
		reason = "the credential could not be checked"
	}
	return policy.Principal{}, c.fail(signal.CodeUnauthenticated, reason)
}

// resolve finds the tool of the call as this principal sees it. A tool that does
// not exist and one that is hidden get the same answer. A call of the gate's own
// tool, where no server has one of its name, leaves the road here.
func (t *toolCall) resolve(ctx context.Context) *Failure {
	tool, ok := t.gate.opts.Upstreams.View(ctx, t.in.Route, t.from(t.server)).Lookup(t.name)
	switch {
	case !ok && t.name == StatusName && t.ticket.ID == "":
		return t.leave(ctx)
	case !ok:
		return t.unknownTool()
	}
	if t.subject, ok = t.gate.visible(ctx, t.engine, t.principal, tool); !ok {
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
		if _, ok := g.visible(ctx, engine, who, t); ok {
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
	if ok && t.Quarantine == "" {
		if _, ok := g.visible(ctx, *g.policy.Load(), who, t); ok {
			return t
		}
	}
	return nil
}

// view returns the tools of the route of in, as who's connections offer them.
func (g *Gate) view(ctx context.Context, in *Call, who policy.Principal) registry.View {
	c := &call{gate: g, in: in, principal: who}
	return g.opts.Upstreams.View(ctx, in.Route, c.from(""))
}

// visible returns what a policy knows of t, and whether p sees it. It hides a tool
// when the policy says that every call is denied, and when the policy fails.
func (g *Gate) visible(ctx context.Context, engine Policy, p policy.Principal, t *registry.Tool) (policy.Tool, bool) {
	subject := policy.Tool{
		Server: t.Server, Name: t.Name, Exposed: t.Exposed,
		Risk: t.Risk, Annotations: t.Annotations, Fingerprint: t.Fingerprint,
	}
	ok, err := engine.Visible(ctx, p, subject)
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "tool", t.Exposed, "error", err)
		return subject, false
	}
	return subject, ok
}
