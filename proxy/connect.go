package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Credentials finds what requests to a server are made with. The error is a *registry.Missing, or
// says that the credential cannot be looked up. It is a registry.Registry.
type Credentials interface {
	// Credential returns nil where requests are made with what the configuration says, the
	// same for all callers.
	Credential(ctx context.Context, server string, from registry.Downstream) (*registry.Credential, error)
}

const (
	// lookConnection is the pause before a request that waits for its person to connect looks
	// again.
	lookConnection = time.Second
	keyConnection  = "connection" // of the question in inputRequests
)

// connect finds the caller's credential at the server. Without one the call is refused, before
// it has cost anything. A client that can show a page is shown where to connect, and the call
// continues once its person has. connect fails closed: where the credential cannot be looked up,
// no call is made.
func (t *toolCall) connect(ctx context.Context) *Failure {
	if t.tool.AsConfigured {
		t.credential = nil
		return nil
	}
	missing, f := t.findCredential(ctx)
	if missing == nil {
		return f
	}
	var own *time.Duration
	if a := t.decision.Approval; a != nil {
		own = a.Hold
	}
	f = t.reconnect(ctx, missing, t.patience(own), t.identify, t.resolve, t.decide)
	if f != nil && f.Kernel.Code == signal.CodeConnectionRequired && t.decision.Effect == policy.Hold {
		t.withholdGrant(ctx, f.Reason)
		if t.ticket != nil {
			f = f.with("ticket", t.ticket.ID)
		}
	}
	return f
}

// withholdGrant notes in the ticket of a held call, if it is approved, that the call cannot be made
// now. A store that fails leaves it approved: each later run is checked as this one was.
func (t *toolCall) withholdGrant(ctx context.Context, why string) {
	held := t.held()
	held.Unconnected = why
	claim, err := t.gate.opts.Tickets.Claim(context.WithoutCancel(ctx), held)
	if err != nil {
		t.gate.opts.Log.Error("noting that a held call needs a connection", "decision", t.decisionID, "error", err)
	} else if claim.Ticket.ID != "" {
		t.ticket = &claim.Ticket
	}
}

// refuses is why an approved call needs another connection than the one that its server has refused.
func refuses(c *registry.Credential) string { return "the server refuses the credential " + c.ID }

// disconnected refuses a held call whose ticket was approved to run with another credential than
// the caller has.
func (t *toolCall) disconnected(ticket approval.Ticket) *Failure {
	return t.unconnected(&registry.Missing{Reason: ticket.Unconnected, Connects: hold.Connects(ticket)}).with("ticket", ticket.ID)
}

// connect is the stage for a request that calls no tool.
func (r *relayed) connect(ctx context.Context) *Failure {
	if r.ticket.ID != "" { // no server is asked
		return nil
	}
	missing, f := r.findCredential(ctx)
	if missing == nil {
		return f
	}
	return r.reconnect(ctx, missing, r.patience(nil), r.identify, r.resolve, r.decide)
}

// reconnect continues a request without a credential once its person has connected, and judges it
// again by stages; otherwise it refuses it.
func (c *call) reconnect(ctx context.Context, missing *registry.Missing, patience time.Duration, stages ...func(context.Context) *Failure) *Failure {
	if !c.awaitConnection(ctx, missing, patience) {
		if errors.Is(ctx.Err(), context.Canceled) {
			return c.cancelled(ctx, false, "the caller cancelled the call")
		}
		return c.unconnected(missing)
	}
	c.engine, c.asOf = *c.gate.policy.Load(), c.gate.opts.Now()
	for _, judge := range stages {
		if f := judge(ctx); f != nil {
			return f
		}
	}
	_, f := c.findCredential(ctx)
	return f
}

