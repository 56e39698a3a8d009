package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

func tokenCommand(e *command.Env) *cobra.Command {
	return command.Group("token", "make, list, inspect and revoke bearer tokens", tokenCreate(e), tokenList(e), tokenRevoke(e), tokenInspect(e))
}

func tokenCreate(e *command.Env) (c *cobra.Command) {
	var entry config.Token
	var expires, overlap time.Duration
	c = e.Printing("create", "make a token", func(ctx context.Context, _ []string) (*report.Report, error) {
		if e.Addr != "" {
			return createAt(ctx, e, entry, expires, overlap)
		}
		var old []config.Token
		if c.Flags().Changed("overlap") {
			cfg, err := e.Load()
			if err != nil {
				return nil, err
			}
			end := time.Now().Add(overlap)
			for _, t := range cfg.Identity.Tokens {
				if t.Subject != entry.Subject {
					continue
				}
				if t.Expires.IsZero() || t.Expires.After(end) {
					t.Expires = end.UTC().Truncate(time.Second)
				}
				old = append(old, t)
			}
			if len(old) == 0 {
				return nil, command.Usage(fmt.Errorf("no token of subject %q is configured\nhint: --overlap is for another token of a subject that has one", entry.Subject))
			}
			entry.Roles, entry.Person, entry.Tenant = old[0].Roles, old[0].Person, old[0].Tenant
		}
		if expires > 0 {
			entry.Expires = time.Now().Add(expires).UTC().Truncate(time.Second)
		}
		if err := app.CheckToken(entry); err != nil {
			return nil, command.Usage(fmt.Errorf("%w%s--subject agent-7 --roles researcher", err, command.HintMark))
		}
		made := app.MakeToken(entry)
		made.Replace = old
		return report.Of(made, tokenText), nil
	})
	f := c.Flags()
	f.StringVar(&entry.Subject, "subject", "", "`SUBJECT` that the token identifies")
	f.StringSliceVar(&entry.Roles, "roles", nil, "`ROLE` of the token; may be repeated")
	f.StringVar(&entry.Person, "person", "", "`NAME` of the human who shows the token, or who owns the agent that does")
	f.DurationVar(&expires, "expires", 0, "`DURATION` for which the token lasts, such as 720h (default: for ever)")
	f.DurationVar(&overlap, "overlap", 0, "make another token of the subject, and let the present ones end after this `DURATION`, such as 24h")
	return atToolgate(e, c)
}

// createAt has a running toolgate make a token. Only the file of its configuration has the entries that
// --overlap changes.
func createAt(ctx context.Context, e *command.Env, entry config.Token, expires, overlap time.Duration) (*report.Report, error) {
	if overlap != 0 {
		return nil, command.Usage(errors.New("--overlap changes entries of a configuration\nhint: leave out --addr, and name the configuration with --config"))
	}
	asked := map[string]any{"subject": entry.Subject, "person": entry.Person, "roles": entry.Roles}
	if expires != 0 {
		asked["for"] = expires.String()
	}
	var made app.NewToken
	err := e.Fetch(ctx, command.PeopleListener, http.MethodPost, "/v1/tokens", asked, &made)
	return report.Of(made, tokenText), err
}

func tokenList(e *command.Env) *cobra.Command {
	return atToolgate(e, e.Printing("list", "list the configured tokens", func(ctx context.Context, _ []string) (*report.Report, error) {
		if e.Addr != "" {
			listed := []app.ListedToken{}
			all, err := everyPage[console.Token](ctx, e, "/v1/tokens", "tokens", url.Values{})
			for _, t := range all {
				token := config.Token{Subject: t.Subject, Person: t.Person, Tenant: t.Tenant, Roles: t.Roles, SHA256: t.ID, Expires: t.Expires}
				listed = append(listed, app.ListedToken{Token: token, State: t.State})
			}
			return report.Of(listed, tokensText), err
		}
		cfg, revoked, err := revocations(ctx, e)
		if err != nil {
			return nil, err
		}
		return report.Of(app.Tokens(cfg, revoked), tokensText), nil
	}))
}

// revocations reads the configuration, and the list of revoked tokens without changing it.
func revocations(ctx context.Context, e *command.Env) (*config.Config, *identity.Revocations, error) {
	cfg, err := e.Load()
	if err != nil {
		return nil, nil, err
	}
	revoked, err := identity.OpenRevocations(ctx, nil, filepath.Join(cfg.Keys, identity.RevokedFile))
	return cfg, revoked, err
}

func tokenRevoke(e *command.Env) *cobra.Command {
	var subject, reason string
	c := e.Printing("revoke [SHA256 | -]", "refuse a token for ever", func(ctx context.Context, args []string) (_ *report.Report, err error) {
		if e.Addr != "" {
			gone, err := revokeAt(ctx, e, strings.Join(args, ""), reason)
			return report.Of(gone, revokedText), err
		}
		cfg, err := e.Load()
		if err != nil {
			return nil, err
		}
		found, err := tokensNamed(e.Stdin, cfg, subject, strings.Join(args, ""))
		if err != nil {
			return nil, err
		}
		trail, err := e.OpenTrail()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, trail.Close()) }()
		db, err := e.OpenStore(ctx, cfg)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		revoked, err := identity.OpenRevocations(ctx, db, filepath.Join(cfg.Keys, identity.RevokedFile))
		if err != nil {
			return nil, err
		}
		for i := range found {
			v := &found[i]
			v.Reason, v.At = reason, time.Now().UTC()
			err := trail.Write(audit.KindEvent, &audit.Record{
				Principal: audit.Principal{Subject: identity.LocalSubject},
				Event:     &audit.Event{Name: audit.EventRevoked, Reason: reason, Removed: []string{"token " + cmp.Or(v.Subject, "-") + " " + v.SHA256}},
			})
			if err == nil { // every toolgate on this state refuses the token within a quarter of a second
				err = revoked.Add(ctx, *v)
			}
			if err != nil {
				return nil, err
			}
		}
		return report.Of(found, revokedText), nil
	})
	c.Flags().StringVar(&subject, "subject", "", "revoke every configured token of this `SUBJECT`")
	c.Flags().StringVar(&reason, "reason", "", "why, as `TEXT` for the audit trail")
	return atToolgate(e, c)
}

