package proxy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// StatusName is the tool with which agents ask what has become of their own
// held calls. An upstream's tool of that name goes before ours.
const StatusName = "approval_status"

// StatusServer stands for the gate itself where a server is named.
const StatusServer = "toolgate"

// StatusTool is the tool StatusName. It is listed and served for principals who
// have tickets that still answer a call, and for nobody else.
var StatusTool = sync.OnceValue(func() *registry.Tool {
	const input = `{"type":"object","properties":{"ticket":{"type":"string","description":"The ticket to ask for; leave it out for all of yours."}},"additionalProperties":false}`
	const definition = `{"name":"` + StatusName + `","title":"Approval status",` +
		`"description":"Tells what has become of your calls that wait, or waited, for a person's approval, and how to go on. Gives the result of a call that was made.",` +
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

// statusRoad is where a call of StatusName goes on after it was received and
// identified, when no server has such a tool. The comment of leave draws it; a
// test holds the two equal.
var statusRoad = []stage{
	{"resolve", resolveStatus},
	{"limit", spend},
	{"validate", validate},
	{"answer", answerStatus},
}

// leave takes a call of StatusName off the road of other calls:
//
//	resolve    the principal has tickets, else there is no such tool
//	limit      every bucket that applies gives a token
//	validate   the arguments fit the tool's schema
//	answer     what the principal's own tickets say
//	close      one outcome record, on every path
//
// Nothing is asked of the policy, but for a result that is given: see stored.
func (g *Gate) leave(ctx context.Context, p *passage) *Failure {
	return g.walk(ctx, p, statusRoad)
}

// offersStatus reports whether who has tickets to ask for, and no server has a
// tool of that name. A store that fails hides the tool.
func (g *Gate) offersStatus(ctx context.Context, view registry.View, who policy.Principal) bool {
	if g.opts.Book == nil {
		return false
	}
	if _, taken := view.Lookup(StatusName); taken {
		return false
	}
	mine, err := g.opts.Book.Answering(ctx, who)
	if err != nil {
		g.opts.Log.Error("reading an agent's own tickets", "error", err)
	}
	return err == nil && len(mine) > 0
}

func resolveStatus(ctx context.Context, g *Gate, p *passage) *Failure {
	if g.opts.Book == nil {
		return p.unknownTool()
	}
	mine, err := g.opts.Book.Answering(ctx, p.principal)
	switch {
	case err != nil:
		g.opts.Log.Error("reading an agent's own tickets", "decision", p.decisionID, "error", err)
		return p.fail(signal.CodeInternal, "")
	case len(mine) == 0:
		return p.unknownTool()
	case p.in.Message.Variants != nil:
		return p.twoReadings(p.in.Message.Variants)
	}
	p.own, p.tool, p.subject = mine, StatusTool(), toolInput(StatusTool())
	p.decision = p.aboutOwn()
	return nil
}

// aboutOwn lets pass what is about tickets of the principal's own. It is not for a
// policy to judge; what the call of a ticket came to is, see stored.
func (p *passage) aboutOwn() policy.Decision {
	return policy.Decision{
		Effect: policy.Allow, Rule: "own_tickets", Reason: "everybody may ask for tickets of their own", Revision: p.engine.Revision(),
	}
}

// answerStatus says what stands in one ticket, or in all when the caller has
// several and names none.
func answerStatus(ctx context.Context, g *Gate, p *passage) *Failure {
	raw, named := jsonrpc.Get(p.args, "ticket")
	if !named && len(p.own) > 1 {
		return g.giveStatus(ctx, p, p.own, nil)
	}
	id, _ := jsonrpc.Text(raw)
	if !named {
		id = p.own[0].ID
	}
	t, f := g.ownTicket(ctx, p, id)
	if f != nil {
		return f
	}
	p.ticket = t
	if t.State != approval.StateDone {
		return g.giveStatus(ctx, p, []approval.Ticket{t}, g.describe(p, t))
	}
	reply, f := g.stored(ctx, p, t)
	if f == nil {
		p.reply, p.replayed = reply, true
	}
	return f
}

// giveStatus answers with what stands in tickets, in words and as data.
func (g *Gate) giveStatus(ctx context.Context, p *passage, tickets []approval.Ticket, view map[string]any) *Failure {
	words, data := make([]string, len(tickets)), make([]map[string]any, len(tickets))
	for i, t := range tickets {
		words[i], data[i] = says(t), g.describe(p, t)
	}
	structured, err := json.Marshal(map[string]any{"tickets": data})
	if err != nil {
		return p.fail(signal.CodeInternal, "")
	}
	result := slices.Concat([]byte(`{"content":[{"type":"text","text":`), jsonrpc.Quote(strings.Join(words, "\n\n")),
		[]byte(`}],"structuredContent":`), structured, []byte{'}'})
	return g.give(ctx, p, result, nil, view)
}
