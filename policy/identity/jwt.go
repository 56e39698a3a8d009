package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/policy"
)

const (
	maxVerified     = 10_000           // verified tokens remembered
	verifiedFor     = 60 * time.Second // how long a verified token is believed without a new look
	defaultLifetime = 24 * time.Hour
	defaultSkew     = time.Minute
	maxActors       = 8 // of a delegation chain
)

// algorithms are the default: none and the HMAC family are not among those that can be
// configured, so a public key can never serve as a shared secret.
var algorithms = []string{oidc.RS256, oidc.ES256, oidc.EdDSA}

// Algorithms returns the signature algorithms that JWT.Algorithms may name.
func Algorithms() []string {
	return []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}
}

// types are the default typ headers: RFC 9068 asks for at+jwt, most providers send JWT
// or none. Tokens for other purposes (logout+jwt, dpop+jwt) are not among them.
var types = []string{"", "jwt", "at+jwt", "application/at+jwt"}

// issuer verifies the tokens of one configured JWT entry.
type issuer struct {
	config JWT
	keys   *keySet
	verify *oidc.IDTokenVerifier
}

func (s *state) addIssuer(j JWT, c Config, old *state) error {
	if err := checkIssuer(j); err != nil {
		return err
	}
	if _, dup := s.issuers[j.Issuer]; dup {
		return fmt.Errorf("issuer %q is configured twice", j.Issuer)
	}
	j.RolesClaim, j.PersonClaim = cmp.Or(j.RolesClaim, "roles"), cmp.Or(j.PersonClaim, "person")
	j.SubjectClaim, j.GroupsClaim = cmp.Or(j.SubjectClaim, "sub"), cmp.Or(j.GroupsClaim, "groups")
	j.MaxLifetime, j.Skew = cmp.Or(j.MaxLifetime, defaultLifetime), cmp.Or(j.Skew, defaultSkew)
	j.Audience = slices.Clone(j.Audience)
	if len(j.Algorithms) == 0 {
		j.Algorithms = algorithms
	}
	if len(j.Types) == 0 {
		j.Types = types
	}
	is := &issuer{config: j}
	if old != nil {
		if was := old.issuers[j.Issuer]; was != nil && was.config.JWKS == j.JWKS && was.config.Private == j.Private && was.keys.client == c.Client {
			is.keys = was.keys
		}
	}
	if is.keys == nil {
		is.keys = newKeySet(j, c.Client)
	}
	is.verify = oidc.NewVerifier(j.Issuer, is.keys, &oidc.Config{
		SkipClientIDCheck:    true, // the audience depends on the route: see meant
		SupportedSigningAlgs: j.Algorithms,
		Now:                  s.now,
	})
	s.issuers[j.Issuer] = is
	return nil
}

func checkIssuer(j JWT) error {
	switch {
	case j.Issuer == "":
		return errors.New("issuer is empty")
	case slices.Contains(j.Audience, ""):
		return errors.New("an audience is empty (hint: the audience that your identity provider puts into tokens for toolgate)")
	case slices.ContainsFunc(j.Algorithms, func(a string) bool { return !slices.Contains(Algorithms(), a) }):
		return fmt.Errorf("algorithms: want some of %s", strings.Join(Algorithms(), ", "))
	case j.MaxLifetime < 0 || j.Skew < 0:
		return errors.New("max_lifetime or skew is below zero")
	}
	for name, address := range map[string]string{"jwks": j.JWKS, "issuer": j.Issuer} {
		if name == "jwks" && address == "" || name == "issuer" && j.JWKS != "" {
			continue // keys are found by one of the two
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			return errors.New(name + " is not a URL")
		}
		if u.Scheme != "https" && !(u.Scheme == "http" && guard.Loopback(u.Hostname())) {
			return errors.New(name + " must be fetched over https")
		}
	}
	return nil
}

// jwt verifies a token that was shown at a route, or recalls that it did so a moment ago.
func (s *state) jwt(ctx context.Context, c *Credential, sum [sha256.Size]byte) (policy.Principal, error) {
	now, token := s.now(), c.Bearer
	if known, ok := s.verified.Get(sum); ok && now.Before(known.until) {
		if !s.meant(known.issuer, known.audience, c.At) {
			return policy.Principal{}, errAudience
		}
		return known.principal, s.checkBinding(ctx, known.bound, c)
	}
	is, kid, err := s.issuerOf(token)
	if err != nil {
		return policy.Principal{}, err
	}
	var fault error
	t, err := is.verify.Verify(context.WithValue(ctx, keyFault{}, &fault), token)
	if fetched, _ := is.keys.status(); fault != nil && fetched.IsZero() {
		return policy.Principal{}, refuse(Unfetched, "the keys of the token's issuer were never fetched")
	}
	if err != nil {
		return policy.Principal{}, refuseToken(err, fault, is.keys.lacks(kid))
	}
	if !s.meant(is, t.Audience, c.At) {
		return policy.Principal{}, errAudience
	}
	bound, err := bindingOf(t)
	if err != nil {
		return policy.Principal{}, err
	}
	p, err := s.principal(is, t)
	if err != nil {
		return policy.Principal{}, err
	}
	until := now.Add(verifiedFor)
	if t.Expiry.Before(until) {
		until = t.Expiry
	}
	s.verified.Add(sum, verifiedToken{p, is, bound, t.Audience, until})
	return p, s.checkBinding(ctx, bound, c)
}

