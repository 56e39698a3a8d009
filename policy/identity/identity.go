// Package identity says who is calling. A credential goes in, and either one
// principal or ErrUnauthenticated comes out: there is no fallback, and nothing
// that a caller says of itself (headers, clientInfo) is read.
package identity

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/policy"
)

// LocalSubject names the principal of whoever runs toolgate on this machine.
const LocalSubject = "local"

// DefaultLocalRole is the role of the local principal when none is configured.
const DefaultLocalRole = "observer"

// maxTokenBytes bounds what is hashed and parsed of a presented token.
const maxTokenBytes = 16 << 10

// Credential is what a caller showed. The zero Credential is a caller over the
// network that showed nothing.
type Credential struct {
	Bearer    string // the token itself, without the scheme; see ParseBearer
	Source    string // address of the caller, with or without port; "" = no network. It is recorded with a refusal and grants nothing
	Local     bool   // came in by a door that only the user of this machine can open (stdio)
	Malformed bool   // what was shown is not one bearer token; it names nobody
	// Certificate is that of the client's connection, verified by the listener's TLS; nil =
	// none. Without a token it names the principal; with one it proves what the token is bound to.
	Certificate *x509.Certificate
	// DPoP is what the request has of a proof for Bearer, which was shown with the scheme
	// DPoP; nil = with the scheme Bearer.
	DPoP *DPoP
	At   Resource // where it was shown: a token of an issuer is good at the routes of its audience
	// Earlier is who an earlier call was identified as. It is for what goes on
	// without its caller, such as a call that people approved: it is identified
	// anew, by what is configured now. It counts only without Bearer and Local,
	// and no door may take it from what a caller says.
	Earlier *policy.Principal
	// Hash is the HashToken of the token that identified Earlier: it must still be good.
	// "" = any token of the subject will do.
	Hash string
}

// Token is one configured bearer token. Only its hash is known. Tokens of one subject
// differ in nothing but hash, expiry and shape.
type Token struct {
	Subject string    // never empty
	Person  string    // the human who shows it, or who owns the agent that does; "" = not known
	Tenant  string    // "" = none
	Roles   []string  // may be empty: then the policy grants nothing
	SHA256  string    // of the token's bytes, 64 hexadecimal digits
	Expires time.Time // zero = it ends when it is removed or revoked
	Shape   policy.Shape
}

// JWT is one trusted issuer of signed tokens (RFC 7519, RFC 9068). Claims are members of
// the token, dots descend ("realm_access.roles"). Roles are those of RolesClaim, and those
// that Scopes and Groups give for values of the token.
type JWT struct {
	Issuer       string              // compared with the iss claim, byte for byte
	Audience     []string            // accepted at every route in addition to the route's own; may be empty
	JWKS         string              // URL of the key set: https, or http on loopback; "" = the issuer is asked
	Private      bool                // the issuer that is asked may have a private address
	SubjectClaim string              // "" = "sub"
	RolesClaim   string              // "" = "roles"
	GroupsClaim  string              // "" = "groups"
	PersonClaim  string              // "" = "person"
	TenantClaim  string              // "" = none
	Scopes       map[string][]string // :: scope of a token ⇒ roles
	Groups       map[string][]string // :: group of a token ⇒ roles
	Algorithms   []string            // of signatures; nil = RS256, ES256, EdDSA
	Types        []string            // of the typ header, "" for a token without one; nil = none, JWT, at+jwt
	MaxLifetime  time.Duration       // from iat, or from now, to exp; 0 = 24 hours
	Skew         time.Duration       // how far nbf and iat may be in the future; 0 = 1 minute
}

