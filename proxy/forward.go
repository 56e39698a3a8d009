package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// forward sends the judged bytes. The ticket of a held call is done with a
// result, failed with an upstream's error, approved again when nothing was sent,
// and otherwise unknown.
func (t *toolCall) forward(ctx context.Context) *Failure {
	ctx, ender := t.gate.running.begin(ctx, &t.call)
	defer t.gate.running.end(&t.call)
	if f := t.stop(ctx); f != nil {
		return f
	}
	t.sent = true
	out := registry.Outgoing{Arguments: t.body, Meta: t.meta, Task: t.task, From: t.from(t.server), Progress: t.in.Progress, Plain: &t.plain, Cancel: ender}
	if t.hold.reports > 0 || t.gate.opts.Bus.Listening(t.principal) {
		out.Progress = t.progress()
		defer func() {
			if t.chunks > 0 {
				t.publishChunk("", true, nil)
			}
		}()
	}
	if t.task != nil {
		out.Later = t.in.Later
	}
	var traced *outgoing
	if t.trace != nil {
		traced, out.Trace = t.gate.startOutgoing(ctx, t.server, "tools/call", t.tool.Name)
		defer traced.done()
		ctx = traced.ctx
	}
	begun := t.gate.opts.Now()
	raw, err := t.gate.opts.Upstreams.Forward(ctx, t.tool, out)
	t.upstream = t.gate.opts.Now().Sub(begun)
	if traced != nil {
		traced.note(raw, err)
	}
	if err == nil {
		t.raw = raw
		return nil
	}
	fe := forwardError(err)
	late := "the tool did not answer within " + t.tool.Timeout.String()
	if errors.Is(err, registry.ErrMaxTimeout) {
		late = "the tool reported progress and did not answer within " + t.tool.MaxTimeout.String()
	}
	f := t.elicited(ctx, t.upstreamFailure(ctx, fe, late))
	if fe.Kind == registry.Timeout && !t.hold.granted {
		// Where the accepted definition of the tool says that a call changes nothing, the caller may
		// repeat it (MCP, ToolAnnotations.readOnlyHint). toolgate repeats nothing.
		if hint, _ := jsonrpc.Get(t.tool.Annotations, "readOnlyHint"); string(hint) == "true" {
			f.Kernel.RetryEligible = true
			f = f.remedy("the tool only reads: call it again")
		}
	}
	t.hold.refused = fe.Kind == registry.Unconnected && t.credential != nil
	t.sent = fe.Sent && fe.Kind != registry.Unconnected
	t.ends(approval.StateUnknown, nil, f.Reason)
	if fe.Kind == registry.Failed && fe.RPC != nil {
		t.hold.end = approval.StateFailed
	}
	return f
}

// ErrShutdown is the cause with which doors cancel calls that are still under way when
// toolgate has to end. Their callers get an answer; a call that its own caller cancelled
// gets none.
var ErrShutdown = errors.New("toolgate is shutting down")

// ErrSessionEnded is the cause with which doors cancel the calls of a session that a person ends. Their
// callers get an answer.
var ErrSessionEnded = errors.New("a person ended the session")

// cancelled is the failure of a request whose context has ended: the caller gave up for
// the reason, people stopped it or ended its session, or toolgate shuts down. sent means that the request reached its server.
func (c *call) cancelled(ctx context.Context, sent bool, reason string) *Failure {
	if f := c.halted(ctx, sent); f != nil {
		return f
	}
	was, is := "toolgate shut down", "toolgate is shutting down"
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrSessionEnded):
		was, is = ErrSessionEnded.Error(), ErrSessionEnded.Error()
	case !errors.Is(cause, ErrShutdown):
		return c.fail(signal.CodeCancelled, reason)
	}
	if sent {
		return c.fail(signal.CodeToolTimeout, was+" before the server answered; whether the call took effect is unknown").
			because(upstreamError("no answer before "+was, nil)).remedy(mayHaveRun)
	}
	return c.fail(signal.CodeUpstreamUnavailable, is+"; nothing was sent").remedy(callLater)
}

// upstreams is the origin of errors of servers.
var upstreams = signal.ModuleRef{Tier: 4, Module: "upstream", Function: "forward"}

// upstreamError is the error of a server. A retry is the caller's own
// decision. The connection's own error is for the log: it may hold an address
// with secrets.
func upstreamError(message string, detail map[string]any) *signal.KernelError {
	return signal.ExternalError(message, upstreams, false, detail)
}

func upstreamMessage(rpc []byte) string {
	return cmp.Or(textMember(rpc, "message"), "the tool answered with an error")
}

// progress receives the upstream's progress, for the caller and, as STREAM
// signals, for the bus. The caller gets only what is beyond the progress that was
// reported while the call waited (MCP, basic/utilities/progress).
func (t *toolCall) progress() func(json.RawMessage) {
	return func(params json.RawMessage) {
		t.publishChunk(cmp.Or(textMember(params, "message"), string(params)), false, params)
		raw, _ := jsonrpc.Get(params, "progress")
		n, err := strconv.ParseFloat(string(raw), 64)
		if t.in.Progress != nil && (err != nil || t.hold.reports == 0 || n > t.hold.progress()) {
			t.in.Progress(params)
		}
	}
}

// peer governs the questions and notifications that a server sends on its own
// account, and passes them to the door's peer. It is immutable.
type peer struct {
	gate   *Gate
	door   registry.Peer
	server string // "" = not known: nothing passes
	*origin
	// The call in whose course the server speaks; "" when it is in none.
	parentID, traceID string
}

// An origin is the request for which peers were handed down, without its message, and with its
// principal. It outlives the request. Its own two peers are changed until they have a server.
type origin struct {
	call         Call
	during, home peer
}

// from returns the client that the road forwards for, with the gate between server
// and the client's peers.
func (c *call) from(server string) registry.Downstream {
	out := registry.Downstream{
		Issuer: c.principal.Issuer, Tenant: c.principal.Tenant, Subject: c.principal.Subject,
		Session: c.in.Session, Capabilities: c.in.Capabilities, ClientInfo: c.in.ClientInfo, Revision: c.in.Era, Level: c.in.Level, Bytes: c.in.Bytes,
	}
	if out.Issuer != "" {
		out.Token = text.Secret(c.in.Credential.Bearer)
	}
	if c.credential != nil {
		out.Credential = c.credential.ID
	}
	if c.in.Peer == nil && c.in.Home == nil {
		return out
	}
	if c.origin == nil {
		o := &origin{call: *c.in}
		o.call.Principal, o.call.Message, o.call.Fault, o.call.Progress, o.call.Bytes, o.call.Cancel = c.principal, nil, nil, nil, nil, nil
		o.during, o.home = peer{gate: c.gate, door: c.in.Peer, origin: o}, peer{gate: c.gate, door: c.in.Home, origin: o}
		c.origin = o
	}
	during, home := &c.origin.during, &c.origin.home
	if during.server != server { // a View has peers without a server, and calls For
		if during.server != "" {
			both := [2]peer{*during, *home}
			during, home = &both[0], &both[1]
		}
		during.server, home.server, during.parentID, during.traceID = server, server, c.signalID, c.traceID
	}
	if c.in.Peer != nil {
		out.Peer = during
	}
	if c.in.Home != nil {
		out.Home = home
	}
	return out
}

// For returns the peer for what server says. The registry calls it where one
// Downstream stands for several servers.
func (c *peer) For(server string) registry.Peer {
	out := *c
	out.server = server
	return &out
}
