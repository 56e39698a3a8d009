package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

func tokenCommand(e *env) *cobra.Command {
	return group("token", "make, list, inspect and revoke bearer tokens", tokenCreate(e), tokenList(e), tokenRevoke(e), tokenInspect(e))
}

func tokenCreate(e *env) *cobra.Command {
	var entry config.Token
	var expires, overlap time.Duration
	c := &cobra.Command{
		Use: "create", Short: "make a token",
		RunE: func(c *cobra.Command, _ []string) error {
			var old []config.Token
			if c.Flags().Changed("overlap") {
				cfg, err := e.load()
				if err != nil {
					return err
				}
				if old = overlapping(cfg.Identity.Tokens, entry.Subject, time.Now().Add(overlap)); len(old) == 0 {
					return usage(fmt.Errorf("no token of subject %q is configured\nhint: --overlap is for another token of a subject that has one", entry.Subject))
				}
				entry.Roles, entry.Person, entry.Tenant = old[0].Roles, old[0].Person, old[0].Tenant
			}
			if entry.Subject == "" || entry.Subject == identity.LocalSubject || len(entry.Roles) == 0 || slices.Contains(entry.Roles, "") {
				return usage(errors.New("a token needs a subject, other than local, and roles\nhint: --subject agent-7 --roles researcher"))
			}
			if expires > 0 {
				entry.Expires = time.Now().Add(expires).UTC().Truncate(time.Second)
			}
			made := makeToken(entry)
			made.Replace = old
			return e.Print("token", made)
		},
	}
	f := c.Flags()
	f.StringVar(&entry.Subject, "subject", "", "`SUBJECT` that the token identifies")
	f.StringSliceVar(&entry.Roles, "roles", nil, "`ROLE` of the token; may be repeated")
	f.StringVar(&entry.Person, "person", "", "`NAME` of the human who shows the token, or who owns the agent that does")
	f.DurationVar(&expires, "expires", 0, "`DURATION` for which the token lasts, such as 720h (default: for ever)")
	f.DurationVar(&overlap, "overlap", 0, "make another token of the subject, and let the present ones end after this `DURATION`, such as 24h")
	return c
}

// overlapping returns the tokens of a subject, ending at a time at the latest.
func overlapping(tokens []config.Token, subject string, end time.Time) (old []config.Token) {
	for _, t := range tokens {
		if t.Subject != subject {
			continue
		}
		if t.Expires.IsZero() || t.Expires.After(end) {
			t.Expires = end.UTC().Truncate(time.Second)
		}
		old = append(old, t)
	}
	return old
}

// newToken is the report of token create.
type newToken struct {
	Token   string         `json:"token"` // shown this once
	Entry   config.Token   `json:"entry"`
	Replace []config.Token `json:"replace,omitempty"` // the present entries, with the time at which they end
}

// makeToken makes a token for an entry, which gets its hash.
func makeToken(entry config.Token) newToken {
	token := "tg_" + rand.Text()
	entry.SHA256 = identity.HashToken(token)
	return newToken{Token: token, Entry: entry}
}

// listedToken is a configured token with its state.
type listedToken struct {
	config.Token
	State string `json:"state"` // valid, expired or revoked
}

func tokenList(e *env) *cobra.Command {
	return command("list", "list the configured tokens", func(ctx context.Context, _ []string) error {
		cfg, err := e.load()
		if err != nil {
			return err
		}
		revoked, err := revocations(ctx, cfg)
		if err != nil {
			return err
		}
		listed := []listedToken{}
		for _, t := range cfg.Identity.Tokens {
			l := listedToken{t, "valid"}
			if _, ok := revoked.Find(t.SHA256); ok {
				l.State = "revoked"
			} else if !t.Expires.IsZero() && !time.Now().Before(t.Expires) {
				l.State = "expired"
			}
			listed = append(listed, l)
		}
		return e.Print("tokens", listed)
	})
}

// revocations reads the list of revoked tokens without changing it.
func revocations(ctx context.Context, cfg *config.Config) (*identity.Revocations, error) {
	return identity.OpenRevocations(ctx, nil, filepath.Join(cfg.Keys, identity.RevokedFile))
}

func tokenRevoke(e *env) *cobra.Command {
	var subject, reason string
	c := command("revoke [SHA256 | -]", "refuse a token for ever", func(ctx context.Context, args []string) error {
		cfg, err := e.load()
		if err != nil {
			return err
		}
		found, err := e.tokensNamed(cfg, subject, strings.Join(args, ""))
		if err != nil {
			return err
		}
		for i := range found {
			found[i].Reason, found[i].At = reason, time.Now().UTC()
		}
		if err := e.revoke(ctx, cfg, found); err != nil {
			return err
		}
		return e.Print("revoked", found)
	})
	c.Flags().StringVar(&subject, "subject", "", "revoke every configured token of this `SUBJECT`")
	c.Flags().StringVar(&reason, "reason", "", "why, as `TEXT` for the audit trail")
	return c
}

// fewHashDigits is the least part of a hash that names a configured token.
const fewHashDigits = 12

