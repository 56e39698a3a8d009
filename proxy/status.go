package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// StatusName is the tool with which agents ask about their own held calls. An
// upstream's tool of that name takes precedence over ours.
const StatusName = "approval_status"

// StatusServer stands for the gate itself where a server is named.
const StatusServer = "toolgate"

// StatusTool is the tool StatusName. It is listed and served for principals who
// have tickets that still answer a call, and for nobody else.
var StatusTool = sync.OnceValue(func() *registry.Tool {
	const input = `{"type":"object","properties":{"ticket":{"type":"string","description":"The ticket to ask for; leave it out for all of yours."}},"additionalProperties":false}`
	const definition = `{"name":"` + StatusName + `","title":"Approval status",` +
		`"description":"Reports the state of your calls that wait, or waited, for a person's approval, and how to continue. Gives the result of a call that was made.",` +
		`"inputSchema":` + input + `,"annotations":{"readOnlyHint":true,"openWorldHint":false}}`
	compiled, err := schema.Compile(json.RawMessage(input))
	if err != nil {
		panic(err) // it is a constant
	}
	return &registry.Tool{
		Server: StatusServer, Name: StatusName, Exposed: StatusName,
		Definition: json.RawMessage(definition), Listed: json.RawMessage(definition), Fingerprint: digest([]byte(definition)),
		Risk: "low", Annotations: json.RawMessage(`{"readOnlyHint":true,"openWorldHint":false}`), Input: compiled, OutputMode: "off",
	}
})

// leave takes a call of StatusName off the road of other calls, once it was received
// and identified. A test holds the drawing to the list:
//
//	resolve    the principal has tickets, else there is no such tool
//	limit      every bucket that applies gives a token
//	validate   the arguments fit the tool's schema
//	answer     what the principal's own tickets say
//	close      one outcome record, on every path
//
// The policy is asked only about a result that is given: see storedResult.
func (t *toolCall) leave(ctx context.Context) *Failure {
	var statusRoad = []stage[*toolCall]{
		{"resolve", (*toolCall).resolveStatus},
		{"limit", (*toolCall).limit},
		{"validate", (*toolCall).validate},
		{"answer", (*toolCall).answerStatus},
	}
	return walk(ctx, t, &t.call, statusRoad)
}

// offersStatus reports whether who has tickets to ask about, and no server has a
// tool of that name. A store that fails hides the tool.
func (g *Gate) offersStatus(ctx context.Context, view registry.View, who policy.Principal) bool {
	if _, taken := view.Lookup(StatusName); taken {
		return false
	}
	tickets, err := g.ticketsOf(ctx, who)
	return err == nil && len(tickets) > 0
}

// ticketsOf returns the tickets of who that still answer a call, newest first.
func (g *Gate) ticketsOf(ctx context.Context, who policy.Principal) ([]approval.Ticket, error) {
	if g.opts.Book == nil {
		return nil, nil
	}
	tickets, err := g.opts.Book.Answering(ctx, who)
	if err != nil {
		g.opts.Log.Error("reading an agent's own tickets", "error", err)
	}
	return tickets, err
}

func (t *toolCall) resolveStatus(ctx context.Context) *Failure {
	tickets, err := t.gate.ticketsOf(ctx, t.principal)
	switch {
	case err != nil:
		return t.fail(signal.CodeInternal, "")
	case len(tickets) == 0:
		return t.unknownTool()
	case t.in.Message.Variants != nil:
		return t.ambiguous(t.in.Message.Variants)
	}
	t.tickets, t.tool, t.subject = tickets, StatusTool(), policy.Tool{Server: StatusServer, Name: StatusName, Exposed: StatusName, Risk: "low"}
	t.decision = t.ownTickets()
	return nil
}

// ownTickets allows what is about the principal's own tickets, which no policy
// judges; for the result of a ticket's call, see storedResult.
func (c *call) ownTickets() policy.Decision {
	return policy.Decision{
		Effect: policy.Allow, Rule: "own_tickets", Reason: "everybody may ask for tickets of their own", Revision: c.engine.Revision(),
	}
}

