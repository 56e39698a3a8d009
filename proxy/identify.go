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
	who, f := c.gate.Identify(ctx, c.in.Credential)
	if f != nil {
		return c.fail(f.Kernel.Code, f.Reason)
	}
	c.principal = who
	c.principal.Client = c.in.Client
	return nil
}

// Identify returns the principal of a credential, for doors that need one before
// there is a call: for sessions, lists, and Call.Principal. It leaves no record;
// a door records a refusal with Refuse.
func (g *Gate) Identify(ctx context.Context, cred identity.Credential) (policy.Principal, *Failure) {
	who, err := g.opts.Identifier.Identify(ctx, cred)
	if err == nil && who.Valid() {
		return who, nil
	}
	c := call{gate: g, stage: "identify"}
	if err != nil && !errors.Is(err, identity.ErrUnauthenticated) {
		g.opts.Log.Error("identifying a caller", "error", err)
		return policy.Principal{}, c.fail(signal.CodeUnauthenticated, "the credential could not be checked")
	}
	return policy.Principal{}, c.fail(signal.CodeUnauthenticated, "missing or unknown bearer token")
}