// Config says who is known.
type Config struct {
	Tokens []Token
	JWT    []JWT
	// Certificates name principals without a token, by the first that fits.
	Certificates []Certificate
	// Public is the origin of the agents' listener, as its clients reach it: the canonical
	// addresses of its routes begin with it.
	Public string
	// Scopes are in the challenge and in the metadata: clients ask the issuer for them. Nil leaves
	// both out.
	Scopes []string
	// Audiences are accepted at the routes of one server, in addition to the routes' own.
	Audiences map[string][]string
	// Configured is set when the operator wrote an identity section, even an
	// empty one: then nobody comes in over the network without a credential.
	// Tokens or JWT imply it.
	Configured bool
	// Local admits the local principal although credentials are required. Where they
	// are not, it is admitted anyway.
	Local bool
	// LocalRole is the one role of the local principal; "" = DefaultLocalRole.
	LocalRole string
	// Revoked returns the Refusal of the token with a hash when it was revoked, or when
	// that cannot be known; nil = no token was.
	Revoked func(hash [sha256.Size]byte) error
	// Spend is [Proofs.Spend] of the proofs that were shown; nil = no proof is accepted.
	Spend func(ctx context.Context, id [sha256.Size]byte, now, until time.Time) error
	// Client fetches key sets; nil = a client with a 5 s limit that follows no
	// redirects.
	Client *http.Client
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// verifiedToken is who showed a token, which is verified again after until.
type verifiedToken struct {
	principal policy.Principal
	issuer    *issuer
	bound     binding
	audience  []string
	until     time.Time
}

// Authenticator turns credentials into principals. It is safe for concurrent
// use, and fails closed: what cannot be verified, be it for a key server that
// does not answer, is unauthenticated.
type Authenticator struct {
	state atomic.Pointer[state]
}

// state is one configuration; it is never modified after it is published.
type state struct {
	tokens       map[[sha256.Size]byte]*token
	subjects     map[string][]token // of each configured subject
	issuers      map[string]*issuer
	public       string              // origin of the resources
	scopes       []string            // that clients are told to ask for
	audiences    map[string][]string // :: server ⇒ further audiences of its routes
	certificates []namedCertificate
	verified     *lru.Cache[[sha256.Size]byte, verifiedToken] // by the token's hash
	local        policy.Principal
	noLocal      bool // the local principal is not admitted
	required     bool
	revoked      func([sha256.Size]byte) error
	spend        func(ctx context.Context, id [sha256.Size]byte, now, until time.Time) error
	now          func() time.Time
}

// token is a configured token.
type token struct {
	hash      [sha256.Size]byte
	principal policy.Principal
	expires   time.Time // zero = never
}

// check returns why t names nobody now, nil when it is good.
func (s *state) check(t *token) error {
	err := s.revoked(t.hash)
	if err == nil && !t.expires.IsZero() && !s.now().Before(t.expires) {
		err = refuse(Expiry, "the token has expired")
	}
	return err
}

// New checks c and returns its Authenticator. The error names every fault.
func New(c Config) (*Authenticator, error) {
	a := new(Authenticator)
	if err := a.Apply(c); err != nil {
		return nil, err
	}
	return a, nil
}

// Apply replaces the configuration at once, or changes nothing and returns an
// error that names every fault. Key sets of unchanged issuers are kept; tokens
// verified under the old configuration are verified again.
func (a *Authenticator) Apply(c Config) error {
	next, err := newState(c, a.state.Load())
	if err != nil {
		return fmt.Errorf("configuring identity: %w", err)
	}
	a.state.Store(next)
	return nil
}

// Required reports whether callers over the network must show a credential.
func (a *Authenticator) Required() bool { return a.state.Load().required }

// Identify returns the principal of c, or an error that wraps
// ErrUnauthenticated. A token that was shown always decides: one that is not
// known is refused even where none is needed, and no token is needed for the local
// principal only where none is configured, or with Config.Local. The principal belongs
// to the caller. Identify may fetch a key set; ctx bounds that.
//
// Earlier becomes the principal that its subject is now: a configured subject, or the
// local one, as configured now, if one of its tokens is good; one that an issuer vouched
// for as it was, while its token is valid and such tokens are accepted.
func (a *Authenticator) Identify(ctx context.Context, c Credential) (policy.Principal, error) {
	s := a.state.Load()
	var p policy.Principal
	var err error
	switch {
	case c.Malformed:
		err = refuse(Malformed, "the Authorization header is not one bearer token")
	case c.Bearer != "":
		p, err = s.bearer(ctx, &c)
	case c.Certificate != nil && len(s.certificates) > 0:
		p, err = s.certificate(c.Certificate)
	case c.Local && s.noLocal:
		err = refuse(Unknown, "identity is configured, and the local principal is off")
	case c.Local:
		p = s.local
	case c.Earlier != nil:
		p, err = s.earlier(*c.Earlier, c.Hash)
	case s.required:
		err = refuse(Missing, "no bearer token was sent")
	default:
		p = s.local
	}
	if err != nil {
		return policy.Principal{}, err
	}
	return p.Clone(), nil
}

func (s *state) bearer(ctx context.Context, c *Credential) (policy.Principal, error) {
	token := c.Bearer
	if len(token) > maxTokenBytes {
		return policy.Principal{}, refuse(Malformed, "the token is too long")
	}
	sum := sha256.Sum256([]byte(token))
	// The map is keyed by the hash, so what its timing could tell is nothing
	// about any known token.
	if t, ok := s.tokens[sum]; ok {
		if c.DPoP != nil {
			return t.principal, errUnbound
		}
		return t.principal, s.check(t)
	}
	if err := s.revoked(sum); err != nil {
		return policy.Principal{}, err
	}
	if len(s.issuers) == 0 || strings.Count(token, ".") != 2 {
		return policy.Principal{}, refuse(Unknown, "the token is not known")
	}
	return s.jwt(ctx, c, sum)
}

// earlier identifies somebody anew. The subject alone says who it is: roles that
// were taken away since are gone.
func (s *state) earlier(was policy.Principal, hash string) (policy.Principal, error) {
	issued := !was.Until.IsZero()
	if !issued {
		return s.configured(was, hash)
	}
	if sum, shown := hashOf(hash); shown {
		if err := s.revoked(sum); err != nil {
			return policy.Principal{}, err
		}
	}
	switch _, taken := s.subjects[was.Subject]; {
	case taken || was.Subject == LocalSubject || !was.Valid():
		return policy.Principal{}, refuse(Unknown, "the subject of the earlier call is not known any more")
	case !s.now().Before(was.Until):
		return policy.Principal{}, refuse(Expiry, "the token of the earlier call has expired")
	case !s.issues(was.Subject):
		return policy.Principal{}, refuse(Issuer, "the issuer of the earlier call's token is not trusted any more")
	}
	was.Client = ""
	return was, nil
}

// configured identifies somebody again whom no issuer vouched for.
func (s *state) configured(was policy.Principal, hash string) (policy.Principal, error) {
	if was.Subject == LocalSubject && was.Tenant == "" && !s.noLocal {
		return s.local, nil
	}
	err := refuse(Unknown, "the subject of the earlier call is not known any more")
	for _, t := range s.subjects[was.Subject] {
		if t.principal.Tenant != was.Tenant || hash != "" && hash != hex.EncodeToString(t.hash[:]) {
			continue
		}
		if err = s.check(&t); err == nil {
			return t.principal, nil
		}
	}
	return policy.Principal{}, err
}

// issues reports whether a subject has the form that an issuer which is trusted
// now would give it: see principal.
func (s *state) issues(subject string) bool {
	issuer, _, named := strings.Cut(subject, "|")
	if len(s.issuers) > 1 {
		return named && s.issuers[issuer] != nil
	}
	return len(s.issuers) == 1 && !(named && strings.Contains(issuer, "://"))
}

// ParseBearer takes the token out of an Authorization header value (RFC 6750
// section 2.1). An empty header is no token; any other scheme, an empty token
// or one with characters outside b64token is an error that wraps
// ErrUnauthenticated, so that a malformed credential never becomes none.
func ParseBearer(header string) (string, error) {
	if header == "" {
		return "", nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", refuse(Malformed, "the authorization header is not of the form Bearer TOKEN")
	}
	token = strings.TrimLeft(token, " ")
	valid := token != ""
	for i := range len(token) {
		valid = valid && b64token[token[i]]
	}
	if !valid {
		return "", refuse(Malformed, "the bearer token is malformed")
	}
	return token, nil
}

// b64token are the characters of a bearer token.
var b64token = func() (is [256]bool) {
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=" {
		is[c] = true
	}
	return is
}()