// errAudience refuses a token that is good somewhere else.
var errAudience = refuse(Audience, "the token is meant for another audience")

// issuerOf reads the header and the iss claim of a token that is not verified yet, only
// to choose who verifies it and to say why it cannot be; the verifier compares alg and
// iss again.
func (s *state) issuerOf(token string) (is *issuer, kid string, err error) {
	f, err := ReadJWT(token)
	if err != nil {
		return nil, "", err
	}
	switch is = s.issuers[f.Issuer]; {
	case is == nil:
		return nil, "", refuse(Issuer, "the issuer of the token is not trusted")
	case !slices.Contains(is.config.Algorithms, f.Algorithm):
		return nil, "", refuse(Algorithm, "the algorithm of the token is not accepted from its issuer")
	case !slices.ContainsFunc(is.config.Types, func(t string) bool { return strings.EqualFold(t, f.Type) }):
		return nil, "", refuse(Type, "the type of the token is not accepted from its issuer")
	}
	return is, f.KeyID, nil
}

// Facts are the header and the claims of a JWT whose signature is not verified.
type Facts struct {
	Header
	Claimed
}

// Header is part of the header of a JWT (RFC 7515 section 4.1).
type Header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid,omitempty"`
	Type      string `json:"typ,omitempty"`
}

// Claimed are some of the claims of a JWT (RFC 7519 section 4.1).
type Claimed struct {
	Issuer    string          `json:"iss,omitempty"`
	Subject   string          `json:"sub,omitempty"`
	Audience  json.RawMessage `json:"aud,omitempty"`
	Expires   json.RawMessage `json:"exp,omitempty"`
	NotBefore json.RawMessage `json:"nbf,omitempty"`
	IssuedAt  json.RawMessage `json:"iat,omitempty"`
}

// ReadJWT reads a token without verifying it. The error is a Refusal.
func ReadJWT(token string) (f Facts, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return f, refuse(Malformed, "the token is no JWT")
	}
	for i, to := range []any{&f.Header, &f.Claimed} {
		text, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err == nil {
			err = jsonv2.Unmarshal(text, to) // names are exact, and none comes twice
		}
		if err != nil {
			return Facts{}, refuse(Malformed, "the header or the claims of the token cannot be read")
		}
	}
	return f, nil
}

// principal maps verified claims.
func (s *state) principal(is *issuer, t *oidc.IDToken) (policy.Principal, error) {
	if err := s.timely(is, t); err != nil {
		return policy.Principal{}, err
	}
	several, c := len(s.issuers) > 1, is.config
	p, err := readClaims(t, claimNames{c.SubjectClaim, c.RolesClaim, c.PersonClaim, c.TenantClaim, c.GroupsClaim, c.Scopes, c.Groups}, several)
	if err == nil {
		p.Subject, err = s.subject(t.Issuer, p.Subject, several)
	}
	if err != nil {
		return policy.Principal{}, err
	}
	p.Until = t.Expiry
	return p, nil
}

// timely holds a token to the bounds of its issuer; the verifier has looked at exp.
func (s *state) timely(is *issuer, t *oidc.IDToken) error {
	var claims struct {
		NotBefore json.Number `json:"nbf"`
	}
	if err := t.Claims(&claims); err != nil {
		return refuse(Claims, "the claims of the token cannot be read")
	}
	now, begin := s.now(), t.IssuedAt
	latest := now.Add(is.config.Skew)
	notBefore, _ := claims.NotBefore.Float64() // the verifier has read it
	if begin.After(latest) || notBefore > float64(latest.Unix()) {
		return refuse(NotYet, "the token is not valid yet")
	}
	if begin.IsZero() {
		begin = now
	}
	if t.Expiry.Sub(begin) > is.config.MaxLifetime {
		return refuse(Lifetime, "the token is valid for longer than its issuer's tokens may be")
	}
	return nil
}

// subject names whom an issuer calls sub. A subject that is configured with a
// static token, or that is the local one, cannot be claimed by an issuer; with
// several issuers it is "issuer|sub", as two may name two people alike.
func (s *state) subject(issuer, sub string, several bool) (string, error) {
	if sub == "" {
		return "", refuse(Subject, "the token names no subject")
	}
	if several {
		sub = issuer + "|" + sub
	}
	if _, taken := s.subjects[sub]; taken || sub == LocalSubject {
		return "", refuse(Subject, "the subject of the token belongs to another credential")
	}
	return sub, nil
}

// refuseToken gives a verifier's error in our words: its own may quote claims. fault is
// the error of the key set, nil when the signature verified; noKey reports that the
// issuer has keys, and none with the key id of the token.
func refuseToken(err, fault error, noKey bool) error {
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return refuse(Expiry, "the token has expired")
	case fault == nil && strings.Contains(err.Error(), "nbf"): // go-oidc has no error value for it
		return refuse(NotYet, "the token is not valid yet")
	case fault == nil:
		return refuse(Malformed, "the token is not valid")
	case noKey:
		return refuse(KeyID, "the issuer has no key with the key id of the token")
	case errors.Unwrap(fault) != nil: // go-oidc wraps only what a fetch returns
		return refuse(Keys, "the keys of the issuer could not be had")
	}
	return refuse(Signature, "the signature of the token does not verify")
}
