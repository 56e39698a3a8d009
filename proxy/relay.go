package proxy

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// relayRoad is the road of a request that calls no tool, but for close. Relay's
// comment draws it; a test holds the two equal.
var relayRoad = []stage{
	{"receive", receiveRelay},
	{"identify", identify},
	{"decide", decideRelay},
	{"limit", spendRelay},
	{"record", record},
	{"forward", ask},
}

// Relay takes a request that reads one resource, gets one prompt or completes
// towards either down the road. It is served for the route of one server:
//
//	receive    the decoded request has an id, and says what it is about
//	identify   the credential names a principal
//	decide     the policy allows it; what it would hold is denied
//	limit      every bucket that applies gives a token
//	record     the decision is in the audit trail
//	forward    the judged bytes go to the upstream
//	close      one outcome record, on every path
//
// The result is the upstream's, byte for byte but for what the policy wants
// redacted. Otherwise it behaves as Call does.
func (g *Gate) Relay(ctx context.Context, in *Call) (*Reply, *Failure) {
	return g.take(ctx, in, relayRoad)
}

// Enumerate answers a request for a list of resources, templates or prompts
// with the upstream's page, but for the elements that who may not use. Like
// List it leaves no record.
func (g *Gate) Enumerate(ctx context.Context, in *Call, who policy.Principal) (json.RawMessage, *Failure) {
	p := g.enter(in)
	p.stage, p.principal = "receive", who
	if f := receiveRelay(ctx, g, p); f != nil {
		return nil, f
	}
	result, err := g.opts.Servers.Ask(ctx, p.server, registry.Ask{Method: in.Message.Method, Params: p.params, From: g.from(p)})
	if err != nil {
		return nil, p.askFailure(err)
	}
	return g.permitted(ctx, p, result)
}

// permitted takes out of a list what the principal may not use. An element that
// cannot be judged is taken out too.
func (g *Gate) permitted(ctx context.Context, p *passage, result json.RawMessage) (json.RawMessage, *Failure) {
	list, ok := jsonrpc.Get(result, p.method.list)
	if !ok || len(list) == 0 || list[0] != '[' {
		return nil, p.fail(signal.CodeOutputInvalid, "the server's answer holds no list")
	}
	kept := []byte{'['}
	for element := range jsonrpc.Elements(list) {
		raw, _ := jsonrpc.Get(element, p.method.key)
		name, ok := jsonrpc.Text(raw)
		if !ok || !g.usable(ctx, p, name) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, element...)
	}
	out, err := jsonrpc.Set(result, p.method.list, append(kept, ']'))
	if err != nil {
		return nil, p.fail(signal.CodeOutputInvalid, "the server's answer cannot be read")
	}
	return out, nil
}

// usable asks the policy about one element of a list.
func (g *Gate) usable(ctx context.Context, p *passage, name string) bool {
	p.resource, p.prompt = nil, nil
	if p.method.action == "prompts/get" {
		p.prompt = &policy.Prompt{Server: p.server, Name: name}
	} else {
		p.resource = &policy.Resource{Server: p.server, URI: name}
	}
	d, err := p.engine.Decide(ctx, p.relayInput())
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "server", p.server, "name", name, "error", err)
	}
	return err == nil && d.Effect == policy.Allow
}

// receiveRelay finds the method's row and what the request is about.
func receiveRelay(_ context.Context, g *Gate, p *passage) *Failure {
	m := p.in.Message
	if m == nil {
		return p.fault(p.in.Fault)
	}
	p.id = jsonrpc.IDText(m.ID)
	row, ok := methods[m.Method]
	if !ok && !isNotice(m.Method) && g.extends(p.in.Route, m.Method) {
		row, ok = method{action: m.Method, subject: (*passage).takeServer}, true
	}
	switch {
	case !ok || g.opts.Servers == nil:
		return p.fail(signal.CodeEnvelopeMethod, "method "+m.Method+" is not served here")
	case m.Kind != jsonrpc.Request:
		return p.fail(signal.CodeEnvelopeInvalid, m.Method+" needs an id")
	case m.Variants != nil:
		return p.twoReadings(m.Variants)
	case p.in.Route == "":
		return p.fail(signal.CodeEnvelopeMethod, "method "+m.Method+" is served at /mcp/{server}").
			remedy("connect to the server's own road")
	}
	p.method, p.server, p.args = row, p.in.Route, json.RawMessage("{}")
	if f := p.takeParams(m.Params); f != nil {
		return f
	}
	if row.subject != nil && !row.subject(p) {
		return p.fail(signal.CodeEnvelopeInvalid, "params do not say what "+m.Method+" is about")
	}
	return nil
}