// HashToken gives the form in which a token is configured: 64 lower-case
// hexadecimal digits.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func newState(c Config, old *state) (*state, error) {
	s := &state{
		tokens:    make(map[[sha256.Size]byte]*token, len(c.Tokens)),
		subjects:  make(map[string][]token, len(c.Tokens)),
		issuers:   make(map[string]*issuer, len(c.JWT)),
		public:    c.Public,
		scopes:    c.Scopes,
		audiences: c.Audiences,
		required:  c.Configured || len(c.Tokens)+len(c.JWT)+len(c.Certificates) > 0,
		now:       c.Now,
		revoked:   c.Revoked,
		spend:     c.Spend,
		local:     policy.Principal{Subject: LocalSubject, Roles: []string{c.LocalRole}},
	}
	if c.LocalRole == "" {
		s.local.Roles[0] = DefaultLocalRole
	}
	s.noLocal = s.required && !c.Local
	if s.now == nil {
		s.now = time.Now
	}
	if s.revoked == nil {
		s.revoked = func([sha256.Size]byte) error { return nil }
	}
	if s.spend == nil {
		s.spend = func(context.Context, [sha256.Size]byte, time.Time, time.Time) error { return errUnread }
	}
	var faults []error
	s.verified, _ = lru.New[[sha256.Size]byte, verifiedToken](maxVerified) // fails only for a size below one
	for i, t := range c.Tokens {
		if err := s.addToken(t); err != nil {
			faults = append(faults, fmt.Errorf("tokens[%d]: %w", i, err))
		}
	}
	for i, m := range c.Certificates {
		if err := s.addCertificate(m); err != nil {
			faults = append(faults, fmt.Errorf("mtls[%d]: %w", i, err))
		}
	}
	for i, j := range c.JWT {
		if err := s.addIssuer(j, c, old); err != nil {
			faults = append(faults, fmt.Errorf("jwt[%d]: %w", i, err))
		}
	}
	return s, errors.Join(faults...)
}

