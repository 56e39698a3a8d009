package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// taskOf finds the task in a result that is none yet: the member task of one
// that was asked for, or all of a result that says so itself (MCP 2026-07-28,
// extension io.modelcontextprotocol/tasks).
func (t *toolCall) taskOf(result json.RawMessage) (state json.RawMessage, ok bool) {
	if offers(t.in.Capabilities, "extensions", "io.modelcontextprotocol/tasks") && textMember(result, "resultType") == "task" {
		state = result
	} else if t.task != nil {
		state, _ = jsonrpc.Get(result, "task")
	}
	return state, textMember(state, "taskId") != ""
}

// begin remembers the task in state, which a request came to, with the decision that
// governs its result. It reports false for a task without an id, and for the id of
// another task, of which a server that reuses it gets nothing.
func (c *call) begin(state json.RawMessage, t *session.Task) bool {
	ttl, ok := jsonrpc.Get(state, "ttl")
	if !ok {
		ttl, _ = jsonrpc.Get(state, "ttlMs") // 2026-07-28
	}
	t.ID, t.Expires = textMember(state, "taskId"), c.start.Add(registry.TaskLifetime(ttl))
	t.Server, t.Redact, t.CallID = c.server, c.decision.Redact, c.signalID
	return t.ID != "" && c.session().Keep(t, c.start)
}

// replyBegun replies with the handle of the task that a tool call came to.
func (t *toolCall) replyBegun(state json.RawMessage) *Failure {
	if t.in.Session == "" || !t.begin(state, &session.Task{Tool: t.tool}) {
		t.ends(approval.StateFailed, nil, "the task's id is taken")
		return t.fail(signal.CodeOutputInvalid, "the server began a task under an id that is taken")
	}
	t.raw = t.in.nameTask(t.raw, textMember(state, "taskId"))
	t.ends(approval.StateDone, t.raw, "")
	return t.replyShaped(outcome{result: slices.Clip(t.raw), kernel: signal.OK(nil, t.metrics()), handle: true}, nil)
}

// nameTask puts the ID for the caller in place of a server's ID into a result that is or has the task.
func (in *Call) nameTask(result json.RawMessage, id string) json.RawMessage {
	if in.TaskID == nil {
		return result
	}
	named := jsonrpc.Change{Name: "taskId", Value: jsonrpc.Quote(in.TaskID(id))}
	if task, _ := jsonrpc.Get(result, "task"); textMember(task, "taskId") == id {
		named = jsonrpc.Change{Name: "task", Members: []jsonrpc.Change{named}}
	} else if textMember(result, "taskId") != id {
		return result
	}
	if shown, err := jsonrpc.Edit(result, named); err == nil { // fails for no result that was decoded
		return shown
	}
	return result
}

// findTask finds the task among those of the session and the tickets of the
// principal. One of another session and one that never was give the same answer. A session
// that was taken over may have begun either elsewhere.
func (r *relayed) findTask(ctx context.Context) *Failure {
	t := r.ticketTask(ctx)
	if t == nil {
		t = r.session().Task("", r.name, r.start)
	}
	switch {
	case t != nil && (r.in.Route == "" || t.Server == r.in.Route):
	case r.in.TakenOver:
		return r.fail(signal.CodeToolFailed, "the task is not known here: if it began before the replica of the session was gone, it is lost, and whether it took effect is unknown")
	default:
		return r.unknownTask()
	}
	r.of, r.server, r.tool, r.parentID = t, t.Server, t.Tool, t.CallID
	r.about.Server = &policy.Server{Name: t.Server, Tools: []string{t.Tool.Exposed}}
	return nil
}

func (c *call) unknownTask() *Failure {
	return c.fail(signal.CodeNotFound, "no such task")
}