// findCredential finds what requests of the caller to the server are made with. missing is why
// there is nothing.
func (c *call) findCredential(ctx context.Context) (missing *registry.Missing, f *Failure) {
	c.credential = nil
	if c.gate.opts.Credentials == nil || c.server == "" {
		return nil, nil
	}
	found, err := c.gate.opts.Credentials.Credential(ctx, c.server, c.from(c.server))
	if err == nil && found != nil && !owns(&c.principal, found) {
		err = errors.New("it is another person's")
	}
	if err == nil {
		c.credential = found
		return nil, nil
	}
	if missing, ok := errors.AsType[*registry.Missing](err); ok {
		return missing, c.unconnected(missing)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, c.cancelled(ctx, false, "the caller cancelled the call")
	}
	c.gate.opts.Log.Error("finding a caller's credential", "decision", c.decisionID, "server", c.server, "error", err)
	if store.Away(err) {
		return nil, c.away(err)
	}
	return nil, c.fail(signal.CodeUpstreamUnavailable, "the caller's credential at server "+c.server+" cannot be looked up").remedy(callLater)
}

// owns reports whether a credential is a principal's own, or toolgate's.
func owns(who *policy.Principal, found *registry.Credential) bool {
	whose := found.Person
	if whose.Issuer == "" && whose.Tenant == "" && whose.Subject == "" {
		return true
	}
	return whose.Issuer == who.Issuer && whose.Tenant == who.Tenant && whose.Subject == who.Subject
}

// unconnected refuses a request whose caller has no credential at its server, and says where to
// connect.
func (c *call) unconnected(m *registry.Missing) *Failure {
	f := c.fail(signal.CodeConnectionRequired, cmp.Or(m.Reason, "the caller is not connected to server "+c.server)).with("server", c.server)
	switch p := c.gate.connectionPage(c.server, c.decisionID, m); {
	case p.url != "":
		f = f.with("connect_url", p.url).remedy("a person has to connect at " + p.url + "; then call again")
		if c.in.Era != eraRounds {
			f.Elicitations = marshal([]json.RawMessage{p.params()})
			f.Elicits = c.in.Era == eraAsking && offers(c.in.Capabilities, elicits, "url")
		}
	case m.Connects:
		f = f.remedy("a person has to connect in the console of toolgate; then call again")
	default:
		f = f.remedy("tell whoever operates toolgate")
	}
	return f
}

// connectionPage returns the page on which a person connects to a server; its url is "" without pages.
func (g *Gate) connectionPage(server, id string, m *registry.Missing) page {
	p := page{key: keyConnection, id: id}
	if m.Connects {
		p.url = g.console().Connection(server)
		p.message = "Server " + server + " needs a connection of your own: " + m.Reason + ". Sign in on the page, which says what is asked for, and connect."
	}
	return p
}

// awaitConnection shows the caller's person where to connect, if the client can, and waits until
// the person has, at most for patience. It reports false when the person declined, or has not
// connected in time.
func (c *call) awaitConnection(ctx context.Context, m *registry.Missing, patience time.Duration) bool {
	p := c.gate.connectionPage(c.server, c.decisionID, m)
	if p.url == "" || !c.in.showsPages() {
		return false
	}
	switch {
	case c.in.Era == eraRounds:
		if c.showPage(ctx, p) != accepted {
			return false
		}
		ctx, stop := context.WithTimeout(ctx, max(patience, minHoldAfterPage))
		defer stop()
		return c.untilConnected(ctx)
	case c.in.Era == eraAsking && patience > 0:
		ctx, stop := context.WithTimeout(ctx, patience)
		defer stop()
		done := c.showLink(ctx, p, func(action string) {
			if action != accepted {
				stop()
			}
		})
		connected := c.untilConnected(ctx)
		done(connected)
		return connected
	}
	return false
}

// untilConnected waits until the caller has a credential, or it cannot be looked up, and reports false
// when ctx ends first.
func (c *call) untilConnected(ctx context.Context) bool {
	for {
		if missing, _ := c.findCredential(ctx); missing == nil {
			return ctx.Err() == nil
		}
		if !wait.For(ctx, lookConnection) {
			return false
		}
	}
}

// runsAs is what a call with a credential runs as, for its ticket; nil = as the configuration says.
func runsAs(c *registry.Credential) *approval.Account {
	if c == nil {
		return nil
	}
	return &approval.Account{ID: c.ID, Type: c.Type, Issuer: c.Issuer, Account: c.Account, Scopes: c.Scopes, Until: c.Until}
}
