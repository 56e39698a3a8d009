// Package credential gets the tokens that toolgate shows to servers with an address, and keeps
// each until it ends. A token is toolgate's own at that server, or of the person who has
// connected to it (see [Grants]): no token of a caller is ever used or passed on.
//
//	source, err := credential.New(server, credential.Options{})
//	token, err := source.Token(ctx)   // for "Authorization: Bearer"
//	source.Refused(token, nil)        // the server answered 401: the next Token is another one
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
	refusedPause = time.Minute      // before a server that refuses new tokens is shown another one
	renewBefore  = 30 * time.Second // before a token ends, or a tenth of its life where that is less
	maxToken     = 64 << 10         // bytes; a longer one is refused
)

// Options of a Source. The zero value is valid.
type Options struct {
	// Client asks the configured token endpoint; nil = one that follows no redirects.
	Client *http.Client
	// Timeout bounds one request for a token; 0 = 10 s.
	Timeout time.Duration
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Source has the token of one server, or of one person at a server. It is safe for concurrent
// use.
type Source struct {
	origin
	opts Options

	turn    chan struct{} // has one element, which whoever holds the fields below has taken
	token   string
	renew   time.Time // when another token is fetched; zero = never
	end     time.Time // of token; zero = never
	next    time.Time // when the origin may be asked again
	failed  error     // why it gave nothing last
	refused time.Time // when a token was last refused
}

// origin is where the tokens of a Source come from.
type origin struct {
	// ask returns another token than the last one.
	ask func(ctx context.Context) (issued, error)
	// look returns a token that somebody else has put in place of the last one, the zero issued
	// for none. Its error means that no token counts. nil = nobody does.
	look func(ctx context.Context) (issued, error)
	// want records that the server asks for scopes; nil = nobody can grant them.
	want func(scopes []string)
	// again is the error where a server refuses a second token within refusedPause; nil = another
	// one is asked for.
	again error
}

// issued is a token with its life.
type issued struct {
	token   string
	at, end time.Time // end zero = does not end
}

// New returns the source of a server's credential of the type client_credentials (RFC 6749 section
// 4.4). Where no token endpoint is configured, each request for a token first finds the one of the
// server's authorization server, and fails closed. The error names the member that cannot be used.
func New(server config.Server, opts Options) (*Source, error) {
	c := *server.Credential
	if c.Type != config.CredentialClient {
		return nil, fmt.Errorf("a credential of type %q has no tokens", c.Type)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Client == nil {
		var err error
		if opts.Client, err = newClient(server); err != nil {
			return nil, err
		}
	}
	var signer jose.Signer
	if c.PrivateKey != "" {
		var err error
		if signer, err = newSigner(c.PrivateKey, c.KeyID); err != nil {
			return nil, fmt.Errorf("reading private_key: %w", err)
		}
	}
	asked := clientcredentials.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.TokenURL, Scopes: c.Scopes, EndpointParams: url.Values{}}
	for name, value := range map[string]string{"audience": c.Audience, "resource": c.Resource} {
		if value != "" {
			asked.EndpointParams.Set(name, value)
		}
	}
	return newSource(opts, origin{ask: func(ctx context.Context) (issued, error) {
		asking := opts.Client
		if c.TokenURL == "" {
			f, err := discover(ctx, server)
			if err != nil {
				return issued{}, err
			}
			asking, asked.TokenURL, asked.AuthStyle = f.asking, f.meta.TokenEndpoint, styleOf(c.ClientSecret, f.meta.TokenEndpointAuthMethodsSupported)
			asked.EndpointParams.Set("resource", f.Resource)
		}
		if signer != nil {
			text, err := assertion(c.ClientID, asked.TokenURL, signer, opts.Now())
			if err != nil {
				return issued{}, err
			}
			asked.AuthStyle = oauth2.AuthStyleInParams
			asked.EndpointParams.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
			asked.EndpointParams.Set("client_assertion", text)
		}
		t, err := asked.Token(context.WithValue(ctx, oauth2.HTTPClient, asking))
		if err != nil {
			return issued{}, err
		}
		return bearer(t, opts.Now())
	}}), nil
}

// newClient returns a client for the configured token endpoint of a server. It follows no redirects and
// uses no proxy.
func newClient(server config.Server) (*http.Client, error) {
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.Proxy, own.MaxIdleConns, own.IdleConnTimeout = nil, 1, fetchTimeout
	var err error
	own.TLSClientConfig, err = server.TLS.OpenOthers()
	return &http.Client{Transport: own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, err
}

// newSource returns a Source without a token.
func newSource(opts Options, from origin) *Source {
	s := &Source{origin: from, opts: opts, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// Token returns a token that has not ended. Where it has to ask for one it waits for that, until
// ctx ends, and for at most Options.Timeout. It fails closed: without a token there is an error, which has no secrets.
// The endpoint is asked once a second at most; in between, the last error stands.
func (s *Source) Token(ctx context.Context) (string, error) {
	select {
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	now := s.opts.Now()
	if s.look != nil {
		found, err := s.look(ctx)
		if err != nil {
			return "", err
		}
		if found.token != "" {
			s.keep(found)
		}
	}
	good := s.token != "" && (s.end.IsZero() || now.Before(s.end))
	if good && (s.renew.IsZero() || now.Before(s.renew)) {
		return s.token, nil
	}
	if !now.Before(s.next) {
		s.fetch(ctx, now)
		good = good || s.failed == nil
	}
	if _, ended := errors.AsType[*Missing](s.failed); good && !ended { // also one that is about to end, while the endpoint is away
		return s.token, nil
	}
	return "", cmp.Or(s.failed, errPaused)
}

// errPaused refuses a token to a caller who comes too early for another one.
var errPaused = errors.New("the server refused a token that is less than a second old")

// Refused forgets a token that the server has refused, unless it has another one by now. challenge
// are the values of the server's WWW-Authenticate: where they say that the token is good and its
// scopes are too few (RFC 6750 section 3.1), it is kept, and the scopes that they name are asked
// for when the person connects again.
func (s *Source) Refused(token string, challenge []string) {
	if scopes, few := insufficient(challenge); few && s.want != nil {
		s.want(scopes)
		return
	}
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	if s.token != token {
		return
	}
	s.token = ""
	now := s.opts.Now()
	if s.again != nil && !s.refused.IsZero() && now.Sub(s.refused) < refusedPause {
		s.failed, s.next = s.again, now.Add(refusedPause)
		return
	}
	s.refused = now
}

// fetch asks for a token. The caller must have taken s.turn.
func (s *Source) fetch(caller context.Context, now time.Time) {
	ctx, stop := context.WithTimeout(caller, cmp.Or(s.opts.Timeout, fetchTimeout))
	defer stop()
	found, err := s.ask(ctx)
	if err != nil && ctx.Err() != nil && context.Cause(caller) != nil { // nobody waits for the answer, which says nothing of the endpoint
		s.failed = context.Cause(caller)
		return
	}
	s.next, s.failed = now.Add(fetchPause), explain(err)
	if err == nil {
		s.keep(found)
	}
}

// keep has a token used from now on. The caller must have taken s.turn.
func (s *Source) keep(t issued) {
	s.token, s.end, s.renew, s.failed = t.token, t.end, time.Time{}, nil
	if !t.end.IsZero() {
		s.renew = t.end.Add(-min(renewBefore, t.end.Sub(t.at)/10))
	}
}

// bearer returns the token in an answer that came at now. The error is for one that cannot be
// shown to a server.
func bearer(t *oauth2.Token, now time.Time) (issued, error) {
	found, life := issued{token: t.AccessToken, at: now}, time.Until(t.Expiry)
	if !t.Expiry.IsZero() {
		found.end = now.Add(life)
	}
	if !found.end.IsZero() && life <= 0 || t.AccessToken == "" || len(t.AccessToken) > maxToken || strings.Trim(t.AccessToken, b64token) != "" || !strings.EqualFold(t.Type(), "Bearer") {
		return issued{}, errors.New("the answer has no bearer token")
	}
	return found, nil
}

// b64token are the characters of a bearer token (RFC 6750 section 2.1).
const b64token = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="

// explain returns the reason of err, without secrets of the request or of the answer.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if missing, ok := errors.AsType[*Missing](err); ok {
		return missing
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

// assertion returns what proves to a token endpoint that toolgate is the client (RFC 7523 section
// 2.2). It is good once, for a minute.
func assertion(client, endpoint string, signer jose.Signer, now time.Time) (string, error) {
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: client, Subject: client, Audience: jwt.Audience{endpoint}, ID: rand.Text(),
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
