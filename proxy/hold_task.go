package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// ticketPrefix begins the ids of tickets. A task of a server with such an id is
// found only where no ticket has it.
const ticketPrefix = "apr_"

// takesTask reports whether a held call is answered with its ticket as a task. A
// caller that asked for a task gets one in every state of the ticket.
func (t *toolCall) takesTask(c approval.Claim) bool {
	return c.Ticket.ID != "" && (t.task != nil || waits(c)) && t.knowsTasks()
}

// knowsTasks reports whether the caller of a held call takes a task: it asked for
// one (2025-11-25), or declares the extension (2026-07-28). A tool that requires
// a task of its server gets none from the gate.
func (t *toolCall) knowsTasks() bool {
	if t.gate.opts.Book == nil || t.in.resumed != nil {
		return false
	}
	if t.task == nil {
		return t.in.Era == eraRounds && t.declared("extensions", "io.modelcontextprotocol/tasks")
	}
	execution, _ := jsonrpc.Get(t.tool.Definition, "execution")
	return textMember(execution, "taskSupport") != "required"
}

// replyTask replies to a held call with its ticket as a task. Such a call runs
// without its agent, so that settle gives a grant back for the ticket worker.
func (t *toolCall) replyTask(c approval.Claim) *Failure {
	ticket := c.Ticket
	if c.Outcome == approval.Granted {
		ticket.State = approval.StateApproved
	}
	kernel := signal.OK(nil, t.metrics())
	if underWay(ticket) {
		kernel = t.undecided(ticket, cmp.Or(ticketWords[ticket.State], string(ticket.State)), ticketText(ticket))
	}
	shape := jsonrpc.Change{Name: "resultType", Value: json.RawMessage(`"task"`)}
	result := t.taskState(ticket)
	if t.task != nil {
		shape = jsonrpc.Change{Name: "task", Value: result}
		result = json.RawMessage("{}")
	}
	result, err := jsonrpc.Edit(result, shape)
	if err == nil {
		result, err = t.withMeta(result, kernel, jsonrpc.Change{Name: metaApproval, Value: marshal(t.describeTicket(ticket))})
	}
	if err != nil {
		return t.internal("shaping a task", err)
	}
	t.replyWith(result, kernel)
	if underWay(ticket) {
		t.reply.RetryAfter = retryPending
	}
	return nil
}

// withMeta puts members, and unless results are off a Result without signals, into
// the _meta of a result that is no tool's.
func (c *call) withMeta(result json.RawMessage, kernel signal.Result, members ...jsonrpc.Change) (json.RawMessage, error) {
	if c.gate.settings.Load().Results != "off" {
		members = append(members, jsonrpc.Change{Name: metaResult, Value: signal.Compact(kernel, nil)})
	}
	if len(members) == 0 {
		return result, nil
	}
	return jsonrpc.Edit(result, jsonrpc.Change{Name: "_meta", Members: members})
}

// underWay reports whether something may still become of t.
func underWay(t approval.Ticket) bool {
	return t.State == approval.StateProposed || t.State == approval.StateApproved || t.State == approval.StateDispatching
}

// taskState is t as the state of a task, in the form of the caller's revision.
// Where a task has its result in itself (2026-07-28), what was not made is a
// result that says so; before, it is a task that failed.
func (c *call) taskState(t approval.Ticket) json.RawMessage {
	status, ttl, poll := "failed", "ttl", "pollInterval"
	stateless := c.in.Era == eraRounds
	if stateless {
		status, ttl, poll = "completed", "ttlMs", "pollIntervalMs"
	}
	switch {
	case underWay(t):
		status = "working"
	case t.State == approval.StateSuperseded:
		status = "cancelled"
	case t.State == approval.StateDone && (stateless || !isError(t.Result)):
		status = "completed"
	}
	changed := t.Created
	for _, move := range t.History {
		if move.At.After(changed) {
			changed = move.At
		}
	}
	message := ticketText(t)
	if link := c.gate.approvalPage(t); link != "" && t.State == approval.StateProposed {
		message += " Approvers decide at " + link
	}
	state, _ := json.Marshal(map[string]any{ // texts and numbers
		"taskId": t.ID, "status": status, "statusMessage": message,
		"createdAt": t.Created.UTC().Format(time.RFC3339Nano), "lastUpdatedAt": changed.UTC().Format(time.RFC3339Nano),
		ttl: t.Expires.Sub(t.Created).Milliseconds(), poll: pollTask.Milliseconds(),
	})
	return state
}

// pollTask is the polling interval that a task suggests to its client.
const pollTask = 2 * time.Second

// ticketTask returns the principal's own ticket that the request is about as a
// task, nil when it is about none.
func (r *relayed) ticketTask(ctx context.Context) *task {
	if r.gate.opts.Book == nil || !strings.HasPrefix(r.name, ticketPrefix) {
		return nil
	}
	t, f := r.ownTicket(ctx, r.name)
	if f != nil {
		return nil
	}
	r.ticket = t
	return &task{id: t.ID, server: t.Server, expires: t.Expires, tool: &registry.Tool{
		Server: t.Server, Name: t.Tool, Exposed: t.Exposed, Fingerprint: t.Fingerprint,
	}}
}

