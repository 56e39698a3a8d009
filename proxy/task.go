package proxy

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// EndSession forgets what the gate remembers of a session that is over: its
// tasks, and where its resources and prompts are.
func (g *Gate) EndSession(session string) { g.memory.forget(session) }

// ListChanged is to be told when a server says to everybody that a list of it has
// changed; method is the notification's. Where resources and prompts are is then
// found out anew.
func (g *Gate) ListChanged(string, string) { g.memory.unlistAll() }

// takeTask reads the task parameter, with which the caller wants a task in place
// of a result (MCP 2025-11-25, tasks).
func (p *passage) takeTask(params json.RawMessage) *Failure {
	wanted, ok := jsonrpc.Get(params, "task")
	switch {
	case !ok:
		return nil
	case len(wanted) == 0 || wanted[0] != '{':
		return p.fail(signal.CodeEnvelopeInvalid, "params.task must be an object")
	case p.in.Session == "":
		return p.fail(signal.CodeEnvelopeInvalid, "a task belongs to a session, and this call has none")
	}
	p.wanted = wanted
	return nil
}

// taskOf finds the task in a result that is none yet: the member task of one
// that was asked for, or all of a result that says so itself (MCP 2026-07-28,
// extension io.modelcontextprotocol/tasks).
func (p *passage) taskOf(result json.RawMessage) (state json.RawMessage, id string, ok bool) {
	if kind, _ := jsonrpc.Get(result, "resultType"); string(kind) == `"task"` && p.declared("extensions", "io.modelcontextprotocol/tasks") {
		state = result
	} else if p.wanted != nil {
		state, _ = jsonrpc.Get(result, "task")
	}
	raw, _ := jsonrpc.Get(state, "taskId")
	id, ok = jsonrpc.Text(raw)
	return state, id, ok && id != ""
}

// lifetimeOf reads how long a task is kept, under its name in either revision.
func lifetimeOf(state json.RawMessage) json.RawMessage {
	if ttl, ok := jsonrpc.Get(state, "ttl"); ok {
		return ttl
	}
	ttl, _ := jsonrpc.Get(state, "ttlMs")
	return ttl
}

// begun remembers the task that a tool call came to, with the decision that its
// result is to be held to, and passes its handle on. A server that gives a task
// the id of another gets nothing through.
func (g *Gate) begun(ctx context.Context, p *passage, state json.RawMessage, id string) *Failure {
	t := &task{
		id: id, server: p.tool.Server, expires: p.now.Add(registry.TaskLifetime(lifetimeOf(state))),
		redact: p.decision.Redact, tool: p.tool, callID: p.callID,
	}
	if p.in.Session == "" || !g.memory.keep(p.owner(), t, p.now) {
		g.finish(ctx, p, approval.StateFailed, nil, "the task's id is taken")
		return p.fail(signal.CodeOutputInvalid, "the server began a task under an id that is taken")
	}
	g.finish(ctx, p, approval.StateDone, p.raw, "")
	kernel := signal.OK(nil, p.metrics(g, false))
	result := p.raw
	if g.settings.Load().Results != "off" {
		var err error
		if result, err = setMeta(result, metaResult, signal.Compact(kernel, nil)); err != nil {
			return p.fail(signal.CodeOutputInvalid, "the server's answer cannot carry _meta")
		}
	}
	p.reply = &Reply{
		Result: result, Kernel: kernel, Ticket: p.ticket.ID,
		DecisionID: p.decisionID, TraceID: p.traceID, Tool: p.tool, Decision: p.decision,
	}
	return nil
}

// takeTaskID reads which task a request is about.
func (p *passage) takeTaskID() bool {
	raw, _ := jsonrpc.Get(p.params, "taskId")
	id, ok := jsonrpc.Text(raw)
	p.name, p.args = id, p.params
	return ok && id != ""
}

// findTask finds the task among those of the session and the tickets of the
// principal. One of another session and one that never was give the same answer.
func findTask(ctx context.Context, g *Gate, p *passage) *Failure {
	t := g.ticketTask(ctx, p)
	if t == nil {
		t = g.memory.task(p.owner(), p.name, p.now)
	}
	if t == nil || p.in.Route != "" && t.server != p.in.Route {
		return p.unknownTask()
	}
	p.task, p.server, p.parentID = t, t.server, t.callID
	p.whole = &policy.Server{Name: t.server, Tools: []string{t.tool.Exposed}}
	return nil
}

func (p *passage) unknownTask() *Failure {
	return p.fail(signal.CodeNotFound, "no such task")
}

// govern holds the answer to a request about a task to what the task came of.
func (g *Gate) govern(ctx context.Context, p *passage, answer json.RawMessage) (json.RawMessage, *Failure) {
	switch p.in.Message.Method {
	case "tasks/result":
		return g.payload(ctx, p, answer)
	case "tasks/get":
		return g.state(ctx, p, answer)
	}
	return answer, nil
}

// state holds the state of a task to its decision: a result in it to the tool's
// schema and redaction, and what it asks of the client to the policy.
func (g *Gate) state(ctx context.Context, p *passage, answer json.RawMessage) (json.RawMessage, *Failure) {
	raw, _ := jsonrpc.Get(answer, "taskId")
	if id, _ := jsonrpc.Text(raw); id != p.task.id {
		return nil, p.fail(signal.CodeOutputInvalid, "the server answered about another task")
	}
	for key, hold := range map[string]func(context.Context, *passage, json.RawMessage) (json.RawMessage, *Failure){
		"result": g.payload, "inputRequests": g.inputs,
	} {
		inner, ok := jsonrpc.Get(answer, key)
		if !ok {
			continue
		}
		held, f := hold(ctx, p, inner)
		if f != nil {
			return nil, f
		}
		var err error
		if answer, err = jsonrpc.Set(answer, key, held); err != nil {
			return nil, p.fail(signal.CodeOutputInvalid, "the server's answer cannot be read")
		}
	}
	return answer, nil
}

