package identity

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/time/rate"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/policy"
)

// ProviderConfig says where people sign in (OpenID Connect Core 1.0). All but
// ClientSecret, Scopes, RolesClaim and Client are required.
type ProviderConfig struct {
	Issuer       string       // https, or http on loopback
	ClientID     string       // as registered there
	ClientSecret string       // "" = a public client
	Redirect     string       // address of ours that the provider sends people back to, as registered there
	Scopes       []string     // asked for beside openid
	RolesClaim   string       // member of the ID token that holds the roles, dots descend; "" = "roles"
	PersonClaim  string       // the same for the person; "" = "person"
	TenantClaim  string       // the same for the tenant; "" = none
	Client       *http.Client // asks the provider; nil = a client with a 5 s limit that follows no redirects
}

// Provider signs people in with a browser, by authorization code and PKCE (RFC
// 7636). It asks the provider when somebody signs in, not before, so one that
// is down stops nobody else. It is safe for concurrent use and fails closed.
type Provider struct {
	config ProviderConfig
	people *Authenticator
	client *http.Client // only those who sign in cause it to ask
	// strangers asks because of logout tokens, which anybody can send, at a pace of its own.
	strangers *http.Client

	mu    sync.Mutex // protects the fields below, also while it is being asked
	found *endpoints
}

// endpoints is what the provider says of itself.
type endpoints struct {
	flow   oauth2.Config
	verify *oidc.IDTokenVerifier
	logout *oidc.IDTokenVerifier // of logout tokens, with the client strangers
	end    string                // where people sign out, "" = nowhere
	named  bool                  // its answers say whose they are (RFC 9207)
}

// NewProvider returns the Provider that c describes. Its people are distinguished from those that
// a knows in other ways.
func (a *Authenticator) NewProvider(c ProviderConfig) (*Provider, error) {
	_, err := privateURL(c.Issuer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("configuring sign-in: the issuer: %w", err)
	case c.ClientID == "":
		return nil, errors.New("configuring sign-in: the client id is empty")
	case c.Redirect == "":
		return nil, errors.New("configuring sign-in: the address to come back to is empty")
	}
	c.RolesClaim, c.PersonClaim = cmp.Or(c.RolesClaim, "roles"), cmp.Or(c.PersonClaim, "person")
	c.Scopes = slices.Clone(c.Scopes)
	if !slices.Contains(c.Scopes, oidc.ScopeOpenID) {
		c.Scopes = append([]string{oidc.ScopeOpenID}, c.Scopes...)
	}
	return &Provider{config: c, people: a, client: boundedClient(c.Client, rate.NewLimiter(rate.Inf, 0)), strangers: boundedClient(c.Client, keyPace())}, nil
}

// privateURL reads the URL of a place that others on the way cannot read: https, or http on
// loopback.
func privateURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !guard.Loopback(u.Hostname())) {
		return nil, errors.New("it is no https URL")
	}
	return u, nil
}

// Begin gives the address to send a browser to, and what the same browser has
// to bring to Finish: keep it from everybody else.
func (p *Provider) Begin(ctx context.Context) (address, secret string, err error) {
	e, err := p.endpoints(ctx, p.client)
	if err != nil {
		return "", "", err
	}
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	return e.flow.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), state + "." + nonce + "." + verifier, nil
}

// Finish says who came back with the provider's answer, the query of its
// redirect, and how the provider names its session, "" when it does not. An answer to another browser's question, or one that cannot be
// verified, is an error that wraps ErrUnauthenticated and holds nothing secret;
// a provider that cannot be asked is another error.
func (p *Provider) Finish(ctx context.Context, secret string, answer url.Values) (who policy.Principal, session string, err error) {
	state, rest, _ := strings.Cut(secret, ".")
	nonce, verifier, _ := strings.Cut(rest, ".")
	if err := p.check(answer, state); err != nil {
		return policy.Principal{}, "", err
	}
	e, err := p.endpoints(ctx, p.client)
	if err != nil {
		return policy.Principal{}, "", err
	}
	if e.named && !answer.Has("iss") {
		return policy.Principal{}, "", refuse(Issuer, "the answer does not say whose it is")
	}
	ctx = oidc.ClientContext(ctx, p.client)
	tokens, err := e.flow.Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		return policy.Principal{}, "", refuseCode(err)
	}
	raw, _ := tokens.Extra("id_token").(string)
	t, err := e.verify.Verify(ctx, raw)
	if err != nil {
		return policy.Principal{}, "", refuseToken(err, nil, false)
	}
	if subtle.ConstantTimeCompare([]byte(t.Nonce), []byte(nonce)) != 1 || nonce == "" {
		return policy.Principal{}, "", refuse(Malformed, "the ID token is for another sign-in")
	}
	if t.AccessTokenHash != "" && t.VerifyAccessToken(tokens.AccessToken) != nil {
		return policy.Principal{}, "", refuse(Malformed, "the ID token is for another access token")
	}
	var claims struct {
		Session string `json:"sid"`
	}
	if err := t.Claims(&claims); err != nil {
		return policy.Principal{}, "", refuse(Claims, "the sid of the ID token cannot be read")
	}
	who, err = p.person(t)
	return who, claims.Session, err
}