// answerTicket answers a request about a task that is a ticket; no server has it.
func (r *relayed) answerTicket(ctx context.Context) *Failure {
	switch r.in.Message.Method {
	case "tasks/get":
		return r.getTask(ctx)
	case "tasks/result":
		return r.awaitTask(ctx)
	case "tasks/cancel":
		return r.cancelTask(ctx)
	}
	r.replyWith(json.RawMessage("{}"), signal.Skip("a ticket asks its agent nothing", r.metrics()))
	return nil
}

// getTask replies with the state of the ticket, and the call's result where the
// revision has it in the state.
func (r *relayed) getTask(ctx context.Context) *Failure {
	state := r.taskState(r.ticket)
	if r.in.Era != eraRounds || underWay(r.ticket) || r.ticket.State == approval.StateSuperseded {
		r.replyOK(state)
		return nil
	}
	result, kernel := textResult(ticketText(r.ticket)), signal.OK(nil, r.metrics())
	if r.ticket.State == approval.StateDone {
		reply, f := r.storedResult(ctx, r.ticket)
		if f != nil {
			return f
		}
		result, kernel, r.replayed = reply.Result, reply.Kernel, true
	}
	result, err := jsonrpc.Set(result, "resultType", json.RawMessage(`"complete"`))
	if err == nil {
		state, err = jsonrpc.Set(state, "result", result)
	}
	if err != nil {
		return r.fail(signal.CodeInternal, "")
	}
	r.replyWith(state, kernel)
	return nil
}

// awaitTask replies with what the call came to, as soon as it is over.
func (r *relayed) awaitTask(ctx context.Context) *Failure {
	for underWay(r.ticket) {
		if err := r.gate.watchTicket(ctx, r.ticket); err != nil {
			return r.fail(signal.CodeCancelled, "the caller no longer waits for the task")
		}
		t, f := r.ownTicket(ctx, r.ticket.ID)
		if f != nil {
			return f
		}
		r.ticket = t
	}
	reply, f := r.taskResult(ctx)
	if f != nil {
		return f
	}
	related := append(append([]byte(`{"taskId":`), jsonrpc.Quote(r.ticket.ID)...), '}')
	result, err := jsonrpc.Edit(reply.Result, jsonrpc.Change{Name: "_meta", Members: []jsonrpc.Change{{Name: "io.modelcontextprotocol/related-task", Value: related}}})
	if err != nil {
		return r.fail(signal.CodeOutputInvalid, "the tool's result cannot carry _meta")
	}
	r.replyWith(result, reply.Kernel)
	r.replayed = true
	return nil
}

// watchTicket returns when t may have changed, or with an error when ctx ends.
func (g *Gate) watchTicket(ctx context.Context, t approval.Ticket) error {
	if t.State == approval.StateProposed && g.opts.Waiter != nil {
		if err := g.opts.Waiter.Wait(ctx, t.ID); err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
	}
	pause(ctx)
	return ctx.Err()
}

// claimOutcomes are what an identical call gets from a ticket in its end state.
var claimOutcomes = map[approval.State]approval.ClaimOutcome{
	approval.StateDenied: approval.Denied, approval.StateExpired: approval.Expired,
	approval.StateFailed: approval.Failed, approval.StateUnknown: approval.Unknown,
}

// taskResult returns what an identical call would get from the ticket, which is
// over. A refusal can be said in a tool's result.
func (r *relayed) taskResult(ctx context.Context) (*Reply, *Failure) {
	if r.ticket.State == approval.StateDone {
		return r.storedResult(ctx, r.ticket)
	}
	t := r.callFor(r.ticket)
	if outcome, ok := claimOutcomes[r.ticket.State]; ok {
		return nil, t.ended(outcome, r.ticket)
	}
	return nil, t.fail(signal.CodeApprovalExpired, "the request was taken back, because it was withdrawn or its terms have changed; nothing was done").
		with("ticket", r.ticket.ID).remedy("call again with the same arguments to ask anew")
}

// cancelTask withdraws the request for approval. A call that is being made or is
// over cannot be cancelled; in 2025-11-25 that is an error.
func (r *relayed) cancelTask(ctx context.Context) *Failure {
	stateless := r.in.Era == eraRounds
	err := r.gate.opts.Book.Supersede(context.WithoutCancel(ctx), r.ticket.ID, r.principal.Subject, "its agent withdrew it")
	switch {
	case errors.Is(err, approval.ErrNotLive) && !stateless:
		return r.fail(signal.CodeEnvelopeParams, "the call is being made or is over, and cannot be cancelled")
	case err != nil && !errors.Is(err, approval.ErrNotLive):
		return r.internal("withdrawing a ticket", err)
	case stateless:
		r.replyOK(json.RawMessage("{}"))
		return nil
	}
	t, f := r.ownTicket(ctx, r.ticket.ID)
	if f == nil {
		r.replyOK(r.taskState(t))
	}
	return f
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
