package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// elicitation is the method with which a server asks a person.
const elicitation = "elicitation/create"

// question is a request of a server to its client.
type question struct {
	relayed
	round *round
	at    int // its place in the round
}

// round is the questions that a server asks together.
type round struct {
	door    registry.Peer
	asked   []registry.Question // those that were let pass
	answers []registry.Answer   // to those asked; nil until the client was asked
}

// callbackRoad lists the stages of a question that a server has for its client,
// but for close. The comment of Ask draws it; a test holds the two equal.
var callbackRoad = []stage[*question]{
	{"receive", (*question).receive},
	{"stop", (*question).stop},
	{"decide", (*question).decide},
	{"limit", (*question).limit},
	{"record", (*question).record},
	{"forward", (*question).forward},
}

// Ask takes a round of a server's questions to its client. Each goes its own way
// down the road:
//
//	receive    the method has a row, and the client declared that it can do it
//	stop       people have not stopped the principal or the server
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
	r := &round{door: c.door}
	last := len(callbackRoad) - 1
	all, failures, spans := make([]*question, len(questions)), make([]*Failure, len(questions)), make([]context.Context, len(questions))
	for i := range questions {
		q := c.newQuestion(questions[i])
		q.round, q.at = r, len(r.asked)
		if spans[i] = ctx; c.gate.opts.Tracer != nil {
			spans[i] = q.startTrace(ctx)
		}
		all[i], failures[i] = q, walk(spans[i], q, &q.call, callbackRoad[:last])
		if failures[i] == nil {
			ask := questions[i]
			ask.Params = q.in.Message.Params
			if ask.Method == elicitation {
				ask.Params = q.in.attribute(ask.Params, q.server)
			}
			r.asked = append(r.asked, ask)
		}
	}
	answers := make([]registry.Answer, len(questions))
	for i, q := range all {
		if failures[i] == nil {
			failures[i] = walk(spans[i], q, &q.call, callbackRoad[last:])
		}
		answers[i] = answerOf(q.close(spans[i], failures[i]))
	}
	return answers
}

// attribute returns the params of an elicitation with a message that says that
// server asks. They stay as they are on the route of one server, whose client knows
// the server by its address, and where they are no object.
func (in *Call) attribute(params json.RawMessage, server string) json.RawMessage {
	if in.Route != "" {
		return params
	}
	message := server + " asks"
	if text := textMember(params, "message"); text != "" {
		message += ": " + text
	}
	if out, err := jsonrpc.Set(params, "message", jsonrpc.Quote(message)); err == nil {
		return out
	}
	return params
}

// newQuestion begins the way of one question.
func (c *peer) newQuestion(ask registry.Question) *question {
	in := c.call
	in.Message = &jsonrpc.Message{Kind: jsonrpc.Request, Method: ask.Method, Params: ask.Params}
	in.SignalID, in.TraceID = "", c.traceID
	q := &question{relayed: *c.gate.newRelayed(&in)}
	q.id, q.parentID, q.principal, q.server = ask.Key, c.parentID, in.Principal, c.server
	in.Message.Params = q.spellHidden(ask.Params) // what is judged is what is sent
	return q
}

// foresee takes a question that a server puts into its answer to c down the
// callback road, but for the last stage: the client answers by other ways.
func (c *call) foresee(ctx context.Context, parentID string, ask registry.Question) session.Verdict {
	from := peer{gate: c.gate, server: c.server, origin: &origin{call: *c.in}, parentID: parentID, traceID: c.traceID}
	from.call.Principal = c.principal
	q := from.newQuestion(ask)
	if c.trace != nil {
		ctx = q.startTrace(ctx)
	}
	f := walk(ctx, q, &q.call, callbackRoad[:len(callbackRoad)-1])
	if f == nil {
		f = q.replyOK(nil)
	}
	_, f = q.close(ctx, f)
	return session.Verdict{Allowed: f == nil, Redact: q.decision.Redact}
}

