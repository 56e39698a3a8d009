package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// forward sends the judged bytes. The ticket of a held call is done with a
// result, failed with an upstream's error, approved again when nothing was sent,
// and otherwise unknown.
func (t *toolCall) forward(ctx context.Context) *Failure {
	t.sent = true
	out := registry.Outgoing{Arguments: t.body, Meta: t.meta, Task: t.task, From: t.from(t.server), Progress: t.in.Progress}
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
	raw, err := t.gate.opts.Upstreams.Forward(ctx, t.tool, out)
	if err == nil {
		t.raw = raw
		return nil
	}
	fe := forwardError(err)
	f := t.elicited(ctx, t.upstreamFailure(fe, "the tool did not answer within "+t.tool.Timeout.String()))
	t.sent = fe.Sent
	t.ends(approval.StateUnknown, nil, f.Reason)
	if fe.Kind == registry.Failed && fe.RPC != nil {
		t.hold.end = approval.StateFailed
	}
	return f
}

// forwardError reads why an upstream gave no result. An unknown error may have
// come after the request was sent.
func forwardError(err error) *registry.ForwardError {
	if fe, ok := errors.AsType[*registry.ForwardError](err); ok {
		return fe
	}
	return &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: err}
}

// upstreamFailure says why an upstream gave no result; late is the reason of a
// timeout.
func (c *call) upstreamFailure(fe *registry.ForwardError, late string) *Failure {
	switch fe.Kind {
	case registry.Timeout:
		return c.fail(signal.CodeToolTimeout, late).because(upstreamError("no answer before the deadline", nil))
	case registry.Cancelled:
		return c.fail(signal.CodeCancelled, "the caller cancelled the call")
	case registry.Unavailable:
		down := signal.ExternalError("nothing was sent", upstreams, true, nil)
		return c.wrap(signal.CodeUpstreamUnavailable, down, "server "+c.server+" is not available").
			remedy("call again later; other servers are not affected")
	case registry.Quarantined:
		return c.fail(signal.CodeToolQuarantined, "the server offers another definition of this tool than the one that was accepted")
	case registry.TooLarge:
		if !fe.Sent {
			return c.fail(signal.CodeToolFailed, "the call is larger than the server takes, and was not sent").remedy("call with less")
		}
		return c.fail(signal.CodeToolFailed, "the tool's answer is larger than the limit")
	}
	if fault, ok := errors.AsType[*jsonrpc.Fault](fe); ok {
		return c.fail(signal.CodeToolFailed, "server "+c.server+" sent an invalid answer: "+fault.Error()).
			because(upstreamError(fault.Reason, map[string]any{"pointer": fault.Pointer}))
	}
	if fe.RPC == nil {
		return c.fail(signal.CodeToolFailed, "server "+c.server+" ended during the call; whether it took effect is unknown").
			because(upstreamError("the connection ended before the answer", nil))
	}
	code, _ := jsonrpc.Get(fe.RPC, "code")
	f := c.fail(signal.CodeToolFailed, upstreamMessage(fe.RPC)).because(upstreamError(upstreamMessage(fe.RPC), map[string]any{"code": code}))
	f.Upstream = fe.RPC
	return f
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
	call   *Call  // the request that it was handed down with, without its message
	who    policy.Principal
	// The call in whose course the server speaks; "" when it is in none.
	parentID, traceID string
}

// from returns the client that the road forwards for, with the gate between server
// and the client's peers.
func (c *call) from(server string) registry.Downstream {
	out := registry.Downstream{Session: c.in.Session, Capabilities: c.in.Capabilities, Level: c.in.Level}
	if c.in.Peer == nil && c.in.Home == nil {
		return out
	}
	in := *c.in
	in.Message, in.Fault, in.Progress = nil, nil, nil
	home := peer{gate: c.gate, door: in.Home, server: server, call: &in, who: c.principal}
	if in.Peer != nil {
		inCall := home
		inCall.door, inCall.parentID, inCall.traceID = in.Peer, c.signalID, c.traceID
		out.Peer = &inCall
	}
	if in.Home != nil {
		out.Home = &home
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
