package registry

import (
	"context"

	"github.com/toolgate/toolgate/registry/credential"
)

// Credential returns what the requests of a caller to a server are made with, nil where they are
// made with what mcp.json says. The error is a *Missing, or says that the credential cannot be
// looked up: then no request can be made.
func (r *Registry) Credential(ctx context.Context, server string, from Downstream) (*Credential, error) {
	e := r.Catalogue().entry(server)
	if e == nil || !e.cfg.Credential.Personal() {
		return nil, nil
	}
	return r.opts.Credentials.Find(ctx, e.cfg, callerOf(from))
}

// callerOf returns who makes a request.
func callerOf(from Downstream) credential.Caller {
	return credential.Caller{Person: credential.Person{Issuer: from.Issuer, Tenant: from.Tenant, Subject: from.Subject}, Token: from.Token}
}