// governTaskState holds the state of a task to its decision: a result in it to
// the tool's schema and redaction, and its questions to the policy.
func (r *relayed) governTaskState(ctx context.Context, answer json.RawMessage) (json.RawMessage, *Failure) {
	if textMember(answer, "taskId") != r.of.ID {
		return nil, r.fail(signal.CodeOutputInvalid, "the server answered about another task")
	}
	var changes []jsonrpc.Change
	for key, govern := range map[string]func(context.Context, json.RawMessage) (json.RawMessage, *Failure){
		"result": r.governTaskResult, "inputRequests": r.governTaskQuestions,
	} {
		if inner, ok := jsonrpc.Get(answer, key); ok {
			held, f := govern(ctx, inner)
			if f != nil {
				return nil, f
			}
			changes = append(changes, jsonrpc.Change{Name: key, Value: held})
		}
	}
	return r.edited(answer, changes...)
}

// edited makes changes to an answer.
func (c *call) edited(answer json.RawMessage, changes ...jsonrpc.Change) (json.RawMessage, *Failure) {
	out, err := jsonrpc.Edit(answer, changes...)
	if err != nil {
		return nil, c.fail(signal.CodeOutputInvalid, "the answer cannot be edited: "+err.Error())
	}
	return out, nil
}

// setParams makes changes to the params of a request that calls no tool.
func (r *relayed) setParams(changes ...jsonrpc.Change) *Failure {
	params, err := jsonrpc.Edit(r.body, changes...)
	if err != nil {
		return r.fail(signal.CodeEnvelopeInvalid, "params cannot be edited: "+err.Error())
	}
	r.body, r.digest = params, digest(params)
	return nil
}

// governTaskResult treats the result of a task as the road treats a tool's result.
func (r *relayed) governTaskResult(ctx context.Context, result json.RawMessage) (json.RawMessage, *Failure) {
	t := &toolCall{call: r.call, subject: policy.Tool{Exposed: r.of.Tool.Exposed}, raw: result}
	in := *r.in
	in.Capabilities = nil // a task's result is no task
	t.in, t.task, t.tool, t.decision.Redact, t.reply = &in, nil, r.of.Tool, r.of.Redact, nil
	f := t.normalise(ctx)
	if r.warnings = t.warnings; f != nil {
		return nil, f
	}
	r.kernel = &t.reply.Kernel
	return t.reply.Result, nil
}

// governTaskQuestions judges what a task asks of the client, each question once,
// takes out what the policy does not let it ask, and says who asks.
func (r *relayed) governTaskQuestions(ctx context.Context, requests json.RawMessage) (json.RawMessage, *Failure) {
	var changes []jsonrpc.Change
	for key, request := range jsonrpc.Members(requests) {
		seen, known := r.session().Verdict(r.of, key)
		method := textMember(request, "method")
		params, _ := jsonrpc.Get(request, "params")
		if !known {
			seen = r.foresee(ctx, r.of.CallID, registry.Question{Key: key, Method: method, Params: params})
			seen.Allowed = r.session().SetVerdict(r.of, key, seen) && seen.Allowed
		}
		if !seen.Allowed {
			changes = append(changes, jsonrpc.Change{Name: key})
		} else if method == elicitation && isObject(params) {
			changes = append(changes, jsonrpc.Change{Name: key, Members: []jsonrpc.Change{{Name: "params", Value: r.in.attribute(params, r.server)}}})
		}
	}
	return r.edited(requests, changes...)
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
	changes := []jsonrpc.Change{}
	for key, answer := range jsonrpc.Members(answers) {
		change := jsonrpc.Change{Name: key} // deletes the answer
		if in, _ := r.session().Verdict(r.of, key); in.Allowed {
			var err error
			if change.Value, err = redact(answer, in.Redact); err != nil {
				return r.internal("redacting an answer", err)
			}
		}
		changes = append(changes, change)
	}
	f := r.setParams(jsonrpc.Change{Name: "inputResponses", Members: changes})
	r.about.Arguments = r.body
	return f
}

