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

// ListChanged forgets where resources and prompts are, because a server says to
// everybody that one of its lists has changed.
func (g *Gate) ListChanged(string, string) { g.memory.unlist() }

// taskOf finds the task in a result that is none yet: the member task of one
// that was asked for, or all of a result that says so itself (MCP 2026-07-28,
// extension io.modelcontextprotocol/tasks).
func (t *toolCall) taskOf(result json.RawMessage) (state json.RawMessage, id string, ok bool) {
	if kind, _ := jsonrpc.Get(result, "resultType"); string(kind) == `"task"` && t.declared("extensions", "io.modelcontextprotocol/tasks") {
		state = result
	} else if t.task != nil {
		state, _ = jsonrpc.Get(result, "task")
	}
	id = textMember(state, "taskId")
	return state, id, id != ""
}

// lifetimeOf reads how long a task is kept, under its name in either revision.
func lifetimeOf(state json.RawMessage) json.RawMessage {
	if ttl, ok := jsonrpc.Get(state, "ttl"); ok {
		return ttl
	}
	ttl, _ := jsonrpc.Get(state, "ttlMs")
	return ttl
}

// replyBegun remembers the task that a tool call came to, with the decision that
// governs its result, and replies with its handle. A server that reuses the id of
// another task gets nothing through.
func (t *toolCall) replyBegun(state json.RawMessage, id string) *Failure {
	begun := &task{
		id: id, server: t.server, expires: t.start.Add(registry.TaskLifetime(lifetimeOf(state))),
		redact: t.decision.Redact, tool: t.tool, callID: t.signalID,
	}
	if t.in.Session == "" || !t.session().keep(begun, t.start) {
		t.ends(approval.StateFailed, nil, "the task's id is taken")
		return t.fail(signal.CodeOutputInvalid, "the server began a task under an id that is taken")
	}
	t.ends(approval.StateDone, t.raw, "")
	kernel := signal.OK(nil, t.metrics())
	result, err := t.withMeta(t.raw, kernel)
	if err != nil {
		return t.fail(signal.CodeOutputInvalid, "the server's answer cannot carry _meta")
	}
	t.replyWith(result, kernel)
	return nil
}

// readTaskID reads which task a request is about.
func (r *relayed) readTaskID() bool {
	r.name, r.arguments = textMember(r.body, "taskId"), r.body
	return r.name != ""
}

// findTask finds the task among those of the session and the tickets of the
// principal. One of another session and one that never was give the same answer.
func (r *relayed) findTask(ctx context.Context) *Failure {
	t := r.ticketTask(ctx)
	if t == nil {
		t = r.session().task("", r.name, r.start)
	}
	if t == nil || r.in.Route != "" && t.server != r.in.Route {
		return r.unknownTask()
	}
	r.of, r.server, r.tool, r.parentID = t, t.server, t.tool, t.callID
	r.about.server = &policy.Server{Name: t.server, Tools: []string{t.tool.Exposed}}
	return nil
}

func (c *call) unknownTask() *Failure {
	return c.fail(signal.CodeNotFound, "no such task")
}

// governTask holds the answer to a request about a task to the decision under
// which the task was begun.
func (r *relayed) governTask(ctx context.Context, answer json.RawMessage) (json.RawMessage, *Failure) {
	switch r.in.Message.Method {
	case "tasks/result":
		return r.governTaskResult(ctx, answer)
	case "tasks/get":
		return r.governTaskState(ctx, answer)
	}
	return answer, nil
}

// governTaskState holds the state of a task to its decision: a result in it to
// the tool's schema and redaction, and its questions to the policy.
func (r *relayed) governTaskState(ctx context.Context, answer json.RawMessage) (json.RawMessage, *Failure) {
	if textMember(answer, "taskId") != r.of.id {
		return nil, r.fail(signal.CodeOutputInvalid, "the server answered about another task")
	}
	for key, govern := range map[string]func(context.Context, json.RawMessage) (json.RawMessage, *Failure){
		"result": r.governTaskResult, "inputRequests": r.governTaskQuestions,
	} {
		inner, ok := jsonrpc.Get(answer, key)
		if !ok {
			continue
		}
		held, f := govern(ctx, inner)
		if f != nil {
			return nil, f
		}
		var err error
		if answer, err = jsonrpc.Set(answer, key, held); err != nil {
			return nil, r.fail(signal.CodeOutputInvalid, "the server's answer cannot be read")
		}
	}
	return answer, nil
}

// governTaskResult makes of the result of a task what the road makes of a tool's
// result.
func (r *relayed) governTaskResult(ctx context.Context, result json.RawMessage) (json.RawMessage, *Failure) {
	t := &toolCall{call: r.call, subject: toolInput(r.of.tool), raw: result}
	in := *r.in
	in.Capabilities = nil // a task's result is no task
	t.in, t.task, t.tool, t.decision.Redact, t.reply = &in, nil, r.of.tool, r.of.redact, nil
	if f := t.normalise(ctx); f != nil {
		return nil, f
	}
	r.kernel = &t.reply.Kernel
	return t.reply.Result, nil
}

