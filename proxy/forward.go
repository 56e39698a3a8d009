package proxy

import (
	"context"
	"errors"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// record puts the decision into the audit trail. No record, no call: a grant
// that was spent for it goes back, because it is certain that nothing was sent.
func record(ctx context.Context, g *Gate, p *passage) *Failure {
	err := g.opts.Recorder.Decision(context.WithoutCancel(ctx), p.decisionRecord())
	if err == nil {
		return nil
	}
	g.opts.Log.Error("writing the decision record", "decision", p.decisionID, "error", err)
	g.release(ctx, p)
	return p.fail(signal.CodeAuditUnavailable, "the decision could not be recorded, so the call was not made")
}

// forward sends the judged bytes and settles the ticket by what is certain: a
// result is done, an upstream's error is failed, nothing sent gives the grant
// back, and anything else is unknown.
func forward(ctx context.Context, g *Gate, p *passage) *Failure {
	p.sent = true
	out := registry.Outgoing{Arguments: p.args, Meta: p.meta, Task: p.wanted, From: g.from(p), Progress: g.progress(p)}
	if p.wanted != nil {
		out.Later = p.in.Later
	}
	raw, err := g.opts.Upstreams.Forward(ctx, p.tool, out)
	if err == nil {
		p.raw = raw
		return nil
	}
	var fe *registry.ForwardError
	if !errors.As(err, &fe) {
		fe = &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: err}
	}
	f := g.elicited(ctx, p, p.forwardFailure(fe))
	switch {
	case !fe.Sent:
		g.release(ctx, p)
	case fe.Kind == registry.Failed && fe.RPC != nil:
		g.finish(ctx, p, approval.StateFailed, nil, f.Reason)
	default:
		g.finish(ctx, p, approval.StateUnknown, nil, f.Reason)
	}
	return f
}

func (p *passage) forwardFailure(fe *registry.ForwardError) *Failure {
	switch fe.Kind {
	case registry.Timeout:
		return p.fail(signal.CodeToolTimeout, p.lateness())
	case registry.Cancelled:
		return p.fail(signal.CodeCancelled, "the caller cancelled the call")
	case registry.Unavailable:
		return p.fail(signal.CodeUpstreamUnavailable, "server "+p.upstream()+" is not available").
			remedy("call again later; other servers are not affected")
	case registry.Quarantined:
		return p.fail(signal.CodeToolQuarantined, "the server offers another definition of this tool than the one that was accepted")
	case registry.TooLarge:
		if !fe.Sent {
			return p.fail(signal.CodeToolFailed, "the call is larger than the server takes, and was not sent").remedy("call with less")
		}
		return p.fail(signal.CodeToolFailed, "the tool's answer is larger than the limit")
	}
	if fe.RPC == nil {
		return p.fail(signal.CodeToolFailed, "server "+p.upstream()+" ended during the call; whether it took effect is unknown")
	}
	f := p.fail(signal.CodeToolFailed, upstreamMessage(fe.RPC))
	f.Upstream = fe.RPC
	return f
}

// upstream is the server that the request is for.
func (p *passage) upstream() string {
	if p.tool != nil {
		return p.tool.Server
	}
	return p.server
}

func (p *passage) lateness() string {
	if p.tool != nil {
		return "the tool did not answer within " + p.tool.Timeout.String()
	}
	return "server " + p.server + " did not answer in time"
}

func upstreamMessage(rpc []byte) string {
	if raw, ok := jsonrpc.Get(rpc, "message"); ok {
		if s, ok := jsonrpc.Text(raw); ok && s != "" {
			return s
		}
	}
	return "the tool answered with an error"
}

// release gives back what was taken for a call of which it is certain that nothing
// was sent: what it would have used, and its grant. A store that fails leaves the
// ticket dispatching, which the next start turns into unknown: never into a second run.
func (g *Gate) release(ctx context.Context, p *passage) {
	g.giveBack(ctx, p)
	if !p.spent || p.settled {
		return
	}
	p.settled = true
	if err := g.opts.Tickets.Release(context.WithoutCancel(ctx), p.ticket.ID); err != nil {
		g.opts.Log.Error("giving a grant back", "ticket", p.ticket.ID, "error", err)
	}
}

// finish puts a spent ticket into its end state; see release for a store that
// fails.
func (g *Gate) finish(ctx context.Context, p *passage, s approval.State, result []byte, note string) {
	if !p.spent || p.settled {
		return
	}
	p.settled = true
	if err := g.opts.Tickets.Finish(context.WithoutCancel(ctx), p.ticket.ID, s, result, note); err != nil {
		g.opts.Log.Error("finishing a ticket", "ticket", p.ticket.ID, "state", string(s), "error", err)
	}
}

// abandon settles the ticket of a passage that panicked: nobody knows how far
// the call came, unless it had not reached forward.
func (g *Gate) abandon(ctx context.Context, p *passage) {
	if p.stage == "approve" || p.stage == "record" {
		g.release(ctx, p)
		return
	}
	g.finish(ctx, p, approval.StateUnknown, nil, "the call broke off inside toolgate")
}
