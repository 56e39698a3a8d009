package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/policy"
)

const (
	maxVerified   = 10_000           // verified tokens remembered
	verifiedFor   = 60 * time.Second // how long a verified token is believed without a new look
	maxJWKSBytes  = 1 << 20
	fetchEvery    = 5 * time.Second // an unknown key id makes the verifier fetch: strangers must not steer that
	fetchBurst    = 5
	fetchDeadline = 5 * time.Second
)

// algorithms are pinned: none and the HMAC family are not among them, so a
// public key can never serve as a shared secret.
var algorithms = []string{oidc.RS256, oidc.ES256, oidc.EdDSA}

// issuer verifies the tokens of one configured JWT entry.
type issuer struct {
	config JWT
	keys   *oidc.RemoteKeySet
	client *http.Client // as configured, to tell an unchanged entry
	verify *oidc.IDTokenVerifier
}

func (s *state) addIssuer(j JWT, c Config, old *state) error {
	if err := checkIssuer(j); err != nil {
		return err
	}
	if _, dup := s.issuers[j.Issuer]; dup {
		return fmt.Errorf("issuer %q is configured twice", j.Issuer)
	}
	if j.RolesClaim == "" {
		j.RolesClaim = "roles"
	}
	j.Audience = slices.Clone(j.Audience)
	is := &issuer{config: j, client: c.Client}
	if old != nil {
		if was := old.issuers[j.Issuer]; was != nil && was.config.JWKS == j.JWKS && was.client == c.Client {
			is.keys = was.keys
		}
	}
	if is.keys == nil {
		is.keys = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), boundedClient(c.Client, keyPace())), j.JWKS)
	}
	is.verify = oidc.NewVerifier(j.Issuer, is.keys, &oidc.Config{
		SkipClientIDCheck:    true, // the audience is a list: see audienceMatches
		SupportedSigningAlgs: algorithms,
		Now:                  s.now,
	})
	s.issuers[j.Issuer] = is
	return nil
}

func checkIssuer(j JWT) error {
	switch {
	case j.Issuer == "":
		return errors.New("issuer is empty")
	case len(j.Audience) == 0 || slices.Contains(j.Audience, ""):
		return errors.New("audience is empty (hint: the audience that your identity provider puts into tokens for toolgate)")
	}
	u, err := url.Parse(j.JWKS)
	if err != nil || u.Host == "" {
		return errors.New("jwks is not a URL")
	}
	if u.Scheme == "https" || u.Scheme == "http" && guard.Loopback(u.Hostname()) {
		return nil
	}
	return errors.New("jwks must be fetched over https")
}

// jwt verifies token, or recalls that it did so a moment ago.
func (s *state) jwt(ctx context.Context, token string, sum [sha256.Size]byte) (policy.Principal, error) {
	now := s.now()
	if known, ok := s.verified.Get(sum); ok && now.Before(known.until) {
		return known.principal, nil
	}
	is, err := s.issuerOf(token)
	if err != nil {
		return policy.Principal{}, err
	}
	t, err := is.verify.Verify(ctx, token)
	if err != nil {
		return policy.Principal{}, refuseToken(err)
	}
	p, err := s.principal(is, t)
	if err != nil {
		return policy.Principal{}, err
	}
	until := now.Add(verifiedFor)
	if t.Expiry.Before(until) {
		until = t.Expiry
	}
	s.verified.Add(sum, verifiedToken{p, until})
	return p, nil
}

// issuerOf reads the iss claim of a token that is not verified yet, only to
// choose who verifies it; the verifier compares the claim again.
func (s *state) issuerOf(token string) (*issuer, error) {
	var claims map[string]json.RawMessage
	var iss string
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || json.Unmarshal(claims["iss"], &iss) != nil {
		return nil, refuse("the token is not known")
	}
	is := s.issuers[iss]
	if is == nil {
		return nil, refuse("the issuer of the token is not trusted")
	}
	return is, nil
}

// principal maps verified claims.
func (s *state) principal(is *issuer, t *oidc.IDToken) (policy.Principal, error) {
	if !slices.ContainsFunc(t.Audience, func(a string) bool { return slices.Contains(is.config.Audience, a) }) {
		return policy.Principal{}, refuse("the token is meant for another audience")
	}
	subject, err := s.subject(t.Issuer, t.Subject, len(s.issuers) > 1)
	if err != nil {
		return policy.Principal{}, err
	}
	roles, err := rolesOf(t, is.config.RolesClaim)
	if err != nil {
		return policy.Principal{}, refuse("the roles claim of the token is malformed")
	}
	return policy.Principal{Subject: subject, Roles: roles, Until: t.Expiry}, nil
}

// subject names whom an issuer calls sub. A subject that is configured with a
// static token, or that is the local one, cannot be claimed by an issuer; with
// several issuers it is "issuer|sub", as two may name two people alike.
func (s *state) subject(issuer, sub string, several bool) (string, error) {
	if sub == "" {
		return "", refuse("the token names no subject")
	}
	if several {
		sub = issuer + "|" + sub
	}
	if _, taken := s.subjects[sub]; taken {
		return "", refuse("the subject of the token belongs to another credential")
	}
	return sub, nil
}

// rolesOf reads a string or a list of strings. An absent claim is no roles.
func rolesOf(t *oidc.IDToken, claim string) ([]string, error) {
	var members map[string]json.RawMessage
	if err := t.Claims(&members); err != nil {
		return nil, err
	}
	value, ok := members[claim]
	for !ok {
		head, rest, dotted := strings.Cut(claim, ".")
		if !dotted || members[head] == nil {
			return nil, nil
		}
		var inner map[string]json.RawMessage
		if err := json.Unmarshal(members[head], &inner); err != nil {
			return nil, err
		}
		members, claim = inner, rest
		value, ok = members[claim]
	}
	var one string
	if json.Unmarshal(value, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if err := json.Unmarshal(value, &many); err != nil {
		return nil, err
	}
	return many, nil
}

// refuseToken gives a verifier's fault in our words: its own may quote claims.
func refuseToken(err error) error {
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return refuse("the token has expired")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return refuse("the token could not be verified in time")
	}
	return refuse("the token is not valid")
}

// boundedClient bounds what a server can do to us: time, size, redirects, and by pace
// how often strangers can make us ask it.
func boundedClient(c *http.Client, pace *rate.Limiter) *http.Client {
	bounded := http.Client{Timeout: fetchDeadline}
	if c != nil {
		bounded = *c
	}
	bounded.Transport = &keyTransport{base: cmp.Or(bounded.Transport, http.DefaultTransport), pace: pace}
	bounded.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &bounded
}

// keyPace is how often an unknown key id may make a verifier fetch.
func keyPace() *rate.Limiter { return rate.NewLimiter(rate.Every(fetchEvery), fetchBurst) }

type keyTransport struct {
	base http.RoundTripper
	pace *rate.Limiter
}

// RoundTrip implements http.RoundTripper.
func (t *keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.pace.Allow() {
		return nil, errors.New("fetching keys: asked too often")
	}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = http.MaxBytesReader(nil, res.Body, maxJWKSBytes)
	return res, nil
}