// takeParams keeps the params but for what in _meta belongs to this hop.
func (p *passage) takeParams(params json.RawMessage) *Failure {
	p.params = json.RawMessage("{}")
	if params != nil {
		p.params = params
	}
	if f := p.takeMeta(p.params); f != nil {
		return f
	}
	if p.meta != nil {
		kept, err := jsonrpc.Set(p.params, "_meta", p.meta)
		if err != nil {
			return p.fail(signal.CodeEnvelopeInvalid, "params cannot be read")
		}
		p.params = kept
	}
	p.digest = digest(p.params)
	return nil
}

// decideRelay asks the policy. Only a tool call can wait for a person, so what
// the policy would hold is denied.
func decideRelay(ctx context.Context, g *Gate, p *passage) *Failure {
	if p.method.action == "logging/setLevel" {
		p.whole.Tools = g.exposed(ctx, p)
	}
	g.judge(ctx, p, p.relayInput(), "request")
	switch p.decision.Effect {
	case policy.Allow:
		return nil
	case policy.Hold:
		p.decision.Reason = "the policy wants a person to decide, and only tool calls can wait for one"
	}
	return p.denied()
}

func (p *passage) relayInput() *policy.Input {
	return &policy.Input{
		Action: p.method.action, Principal: p.principal, Resource: p.resource, Prompt: p.prompt, Server: p.whole,
		Arguments: p.args, Request: p.request(),
	}
}

// exposed gives the names of the server's tools as agents call them.
func (g *Gate) exposed(ctx context.Context, p *passage) []string {
	names := []string{}
	for _, t := range g.opts.Upstreams.View(ctx, p.server, g.from(p)).Tools() {
		names = append(names, t.Exposed)
	}
	return names
}

// spendRelay takes quota; rules know the request by its method and server.
func spendRelay(ctx context.Context, g *Gate, p *passage) *Failure {
	if p.method.free {
		return nil
	}
	p.subject = policy.Tool{Server: p.server, Name: p.in.Message.Method, Exposed: p.in.Message.Method}
	return spend(ctx, g, p)
}

// ask sends the judged bytes and answers with the upstream's.
func ask(ctx context.Context, g *Gate, p *passage) *Failure {
	p.sent = true
	raw, err := g.opts.Servers.Ask(ctx, p.server, registry.Ask{
		Method: p.in.Message.Method, Params: p.params, From: g.from(p), Progress: p.in.Progress,
	})
	if err != nil {
		return p.askFailure(err)
	}
	if len(raw) == 0 || raw[0] != '{' {
		return p.fail(signal.CodeOutputInvalid, "the server's result is no object")
	}
	result, err := redact(raw, p.decision.Redact)
	if err != nil {
		g.opts.Log.Error("redacting a result", "decision", p.decisionID, "error", err)
		return p.fail(signal.CodeInternal, "")
	}
	p.reply = &Reply{
		Result: result, Kernel: signal.OK(nil, p.metrics(g, false)),
		DecisionID: p.decisionID, TraceID: p.traceID, Decision: p.decision,
	}
	return nil
}

// askFailure says why an upstream gave no result.
func (p *passage) askFailure(err error) *Failure {
	var fe *registry.ForwardError
	if !errors.As(err, &fe) {
		fe = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: err}
	}
	return p.forwardFailure(fe)
}