// tokensNamed returns the tokens to revoke: those of a subject, or the one that name
// means, which is "-" for a token on stdin, or a hash or the beginning of one.
func (e *env) tokensNamed(cfg *config.Config, subject, name string) (found []identity.Revocation, err error) {
	if (subject == "") == (name == "") {
		return nil, usage(errors.New("name a token or a subject\nhint: toolgate token list shows the hashes; - reads the token from stdin"))
	}
	var until time.Time
	if name == "-" {
		token, err := e.tokenFromStdin()
		if err != nil {
			return nil, err
		}
		name, until = identity.HashToken(token), identity.EndOf(token)
	}
	name = strings.ToLower(strings.TrimSuffix(name, "…"))
	var subjects []string
	for _, t := range cfg.Identity.Tokens {
		subjects = append(subjects, t.Subject)
		if name == "" && t.Subject == subject || len(name) >= fewHashDigits && strings.HasPrefix(t.SHA256, name) {
			found = append(found, identity.Revocation{SHA256: t.SHA256, Subject: t.Subject})
		}
	}
	raw, err := hex.DecodeString(name)
	switch {
	case len(found) == 0 && err == nil && len(raw) == 32: // a token that is no longer configured, or a JWT
		found = append(found, identity.Revocation{SHA256: name, Until: until})
	case len(found) == 0 && subject != "":
		return nil, unknown("subject", subject, subjects)
	case len(found) == 0 || name != "" && len(found) > 1:
		return nil, usage(fmt.Errorf("%d configured tokens fit\nhint: toolgate token list shows subjects and hashes; give at least %d digits of a hash", len(found), fewHashDigits))
	}
	return found, nil
}

func (e *env) tokenFromStdin() (string, error) {
	text, err := io.ReadAll(io.LimitReader(e.in, 64<<10))
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// revoke writes revocations to the trail, and then to the state and the directory of
// keys. Every toolgate on them refuses the tokens within a quarter of a second.
func (e *env) revoke(ctx context.Context, cfg *config.Config, found []identity.Revocation) (err error) {
	trail, err := e.openTrail()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, trail.Close()) }()
	db, err := e.openStore(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	revoked, err := identity.OpenRevocations(ctx, db, filepath.Join(cfg.Keys, identity.RevokedFile))
	for _, v := range found {
		if err == nil {
			err = trail.Write(audit.KindEvent, &audit.Record{
				Principal: audit.Principal{Subject: identity.LocalSubject},
				Event:     &audit.Event{Name: audit.EventRevoked, Reason: v.Reason, Removed: []string{"token " + cmp.Or(v.Subject, "-") + " " + v.SHA256}},
			})
		}
		if err == nil {
			err = revoked.Add(ctx, v)
		}
	}
	return err
}

// inspection is what a token is, and who it names or why it is refused.
type inspection struct {
	SHA256    string            `json:"sha256"`
	JWT       *identity.Facts   `json:"jwt,omitempty"` // as the token says, not verified
	Accepted  bool              `json:"accepted"`
	Principal *policy.Principal `json:"principal,omitempty"`
	Kind      identity.Kind     `json:"kind,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Revoked   *time.Time        `json:"revoked_at,omitempty"`
}

func tokenInspect(e *env) *cobra.Command {
	return command("inspect [-]", "show who a token names, or why it is refused", func(ctx context.Context, args []string) error {
		token := e.token
		if len(args) == 1 {
			var err error
			if token, err = e.tokenFromStdin(); err != nil {
				return err
			}
		}
		if token == "" {
			return usage(errors.New("there is no token to inspect\nhint: set TOOLGATE_TOKEN, or write - and send the token to stdin"))
		}
		cfg, err := e.load()
		if err != nil {
			return err
		}
		seen, err := inspect(ctx, cfg, e.role, token)
		if err != nil {
			return err
		}
		return errors.Join(e.Print("inspection", seen), exitIf(!seen.Accepted, exitUnauthorised))
	})
}

// inspect identifies a token as a toolgate with cfg does now.
func inspect(ctx context.Context, cfg *config.Config, role, token string) (*inspection, error) {
	revoked, err := revocations(ctx, cfg)
	if err != nil {
		return nil, err
	}
	known := app.IdentityConfig(cfg, role)
	known.Revoked = revoked.Check
	auth, err := identity.New(known)
	if err != nil {
		return nil, usage(err)
	}
	seen := &inspection{SHA256: identity.HashToken(token)}
	if facts, err := identity.ReadJWT(token); err == nil {
		seen.JWT = &facts
	}
	if v, ok := revoked.Find(seen.SHA256); ok {
		seen.Revoked = &v.At
	}
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	who, err := auth.Identify(ctx, identity.Credential{Bearer: token})
	if refusal := (*identity.Refusal)(nil); errors.As(err, &refusal) {
		seen.Kind, seen.Reason = refusal.Kind, refusal.Text
		return seen, nil
	}
	seen.Accepted, seen.Principal = err == nil, &who
	return seen, err
}
