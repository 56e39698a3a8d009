// Package credential gets the tokens that toolgate shows to servers with an address, and keeps
// each until it ends. A token is toolgate's own at that server: no token of a caller is ever
// used or passed on.
//
//	source, err := credential.New(*server.Credential, credential.Options{})
//	token, err := source.Token(ctx)   // for "Authorization: Bearer"
//	source.Refused(token)             // the server answered 401: the next Token is another one
package credential

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/toolgate/toolgate/registry/config"
)

const (
	fetchTimeout = 10 * time.Second
	fetchPause   = time.Second      // between two requests for a token
	renewBefore  = 30 * time.Second // before a token ends, or a tenth of its life where that is less
	maxToken     = 64 << 10         // bytes; a longer one is refused
)

// Options of a Source. The zero value is valid.
type Options struct {
	// Client asks the token endpoint; nil = one that follows no redirects.
	Client *http.Client
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// Got receives each new token, before it is used; nil discards.
	Got func(token string)
}

// Source has the token of one server. It is safe for concurrent use.
type Source struct {
	ask  func(ctx context.Context) (*oauth2.Token, error)
	opts Options

	turn   chan struct{} // has one element, which whoever holds the fields below has taken
	token  string
	renew  time.Time // when another token is fetched; zero = never
	end    time.Time // of token; zero = never
	asked  time.Time // when the endpoint was last asked
	failed error     // why it gave nothing then
}

// New returns the source of a credential of the type client_credentials (RFC 6749 section 4.4).
// The error names the member that cannot be used.
func New(c config.Credential, opts Options) (*Source, error) {
	if c.Type != config.CredentialClient {
		return nil, fmt.Errorf("a credential of type %q has no tokens", c.Type)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Client == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.Proxy, own.MaxIdleConns, own.IdleConnTimeout = nil, 1, fetchTimeout
		opts.Client = &http.Client{Transport: own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if opts.Got == nil {
		opts.Got = func(string) {}
	}
	var signer jose.Signer
	if c.PrivateKey != "" {
		var err error
		if signer, err = newSigner(c.PrivateKey, c.KeyID); err != nil {
			return nil, fmt.Errorf("reading private_key: %w", err)
		}
	}
	s := &Source{opts: opts, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	asked := clientcredentials.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.TokenURL, Scopes: c.Scopes, EndpointParams: url.Values{}}
	for name, value := range map[string]string{"audience": c.Audience, "resource": c.Resource} {
		if value != "" {
			asked.EndpointParams.Set(name, value)
		}
	}
	s.ask = asked.Token
	if signer != nil {
		asked.AuthStyle = oauth2.AuthStyleInParams
		s.ask = func(ctx context.Context) (*oauth2.Token, error) {
			text, err := s.assertion(c, signer)
			if err != nil {
				return nil, err
			}
			asked.EndpointParams.Set("client_assertion", text)
			return asked.Token(ctx)
		}
		asked.EndpointParams.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
	}
	return s, nil
}

// Token returns a token that has not ended. Where it has to ask for one it waits for that, until
// ctx ends, and for at most ten seconds. It fails closed: without a token there is an error, which has no secrets.
// The endpoint is asked once a second at most; in between, the last error stands.
func (s *Source) Token(ctx context.Context) (string, error) {
	select {
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	now := s.opts.Now()
	good := s.token != "" && (s.end.IsZero() || now.Before(s.end))
	if good && (s.renew.IsZero() || now.Before(s.renew)) {
		return s.token, nil
	}
	if now.Sub(s.asked) >= fetchPause || s.asked.IsZero() {
		s.fetch(ctx, now)
		good = good || s.failed == nil
	}
	if good { // also one that is about to end, while the endpoint is away
		return s.token, nil
	}
	return "", cmp.Or(s.failed, errPaused)
}

// errPaused refuses a token to a caller who comes too early for another one.
var errPaused = errors.New("the server refused a token that is less than a second old")

// Refused forgets a token that the server has refused, unless it has another one by now.
func (s *Source) Refused(token string) {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	if s.token == token {
		s.token = ""
	}
}

// fetch asks for a token. The caller must have taken s.turn.
func (s *Source) fetch(caller context.Context, now time.Time) {
	ctx, stop := context.WithTimeout(context.WithValue(caller, oauth2.HTTPClient, s.opts.Client), fetchTimeout)
	defer stop()
	t, err := s.ask(ctx)
	if err == nil && !isBearer(t) {
		err = errors.New("the answer has no bearer token")
	}
	if err != nil && ctx.Err() != nil && context.Cause(caller) != nil { // nobody waits for the answer, which says nothing of the endpoint
		s.failed = context.Cause(caller)
		return
	}
	if s.asked, s.failed = now, explain(err); err != nil {
		return
	}
	s.token, s.end, s.renew = t.AccessToken, time.Time{}, time.Time{}
	if !t.Expiry.IsZero() {
		life := time.Until(t.Expiry)
		s.end = now.Add(life)
		s.renew = s.end.Add(-min(renewBefore, life/10))
	}
	s.opts.Got(s.token)
}

// isBearer reports whether t can be shown to a server.
func isBearer(t *oauth2.Token) bool {
	ended := !t.Expiry.IsZero() && time.Until(t.Expiry) <= 0
	return !ended && t.AccessToken != "" && len(t.AccessToken) <= maxToken && strings.Trim(t.AccessToken, b64token) == "" && strings.EqualFold(t.Type(), "Bearer")
}

// b64token are the characters of a bearer token (RFC 6750 section 2.1).
const b64token = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="

// explain returns the reason of err, without secrets of the request or of the answer.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return fmt.Errorf("asking for a token: status %d %s", refused.Response.StatusCode, errorCode(refused.ErrorCode))
	}
	if at, ok := errors.AsType[*url.Error](err); ok {
		err = at.Err
	}
	return errors.New("asking for a token: " + err.Error()) // not wrapped: the server's own connection is not broken
}

// errorCode returns an error code of RFC 6749 section 5.2, "" for anything else.
func errorCode(code string) string {
	switch code {
	case "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope", "invalid_target":
		return code
	}
	return ""
}

// assertion returns what proves that toolgate is the client (RFC 7523 section 2.2). It is good once,
// for a minute.
func (s *Source) assertion(c config.Credential, signer jose.Signer) (string, error) {
	now := s.opts.Now()
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: c.ClientID, Subject: c.ClientID, Audience: jwt.Audience{c.TokenURL}, ID: rand.Text(),
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Minute)),
	}).Serialize()
}

// newSigner returns what signs with a private key in PEM.
func newSigner(text, keyID string) (jose.Signer, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	var algorithm jose.SignatureAlgorithm
	switch key := key.(type) {
	case *rsa.PrivateKey:
		algorithm = jose.RS256
	case ed25519.PrivateKey:
		algorithm = jose.EdDSA
	case *ecdsa.PrivateKey:
		algorithm = map[int]jose.SignatureAlgorithm{256: jose.ES256, 384: jose.ES384, 521: jose.ES512}[key.Params().BitSize]
	}
	signed := (&jose.SignerOptions{}).WithType("JWT")
	return jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: keyID}}, signed)
}

// parseKey reads a private key in one of the forms that tools write.
func parseKey(der []byte) (crypto.PrivateKey, error) {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	return nil, errors.New("it is no private key of RSA, ECDSA or Ed25519")
}
