package credential

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	startTime  = 10 * time.Minute // for a person to come back
	maxStarts  = 16               // of one person
	maxCode    = 4096             // bytes
	maxAccount = 256              // bytes
)

// party is an authorization server, and what toolgate is there for one server.
type party struct {
	URL        string // of the server, as it was configured
	Issuer     string
	Token      string // endpoint
	Revocation string // endpoint, "" = none
	Resource   string
	Client     client
	Redirect   string
}

// started is what has to be known when a person comes back.
type started struct {
	party
	Scopes   []string // asked for
	Verifier string   // of PKCE
	Says     bool     // the authorization server names itself in its answer (RFC 9207)
}

// tokens are what a grant has that is secret, and what they are good for.
type tokens struct {
	party
	Access, Refresh string
	At, End         time.Time // of Access; End zero = not known
	Account         string
	Scopes          []string
	Keeps           bool // the authorization server keeps the refresh token over renewals
	Operates        bool // the person who connected may operate servers
}

// start is a row of those who have gone to an authorization server.
type start struct {
	id string
	owner
	until  time.Time
	sealed []byte
}

func (s *start) fields() []any {
	return []any{&s.server, &s.Issuer, &s.Tenant, &s.Subject, store.Time{To: &s.until}, &s.sealed}
}

func (s *start) about() []string {
	return []string{"start", s.id, s.server, s.Issuer, s.Tenant, s.Subject}
}

// Begin returns where a person's browser goes to connect the person to a server: to the authorization
// endpoint, with PKCE (RFC 7636), the resource (RFC 8707) and a state that counts once, for this
// person, within ten minutes, at any replica. With a shared credential the person is the operator who
// connects toolgate itself.
func (g *Grants) Begin(ctx context.Context, server config.Server, who Person) (address string, err error) {
	callback := g.o.Callback()
	if callback == "" {
		return "", errors.New("connecting: there is no address to come back to\nhint: set toolgate.console.url")
	}
	f, err := g.discover(ctx, server, who)
	if err != nil {
		return "", err
	}
	known, err := g.clientOf(ctx, f.asking, server, f.meta, callback)
	if err != nil {
		return "", fmt.Errorf("connecting to %s: %w", server.Name, err)
	}
	s := started{
		party: party{
			URL: server.URL, Issuer: f.Issuer, Token: f.meta.TokenEndpoint, Revocation: f.meta.RevocationEndpoint, Resource: f.Resource,
			Client: known, Redirect: callback,
		},
		Scopes: f.Scopes, Verifier: oauth2.GenerateVerifier(), Says: f.meta.AuthorizationResponseIssParameterSupported,
	}
	state := rand.Text()
	if err := g.begin(ctx, owner{server.Name, who}, state, &s); err != nil {
		return "", fmt.Errorf("connecting to %s: %w", server.Name, err)
	}
	asked := oauth2.Config{ClientID: known.ID, Endpoint: oauth2.Endpoint{AuthURL: f.meta.AuthorizationEndpoint}, RedirectURL: callback, Scopes: f.Scopes}
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(s.Verifier), oauth2.SetAuthURLParam("resource", s.Resource)}
	if slices.Contains(f.Scopes, offline) { // OpenID Connect Core 1.0 section 11
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent"))
	}
	return asked.AuthCodeURL(state, options...), nil
}