// payload makes of the result of a task what the road makes of a tool's result.
func (g *Gate) payload(ctx context.Context, p *passage, result json.RawMessage) (json.RawMessage, *Failure) {
	tool := *p
	tool.tool, tool.subject, tool.raw, tool.wanted, tool.reply = p.task.tool, toolInput(p.task.tool), result, nil, nil
	tool.decision.Redact = p.task.redact
	if f := normalise(ctx, g, &tool); f != nil {
		return nil, f
	}
	p.kernel = &tool.reply.Kernel
	return tool.reply.Result, nil
}

// inputs judges what a task asks of the client, each question once, and takes
// out what the policy does not let it ask.
func (g *Gate) inputs(ctx context.Context, p *passage, requests json.RawMessage) (json.RawMessage, *Failure) {
	for key, request := range jsonrpc.Members(requests) {
		seen, known := g.memory.shown(p.task, key)
		if !known {
			seen = g.judgeInput(ctx, p, key, request)
			seen.allowed = g.memory.show(p.task, key, seen) && seen.allowed
		}
		if seen.allowed {
			continue
		}
		kept, err := jsonrpc.Delete(requests, key)
		if err != nil {
			return nil, p.fail(signal.CodeOutputInvalid, "the server's questions cannot be read")
		}
		requests = kept
	}
	return requests, nil
}

// judgeInput judges one question of a task, whose answer comes with tasks/update.
func (g *Gate) judgeInput(ctx context.Context, p *passage, key string, request json.RawMessage) input {
	raw, _ := jsonrpc.Get(request, "method")
	method, _ := jsonrpc.Text(raw)
	params, _ := jsonrpc.Get(request, "params")
	return g.foresee(ctx, p, p.task.callID, registry.Question{Key: key, Method: method, Params: params})
}

// findUpdated finds the task that answers are for.
func findUpdated(ctx context.Context, g *Gate, p *passage) *Failure {
	if f := findTask(ctx, g, p); f != nil {
		return f
	}
	return g.takeUpdate(p)
}

// takeUpdate keeps of a client's answers to a task those to questions that it
// was shown, redacted as the policy wants.
func (g *Gate) takeUpdate(p *passage) *Failure {
	answers, ok := jsonrpc.Get(p.params, "inputResponses")
	if !ok {
		return nil
	}
	kept := json.RawMessage(`{}`)
	for key, answer := range jsonrpc.Members(answers) {
		in, _ := g.memory.shown(p.task, key)
		if !in.allowed {
			continue
		}
		held, err := redact(answer, in.redact)
		if err == nil {
			kept, err = jsonrpc.Set(kept, key, held)
		}
		if err != nil {
			return p.fail(signal.CodeEnvelopeInvalid, "params.inputResponses cannot be read")
		}
	}
	params, err := jsonrpc.Set(p.params, "inputResponses", kept)
	if err != nil {
		return p.fail(signal.CodeEnvelopeInvalid, "params.inputResponses cannot be read")
	}
	p.params, p.args, p.digest = params, params, digest(params)
	return nil
}

// receiveTheirs finds the task of the client's that a server asks about, among
// those that it has begun itself in this session.
func (g *Gate) receiveTheirs(p *passage) *Failure {
	raw, _ := jsonrpc.Get(p.params, "taskId")
	id, _ := jsonrpc.Text(raw)
	t := g.memory.theirTask(p.owner(), p.server, id, p.now)
	if t == nil {
		return p.unknownTask()
	}
	p.task, p.whole.Asks = t, t.asks
	return nil
}

// theirsBegun remembers the task with which a client answers a question that
// asked for one.
func (g *Gate) theirsBegun(p *passage, answer json.RawMessage) *Failure {
	if _, ok := jsonrpc.Get(p.params, "task"); !ok {
		return nil
	}
	state, ok := jsonrpc.Get(answer, "task")
	if !ok {
		return nil // the client answered at once, as it may
	}
	raw, _ := jsonrpc.Get(state, "taskId")
	id, ok := jsonrpc.Text(raw)
	t := &task{
		id: id, server: p.server, expires: p.now.Add(registry.TaskLifetime(lifetimeOf(state))), redact: p.decision.Redact,
		callID: p.callID, asks: p.question.Method,
	}
	if !ok || id == "" || !g.memory.keep(p.owner(), t, p.now) {
		return p.fail(signal.CodeOutputInvalid, "the client began a task under an id that is taken, or none")
	}
	return nil
}

// theirTasks takes out of a client's list what the server has not begun in this
// session.
func (g *Gate) theirTasks(p *passage, answer json.RawMessage) (json.RawMessage, *Failure) {
	return p.filter(answer, "tasks", "taskId", func(id string, element json.RawMessage) (json.RawMessage, bool) {
		return element, g.memory.theirTask(p.owner(), p.server, id, p.now) != nil
	})
}

// status holds a server's word on a task to the task's decision. A task that the
// session does not have is none of the client's business, and what a task asks
// is shown when the client asks for its state.
func (g *Gate) status(c *peer, params json.RawMessage) (json.RawMessage, bool) {
	call := c.call
	p := g.enter(&call)
	p.principal = c.who
	raw, _ := jsonrpc.Get(params, "taskId")
	id, _ := jsonrpc.Text(raw)
	p.task = g.memory.task(p.owner(), id, p.now)
	if _, asks := jsonrpc.Get(params, "inputRequests"); asks || p.task == nil || p.task.server != c.server {
		return nil, false
	}
	params, f := g.state(context.Background(), p, params)
	return params, f == nil
}
