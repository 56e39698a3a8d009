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
	row, ok := clientNotices[in.Message.Method]
	switch {
	case ok && row.action == "":
		if f := identify(ctx, g, p); f != nil {
			return f
		}
		g.opts.Servers.Notify(in.Route, in.Session, in.Message.Method, in.Message.Params)
		return nil
	case !ok && !(isNotice(in.Message.Method) && g.extends(in.Route, in.Message.Method)):
		return p.fail(signal.CodeEnvelopeMethod, "notification "+in.Message.Method+" is not passed on")
	}
	_, f := g.take(ctx, in, noticeRoad)
	return f
}

// extends reports whether the operator named a method of an extension for server.
func (g *Gate) extends(server, method string) bool {
	return server != "" && slices.Contains(g.settings.Load().Methods[server], method)
}

// isNotice tells a notification's name from a request's.
func isNotice(method string) bool { return strings.HasPrefix(method, "notifications/") }

// takeServer makes the server itself what the request is about.
func (p *passage) takeServer() bool {
	p.args, p.whole = p.params, &policy.Server{Name: p.server}
	return true
}

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
	p.takeServer()
	return nil
}

// pass hands the judged bytes over. Whether a server hears them nobody learns.
func pass(_ context.Context, g *Gate, p *passage) *Failure {
	p.sent = true
	g.opts.Servers.Notify(p.server, p.in.Session, p.in.Message.Method, p.params)
	p.reply = &Reply{Kernel: signal.OK(nil, p.metrics(g, false)), DecisionID: p.decisionID, TraceID: p.traceID, Decision: p.decision}
	return nil
}
