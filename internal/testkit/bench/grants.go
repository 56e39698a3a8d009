package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// grantedToken is what the upstream is shown: the access token of a grant, or the value of a header.
const grantedToken = "bench-token-of-the-upstream"

// addGrant gives the first agent a grant at the upstream, in the directory of a toolgate that does not
// run. The grant is made as on the page where people connect.
func addGrant(ctx context.Context, dir, upstream, issuer string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("adding a grant: %w", err)
		}
	}()
	ring, err := keys.Open(filepath.Join(dir, "keys"))
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, filepath.Join(dir, "state", "state.db"), store.Migrations())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	server := config.Server{Name: "up", Type: config.TypeHTTP, URL: upstream, Credential: &config.Credential{Type: config.CredentialOAuth, ClientID: issuedFor, Issuer: issuer}}
	serverOf := func(string) (config.Server, bool) { return server, true }
	grants := credential.OpenGrants(credential.GrantOptions{
		DB: db, Keys: ring, Server: serverOf, Document: func() string { return "" }, Callback: func() string { return "http://127.0.0.1:1/connections/callback" },
	})
	defer grants.Close()
	agent := credential.Person{Subject: "agent-0"}
	address, err := grants.Begin(ctx, server, agent)
	if err != nil {
		return err
	}
	page, err := url.Parse(address)
	if err != nil {
		return err
	}
	_, err = grants.Finish(ctx, agent, true, url.Values{"code": {"any"}, "state": {page.Query().Get("state")}}, serverOf)
	return err
}
