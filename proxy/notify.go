package proxy

import (
	"context"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// noticeRoad is the road of a client's notification, but for close. Notify's
// comment draws it; a test holds the two equal.
var noticeRoad = []stage{
	{"receive", receiveNotice},
	{"identify", identify},
	{"decide", decideRelay},
	{"limit", spendRelay},
	{"record", record},
	{"forward", pass},
}

// Notify takes a client's notification to the servers that its session is
// connected to: on the route of one server to that one, else to all. Those
// without content to judge pass when somebody sends them; those of extensions go
// down the road:
//
//	receive    the method has a row, or the operator named it for the server
//	identify   the credential names a principal
//	decide     the policy allows it; what it would hold is denied
//	limit      every bucket that applies gives a token
//	record     the decision is in the audit trail
//	forward    the judged bytes go to the servers
//	close      one outcome record, on every path
//
// A notification is not answered: the failure, nil when it was passed on, is for
// the log. A method that no table names leaves no record.
func (g *Gate) Notify(ctx context.Context, in *Call) *Failure {
	p := g.enter(in)
	p.stage = "receive"
	if in.Message == nil || g.opts.Servers == nil {
		return p.fail(signal.CodeEnvelopeInvalid, "there is no notification, or nobody to take it to")
	}
	ofTask, ok := clientNotices[in.Message.Method]
	switch {
	case ok:
		return g.hand(ctx, p, ofTask)
	case !ok && !(isNotice(in.Message.Method) && g.extends(in.Route, in.Message.Method)):
		return p.fail(signal.CodeEnvelopeMethod, "notification "+in.Message.Method+" is not passed on")
	}
	_, f := g.take(ctx, in, noticeRoad)
	return f
}

// hand passes a notification on that has nothing to be judged. One about a task
// goes to the server that has begun it, and to no other.
func (g *Gate) hand(ctx context.Context, p *passage, ofTask bool) *Failure {
	if f := identify(ctx, g, p); f != nil {
		return f
	}
	m := p.in.Message
	if !ofTask {
		g.opts.Servers.Notify(p.in.Route, p.in.Session, m.Method, m.Params)
		return nil
	}
	raw, _ := jsonrpc.Get(m.Params, "taskId")
	id, _ := jsonrpc.Text(raw)
	for _, server := range g.memory.beginners(p.owner(), id, p.now) {
		if p.in.Route == "" || p.in.Route == server {
			g.opts.Servers.Notify(server, p.in.Session, m.Method, m.Params)
			return nil
		}
	}
	return p.unknownTask()
}

// extends reports whether the operator named a method of an extension for server.
func (g *Gate) extends(server, method string) bool {
	return server != "" && slices.Contains(g.settings.Load().Methods[server], method)
}

// isNotice tells a notification's name from a request's.
func isNotice(method string) bool { return strings.HasPrefix(method, "notifications/") }

func receiveNotice(_ context.Context, g *Gate, p *passage) *Failure {
	m := p.in.Message
	p.method, p.server = method{action: m.Method}, p.in.Route
	switch {
	case m.Kind != jsonrpc.Notification:
		return p.fail(signal.CodeEnvelopeInvalid, m.Method+" takes no id")
	case m.Variants != nil:
		return p.twoReadings(m.Variants)
	}
	if f := p.takeParams(m.Params); f != nil {
		return f
	}
	p.args, p.whole = p.params, &policy.Server{Name: p.server}
	return nil
}

// pass hands the judged bytes over. Whether a server hears them nobody learns.
func pass(_ context.Context, g *Gate, p *passage) *Failure {
	p.sent = true
	g.opts.Servers.Notify(p.server, p.in.Session, p.in.Message.Method, p.params)
	p.replies(g, nil)
	return nil
}