// check looks at an answer before anybody is asked about it.
func (p *Provider) check(answer url.Values, state string) error {
	for name, values := range answer {
		if len(values) > 1 {
			return refuse(Malformed, "the provider's answer has a parameter twice: "+word(name))
		}
	}
	switch {
	case state == "" || subtle.ConstantTimeCompare([]byte(answer.Get("state")), []byte(state)) != 1:
		return refuse(Malformed, "the provider's answer is to another question")
	case answer.Has("iss") && answer.Get("iss") != p.config.Issuer: // RFC 9207
		return refuse(Issuer, "the answer is another provider's")
	case answer.Has("error"):
		return refuse(Unknown, "the provider says "+word(answer.Get("error")))
	case answer.Get("code") == "":
		return refuse(Malformed, "the provider's answer has no code")
	}
	return nil
}

// person maps a verified ID token.
func (p *Provider) person(t *oidc.IDToken) (policy.Principal, error) {
	var claims struct {
		Party string `json:"azp"`
	}
	if err := t.Claims(&claims); err != nil || claims.Party != "" && claims.Party != p.config.ClientID {
		return policy.Principal{}, refuse(Audience, "the ID token was made for another program")
	}
	s := p.people.state.Load()
	subject, err := s.guest(p.config.Issuer, t.Subject)
	if err != nil {
		return policy.Principal{}, err
	}
	who, err := readClaims(t, claimNames{roles: p.config.RolesClaim, person: p.config.PersonClaim, tenant: p.config.TenantClaim}, s.several(p.config.Issuer))
	if err != nil {
		return policy.Principal{}, err
	}
	who.Subject, who.ClientID = subject, "" // the client is toolgate itself
	return who, nil
}

// Again identifies somebody anew who signed in before. The roles are those of
// the sign-in: nothing else is known until the next. An error wraps
// ErrUnauthenticated.
func (p *Provider) Again(_ context.Context, was policy.Principal) (policy.Principal, error) {
	sub := strings.TrimPrefix(was.Subject, p.config.Issuer+"|")
	subject, err := p.people.state.Load().guest(p.config.Issuer, sub)
	if err == nil && (subject != was.Subject || was.Issuer != p.config.Issuer) {
		err = refuse(Unknown, "people of this provider go by another name now, or it is another one")
	}
	if err != nil {
		return policy.Principal{}, err
	}
	return was.Clone(), nil
}

// guest names a person whom an issuer vouches for, who need not be one of those
// whose tokens are accepted: the same person has the same subject by both ways,
// and nobody that of somebody else.
func (s *state) guest(issuer, sub string) (string, error) {
	if strings.HasPrefix(sub, issuer+"|") {
		return "", refuse(Subject, "the subject looks like another's")
	}
	return s.subject(issuer, sub, s.several(issuer))
}

// several reports whether subjects of an issuer are named with it.
func (s *state) several(issuer string) bool {
	return len(s.issuers) > 1 || len(s.issuers) == 1 && s.issuers[issuer] == nil
}

// endpoints asks the provider once what it is.
func (p *Provider) endpoints(ctx context.Context, client *http.Client) (*endpoints, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, client), p.config.Issuer)
	if err != nil {
		return nil, fmt.Errorf("asking the identity provider what it is: %w", err)
	}
	var says struct {
		Named bool   `json:"authorization_response_iss_parameter_supported"`
		End   string `json:"end_session_endpoint"`
	}
	if err := found.Claims(&says); err != nil {
		return nil, fmt.Errorf("asking the identity provider what it is: %w", err)
	}
	config := &oidc.Config{ClientID: p.config.ClientID, SupportedSigningAlgs: algorithms, Now: p.people.state.Load().now}
	verifier := func(client *http.Client) *oidc.IDTokenVerifier {
		return found.VerifierContext(oidc.ClientContext(context.Background(), client), config)
	}
	p.found = &endpoints{
		named: says.Named, end: says.End,
		flow: oauth2.Config{
			ClientID: p.config.ClientID, ClientSecret: p.config.ClientSecret,
			Endpoint: found.Endpoint(), RedirectURL: p.config.Redirect, Scopes: p.config.Scopes,
		},
		verify: verifier(boundedClient(p.config.Client, keyPace())), logout: verifier(p.strangers),
	}
	return p.found, nil
}

// refuseCode gives the fault of an exchange in our words: the provider's may
// quote what it was sent.
func refuseCode(err error) error {
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return refuse(Unknown, "the provider does not take the code: "+word(refused.ErrorCode))
	}
	return errors.New("asking the identity provider for a token: it did not answer")
}

// word lets the error codes of RFC 6749 through, and nothing else.
func word(s string) string {
	if s == "" || len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return "nothing readable"
	}
	return s
}
