package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// callbackRoad is the road of a question that a server has for its client, but
// for close. The comment of Ask draws it; a test holds the two equal.
var callbackRoad = []stage{
	{"receive", receiveQuestion},
	{"decide", decideRelay},
	{"limit", spendRelay},
	{"record", record},
	{"forward", put},
}

// peer is the gate's end of what a server says on its own account: it governs,
// and hands what passes to the door's end. It is immutable.
type peer struct {
	gate   *Gate
	door   registry.Peer
	server string // "" = not known: nothing passes
	call   Call   // the request that it was handed down with, without its message
	who    policy.Principal
	// The call in whose course the server speaks; "" when it is in none.
	parentID, traceID string
}

// from says for whom the road forwards, and puts the gate between the server and
// the client's ends.
func (g *Gate) from(p *passage) registry.Downstream {
	return registry.Downstream{
		Session: p.in.Session, Capabilities: p.in.Capabilities, Level: p.in.Level,
		Peer: g.between(p, p.in.Peer, p.callID, p.traceID), Home: g.between(p, p.in.Home, "", ""),
	}
}

func (g *Gate) between(p *passage, door registry.Peer, parentID, traceID string) registry.Peer {
	if door == nil {
		return nil
	}
	call := *p.in
	call.Message, call.Fault, call.Progress = nil, nil, nil
	return &peer{gate: g, door: door, server: p.upstream(), call: call, who: p.principal, parentID: parentID, traceID: traceID}
}

// For gives the peer for what server says. The registry names it where one
// Downstream stands for several servers.
func (c *peer) For(server string) registry.Peer {
	out := *c
	out.server = server
	return &out
}

// round is the questions that a server asks together.
type round struct {
	peer    *peer
	left    []*passage // those that were let pass
	once    sync.Once
	answers []registry.Answer // to those in left
}

// Ask takes a round of a server's questions to its client. Each goes its own way
// down the road:
//
//	receive    the method has a row, and the client declared that it can do it
//	decide     the policy allows it; what it would hold is denied
//	limit      every bucket that applies gives a token
//	record     the decision is in the audit trail
//	forward    the questions of the round that are left go to the client together
//	close      one outcome record, on every path
//
// The principal is the client's. What is refused, and what the client did not
// answer, is answered with an error; what the client answered reaches the server
// byte for byte but for what the policy wants redacted. A panic in a stage is an
// error for this question alone.
func (c *peer) Ask(ctx context.Context, questions []registry.Question) []registry.Answer {
	c.gate.asking.Add(int64(len(questions)))
	defer c.gate.asking.Add(-int64(len(questions)))
	r := &round{peer: c}
	last := len(callbackRoad) - 1
	passages, failures := make([]*passage, len(questions)), make([]*Failure, len(questions))
	for i := range questions {
		p := c.enter(&questions[i], r)
		passages[i], failures[i] = p, c.gate.walk(ctx, p, callbackRoad[:last])
		if failures[i] == nil {
			r.left = append(r.left, p)
		}
	}
	answers := make([]registry.Answer, len(questions))
	for i, p := range passages {
		if failures[i] == nil {
			failures[i] = c.gate.walk(ctx, p, callbackRoad[last:])
		}
		answers[i] = answerOf(c.gate.close(ctx, p, failures[i]))
	}
	return answers
}

// enter begins the passage of a question.
func (c *peer) enter(q *registry.Question, r *round) *passage {
	in := c.call
	in.Message = &jsonrpc.Message{Kind: jsonrpc.Request, Method: q.Method, Params: q.Params}
	in.SignalID, in.TraceID = "", c.traceID
	p := c.gate.enter(&in)
	p.id, p.question, p.round, p.parentID, p.principal, p.server = q.Key, q, r, c.parentID, c.who, c.server
	return p
}

// foresee takes a question that a server puts into its answer to p down the
// callback road, but for the last stage: the client answers by other ways.
func (g *Gate) foresee(ctx context.Context, p *passage, parentID string, question registry.Question) input {
	call := *p.in
	call.Message, call.Fault, call.Progress = nil, nil, nil
	c := &peer{gate: g, server: p.upstream(), call: call, who: p.principal, parentID: parentID, traceID: p.traceID}
	q := c.enter(&question, nil)
	f := g.walk(ctx, q, callbackRoad[:len(callbackRoad)-1])
	if f == nil {
		q.replies(g, nil)
	}
	_, f = g.close(ctx, q, f)
	return input{allowed: f == nil, redact: q.decision.Redact}
}

// elicited judges what a server asks a person to do in its error in place of a
// result (MCP 2025-11-25, URLElicitationRequiredError), and takes out what the
// policy does not let it ask. An error with nothing left in it is as any other
// failure of the server's, without its words.
func (g *Gate) elicited(ctx context.Context, p *passage, f *Failure) *Failure {
	if code, _ := jsonrpc.Get(f.Upstream, "code"); string(code) != "-32042" {
		return f
	}
	data, _ := jsonrpc.Get(f.Upstream, "data")
	list, _ := jsonrpc.Get(data, "elicitations")
	kept := []byte{'['}
	for e := range jsonrpc.Elements(list) {
		if !g.foresee(ctx, p, p.callID, registry.Question{Method: "elicitation/create", Params: e}).allowed {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, e...)
	}
	data, err := jsonrpc.Set(data, "elicitations", append(kept, ']'))
	if err == nil {
		data, err = jsonrpc.Set(f.Upstream, "data", data)
	}
	if err != nil || len(kept) == 1 {
		return p.fail(signal.CodeToolFailed, "the server wants a person to do something first, and may not ask for it")
	}
	f.Upstream = data
	return f
}