func (s *state) addToken(t Token) error {
	hash, ok := hashOf(t.SHA256)
	if !ok && t.Subject != "" && t.Subject != LocalSubject {
		return errors.New("sha256 is not 64 hexadecimal digits (hint: toolgate token create prints it)")
	}
	added := token{
		hash: hash, expires: t.Expires,
		principal: policy.Principal{Subject: t.Subject, Person: t.Person, Tenant: t.Tenant, Roles: slices.Clone(t.Roles), Shape: t.Shape},
	}
	if _, dup := s.tokens[added.hash]; dup {
		return errors.New("sha256 is configured twice")
	}
	if err := s.addSubject(added); err != nil {
		return err
	}
	s.tokens[added.hash] = &added
	return nil
}

// addSubject adds one way by which a configured subject is known.
func (s *state) addSubject(t token) error {
	p, same := t.principal, s.subjects[t.principal.Subject]
	switch {
	case p.Subject == "":
		return errors.New("subject is empty")
	case p.Subject == LocalSubject:
		return fmt.Errorf("subject %q is the one of stdio without a token", LocalSubject)
	case slices.Contains(p.Roles, ""):
		return errors.New("a role is empty")
	case len(same) > 0 && !samePrincipal(same[0].principal, p):
		return fmt.Errorf("subject %q is configured with other roles, another person or another tenant (hint: tokens of one subject differ in sha256, expires, errors and results only)", p.Subject)
	}
	s.subjects[p.Subject] = append(same, t)
	return nil
}

// samePrincipal reports whether two tokens of one subject name the same principal.
func samePrincipal(a, b policy.Principal) bool {
	sorted := func(roles []string) []string { return slices.Sorted(slices.Values(roles)) }
	return a.Person == b.Person && a.Tenant == b.Tenant && slices.Equal(sorted(a.Roles), sorted(b.Roles))
}