// answerStatus describes one ticket, or all when the caller has several and names
// none, in words and as data.
func (t *toolCall) answerStatus(ctx context.Context) *Failure {
	tickets, view := t.tickets, map[string]any(nil)
	raw, named := jsonrpc.Get(t.body, "ticket")
	if named || len(tickets) == 1 {
		id, _ := jsonrpc.Text(raw)
		if !named {
			id = tickets[0].ID
		}
		ticket, f := t.ownTicket(ctx, id)
		if f != nil {
			return f
		}
		t.ticket = ticket
		if ticket.State == approval.StateDone {
			t.reply, f = t.storedResult(ctx, ticket)
			t.replayed = f == nil
			return f
		}
		tickets, view = []approval.Ticket{ticket}, t.describeTicket(ticket)
	}
	words, data := make([]string, len(tickets)), make([]map[string]any, len(tickets))
	for i, ticket := range tickets {
		words[i], data[i] = ticketText(ticket), t.describeTicket(ticket)
	}
	result := fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"structuredContent":%s}`,
		jsonrpc.Quote(strings.Join(words, "\n\n")), marshal(map[string]any{"tickets": data}))
	return t.replyResult(ctx, result, nil, view)
}

// ownTicket returns a ticket of the principal's own, whole. Another principal's
// ticket and one that never was get the same answer.
func (c *call) ownTicket(ctx context.Context, id string) (approval.Ticket, *Failure) {
	t, err := c.gate.opts.Book.Get(ctx, id)
	switch {
	case errors.Is(err, approval.ErrNotFound):
	case err != nil:
		return t, c.internal("reading a ticket", err)
	case c.principal.Valid() && c.principal.Subject == t.Principal.Subject && c.principal.Tenant == t.Principal.Tenant:
		return t, nil
	}
	return approval.Ticket{}, c.fail(signal.CodeNotFound, "you have no such ticket")
}

// storedResult returns the result of a ticket's call as the identical call would
// get it now: a principal who may no longer see the tool, or call it so, gets
// the refusal of such a call.
func (c *call) storedResult(ctx context.Context, ticket approval.Ticket) (*Reply, *Failure) {
	t := c.callFor(ticket)
	f := t.resolve(ctx)
	if f == nil {
		f = t.decide(ctx)
	}
	if f != nil {
		c.decision, c.asked = t.decision, t.asked // that refused it
		return nil, f
	}
	result, err := redact(ticket.Result, t.decision.Redact)
	if err != nil && ticket.Result != nil {
		return nil, c.internal("redacting a stored result", err)
	}
	ticket.Result = result
	f = t.replyStored(ctx, ticket)
	return t.reply, f
}

// callFor returns the tool call of a ticket, in the course of the request c. It
// has its own copy of everything, and is never closed.
func (c *call) callFor(ticket approval.Ticket) *toolCall {
	t := &toolCall{call: *c}
	in := *c.in
	in.Route = "" // where the tool has the name that the ticket has
	t.in, t.method, t.ticket, t.tool, t.reply = &in, "", ticket, nil, nil
	t.name, t.body, t.digest = ticket.Exposed, ticket.Arguments, ticket.Digest
	return t
}

// wording is what agents read of a ticket in one state. See fill for the texts.
type wording struct {
	word string // the state; "" = its own name
	code string // of the failure of an identical call, where the ticket is over without a result
	text string // what has become of the call
	next string // what the agent can do
	runs string // takes the place of next for a call that is made upon approval, where it is not ""
}

var words = map[approval.State]wording{
	approval.StateProposed: {
		word: "pending",
		text: "waiting for a person with role {roles} to approve it (rule {rule}: {reason}); nothing has been done yet, and the request expires at {expires}",
		next: "when it is approved, {again} and it is made", runs: "it is made as soon as it is approved",
	},
	approval.StateApproved:    {text: "approved", next: "to have it made, {again} before {expires}", runs: "it is about to be made: ask again in a moment for its result"},
	approval.StateDispatching: {word: "running", text: "approved, and being made now", next: "ask again in a moment for its result"},
	approval.StateDone:        {text: "approved and made", next: "ask for this ticket to have the result"},
	approval.StateDenied:      {code: signal.CodeApprovalDenied, text: "{denial}; nothing was done"},
	approval.StateExpired:     {code: signal.CodeApprovalExpired, text: "nobody approved it in time; nothing was done", next: "{again} to ask again"},
	approval.StateSuperseded: {
		code: signal.CodeApprovalExpired, next: "{again} to ask again",
		text: "the request was taken back, because it was withdrawn or its terms have changed; nothing was done",
	},
	approval.StateFailed: {code: signal.CodeToolFailed, text: "the approved call was made and failed: {note}"},
	approval.StateUnknown: {
		code: signal.CodeToolFailed, text: "the approved call was begun and its outcome is not known; it is not made again",
		next: "a person has to find out whether it took effect",
	},
}

// fill puts the facts of t into a text: {roles}, {note} and so on. The agent calls
// the tool by name.
func fill(text string, t approval.Ticket, name string) string {
	again := "all " + name + " again with exactly the same arguments"
	return strings.NewReplacer(
		"{ticket}", t.ID, "{tool}", t.Exposed, "{roles}", strings.Join(t.Roles, " or "), "{rule}", t.Rule, "{reason}", t.Reason, "{note}", t.Note,
		"{denial}", strings.TrimSuffix("an approver denied this call: "+t.DecisionReason, ": "), "{expires}", t.Expires.UTC().Format(time.RFC3339),
		"{again}", "c"+again, "{Again}", "C"+again, "{soon}", strconv.Itoa(int(retryPending.Seconds())),
	).Replace(text)
}

func stateWord(t approval.Ticket) string { return cmp.Or(words[t.State].word, string(t.State)) }

// ticketText is the status of a ticket, for a model.
func ticketText(t approval.Ticket) string {
	w := words[t.State]
	if t.Execute {
		w.next = cmp.Or(w.runs, w.next)
	}
	return fill(strings.TrimSuffix("Ticket {ticket}, your call of {tool}: "+w.text+"; "+w.next, "; ")+".", t, t.Exposed)
}

// describeTicket is what an agent may know of its ticket, as data.
func (c *call) describeTicket(t approval.Ticket) map[string]any {
	view := c.approvalView(stateWord(t), t)
	view["tool"] = t.Exposed
	if underWay(t) {
		view["retry_after_ms"] = retryPending.Milliseconds()
	} else {
		delete(view, "approval_url")
	}
	return view
}