// governTaskQuestions judges what a task asks of the client, each question once,
// and takes out what the policy does not let it ask.
func (r *relayed) governTaskQuestions(ctx context.Context, requests json.RawMessage) (json.RawMessage, *Failure) {
	for key, request := range jsonrpc.Members(requests) {
		seen, known := r.session().shown(r.of, key)
		if !known {
			params, _ := jsonrpc.Get(request, "params")
			seen = r.foresee(ctx, r.of.callID, registry.Question{Key: key, Method: textMember(request, "method"), Params: params})
			seen.allowed = r.session().show(r.of, key, seen) && seen.allowed
		}
		if seen.allowed {
			continue
		}
		kept, err := jsonrpc.Delete(requests, key)
		if err != nil {
			return nil, r.fail(signal.CodeOutputInvalid, "the server's questions cannot be read")
		}
		requests = kept
	}
	return requests, nil
}

// findUpdated finds the task that answers are for, and keeps of a client's
// answers those to questions that it was shown, redacted as the policy wants.
func (r *relayed) findUpdated(ctx context.Context) *Failure {
	if f := r.findTask(ctx); f != nil {
		return f
	}
	answers, ok := jsonrpc.Get(r.body, "inputResponses")
	if !ok {
		return nil
	}
	params, err := r.shownAnswers(answers)
	if err == nil {
		params, err = jsonrpc.Set(r.body, "inputResponses", params)
	}
	if err != nil {
		return r.fail(signal.CodeEnvelopeInvalid, "params.inputResponses cannot be read")
	}
	r.body, r.arguments, r.digest = params, params, digest(params)
	return nil
}

// shownAnswers keeps the answers to questions that the client was shown, redacted.
func (r *relayed) shownAnswers(answers json.RawMessage) (json.RawMessage, error) {
	kept := json.RawMessage(`{}`)
	for key, answer := range jsonrpc.Members(answers) {
		in, _ := r.session().shown(r.of, key)
		if !in.allowed {
			continue
		}
		held, err := redact(answer, in.redact)
		if err == nil {
			kept, err = jsonrpc.Set(kept, key, held)
		}
		if err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// findClientTask finds the client's task that a server asks about, among those
// that the server has begun itself in this session.
func (q *question) findClientTask() *Failure {
	t := q.session().task(q.server, textMember(q.body, "taskId"), q.start)
	if t == nil {
		return q.unknownTask()
	}
	q.of, q.about.server.Asks = t, t.asks
	return nil
}

// rememberClientTask remembers the task with which a client answers a question
// that asked for one.
func (q *question) rememberClientTask(answer json.RawMessage) *Failure {
	if _, ok := jsonrpc.Get(q.body, "task"); !ok {
		return nil
	}
	state, ok := jsonrpc.Get(answer, "task")
	if !ok {
		return nil // the client answered at once, as it may
	}
	t := &task{
		id: textMember(state, "taskId"), server: q.server, expires: q.start.Add(registry.TaskLifetime(lifetimeOf(state))), redact: q.decision.Redact,
		callID: q.signalID, asks: q.ask.Method,
	}
	if t.id == "" || !q.session().keep(t, q.start) {
		return q.fail(signal.CodeOutputInvalid, "the client began a task under an id that is taken, or none")
	}
	return nil
}

// filterClientTasks takes out of a client's list the tasks that the server has
// not begun in this session.
func (q *question) filterClientTasks(answer json.RawMessage) (json.RawMessage, *Failure) {
	list, _ := jsonrpc.Get(answer, "tasks")
	if len(list) == 0 || list[0] != '[' {
		return nil, q.fail(signal.CodeOutputInvalid, "the answer holds no list")
	}
	list, err := editArray(list, func(_ int, e json.RawMessage) (json.RawMessage, error) {
		if q.session().task(q.server, textMember(e, "taskId"), q.start) == nil {
			return nil, nil
		}
		return e, nil
	})
	if err == nil {
		answer, err = jsonrpc.Set(answer, "tasks", list)
	}
	if err != nil {
		return nil, q.fail(signal.CodeOutputInvalid, "the answer cannot be read")
	}
	return answer, nil
}

// taskStatus holds a server's notification about a task to the task's decision.
// Tasks of other sessions are dropped; the questions of a task are shown when the
// client asks for its state.
func (c *peer) taskStatus(params json.RawMessage) (json.RawMessage, bool) {
	r := c.gate.newRelayed(c.call)
	r.principal = c.who
	r.of = r.session().task("", textMember(params, "taskId"), r.start)
	if _, asks := jsonrpc.Get(params, "inputRequests"); asks || r.of == nil || r.of.server != c.server {
		return nil, false
	}
	params, f := r.governTaskState(context.Background(), params)
	return params, f == nil
}
