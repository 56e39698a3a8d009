package app

import (
	"context"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// TokenDigits is the part of a hash that names a configured token, in hexadecimal digits.
const TokenDigits = 12

// ListedToken is a configured token with its state.
type ListedToken struct {
	config.Token
	State string `json:"state"` // valid, expired or revoked
}

// Tokens returns the configured tokens with their states.
func Tokens(cfg *config.Config, revoked *identity.Revocations) []ListedToken {
	listed := []ListedToken{}
	for _, t := range cfg.Identity.Tokens {
		l := ListedToken{t, "valid"}
		if _, ok := revoked.Find(t.SHA256); ok {
			l.State = "revoked"
		} else if !t.Expires.IsZero() && !time.Now().Before(t.Expires) {
			l.State = "expired"
		}
		listed = append(listed, l)
	}
	return listed
}

// tokenDesk is what people see of the configured tokens. It implements console.Tokens.
type tokenDesk struct{ a *App }

// List implements console.Tokens.
func (d tokenDesk) List(context.Context) (all []console.Token, err error) {
	for _, t := range Tokens(d.a.Config(), d.a.state.revoked) {
		all = append(all, console.Token{ID: t.SHA256[:TokenDigits], Subject: t.Subject, Person: t.Person, Tenant: t.Tenant, Roles: t.Roles, Expires: t.Expires, State: t.State})
	}
	return all, nil
}

// Revoke implements console.Tokens.
func (d tokenDesk) Revoke(ctx context.Context, id, reason string) error {
	for _, t := range d.a.Config().Identity.Tokens {
		if t.SHA256[:TokenDigits] == id {
			return d.a.state.revoked.Add(ctx, identity.Revocation{SHA256: t.SHA256, Subject: t.Subject, Reason: reason, At: time.Now().UTC()})
		}
	}
	return fmt.Errorf("token %s is no longer configured", id)
}
