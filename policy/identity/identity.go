// Package identity says who is calling. A credential goes in, and either one
// principal or ErrUnauthenticated comes out: there is no fallback, and nothing
// that a caller says of itself (headers, clientInfo) is read.
package identity

import (
	"context"
	"crypto/sha256"
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

// ErrUnauthenticated is wrapped, with a reason, by every refusal of Identify.
// No text of such an error contains the credential.
var ErrUnauthenticated = errors.New("unauthenticated")

// Credential is what a caller showed. The zero Credential is a caller over the
// network that showed nothing.
type Credential struct {
	Bearer string // the token itself, without the scheme; see ParseBearer
	Local  bool   // came in by a door that only the user of this machine can open (stdio)
	// Earlier is who an earlier call was identified as. It is for what goes on
	// without its caller, such as a call that people approved: it is identified
	// anew, by what is configured now. It counts only without Bearer and Local,
	// and no door may take it from what a caller says.
	Earlier *policy.Principal
}

// Token is one configured bearer token. Only its hash is known.
type Token struct {
	Subject string   // never empty
	Roles   []string // may be empty: then the policy grants nothing
	SHA256  string   // of the token's bytes, 64 hexadecimal digits
}

// JWT is one trusted issuer of signed tokens (RFC 7519, RFC 9068).
type JWT struct {
	Issuer     string   // compared with the iss claim, byte for byte
	Audience   []string // one of these must be in the aud claim; never empty
	JWKS       string   // URL of the key set: https, or http on loopback
	RolesClaim string   // member that holds the roles, dots descend ("realm_access.roles"); "" = "roles"
}

// Config says who is known.
type Config struct {
	Tokens []Token
	JWT    []JWT
	// Configured is set when the operator wrote an identity section, even an
	// empty one: then nobody comes in over the network without a credential.
	// Tokens or JWT imply it.
	Configured bool
	// LocalRole is the one role of the local principal; "" = DefaultLocalRole.
	LocalRole string
	// Client fetches key sets; nil = a client with a 5 s limit that follows no
	// redirects.
	Client *http.Client
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// verifiedToken is who showed a token, which is verified again after until.
type verifiedToken struct {
	principal policy.Principal
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
	tokens   map[[sha256.Size]byte]policy.Principal
	subjects map[string]policy.Principal // of tokens and of the local principal
	issuers  map[string]*issuer
	verified *lru.Cache[[sha256.Size]byte, verifiedToken] // by the token's hash
	local    policy.Principal
	required bool
	now      func() time.Time
}

// New checks c and makes an Authenticator of it. The error names every fault.
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
// known is refused even where none is needed. The principal belongs to the
// caller. Identify may fetch a key set; ctx bounds that.
//
// Earlier becomes the principal that its subject is now: a configured token's or
// the local one with their roles of now, one that an issuer vouched for as it was
// while its token is valid and such tokens are accepted.
func (a *Authenticator) Identify(ctx context.Context, c Credential) (policy.Principal, error) {
	s := a.state.Load()
	p, err := s.local, error(nil)
	switch {
	case c.Bearer != "":
		p, err = s.bearer(ctx, c.Bearer)
	case c.Local:
	case c.Earlier != nil:
		p, err = s.earlier(*c.Earlier)
	case s.required:
		return policy.Principal{}, refuse("no bearer token was sent")
	}
	p.Roles = slices.Clone(p.Roles)
	return p, err
}

func (s *state) bearer(ctx context.Context, token string) (policy.Principal, error) {
	if len(token) > maxTokenBytes {
		return policy.Principal{}, refuse("the token is too long")
	}
	sum := sha256.Sum256([]byte(token))
	// The map is keyed by the hash, so what its timing could tell is nothing
	// about any known token.
	if p, ok := s.tokens[sum]; ok {
		return p, nil
	}
	if len(s.issuers) == 0 || strings.Count(token, ".") != 2 {
		return policy.Principal{}, refuse("the token is not known")
	}
	return s.jwt(ctx, token, sum)
}

// earlier identifies somebody anew. The subject alone says who it is: roles that
// were taken away since are gone.
func (s *state) earlier(was policy.Principal) (policy.Principal, error) {
	is, configured := s.subjects[was.Subject]
	issued := !was.Until.IsZero()
	switch {
	case configured && !issued && is.Tenant == was.Tenant:
		return is, nil
	case configured || !issued || !was.Valid():
		return policy.Principal{}, refuse("the subject of the earlier call is not known any more")
	case !s.now().Before(was.Until):
		return policy.Principal{}, refuse("the token of the earlier call has expired")
	case !s.issues(was.Subject):
		return policy.Principal{}, refuse("the issuer of the earlier call's token is not trusted any more")
	}
	was.Client = ""
	return was, nil
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
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", refuse("the authorization header is not of the form Bearer TOKEN")
	}
	token = strings.TrimLeft(token, " ")
	if token == "" || strings.Trim(token, b64token) != "" {
		return "", refuse("the bearer token is malformed")
	}
	return token, nil
}

// FromHeader reads what a request over HTTP shows: the token of its one
// Authorization line, or nothing when it has none. It reports false for an
// Authorization that is there but is not one bearer token: such a caller is
// nobody, not an anonymous one. It never gives a local credential.
func FromHeader(h http.Header) (Credential, bool) {
	lines := h["Authorization"]
	if len(lines) == 0 {
		return Credential{}, true
	}
	token, err := ParseBearer(lines[0])
	if err != nil || token == "" || len(lines) > 1 {
		return Credential{}, false
	}
	return Credential{Bearer: token}, true
}

const b64token = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="

// HashToken gives the form in which a token is configured: 64 lower-case
// hexadecimal digits.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func newState(c Config, old *state) (*state, error) {
	s := &state{
		tokens:   make(map[[sha256.Size]byte]policy.Principal, len(c.Tokens)),
		subjects: make(map[string]policy.Principal, len(c.Tokens)+1),
		issuers:  make(map[string]*issuer, len(c.JWT)),
		required: c.Configured || len(c.Tokens) > 0 || len(c.JWT) > 0,
		now:      c.Now,
		local:    policy.Principal{Subject: LocalSubject, Roles: []string{c.LocalRole}},
	}
	if c.LocalRole == "" {
		s.local.Roles[0] = DefaultLocalRole
	}
	s.subjects[LocalSubject] = s.local
	if s.now == nil {
		s.now = time.Now
	}
	var faults []error
	var err error
	if s.verified, err = lru.New[[sha256.Size]byte, verifiedToken](maxVerified); err != nil {
		faults = append(faults, err)
	}
	for i, t := range c.Tokens {
		if err := s.addToken(t); err != nil {
			faults = append(faults, fmt.Errorf("tokens[%d]: %w", i, err))
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
	raw, err := hex.DecodeString(t.SHA256)
	switch {
	case t.Subject == "":
		return errors.New("subject is empty")
	case t.Subject == LocalSubject:
		return fmt.Errorf("subject %q is the one of stdio without a token", LocalSubject)
	case err != nil || len(raw) != sha256.Size:
		return errors.New("sha256 is not 64 hexadecimal digits (hint: toolgate token create prints it)")
	case slices.Contains(t.Roles, ""):
		return errors.New("a role is empty")
	}
	if _, dup := s.subjects[t.Subject]; dup {
		return fmt.Errorf("subject %q is configured twice", t.Subject)
	}
	key := [sha256.Size]byte(raw)
	if _, dup := s.tokens[key]; dup {
		return errors.New("sha256 is configured twice")
	}
	s.tokens[key] = policy.Principal{Subject: t.Subject, Roles: slices.Clone(t.Roles)}
	s.subjects[t.Subject] = s.tokens[key]
	return nil
}

func refuse(reason string) error {
	return fmt.Errorf("%w: %s", ErrUnauthenticated, reason)
}