// elicited judges what a server asks a person to do in its error in place of a
// result (MCP 2025-11-25, URLElicitationRequiredError), and takes out what the
// policy does not let it ask. An error with nothing left in it is as any other
// failure of the server's, without its words.
func (c *call) elicited(ctx context.Context, f *Failure) *Failure {
	if code, _ := jsonrpc.Get(f.Upstream, "code"); string(code) != "-32042" {
		return f
	}
	data, _ := jsonrpc.Get(f.Upstream, "data")
	list, _ := jsonrpc.Get(data, "elicitations")
	kept := false
	list, err := editArray(list, func(_ int, e json.RawMessage) (json.RawMessage, error) {
		e = c.spellHidden(e)
		if !c.foresee(ctx, c.signalID, registry.Question{Method: elicitation, Params: e}).Allowed {
			return nil, nil
		}
		kept = true
		return c.in.attribute(e, c.server), nil
	})
	if err == nil {
		f.Upstream, err = jsonrpc.Edit(f.Upstream, jsonrpc.Change{Name: "data", Members: []jsonrpc.Change{{Name: "elicitations", Value: list}}})
	}
	if err != nil || !kept {
		return c.fail(signal.CodeToolFailed, "the server wants a person to do something first, and may not ask for it")
	}
	return f
}

// receive finds the question's row and checks what the client declared. A question
// about a task is about one that the server has begun itself in this session.
func (q *question) receive(context.Context) *Failure {
	row, ok := questions[q.method]
	switch {
	case !ok || q.server == "":
		return q.fail(signal.CodeEnvelopeMethod, "method "+q.method+" is not taken to clients")
	case q.gate.asking.Load() > int64(q.gate.settings.Load().InFlight):
		return q.fail(signal.CodeOverloaded, "too many questions of servers are in flight")
	}
	q.row, q.body = row, json.RawMessage("{}")
	if params := q.in.Message.Params; params != nil {
		q.body = params
	}
	q.about.Arguments, q.digest = q.body, digest(q.body)
	q.about.Server = &policy.Server{Name: q.server, Asks: q.method}
	if lacks := q.lacks(); lacks != "" {
		return q.fail(signal.CodeEnvelopeMethod, "the client did not declare "+lacks)
	}
	if strings.HasPrefix(q.method, "tasks/") && q.method != "tasks/list" {
		if q.of = q.session().Task(q.server, textMember(q.body, "taskId"), q.start); q.of == nil {
			return q.unknownTask()
		}
		q.about.Server.Asks = q.of.Asks
	}
	return nil
}

// forward answers a question with what the client said to its round, which the
// first question puts to the client. A door that leaves an answer out has not
// answered.
func (q *question) forward(ctx context.Context) *Failure {
	q.sent = true
	r := q.round
	if r.answers == nil {
		r.answers = make([]registry.Answer, len(r.asked))
		copy(r.answers, r.door.Ask(ctx, r.asked))
	}
	a := r.answers[q.at]
	switch {
	case ctx.Err() != nil:
		return q.fail(signal.CodeCancelled, "the server no longer waits for the client's answer")
	case a.Error != nil:
		f := q.fail(signal.CodeToolFailed, "the client answered with an error: "+upstreamMessage(a.Error))
		f.Upstream = a.Error
		return f
	case !isObject(a.Result):
		return q.fail(signal.CodeOutputInvalid, "the client's answer is no object")
	}
	result := a.Result
	var f *Failure
	if q.method == "tasks/list" {
		result, f = q.filterClientTasks(result)
	} else {
		f = q.rememberClientTask(result)
	}
	if f != nil {
		return f
	}
	pointers := q.decision.Redact
	if q.of != nil {
		pointers = slices.Concat(pointers, q.of.Redact)
	}
	return q.replyRedacted(result, signal.OK(nil, q.metrics()), pointers)
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
// it and people have stopped neither side; any other is dropped and counted.
func (c *peer) Tell(method string, params json.RawMessage) {
	ofTask, ok := serverNotices[method]
	ok = c.server != "" && (ok || isNotice(method) && c.gate.extends(c.server, method)) &&
		c.gate.opts.Stops.Find(&c.call.Principal, c.server, "") == nil
	switch {
	case ok && ofTask:
		params, ok = c.taskStatus(params)
	case ok && (method == "notifications/resources/list_changed" || method == "notifications/prompts/list_changed"):
		c.gate.sessions.Of(session.Owner{Session: c.call.Session, Subject: c.call.Principal.Subject, Tenant: c.call.Principal.Tenant}).Unlist()
	}
	if !ok {
		c.gate.opts.Log.Debug("dropping a notification", "server", c.server, "method", method, "dropped", c.gate.dropped.Add(1))
		return
	}
	c.door.Tell(method, params)
}
