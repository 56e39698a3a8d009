package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// NewToken is a token that was made, with its entry for the configuration.
type NewToken struct {
	Token   string         `json:"token"` // shown this once
	Entry   config.Token   `json:"entry"`
	Replace []config.Token `json:"replace,omitempty"` // the present entries, with the time at which they end
}

// CheckToken returns what an entry lacks to be the entry of a token.
func CheckToken(entry config.Token) error {
	if entry.Subject == "" || entry.Subject == identity.LocalSubject || len(entry.Roles) == 0 || slices.Contains(entry.Roles, "") {
		return errors.New("a token needs a subject, other than local, and roles")
	}
	return nil
}

// MakeToken makes a token for an entry, which gets its hash.
func MakeToken(entry config.Token) NewToken {
	token := "tg_" + rand.Text()
	entry.SHA256 = identity.HashToken(token)
	return NewToken{Token: token, Entry: entry}
}

// tokenDesk is what people see of the configured tokens. It implements console.Tokens.
type tokenDesk struct{ *state }

// List implements console.Tokens.
func (d tokenDesk) List(context.Context) (all []console.Token, err error) {
	for _, t := range Tokens(d.serving.Config(), d.revoked) {
		all = append(all, console.Token{ID: t.SHA256[:TokenDigits], Subject: t.Subject, Person: t.Person, Tenant: t.Tenant, Roles: t.Roles, Expires: t.Expires, State: t.State})
	}
	return all, nil
}

// Make implements console.Tokens.
func (d tokenDesk) Make(t console.Token) (console.MadeToken, error) {
	made := MakeToken(config.Token{Subject: t.Subject, Person: t.Person, Tenant: t.Tenant, Roles: t.Roles, Expires: t.Expires})
	if err := CheckToken(made.Entry); err != nil {
		return console.MadeToken{}, err
	}
	entry, err := json.Marshal(made.Entry)
	return console.MadeToken{ID: made.Entry.SHA256[:TokenDigits], Token: made.Token, Entry: entry}, err
}

// Revoke implements console.Tokens.
func (d tokenDesk) Revoke(ctx context.Context, id, reason string) error {
	for _, t := range d.serving.Config().Identity.Tokens {
		if t.SHA256[:TokenDigits] == id {
			return d.revoked.Add(ctx, identity.Revocation{SHA256: t.SHA256, Subject: t.Subject, Reason: reason, At: time.Now().UTC()})
		}
	}
	return fmt.Errorf("token %s is no longer configured", id)
}
