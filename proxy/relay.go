package proxy

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// relayed is a request or notification that calls no tool.
type relayed struct {
	call
	row       method
	arguments json.RawMessage // as the policy sees them
	about     about
	of        *task          // what a request about a task is about
	kernel    *signal.Result // what a task's result came to; nil = plain success
}

// about is the policy's view of what a request is about; one member is set.
type about struct {
	resource *policy.Resource
	prompt   *policy.Prompt
	server   *policy.Server
}

// relayRoad lists the stages of a request that calls no tool, but for close. The
// comment of Relay draws it; a test holds the two equal.
var relayRoad = []stage[*relayed]{
	{"receive", (*relayed).receive},
	{"identify", (*relayed).identify},
	{"resolve", (*relayed).resolve},
	{"decide", (*relayed).decide},
	{"limit", (*relayed).limit},
	{"record", (*relayed).record},
	{"forward", (*relayed).forward},
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
// The result is the upstream's, byte for byte but for what the policy redacts.
// Otherwise it behaves as Call does.
func (g *Gate) Relay(ctx context.Context, in *Call) (*Reply, *Failure) {
	r := g.newRelayed(in)
	return take(ctx, r, &r.call, relayRoad)
}

func (g *Gate) newRelayed(in *Call) *relayed {
	r := &relayed{call: g.newCall(in)}
	if in.Message != nil {
		r.method = in.Message.Method
	}
	return r
}

// receive finds the method's row and what the request is about.
func (r *relayed) receive(context.Context) *Failure {
	m := r.in.Message
	if m == nil {
		return r.undecoded(r.in.Fault)
	}
	r.id = jsonrpc.IDText(m.ID)
	row, ok := methods[m.Method]
	if !ok && !isNotice(m.Method) && r.gate.extends(r.in.Route, m.Method) {
		row, ok = method{action: m.Method, find: (*relayed).findServer}, true
	}
	switch {
	case !ok || r.gate.opts.Servers == nil:
		return r.fail(signal.CodeEnvelopeMethod, "method "+m.Method+" is not served here")
	case m.Kind != jsonrpc.Request:
		return r.fail(signal.CodeEnvelopeInvalid, m.Method+" needs an id")
	case m.Variants != nil:
		return r.ambiguous(m.Variants)
	}
	r.row, r.server, r.arguments = row, r.in.Route, json.RawMessage("{}")
	if f := r.receiveParams(m); f != nil {
		return f
	}
	if row.read != nil && !row.read(r) {
		return r.fail(signal.CodeEnvelopeInvalid, "params do not say what "+m.Method+" is about")
	}
	return nil
}

// receiveParams keeps the params but for the members of _meta of this hop.
func (r *relayed) receiveParams(m *jsonrpc.Message) *Failure {
	r.body = json.RawMessage("{}")
	if m.Params != nil {
		r.body = m.Params
	}
	if meta, ok := m.Param("_meta"); ok {
		if f := r.receiveMeta(meta); f != nil {
			return f
		}
		kept, err := jsonrpc.Set(r.body, "_meta", r.meta)
		if err != nil {
			return r.fail(signal.CodeEnvelopeInvalid, "params cannot be read")
		}
		r.body = kept
	}
	r.digest = digest(r.body)
	return nil
}

// resolve finds the server and what the request is about there.
func (r *relayed) resolve(ctx context.Context) *Failure {
	if r.row.find == nil {
		return r.fail(signal.CodeEnvelopeMethod, r.in.Message.Method+" is a list, which is not relayed")
	}
	return r.row.find(r, ctx)
}

// decide asks the policy. Only a tool call can wait for a person, so that a hold
// is a denial. The requester's own tickets are not judged.
func (r *relayed) decide(ctx context.Context) *Failure {
	if r.ticket.ID != "" {
		r.decision = r.ownTickets()
		return nil
	}
	r.judge(ctx, r.input())
	switch r.decision.Effect {
	case policy.Allow:
		return nil
	case policy.Hold:
		// The record keeps the policy's own reason and the approval that it wants.
		return r.denied("the policy wants a person to decide, and only tool calls can wait for one")
	}
	return r.denied(r.decision.Reason)
}

func (r *relayed) input() *policy.Input {
	return &policy.Input{
		Action: r.row.action, Resource: r.about.resource, Prompt: r.about.prompt, Server: r.about.server, Arguments: r.arguments,
	}
}

// limit takes quota; rules know the request by its method and server.
func (r *relayed) limit(context.Context) *Failure {
	if r.row.free {
		return nil
	}
	return r.takeTokens(policy.Tool{Server: r.server, Name: r.in.Message.Method, Exposed: r.in.Message.Method})
}

// forward sends the judged bytes and replies with the upstream's result. A task
// that is a ticket is answered here.
func (r *relayed) forward(ctx context.Context) *Failure {
	if r.ticket.ID != "" {
		return r.answerTicket(ctx)
	}
	r.sent = true
	raw, err := r.askServer(ctx)
	if err != nil {
		return r.elicited(ctx, r.askFailure(err))
	}
	if !isObject(raw) {
		return r.fail(signal.CodeOutputInvalid, "the server's result is no object")
	}
	if r.of != nil {
		held, f := r.governTask(ctx, raw)
		if f != nil {
			return f
		}
		raw = held
	}
	result, err := redact(raw, r.decision.Redact)
	if err != nil {
		return r.internal("redacting a result", err)
	}
	kernel := signal.OK(nil, r.metrics())
	switch {
	case r.kernel != nil:
		kernel = *r.kernel
	case r.server == "":
		kernel = signal.Skip("each later request carries it to its server", r.metrics())
	}
	r.replyWith(result, kernel)
	if r.about.resource != nil {
		r.gate.memory.subscribe(r)
	}
	return nil
}

// askServer puts the request to its server. A request for all servers, which is
// the log level, travels with every later request to each.
func (r *relayed) askServer(ctx context.Context) (json.RawMessage, error) {
	if r.server == "" {
		return json.RawMessage("{}"), nil
	}
	return r.gate.enquire(ctx, r.server, registry.Ask{
		Method: r.in.Message.Method, Params: r.body, From: r.from(r.server), Progress: r.in.Progress,
	})
}

// enquire is the one place where servers are asked for what is no tool call:
// judged requests, and lists, whose elements are judged one by one.
func (g *Gate) enquire(ctx context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	return g.opts.Servers.Ask(ctx, server, ask)
}

// askFailure says why an upstream gave no result.
func (r *relayed) askFailure(err error) *Failure {
	return r.upstreamFailure(forwardError(err), "server "+r.server+" did not answer in time")
}
