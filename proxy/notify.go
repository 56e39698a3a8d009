package proxy

import (
	"context"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// noticeRoad lists the stages of a client's notification, but for close. The
// comment of Notify draws it; a test holds the two equal.
var noticeRoad = []stage[*relayed]{
	{"receive", (*relayed).receiveNotice},
	{"identify", (*relayed).identify},
	{"decide", (*relayed).decide},
	{"limit", (*relayed).limit},
	{"record", (*relayed).record},
	{"forward", (*relayed).notifyServers},
}

// Notify takes a client's notification to the servers that its session is
// connected to: on the route of one server to that one, else to all. Those
// without content to judge need a principal only; those of extensions go down
// the road:
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
	r := g.newRelayed(in)
	if in.Message == nil || g.opts.Servers == nil {
		return r.fail(signal.CodeEnvelopeInvalid, "there is no notification, or nobody to take it to")
	}
	ofTask, ok := clientNotices[in.Message.Method]
	switch {
	case ok:
		return r.passNotice(ctx, ofTask)
	case !ok && !(isNotice(in.Message.Method) && g.extends(in.Route, in.Message.Method)):
		return r.fail(signal.CodeEnvelopeMethod, "notification "+in.Message.Method+" is not passed on")
	}
	_, f := take(ctx, r, &r.call, noticeRoad)
	return f
}

// passNotice passes a notification on that has nothing to be judged. One about a
// task goes to the server that has begun it, and to no other.
func (r *relayed) passNotice(ctx context.Context, ofTask bool) *Failure {
	if f := r.identify(ctx); f != nil {
		return f
	}
	m, servers := r.in.Message, []string{r.in.Route}
	if ofTask {
		servers = r.gate.memory.beginners(r.owner(), textMember(m.Params, "taskId"), r.start)
	}
	for _, server := range servers {
		if r.in.Route == "" || r.in.Route == server {
			r.gate.opts.Servers.Notify(server, r.in.Session, m.Method, m.Params)
			return nil
		}
	}
	return r.unknownTask()
}

// extends reports whether the operator named a method of an extension for server.
func (g *Gate) extends(server, method string) bool {
	return server != "" && slices.Contains(g.settings.Load().Methods[server], method)
}

// isNotice tells a notification's name from a request's.
func isNotice(method string) bool { return strings.HasPrefix(method, "notifications/") }

func (r *relayed) receiveNotice(ctx context.Context) *Failure {
	m := r.in.Message
	r.row, r.server = method{action: m.Method}, r.in.Route
	switch {
	case m.Kind != jsonrpc.Notification:
		return r.fail(signal.CodeEnvelopeInvalid, m.Method+" takes no id")
	case m.Variants != nil:
		return r.ambiguous(m.Variants)
	}
	if f := r.receiveParams(m); f != nil {
		return f
	}
	return r.findServer(ctx)
}

// notifyServers sends the judged bytes. Nobody learns whether a server reads them.
func (r *relayed) notifyServers(context.Context) *Failure {
	r.sent = true
	r.gate.opts.Servers.Notify(r.server, r.in.Session, r.in.Message.Method, r.body)
	r.replyOK(nil)
	return nil
}