// rememberClientTask remembers the task with which a client answers a question
// that asked for one. A client may answer at once instead.
func (q *question) rememberClientTask(answer json.RawMessage) *Failure {
	if _, asked := jsonrpc.Get(q.body, "task"); !asked {
		return nil
	}
	if state, ok := jsonrpc.Get(answer, "task"); ok && !q.begin(state, &session.Task{Asks: q.method}) {
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
	list, _ = editArray(list, func(_ int, e json.RawMessage) (json.RawMessage, error) {
		if q.session().Task(q.server, textMember(e, "taskId"), q.start) == nil {
			return nil, nil
		}
		return e, nil
	})
	return q.edited(answer, jsonrpc.Change{Name: "tasks", Value: list})
}

// taskStatus holds a server's notification about a task to the task's decision.
// Tasks of other sessions are dropped; the questions of a task are shown when the
// client asks for its state.
func (c *peer) taskStatus(params json.RawMessage) (json.RawMessage, bool) {
	r := c.gate.newRelayed(&c.call)
	r.principal = c.call.Principal
	r.of = r.session().Task("", textMember(params, "taskId"), r.start)
	if _, asks := jsonrpc.Get(params, "inputRequests"); asks || r.of == nil || r.of.Server != c.server {
		return nil, false
	}
	params, f := r.governTaskState(context.Background(), params)
	return params, f == nil
}

// ticketPrefix begins the ids of tickets. A task of a server with such an id is
// found only where no ticket has it.
const ticketPrefix = "apr_"

// knowsTasks reports whether the caller of a held call takes a task: it asked for
// one (2025-11-25), or declares the extension (2026-07-28). A tool that requires
// a task of its server gets none from the gate.
func (t *toolCall) knowsTasks() bool {
	if t.gate.opts.Book == nil || t.in.resumed != nil {
		return false
	}
	if t.task == nil {
		return t.in.Era == eraRounds && offers(t.in.Capabilities, "extensions", "io.modelcontextprotocol/tasks")
	}
	execution, _ := jsonrpc.Get(t.tool.Definition, "execution")
	return textMember(execution, "taskSupport") != "required"
}

// replyTask replies to a held call with its ticket as a task. Such a call runs
// without its agent, so that close gives a grant back for the ticket worker.
func (t *toolCall) replyTask(c approval.Claim) *Failure {
	ticket := c.Ticket
	if c.Outcome == approval.Granted {
		ticket.State = approval.StateApproved
	}
	kernel := signal.OK(nil, t.metrics())
	if hold.UnderWay(ticket) {
		kernel = t.undecided(ticket, hold.Text(ticket))
	}
	state := t.taskState(ticket)
	result, f := t.edited(state, jsonrpc.Change{Name: "resultType", Value: json.RawMessage(`"task"`)})
	if t.task != nil {
		result, f = t.edited(json.RawMessage("{}"), jsonrpc.Change{Name: "task", Value: state})
	}
	if f == nil {
		f = t.replyShaped(outcome{result: result, kernel: kernel, handle: true}, t.describe(ticket))
	}
	if f == nil && hold.UnderWay(ticket) {
		t.reply.RetryAfter = hold.RetryAfter
	}
	return f
}

// taskState is a ticket as the state of a task, in the form of the caller's revision.
func (c *call) taskState(t approval.Ticket) json.RawMessage {
	return hold.Task(t, c.in.Era == eraRounds, c.gate.console())
}

// ticketTask returns the principal's own ticket that the request is about as a
// task, nil when it is about none.
func (r *relayed) ticketTask(ctx context.Context) *session.Task {
	if r.gate.opts.Book == nil || !strings.HasPrefix(r.name, ticketPrefix) {
		return nil
	}
	t, f := r.ownTicket(ctx, r.name)
	if f != nil {
		return nil
	}
	r.ticket = &t
	return &session.Task{ID: t.ID, Server: t.Server, Expires: t.Expires, Tool: &registry.Tool{
		Server: t.Server, Name: t.Tool, Exposed: t.Exposed, Fingerprint: t.Fingerprint,
	}}
}

// answerTicket answers a request about a task that is a ticket; no server has it.
func (r *relayed) answerTicket(ctx context.Context) *Failure {
	switch r.method {
	case "tasks/get":
		return r.getTask(ctx)
	case "tasks/result":
		return r.awaitTask(ctx)
	case "tasks/cancel":
		return r.cancelTask(ctx)
	}
	return r.replyWith(json.RawMessage("{}"), signal.Skip("a ticket asks its agent nothing", r.metrics()))
}

// getTask replies with the state of the ticket, and the call's result where the
// revision has it in the state.
func (r *relayed) getTask(ctx context.Context) *Failure {
	state := r.taskState(*r.ticket)
	if r.in.Era != eraRounds || hold.UnderWay(*r.ticket) || r.ticket.State == approval.StateSuperseded {
		return r.replyOK(state)
	}
	result, kernel := textResult(hold.Text(*r.ticket)), signal.OK(nil, r.metrics())
	if r.ticket.State == approval.StateDone {
		reply, f := r.storedResult(ctx, *r.ticket)
		if f != nil {
			return f
		}
		result, kernel, r.replayed = reply.Result, reply.Kernel, true
	}
	result, f := r.edited(result, jsonrpc.Change{Name: "resultType", Value: json.RawMessage(`"complete"`)})
	if f != nil {
		return f
	}
	return r.replyWith(state, kernel, jsonrpc.Change{Name: "result", Value: result})
}

// awaitTask replies with what the call came to, as soon as it is over.
func (r *relayed) awaitTask(ctx context.Context) *Failure {
	for hold.UnderWay(*r.ticket) {
		if r.ticket.State != approval.StateProposed || r.gate.opts.Waiter == nil || r.gate.opts.Waiter.Wait(ctx, r.ticket.ID) != nil {
			wait.For(ctx, lookEvery)
		}
		if ctx.Err() != nil {
			return r.cancelled(ctx, false, "the caller no longer waits for the task")
		}
		t, f := r.ownTicket(ctx, r.ticket.ID)
		if f != nil {
			return f
		}
		r.ticket = &t
	}
	if r.ticket.State != approval.StateDone { // what an identical call would get
		return r.callFor(*r.ticket).ended(*r.ticket)
	}
	reply, f := r.storedResult(ctx, *r.ticket)
	if f != nil {
		return f
	}
	related := marshal(map[string]string{"taskId": r.ticket.ID})
	r.replayed = true
	return r.replyWith(reply.Result, reply.Kernel,
		jsonrpc.Change{Name: "_meta", Members: []jsonrpc.Change{{Name: "io.modelcontextprotocol/related-task", Value: related}}})
}

// cancelTask withdraws the request for approval. A call that is being made or is
// over cannot be cancelled; in 2025-11-25 that is an error.
func (r *relayed) cancelTask(ctx context.Context) *Failure {
	stateless := r.in.Era == eraRounds
	err := r.gate.opts.Book.Supersede(context.WithoutCancel(ctx), r.ticket.ID, r.principal.Subject, "its agent withdrew it")
	switch late := errors.Is(err, approval.ErrNotLive); {
	case late && !stateless:
		return r.fail(signal.CodeEnvelopeParams, "the call is being made or is over, and cannot be cancelled")
	case err != nil && !late:
		return r.internal("withdrawing a ticket", err)
	case stateless:
		return r.replyOK(json.RawMessage("{}"))
	}
	t, f := r.ownTicket(ctx, r.ticket.ID)
	if f != nil {
		return f
	}
	return r.replyOK(r.taskState(t))
}

// heldTasks returns the principal's tickets that run without their agent, as
// tasks: they are before all others, on the first page. Nil when there are none.
func (r *relayed) heldTasks(ctx context.Context) (list [][]byte) {
	if _, later := jsonrpc.Get(r.body, "cursor"); later || r.row.list != "tasks" {
		return nil
	}
	tickets, _ := r.gate.ticketsOf(ctx, r.principal)
	for _, t := range tickets {
		if t.Execute && (r.in.Route == "" || r.in.Route == t.Server) {
			list = append(list, r.taskState(t))
		}
	}
	return list
}
