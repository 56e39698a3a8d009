package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/toolgate/toolgate/policy"
)

// Certificate names the principal of a client that shows a certificate in TLS and no token.
// Exactly one of URI, DNS, Email and Subject is set; it is compared byte for byte.
type Certificate struct {
	URI     string // one of its URIs, such as spiffe://example.org/agent
	DNS     string // one of its DNS names
	Email   string // one of its mail addresses
	Subject string // its subject as RFC 2253 writes it, such as CN=agent-7,O=Example
	As      string // subject of the principal, never empty
	Person  string
	Tenant  string
	Roles   []string // may be empty: then the policy grants nothing
}

// namedCertificate is a Certificate and its principal.
type namedCertificate struct {
	Certificate
	principal policy.Principal
}

// names reports whether c is about a certificate.
func (c *Certificate) names(shown *x509.Certificate) bool {
	for _, uri := range shown.URIs {
		if c.URI != "" && uri.String() == c.URI {
			return true
		}
	}
	return c.DNS != "" && slices.Contains(shown.DNSNames, c.DNS) || c.Email != "" && slices.Contains(shown.EmailAddresses, c.Email) ||
		c.Subject != "" && shown.Subject.String() == c.Subject
}

// addCertificate adds the principal of a certificate, which may have tokens too.
func (s *state) addCertificate(c Certificate) error {
	if kinds := slices.DeleteFunc([]string{c.URI, c.DNS, c.Email, c.Subject}, func(name string) bool { return name == "" }); len(kinds) != 1 {
		return errors.New("want one of uri, dns, email and subject")
	}
	who := policy.Principal{Subject: c.As, Person: c.Person, Tenant: c.Tenant, Roles: slices.Clone(c.Roles)}
	if err := s.addSubject(token{principal: who}); err != nil {
		return err
	}
	s.certificates = append(s.certificates, namedCertificate{c, who})
	return nil
}

// certificate returns the principal of a certificate, by the first entry that names it. The
// TLS of the listener has verified its chain when the connection began.
func (s *state) certificate(shown *x509.Certificate) (policy.Principal, error) {
	if !s.now().Before(shown.NotAfter) {
		return policy.Principal{}, refuse(Expiry, "the certificate has expired")
	}
	for _, c := range s.certificates {
		if c.names(shown) {
			return c.principal, nil
		}
	}
	return policy.Principal{}, refuse(Missing, "no bearer token was sent, and the certificate names nobody")
}

// binding is what has to be shown with a token: a certificate (cnf with x5t#S256, RFC 8705
// section 3.1) or a proof by a key (jkt, RFC 9449 section 6.1), each by its thumbprint. The
// zero binding is that of a token that whoever holds it may show.
type binding struct{ certificate, key string }

// bindingOf returns the binding of a token. It fails closed: any other is a refusal.
func bindingOf(t *oidc.IDToken) (b binding, err error) {
	var claims struct {
		Binding json.RawMessage `json:"cnf"`
	}
	if err := t.Claims(&claims); err != nil {
		return b, refuse(Claims, "the claims of the token cannot be read")
	}
	if len(claims.Binding) == 0 || string(claims.Binding) == "null" {
		return b, nil
	}
	var members map[string]string
	err = json.Unmarshal(claims.Binding, &members)
	b = binding{members["x5t#S256"], members["jkt"]}
	if err != nil || len(members) != 1 || b == (binding{}) {
		return b, refuse(Proof, "the token is bound to what is not checked here")
	}
	return b, nil
}

// checkBinding refuses a bound token without its certificate or its proof, and a proof with any
// other token.
func (s *state) checkBinding(ctx context.Context, b binding, c *Credential) error {
	switch {
	case b.key == "" && c.DPoP != nil:
		return errUnbound
	case b.key != "" && c.DPoP == nil:
		return refuse(Proof, "the token is bound to a key, and was not shown with the scheme DPoP")
	case b.key != "":
		return s.checkProof(ctx, c, b.key)
	case b.certificate == "":
		return nil
	case c.Certificate == nil:
		return refuse(Proof, "the token is bound to a certificate, and none was shown")
	}
	sum := sha256.Sum256(c.Certificate.Raw)
	if subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(b.certificate)) != 1 {
		return refuse(Proof, "the token is bound to another certificate")
	}
	return nil
}

// errUnbound refuses a token that is not bound to a key, as somebody took it for.
var errUnbound = refuse(Proof, "the token is not bound to a key, and was shown with the scheme DPoP")

// FromRequest reads what a request at a route shows: the token of its one Authorization
// line, with its proof when the scheme is DPoP, and the certificate of its connection. An
// Authorization that is not one token makes the credential Malformed: such a caller is nobody,
// not an anonymous one. FromRequest never gives a local credential. A request may be read
// once: its proof is good once.
func FromRequest(r *http.Request, at Resource) Credential {
	c := Credential{Source: r.RemoteAddr, At: at}
	if lines := r.Header["Authorization"]; len(lines) > 0 {
		line, proof := lines[0], (*DPoP)(nil)
		if scheme, token, ok := strings.Cut(line, " "); ok && strings.EqualFold(scheme, "DPoP") {
			line, proof = "Bearer "+token, &DPoP{method: r.Method, path: r.URL.EscapedPath(), spent: HasSpentProof(r.Context())}
			if proofs := r.Header["Dpop"]; len(proofs) == 1 {
				proof.jwt = proofs[0]
			}
		}
		if token, _ := ParseBearer(line); token != "" && len(lines) == 1 {
			c.Bearer, c.DPoP = token, proof
		} else {
			c.Malformed = true
		}
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		c.Certificate = r.TLS.PeerCertificates[0]
	}
	return c
}
