package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Review supersedes a live ticket whose terms are gone, and reports whether the ticket stands.
func (g *Gate) Review(ctx context.Context, t approval.Ticket) bool {
	ok, reason := g.review(ctx, t)
	if reason != "" && g.supersede(ctx, t.ID, reason) {
		g.opts.Log.Info("superseded a ticket", "ticket", t.ID, "reason", reason)
	}
	return ok
}

// Resume takes the call of an approved ticket that stands down the road of every call; it may
// spend this ticket only. One that needs a connection is left alone until its requester has it. It returns the ticket afterwards: approved as before if nothing was
// sent, else in its end state. Without a Book, and while people have stopped such calls, no call is
// made.
func (g *Gate) Resume(ctx context.Context, t approval.Ticket) (approval.Ticket, error) {
	if g.opts.Book == nil {
		return t, errors.New("making an approved call: the gate has no book")
	}
	if by := g.opts.Stops.Find(&t.Principal, t.Server, t.Exposed); by != nil {
		return t, fmt.Errorf("making an approved call: %w", stopping{by})
	}
	if t.State == approval.StateNeedsConnection && !g.connected(ctx, t) {
		return t, nil
	}
	if !g.Review(ctx, t) {
		return g.opts.Book.Get(ctx, t.ID)
	}
	var reply *Reply
	in, err := callOf(t)
	if err == nil {
		var f *Failure
		if reply, f = g.Call(ctx, in); f != nil {
			err = f
		}
	}
	switch {
	case err != nil:
		g.opts.Log.Warn("making an approved call", "ticket", t.ID, "tool", t.Exposed, "error", err)
	case signal.Compose(reply.Kernel).Retry: // somebody else is making it
	default:
		g.opts.Log.Info("made an approved call", "ticket", t.ID, "tool", t.Exposed, "decision", reply.DecisionID)
	}
	return g.opts.Book.Get(ctx, t.ID)
}

// connected reports whether the call of a ticket would run as approved, as far as its requester's
// credential goes.
func (g *Gate) connected(ctx context.Context, t approval.Ticket) bool {
	in, err := callOf(t)
	if err != nil {
		return false
	}
	c := new(call)
	g.begin(c, in)
	c.server, c.principal = t.Server, t.Principal
	if _, f := c.findCredential(ctx); f != nil || c.credential != nil && t.Unconnected == refuses(c.credential) {
		return false
	}
	return t.Disconnected(approval.Held{Principal: t.Principal, RunsAs: runsAs(c.credential)}) == ""
}

// callOf returns the call that a ticket was made for: the stored bytes, and the
// requester to be identified again. It belongs to no session, which may be over.
func callOf(ticket approval.Ticket) (*Call, error) {
	params := fmt.Appendf(nil, `{"name":%s,"arguments":%s}`, jsonrpc.Quote(ticket.Exposed), ticket.Arguments)
	m, err := jsonrpc.Decode(jsonrpc.NewRequest(jsonrpc.Quote(ticket.ID), "tools/call", params), jsonrpc.MostLimits())
	if err != nil {
		return nil, err
	}
	return &Call{
		Message: m, Credential: identity.Credential{Earlier: &ticket.Principal}, Client: ticket.Principal.Client,
		Transport: ticket.Transport, Era: ticket.Era, TraceID: ticket.TraceID, Tags: ticket.Tags, resumed: &ticket,
	}, nil
}

// onlyFor refuses a resumed call that could not continue with its own ticket:
// otherwise it would ask people for something that no agent has asked for.
func (t *toolCall) onlyFor(ticket approval.Ticket) *Failure {
	reason := "the call needs no approval any more"
	if t.decision.Effect == policy.Hold {
		reason = t.differs(ticket)
	}
	if reason == "" {
		return nil
	}
	return t.fail(signal.CodeApprovalExpired, reason).with("ticket", ticket.ID)
}

// review judges the call of a live ticket by what holds now. The ticket stands
// when the call would be held on the same terms, and belongs to no client. Otherwise reason says why it is
// to be superseded, "" when that cannot be said at this moment. A review leaves
// no record and costs no quota.
func (g *Gate) review(ctx context.Context, ticket approval.Ticket) (stands bool, reason string) {
	in, err := callOf(ticket)
	if err != nil {
		return false, ""
	}
	t := new(toolCall)
	g.begin(&t.call, in)
	t.decisionID, t.principal = ticket.DecisionID, ticket.Principal
	f := t.receive(ctx)
	if f == nil {
		f = t.rejudge(ctx)
	}
	// The local principal of a process with another role is somebody else, and a
	// requester whose token has expired may come back with another.
	p := ticket.Principal
	switch {
	case p.Subject == identity.LocalSubject && p.Until.IsZero() && !slices.Equal(p.Roles, t.principal.Roles):
	case f == nil:
		f = t.onlyFor(ticket)
		if f == nil {
			return !t.tool.Own(), "" // a tool for some clients only is called when its agent calls again
		}
		return false, f.Reason
	case f.Kernel.Code == signal.CodeUnauthenticated && (p.Until.IsZero() || t.asOf.Before(p.Until)):
		return false, "the requester is not known any more"
	case t.contradicts(ctx, f, ticket):
		return false, "the call would be refused by now: " + f.Reason
	}
	return false, ""
}

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
		return t.unknownTool(ctx)
	case t.in.Message.Variants != nil:
		return t.ambiguous(t.in.Message.Variants)
	}
	t.tickets, t.tool, t.subject = tickets, StatusTool(), policy.Tool{Server: StatusServer, Name: StatusName, Exposed: StatusName, Risk: "low"}
	t.decision = ownTickets(t.engine)
	return nil
}

// ownTickets allows what is about the principal's own tickets, which no policy
// judges; for the result of a ticket's call, see storedResult.
func ownTickets(engine Policy) policy.Decision {
	return policy.Decision{
		Effect: policy.Allow, Rule: "own_tickets", Reason: "everybody may ask for tickets of their own", Revision: engine.Revision(),
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
		t.ticket = &ticket
		if ticket.State == approval.StateDone {
			t.reply, f = t.storedResult(ctx, ticket)
			t.replayed = f == nil
			return f
		}
		tickets, view = []approval.Ticket{ticket}, t.describe(ticket)
	}
	words, data := make([]string, len(tickets)), make([]map[string]any, len(tickets))
	for i, ticket := range tickets {
		words[i], data[i] = hold.Text(ticket), t.describe(ticket)
	}
	result := fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"structuredContent":%s}`,
		jsonrpc.Quote(strings.Join(words, "\n\n")), marshal(map[string]any{"tickets": data}))
	return t.replyResult(ctx, result, view)
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
	t.in, t.method, t.ticket, t.tool, t.reply = &in, "", &ticket, nil, nil
	t.name, t.body, t.digest = ticket.Exposed, ticket.Arguments, ticket.Digest
	return t
}

// describe is what an agent may know of its ticket, as data.
func (c *call) describe(t approval.Ticket) map[string]any {
	return hold.Describe(t, hold.State(t), c.decisionID, c.gate.console())
}

// console is where people's pages are.
func (g *Gate) console() hold.Console { return hold.Console(g.settings.Load().ConsoleURL) }
