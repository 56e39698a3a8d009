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
	{"resolve", resolveRelay},
	{"decide", decideRelay},
	{"limit", spendRelay},
	{"record", record},
	{"forward", ask},
}

// Relay takes a request that calls no tool down the road: one about a resource,
// a prompt, a completion, the log level, a task, or one of an extension:
//
//	receive    the decoded request has an id, and says what it is about
//	identify   the credential names a principal
//	resolve    the server is that of the route, or the one that has it; a task is the session's
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

// receiveRelay finds the method's row and what the request is about.
func receiveRelay(_ context.Context, g *Gate, p *passage) *Failure {
	m := p.in.Message
	if m == nil {
		return p.fault(p.in.Fault)
	}
	p.id = jsonrpc.IDText(m.ID)
	row, ok := methods[m.Method]
	if !ok && !isNotice(m.Method) && g.extends(p.in.Route, m.Method) {
		row, ok = method{action: m.Method, find: findServer}, true
	}
	switch {
	case !ok || g.opts.Servers == nil:
		return p.fail(signal.CodeEnvelopeMethod, "method "+m.Method+" is not served here")
	case m.Kind != jsonrpc.Request:
		return p.fail(signal.CodeEnvelopeInvalid, m.Method+" needs an id")
	case m.Variants != nil:
		return p.twoReadings(m.Variants)
	}
	p.method, p.server, p.args = row, p.in.Route, json.RawMessage("{}")
	if f := p.takeParams(m.Params); f != nil {
		return f
	}
	if row.take != nil && !row.take(p) {
		return p.fail(signal.CodeEnvelopeInvalid, "params do not say what "+m.Method+" is about")
	}
	return nil
}

// resolveRelay finds the server and what of it the request is about.
func resolveRelay(ctx context.Context, g *Gate, p *passage) *Failure {
	if p.method.find == nil {
		return p.fail(signal.CodeEnvelopeMethod, p.in.Message.Method+" is a list, which is not relayed")
	}
	return p.method.find(ctx, g, p)
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
// the policy would hold is denied. A ticket is its requester's own business.
func decideRelay(ctx context.Context, g *Gate, p *passage) *Failure {
	if p.ticket.ID != "" {
		p.decision = p.aboutOwn()
		return nil
	}
	g.judge(ctx, p, p.relayInput(), "request")
	switch p.decision.Effect {
	case policy.Allow:
		return nil
	case policy.Hold:
		// The record keeps the policy's own reason and the approval that it wants.
		return p.deniedFor("the policy wants a person to decide, and only tool calls can wait for one")
	}
	return p.denied()
}

func (p *passage) relayInput() *policy.Input {
	return &policy.Input{
		Action: p.method.action, Principal: p.principal, Resource: p.resource, Prompt: p.prompt, Server: p.whole,
		Arguments: p.args, Request: p.request(),
	}
}

// spendRelay takes quota; rules know the request by its method and server.
func spendRelay(ctx context.Context, g *Gate, p *passage) *Failure {
	if p.method.free {
		return nil
	}
	p.subject = policy.Tool{Server: p.server, Name: p.in.Message.Method, Exposed: p.in.Message.Method}
	return spend(ctx, g, p)
}

// ask sends the judged bytes and answers with the upstream's. A task that is a
// ticket is here.
func ask(ctx context.Context, g *Gate, p *passage) *Failure {
	if p.ticket.ID != "" {
		return g.askTicket(ctx, p)
	}
	p.sent = true
	raw, err := g.askServer(ctx, p)
	if err != nil {
		return g.elicited(ctx, p, p.askFailure(err))
	}
	if len(raw) == 0 || raw[0] != '{' {
		return p.fail(signal.CodeOutputInvalid, "the server's result is no object")
	}
	if p.task != nil {
		held, f := g.govern(ctx, p, raw)
		if f != nil {
			return f
		}
		raw = held
	}
	result, err := redact(raw, p.decision.Redact)
	if err != nil {
		g.opts.Log.Error("redacting a result", "decision", p.decisionID, "error", err)
		return p.fail(signal.CodeInternal, "")
	}
	p.replies(g, result)
	if p.kernel != nil {
		p.reply.Kernel = *p.kernel
	}
	if p.resource != nil {
		g.memory.subscribe(p)
	}
	return nil
}

// askServer puts the request to the server that it is for. What is for all of
// them, the log level, goes with every later request to each.
func (g *Gate) askServer(ctx context.Context, p *passage) (json.RawMessage, error) {
	if p.server == "" {
		return json.RawMessage("{}"), nil
	}
	return g.enquire(ctx, p.server, registry.Ask{
		Method: p.in.Message.Method, Params: p.params, From: g.from(p), Progress: p.in.Progress,
	})
}

// enquire is the one place where servers are asked what calls no tool: what was
// judged, and for lists, whose elements are judged one by one.
func (g *Gate) enquire(ctx context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	return g.opts.Servers.Ask(ctx, server, ask)
}

// askFailure says why an upstream gave no result.
func (p *passage) askFailure(err error) *Failure {
	var fe *registry.ForwardError
	if !errors.As(err, &fe) {
		fe = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: err}
	}
	return p.forwardFailure(fe)
}

// replies ends a passage that calls no tool with its result.
func (p *passage) replies(g *Gate, result json.RawMessage) {
	p.reply = &Reply{
		Result: result, Kernel: signal.OK(nil, p.metrics(g, false)),
		DecisionID: p.decisionID, TraceID: p.traceID, Decision: p.decision,
	}
}