// receiveQuestion finds the question's row and holds it to what the client said
// that it can do.
func receiveQuestion(_ context.Context, g *Gate, p *passage) *Failure {
	row, ok := questions[p.question.Method]
	p.method = row
	switch {
	case !ok || p.server == "":
		p.method.action = p.question.Method // for the record
		return p.fail(signal.CodeEnvelopeMethod, "method "+p.question.Method+" is not taken to clients")
	case g.asking.Load() > int64(g.settings.Load().InFlight):
		return p.fail(signal.CodeOverloaded, "too many questions of servers are under way")
	}
	p.params = json.RawMessage("{}")
	if p.question.Params != nil {
		p.params = p.question.Params
	}
	p.args, p.digest = p.params, digest(p.params)
	p.whole = &policy.Server{Name: p.server, Asks: p.question.Method}
	if lacks := row.lacks(p); lacks != "" {
		return p.fail(signal.CodeEnvelopeMethod, "the client did not declare "+lacks)
	}
	if strings.HasPrefix(p.question.Method, "tasks/") && p.question.Method != "tasks/list" {
		return g.receiveTheirs(p)
	}
	return nil
}

// put answers a question with what the client said to its round.
func put(ctx context.Context, g *Gate, p *passage) *Failure {
	p.sent = true
	a := p.round.answer(ctx, p)
	switch {
	case ctx.Err() != nil:
		return p.fail(signal.CodeCancelled, "the server no longer waits for the client's answer")
	case a.Error != nil:
		f := p.fail(signal.CodeToolFailed, "the client answered with an error: "+upstreamMessage(a.Error))
		f.Upstream = a.Error
		return f
	case len(a.Result) == 0 || a.Result[0] != '{':
		return p.fail(signal.CodeOutputInvalid, "the client's answer is no object")
	}
	said, f := g.said(p, a.Result)
	if f != nil {
		return f
	}
	result, err := redact(said, p.decision.Redact)
	if err == nil && p.task != nil {
		result, err = redact(result, p.task.redact)
	}
	if err != nil {
		g.opts.Log.Error("redacting an answer", "decision", p.decisionID, "error", err)
		return p.fail(signal.CodeInternal, "")
	}
	p.replies(g, result)
	return nil
}

// said holds a client's answer to what the server may know of its tasks.
func (g *Gate) said(p *passage, answer json.RawMessage) (json.RawMessage, *Failure) {
	if p.question.Method == "tasks/list" {
		return g.theirTasks(p, answer)
	}
	return answer, g.theirsBegun(p, answer)
}

// answer puts the round to the client, once, and gives what it said to p. A door
// that leaves an answer out has not answered.
func (r *round) answer(ctx context.Context, p *passage) registry.Answer {
	r.once.Do(func() {
		asked := make([]registry.Question, len(r.left))
		for i, other := range r.left {
			asked[i] = *other.question
		}
		r.answers = r.peer.door.Ask(ctx, asked)
	})
	for i, other := range r.left {
		if other == p && i < len(r.answers) {
			return r.answers[i]
		}
	}
	return registry.Answer{}
}

// answerOf is what the server gets. It learns from a refusal that there was one,
// and when it is worth asking again: who may do what is not its business.
func answerOf(reply *Reply, f *Failure) registry.Answer {
	switch {
	case f == nil:
		return registry.Answer{Result: reply.Result}
	case f.Upstream != nil:
		return registry.Answer{Error: f.Upstream}
	}
	refusal, ok := refusals[f.Kernel.Code]
	if !ok {
		refusal = refusals[signal.CodeInternal]
	}
	data := `{"code":` + string(jsonrpc.Quote(f.Kernel.Code))
	if f.RetryAfter > 0 {
		data += fmt.Sprintf(`,"retry_after_ms":%d`, f.RetryAfter.Milliseconds())
	}
	return registry.Answer{Error: fmt.Appendf(nil, `{"code":%d,"message":%s,"data":%s}}`, refusal.code, jsonrpc.Quote(refusal.text), data)}
}

// refusals are the errors with which questions are answered that were not put,
// or not answered; a code without a row is answered as an internal error.
var refusals = map[string]struct {
	code int
	text string
}{
	signal.CodeEnvelopeMethod:   {-32601, "the client does not take this request"},
	signal.CodeNotFound:         {-32602, "no such task"},
	signal.CodePolicyDenied:     {-32600, "this request is not permitted here"},
	signal.CodeRateLimited:      {-32001, "too many requests to the client"},
	signal.CodeOverloaded:       {-32001, "too many requests to clients are under way"},
	signal.CodeOutputInvalid:    {-32603, "the client gave no valid answer"},
	signal.CodeCancelled:        {-32603, "the request to the client was cancelled"},
	signal.CodeAuditUnavailable: {-32603, "the request cannot be taken to the client now"},
	signal.CodeInternal:         {-32603, "Internal error"},
}

// Tell passes a notification of the server's on, if the table of notices names
// it; what it does not name is dropped and counted.
func (c *peer) Tell(method string, params json.RawMessage) {
	if params, ok := c.passes(method, params); ok {
		c.door.Tell(method, params)
		return
	}
	c.gate.opts.Log.Debug("dropping a notification", "server", c.server, "method", method, "dropped", c.gate.dropped.Add(1))
}

// passes reports whether a notification may pass, and gives the params that may.
func (c *peer) passes(method string, params json.RawMessage) (json.RawMessage, bool) {
	ofTask, ok := serverNotices[method]
	switch {
	case c.server == "":
		return nil, false
	case !ok:
		return params, isNotice(method) && c.gate.extends(c.server, method)
	case ofTask:
		return c.gate.status(c, params)
	case method == "notifications/resources/list_changed", method == "notifications/prompts/list_changed":
		c.gate.memory.unlist(owner{c.call.Session, c.who.Subject, c.who.Tenant})
	}
	return params, true
}
