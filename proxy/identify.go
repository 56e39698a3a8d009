package proxy

import (
	"context"
	"errors"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/signal"
)

// identify takes the principal that the door has identified for this request,
// or identifies the credential. It fails closed: no principal, no call.
func (c *call) identify(ctx context.Context) *Failure {
	if !c.in.Principal.Valid() {
		return c.reidentify(ctx)
	}
	c.principal = c.in.Principal
	c.principal.Client = c.in.Client
	return nil
}

// reidentify asks for the credential's principal now: tokens are revoked and
// expire while calls are held.
func (c *call) reidentify(ctx context.Context) *Failure {
	who, err := c.gate.opts.Identifier.Identify(ctx, c.in.Credential)
	if errors.Is(err, identity.ErrUnauthenticated) || (err == nil && !who.Valid()) {
		return c.fail(signal.CodeUnauthenticated, "missing or unknown bearer token")
	}
	if err != nil {
		c.gate.opts.Log.Error("identifying a caller", "error", err)
		return c.fail(signal.CodeUnauthenticated, "the credential could not be checked")
	}
	who.Client = c.in.Client
	c.principal = who
	return nil
}

// Identify returns the principal of a credential, for doors that need one before
// there is a call: for sessions, lists, and Call.Principal. It leaves no record;
// a door records a refusal with Refuse.
func (g *Gate) Identify(ctx context.Context, c identity.Credential) (policy.Principal, *Failure) {
	one := call{gate: g, in: &Call{Credential: c}}
	if f := one.reidentify(ctx); f != nil {
		return policy.Principal{}, f
	}
	return one.principal, nil
}