// begin stores who has gone, and removes what does not count any longer.
func (g *Grants) begin(ctx context.Context, o owner, state string, s *started) error {
	now := g.o.Now()
	until := now.Add(startTime)
	row := start{id: hashOf(state), owner: o, until: until}
	sealed, err := g.seal(ctx, s, row.about()...)
	if err != nil {
		return err
	}
	return g.o.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM credential_starts WHERE until <= ?", store.Time{To: &now}); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM credential_starts WHERE person_issuer = ? AND tenant = ? AND subject = ? AND state NOT IN (
			SELECT state FROM credential_starts WHERE person_issuer = ? AND tenant = ? AND subject = ? ORDER BY until DESC, state LIMIT ?)`,
			o.Issuer, o.Tenant, o.Subject, o.Issuer, o.Tenant, o.Subject, maxStarts-1)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO credential_starts (state, server, person_issuer, tenant, subject, until, sealed) VALUES (?, ?, ?, ?, ?, ?, ?)",
			row.id, o.server, o.Issuer, o.Tenant, o.Subject, store.Time{To: &until}, sealed)
		return err
	})
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Finish completes what Begin began, with the parameters with which the authorization server sent the
// person back, who may operate servers or not. The person has to be the one who began. The state is spent by the first call with it,
// whatever comes of it. The new grant takes the place of an earlier one. serverOf returns a server as
// it is configured now.
func (g *Grants) Finish(ctx context.Context, who Person, operates bool, answer url.Values, serverOf func(name string) (config.Server, bool)) (Grant, error) {
	row, err := g.spend(ctx, answer)
	if err != nil {
		return Grant{}, fmt.Errorf("completing a connection: %w", err)
	}
	made, err := g.finish(ctx, who, operates, row, answer, serverOf)
	if err != nil {
		return Grant{}, fmt.Errorf("completing the connection to %s: %w", row.server, err)
	}
	return made, nil
}

// errState refuses an answer that nobody waits for.
var errState = errors.New("nobody has begun this, or it was completed, or it took longer than ten minutes\nhint: begin again")

// spend removes and returns what was begun with the state of an answer.
func (g *Grants) spend(ctx context.Context, answer url.Values) (*start, error) {
	state, err := single(answer, "state")
	if err != nil || state == "" {
		return nil, errState
	}
	var rows []start
	err = g.o.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		rows, err = store.Select(ctx, tx, (*start).fields, "DELETE FROM credential_starts WHERE state = ? RETURNING server, person_issuer, tenant, subject, until, sealed", hashOf(state))
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || !g.o.Now().Before(rows[0].until) {
		return nil, errState
	}
	rows[0].id = hashOf(state)
	return &rows[0], nil
}

// single returns the one value of a parameter, "" for none.
func single(answer url.Values, name string) (string, error) {
	values := answer[name]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || len(values[0]) > maxCode:
		return "", fmt.Errorf("the answer of the authorization server cannot be read: %s", name)
	}
	return values[0], nil
}

func (g *Grants) finish(ctx context.Context, who Person, operates bool, row *start, answer url.Values, serverOf func(name string) (config.Server, bool)) (Grant, error) {
	if who != row.Person {
		return Grant{}, errors.New("somebody else has begun it\nhint: begin again, as yourself")
	}
	var s started
	if err := g.unseal(row.sealed, &s, row.about()...); err != nil {
		return Grant{}, err
	}
	code, err := s.code(answer)
	if err != nil {
		return Grant{}, err
	}
	server, ok := serverOf(row.server)
	if !ok || server.Credential == nil || server.Credential.Type != config.CredentialOAuth || server.URL != s.URL {
		return Grant{}, errMoved
	}
	o, ok := ownerOf(server, who)
	if !ok {
		return Grant{}, errors.New("the person has no name")
	}
	asking, _, err := newReach(server)
	if err != nil {
		return Grant{}, err
	}
	got, err := s.ask(ctx, asking, server, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {s.Verifier}, "redirect_uri": {s.Redirect},
	})
	if err != nil {
		if s.Client.Registered && unknownClient(err) {
			err = errors.Join(err, g.unregister(ctx, &s.party))
		}
		return Grant{}, explain(err)
	}
	t := tokens{party: s.party, Account: account(got), Scopes: s.Scopes, Operates: operates}
	if err := t.take(got, g.o.Now()); err != nil {
		return Grant{}, err
	}
	return g.insert(ctx, o, &t)
}

// code returns the code in an answer. It fails where the answer is of another authorization server
// than the one that was asked (RFC 9207), before anything else of it counts.
func (s *started) code(answer url.Values) (string, error) {
	issuer, err := single(answer, "iss")
	if err != nil {
		return "", err
	}
	if _, said := answer["iss"]; said && issuer != s.Issuer {
		return "", errors.New("the answer is of another authorization server than the one that was asked")
	} else if !said && s.Says {
		return "", errors.New("the answer does not say of which authorization server it is")
	}
	if _, failed := answer["error"]; failed {
		return "", declined(answer.Get("error"))
	}
	code, err := single(answer, "code")
	if err == nil && code == "" {
		err = errors.New("the answer of the authorization server has no code")
	}
	return code, err
}

// declined returns the reason of an answer without a code (RFC 6749 section 4.1.2.1). It repeats
// nothing that whoever made the link could have written.
func declined(code string) error {
	switch code {
	case "access_denied":
		return errors.New("the authorization server says that the person declined, or may not connect")
	case "invalid_request", "unauthorized_client", "unsupported_response_type", "invalid_scope", "invalid_target", "server_error", "temporarily_unavailable",
		"interaction_required", "login_required", "consent_required", "account_selection_required":
		return fmt.Errorf("the authorization server refuses: %s", code)
	}
	return errors.New("the authorization server refuses, for a reason that is not known")
}

// ask asks the token endpoint. The client's secret is the configured one where the client is. The form
// has the client's ID also where a header has it (RFC 6749 section 3.2.1): the Python SDK asks for it.
func (p *party) ask(ctx context.Context, asking *http.Client, server config.Server, form url.Values) (*oauth2.Token, error) {
	c := clientcredentials.Config{ClientID: p.Client.ID, ClientSecret: p.secret(server), TokenURL: p.Token, AuthStyle: p.Client.Style, EndpointParams: form}
	form.Set("resource", p.Resource)
	form.Set("client_id", p.Client.ID)
	return c.Token(context.WithValue(ctx, oauth2.HTTPClient, asking))
}

func (p *party) secret(server config.Server) string {
	if c := server.Credential; c != nil && c.ClientID == p.Client.ID {
		return c.ClientSecret
	}
	return p.Client.Secret
}

// take puts the tokens of an answer in place of those that t has. What the answer does not name
// stays: the refresh token (RFC 6749 section 6) and the scopes.
func (t *tokens) take(got *oauth2.Token, now time.Time) error {
	access, err := bearer(got, now)
	if err != nil {
		return err
	}
	if len(got.RefreshToken) > maxToken {
		return errors.New("the answer has a refresh token that is too long")
	}
	t.Keeps = t.Refresh != "" && got.RefreshToken == t.Refresh
	t.Access, t.At, t.End, t.Refresh = access.token, access.at, access.end, got.RefreshToken
	if granted, ok := got.Extra("scope").(string); ok && granted != "" {
		t.Scopes = union(strings.Fields(granted))
	}
	return nil
}

// account returns what the person is called at the server, "" where the answer does not say. The ID
// token came from the token endpoint itself, and so its signature is not checked (OpenID Connect Core
// 1.0 section 3.1.3.7).
func account(got *oauth2.Token) string {
	token, _ := got.Extra("id_token").(string)
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims map[string]any
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	for _, name := range []string{"email", "preferred_username", "sub"} {
		if says, _ := claims[name].(string); says != "" {
			return text.EscapeHidden(text.Clip(says, maxAccount, "…"))
		}
	}
	return ""
}

// insert stores a new grant, in place of an earlier one of its owner.
func (g *Grants) insert(ctx context.Context, o owner, t *tokens) (Grant, error) {
	r := row{Grant: Grant{
		ID: "grant-" + strings.ToLower(rand.Text()), Server: o.server, Person: o.Person, Issuer: t.Issuer, Account: t.Account, Scopes: t.Scopes,
		Created: g.o.Now(), Until: t.End, State: GrantLive,
	}, Version: 1}
	var err error
	if r.Sealed, err = g.seal(ctx, t, r.about()...); err != nil {
		return Grant{}, err
	}
	err = g.o.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := g.o.DB.Lock(ctx, tx, fmt.Sprintf("credential %q", r.about()[2:])); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM credential_grants WHERE server = ? AND person_issuer = ? AND tenant = ? AND subject = ?", o.server, o.Issuer, o.Tenant, o.Subject); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO credential_grants ("+rowColumns+") VALUES (?"+strings.Repeat(", ?", strings.Count(rowColumns, ","))+")", r.fields()...)
		return err
	})
	if err != nil {
		return Grant{}, fmt.Errorf("storing the connection: %w", err)
	}
	if l, ok := g.live.Get(o); ok {
		l.drop()
	}
	return r.grant(), nil
}
