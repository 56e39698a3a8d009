package proxy

import (
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
// caller that asked for one gets one whatever has become of the ticket.
func (g *Gate) takesTask(p *passage, c approval.Claim) bool {
	return c.Ticket.ID != "" && (p.wanted != nil || waits(c)) && g.knowsTasks(p)
}

// knowsTasks reports whether the caller of a held call takes a task: it asked for
// one (2025-11-25), or says that it knows them (2026-07-28). What has to be a task
// at its server cannot be one here.
func (g *Gate) knowsTasks(p *passage) bool {
	if g.opts.Book == nil || p.in.resumed != nil {
		return false
	}
	if p.wanted == nil {
		return p.in.Era == eraRounds && p.declared("extensions", "io.modelcontextprotocol/tasks")
	}
	execution, _ := jsonrpc.Get(p.tool.Definition, "execution")
	support, _ := jsonrpc.Get(execution, "taskSupport")
	return string(support) != `"required"`
}

// handle answers a held call with its ticket as a task. Such a call runs without
// its agent, so a grant that it was given goes back to whoever runs those.
func (g *Gate) handle(ctx context.Context, p *passage, c approval.Claim) *Failure {
	t := c.Ticket
	if c.Outcome == approval.Granted {
		g.release(ctx, p)
		t.State = approval.StateApproved
	}
	result := g.taskState(p, t)
	if p.wanted != nil {
		result = append(append([]byte(`{"task":`), result...), '}')
	} else {
		result, _ = jsonrpc.Set(result, "resultType", json.RawMessage(`"task"`)) // an object of our own making
	}
	kernel := signal.OK(nil, p.metrics(g, false))
	if underWay(t) {
		kernel = signal.Skip("approval "+string(t.State)+": "+t.ID, p.metrics(g, false))
	}
	view, err := json.Marshal(g.describe(p, t))
	if err == nil {
		result, err = setMeta(result, metaApproval, view)
	}
	if err == nil && g.settings.Load().Results != "off" {
		result, err = setMeta(result, metaResult, signal.Compact(kernel, nil))
	}
	if err != nil {
		g.opts.Log.Error("shaping a task", "decision", p.decisionID, "error", err)
		return p.fail(signal.CodeInternal, "")
	}
	p.reply = &Reply{
		Result: result, Kernel: kernel, Ticket: t.ID, DecisionID: p.decisionID, TraceID: p.traceID, Tool: p.tool, Decision: p.decision,
	}
	if underWay(t) {
		p.reply.RetryAfter = retryPending
	}
	return nil
}

// underWay reports whether something may still become of t.
func underWay(t approval.Ticket) bool {
	return t.State == approval.StateProposed || t.State == approval.StateApproved || t.State == approval.StateDispatching
}

// taskState is t as the state of a task, in the form of the caller's revision.
// Where a task has its result in itself (2026-07-28), what was not made is a
// result that says so; before, it is a task that failed.
func (g *Gate) taskState(p *passage, t approval.Ticket) json.RawMessage {
	status, ttl, poll := "failed", "ttl", "pollInterval"
	modern := p.in.Era == eraRounds
	if modern {
		status, ttl, poll = "completed", "ttlMs", "pollIntervalMs"
	}
	switch {
	case underWay(t):
		status = "working"
	case t.State == approval.StateSuperseded:
		status = "cancelled"
	case t.State == approval.StateDone && (modern || !isError(t.Result)):
		status = "completed"
	}
	changed := t.Created
	for _, c := range t.History {
		if c.At.After(changed) {
			changed = c.At
		}
	}
	message := says(t)
	if link := g.link(t); link != "" && t.State == approval.StateProposed {
		message += " Approvers decide at " + link
	}
	state, _ := json.Marshal(map[string]any{ // texts and numbers
		"taskId": t.ID, "status": status, "statusMessage": message,
		"createdAt": t.Created.UTC().Format(time.RFC3339Nano), "lastUpdatedAt": changed.UTC().Format(time.RFC3339Nano),
		ttl: t.Expires.Sub(t.Created).Milliseconds(), poll: pollTask.Milliseconds(),
	})
	return state
}

// pollTask is how often a client is told to look for a task.
const pollTask = 2 * time.Second

// ticketTask gives the principal's own ticket that the request is about as a
// task, nil when it is about none.
func (g *Gate) ticketTask(ctx context.Context, p *passage) *task {
	if g.opts.Book == nil || !strings.HasPrefix(p.name, ticketPrefix) {
		return nil
	}
	t, f := g.ownTicket(ctx, p, p.name)
	if f != nil {
		return nil
	}
	p.ticket = t
	return &task{id: t.ID, server: t.Server, expires: t.Expires, tool: &registry.Tool{
		Server: t.Server, Name: t.Tool, Exposed: t.Exposed, Fingerprint: t.Fingerprint,
	}}
}

// askTicket answers a request about a task that is a ticket; no server has it.
func (g *Gate) askTicket(ctx context.Context, p *passage) *Failure {
	switch p.in.Message.Method {
	case "tasks/get":
		return g.getTask(ctx, p)
	case "tasks/result":
		return g.awaitTask(ctx, p)
	case "tasks/cancel":
		return g.cancelTask(ctx, p)
	}
	p.replies(g, json.RawMessage("{}")) // a ticket asks its agent nothing, so that there is nothing to update
	return nil
}

// getTask answers with the state of the ticket, and what it came to where that
// belongs to it.
func (g *Gate) getTask(ctx context.Context, p *passage) *Failure {
	state := g.taskState(p, p.ticket)
	if p.in.Era != eraRounds || underWay(p.ticket) || p.ticket.State == approval.StateSuperseded {
		p.replies(g, state)
		return nil
	}
	result, kernel := textResult(says(p.ticket)), signal.OK(nil, p.metrics(g, false))
	if p.ticket.State == approval.StateDone {
		reply, f := g.stored(ctx, p, p.ticket)
		if f != nil {
			return f
		}
		result, kernel, p.replayed = reply.Result, reply.Kernel, true
	}
	result, err := jsonrpc.Set(result, "resultType", json.RawMessage(`"complete"`))
	if err == nil {
		state, err = jsonrpc.Set(state, "result", result)
	}
	if err != nil {
		return p.fail(signal.CodeInternal, "")
	}
	p.replies(g, state)
	p.reply.Kernel = kernel
	return nil
}

// awaitTask answers with what the call came to, as soon as it came to something.
func (g *Gate) awaitTask(ctx context.Context, p *passage) *Failure {
	for underWay(p.ticket) {
		if err := g.watch(ctx, p.ticket); err != nil {
			return p.fail(signal.CodeCancelled, "the caller no longer waits for the task")
		}
		t, f := g.ownTicket(ctx, p, p.ticket.ID)
		if f != nil {
			return f
		}
		p.ticket = t
	}
	reply, f := g.cameTo(ctx, p, p.ticket)
	if f != nil {
		return f
	}
	related := append(append([]byte(`{"taskId":`), jsonrpc.Quote(p.ticket.ID)...), '}')
	result, err := setMeta(reply.Result, "io.modelcontextprotocol/related-task", related)
	if err != nil {
		return p.fail(signal.CodeOutputInvalid, "the tool's result cannot carry _meta")
	}
	p.replies(g, result)
	p.reply.Kernel, p.replayed = reply.Kernel, true
	return nil
}

// watch returns when t may have changed, or with an error when ctx has ended.
func (g *Gate) watch(ctx context.Context, t approval.Ticket) error {
	if t.State == approval.StateProposed && g.opts.Waiter != nil {
		if err := g.opts.Waiter.Wait(ctx, t.ID); err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(lookEvery):
		return nil
	}
}

// answers are what the identical call gets that finds a ticket in its end state.
var answers = map[approval.State]approval.ClaimOutcome{
	approval.StateDenied: approval.Denied, approval.StateExpired: approval.Expired,
	approval.StateFailed: approval.Failed, approval.StateUnknown: approval.Unknown,
}

// cameTo gives what the identical call would get that finds t, which is over.
func (g *Gate) cameTo(ctx context.Context, p *passage, t approval.Ticket) (*Reply, *Failure) {
	if t.State == approval.StateDone {
		return g.stored(ctx, p, t)
	}
	q := *p
	q.method = method{} // what refuses a call can be said in a tool's result
	if outcome, ok := answers[t.State]; ok {
		return nil, g.follow(ctx, &q, approval.Claim{Ticket: t, Outcome: outcome})
	}
	return nil, q.fail(signal.CodeApprovalExpired, "the request was taken back, because it was withdrawn or its terms have changed; nothing was done").
		with("ticket", t.ID).remedy("call again with the same arguments to ask anew")
}

// cancelTask takes the request for approval back. What is being made or is over
// stays what it is: where cancelling may fail (2025-11-25) the caller hears so.
func (g *Gate) cancelTask(ctx context.Context, p *passage) *Failure {
	modern := p.in.Era == eraRounds
	err := g.opts.Book.Supersede(context.WithoutCancel(ctx), p.ticket.ID, p.principal.Subject, "its agent withdrew it")
	switch {
	case errors.Is(err, approval.ErrNotLive) && !modern:
		return p.fail(signal.CodeEnvelopeParams, "the call is being made or is over, and cannot be cancelled")
	case err != nil && !errors.Is(err, approval.ErrNotLive):
		g.opts.Log.Error("withdrawing a ticket", "ticket", p.ticket.ID, "error", err)
		return p.fail(signal.CodeInternal, "")
	case modern:
		p.replies(g, json.RawMessage("{}"))
		return nil
	}
	t, f := g.ownTicket(ctx, p, p.ticket.ID)
	if f == nil {
		p.replies(g, g.taskState(p, t))
	}
	return f
}

// ownTasks are the principal's tickets that run without their agent, as tasks: a
// page of their own before all others, nil when there are none.
func (g *Gate) ownTasks(ctx context.Context, p *passage) json.RawMessage {
	_, later := jsonrpc.Get(p.params, "cursor")
	if later || g.opts.Book == nil || p.method.list != "tasks" {
		return nil
	}
	mine, err := g.opts.Book.Answering(ctx, p.principal)
	if err != nil {
		g.opts.Log.Error("reading an agent's own tickets", "error", err)
	}
	var list []json.RawMessage
	for _, t := range mine {
		if t.Execute && (p.in.Route == "" || p.in.Route == t.Server) {
			list = append(list, g.taskState(p, t))
		}
	}
	if list == nil {
		return nil
	}
	page, _ := json.Marshal(map[string]any{"tasks": list}) // objects of our own making
	return page
}