// revokeAt revokes the token whose hash begins with name at a running toolgate.
func revokeAt(ctx context.Context, e *command.Env, name, reason string) ([]identity.Revocation, error) {
	if len(name) < fewHashDigits {
		return nil, command.Usage(fmt.Errorf("with --addr, a token goes by at least %d digits of its hash%stoolgate token list shows them", fewHashDigits, command.HintMark))
	}
	var t console.Token
	err := e.Fetch(ctx, command.PeopleListener, http.MethodDelete, "/v1/tokens/"+strings.ToLower(name[:fewHashDigits])+"?"+url.Values{"reason": {reason}}.Encode(), nil, &t)
	return []identity.Revocation{{SHA256: t.ID, Subject: t.Subject, Reason: reason, At: time.Now().UTC()}}, err
}

// fewHashDigits is the least part of a hash that names a configured token.
const fewHashDigits = app.TokenDigits

// tokensNamed returns the tokens to revoke: those of a subject, or the one that name
// means, which is "-" for a token on stdin, or a hash or the beginning of one.
func tokensNamed(stdin io.Reader, cfg *config.Config, subject, name string) (found []identity.Revocation, err error) {
	if (subject == "") == (name == "") {
		return nil, command.Usage(errors.New("name a token or a subject\nhint: toolgate token list shows the hashes; - reads the token from stdin"))
	}
	var until time.Time
	if name == "-" {
		token, err := readToken(stdin)
		if err != nil {
			return nil, err
		}
		name, until = identity.HashToken(token), identity.EndOf(token)
	}
	name = strings.ToLower(strings.TrimSuffix(name, "…"))
	for _, t := range cfg.Identity.Tokens {
		if name == "" && t.Subject == subject || len(name) >= fewHashDigits && strings.HasPrefix(t.SHA256, name) {
			found = append(found, identity.Revocation{SHA256: t.SHA256, Subject: t.Subject})
		}
	}
	raw, err := hex.DecodeString(name)
	switch {
	case len(found) == 0 && err == nil && len(raw) == 32: // a token that is no longer configured, or a JWT
		found = append(found, identity.Revocation{SHA256: name, Until: until})
	case len(found) == 0 && subject != "":
		return nil, command.Unknown("subject", subject, command.TextsOf(cfg.Identity.Tokens, func(t config.Token) string { return t.Subject }))
	case len(found) == 0 || name != "" && len(found) > 1:
		return nil, command.Usage(fmt.Errorf("%d configured tokens fit\nhint: toolgate token list shows subjects and hashes; give at least %d digits of a hash", len(found), fewHashDigits))
	}
	return found, nil
}

func readToken(stdin io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(stdin, 64<<10))
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// inspection is what a token is, and who it names or why it is refused.
type inspection struct {
	SHA256    string            `json:"sha256"`
	JWT       *identity.Facts   `json:"jwt,omitempty"` // as the token says, not verified
	Accepted  bool              `json:"accepted"`
	Resource  string            `json:"resource,omitempty"` // where it is good, with the routes below; "" = at every route
	Principal *policy.Principal `json:"principal,omitempty"`
	Kind      identity.Kind     `json:"kind,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Revoked   *time.Time        `json:"revoked_at,omitempty"`
}

func tokenInspect(e *command.Env) *cobra.Command {
	return e.Printing("inspect [-]", "show who a token names, or why it is refused", func(ctx context.Context, args []string) (_ *report.Report, err error) {
		token := e.Token
		if len(args) == 1 {
			if token, err = readToken(e.Stdin); err != nil {
				return nil, err
			}
		}
		if token == "" {
			return nil, command.Usage(errors.New("there is no token to inspect\nhint: set TOOLGATE_TOKEN, or write - and send the token to stdin"))
		}
		cfg, revoked, err := revocations(ctx, e)
		if err != nil {
			return nil, err
		}
		known := app.IdentityConfig(cfg, e.Role)
		known.Revoked = revoked.Check
		auth, err := identity.New(known)
		if err != nil {
			return nil, command.Usage(err)
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
		for _, at := range agentRoutes(cfg) {
			if identity.KindOf(err) != identity.Audience {
				break
			}
			who, err = auth.Identify(ctx, identity.Credential{Bearer: token, At: at})
			seen.Resource = auth.Resource(at)
		}
		if refusal := (*identity.Refusal)(nil); errors.As(err, &refusal) {
			seen.Kind, seen.Reason, seen.Resource = refusal.Kind, refusal.Text, ""
			return report.Of(seen, inspectionText), command.ExitIf(true, command.ExitUnauthorised)
		}
		seen.Accepted, seen.Principal = true, &who
		return report.Of(seen, inspectionText), err
	})
}

// agentRoutes returns the routes of the agents' listener, those above before those below.
func agentRoutes(cfg *config.Config) []identity.Resource {
	all := []identity.Resource{{Door: "/mcp"}, {Door: "/sse"}}
	for i := range cfg.Servers {
		name := cfg.Servers[i].Name
		all = append(all, identity.Resource{Door: "/mcp", Server: name}, identity.Resource{Door: "/sse", Server: name})
	}
	return all
}
