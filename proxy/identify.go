package proxy

import (
	"context"
	"errors"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/signal"
)

// identify takes the principal that the door has identified for this request,
// or identifies the credential; once more for a call that was held, because tokens
// are revoked and expire meanwhile. It fails closed: no principal, no call. Another
// principal behind the same credential is a refusal.
func (c *call) identify(ctx context.Context) *Failure {
	who, earlier := c.in.Principal, c.principal
	if earlier.Valid() || !who.Valid() {
		var f *Failure
		if who, f = c.gate.Identify(ctx, c.in.Credential); f != nil {
			return c.fail(f.Kernel.Code, f.Reason)
		}
	}
	if earlier.Valid() && (who.Subject != earlier.Subject || who.Tenant != earlier.Tenant) {
		return c.fail(signal.CodeUnauthenticated, "the credential names somebody else by now")
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
	late := (*identity.Throttled)(nil)
	c, reason := call{gate: g, source: gateway}, "missing or unknown bearer token"
	c.source.Function = "identify"
	switch {
	case errors.As(err, &late):
		return policy.Principal{}, c.fail(signal.CodeRateLimited, "too many credentials from your address were refused").
			after(late.RetryAfter).remedy("show a valid one: it is accepted at any time")
	case identity.KindOf(err) == identity.Unfetched:
		return policy.Principal{}, c.fail(signal.CodeStoreUnavailable, "the keys of the token's issuer cannot be had yet").
			after(retryUsed).remedy(callLater)
	case store.Away(err):
		return policy.Principal{}, c.fail(signal.CodeStoreUnavailable, "whether the credential is valid cannot be read from the state").
			after(retryUsed).remedy(callLater)
	case cred.Malformed:
		reason = "the Authorization header is not one bearer token"
	case err != nil && !errors.Is(err, identity.ErrUnauthenticated):
		g.opts.Log.Error("identifying a caller", "error", err)
		reason = "the credential could not be checked"
	}
	return policy.Principal{}, c.fail(signal.CodeUnauthenticated, reason)
}

// caller returns the principal of c: for one that was refused before the stage
// identify, whom the door has identified.
func (c *call) caller() *policy.Principal {
	if c.principal.Valid() {
		return &c.principal
	}
	return &c.in.Principal
}
