package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/tree"
)

// The types of a Credential.
const (
	CredentialStatic   = "static"
	CredentialClient   = "client_credentials"
	CredentialOAuth    = "oauth"
	CredentialExchange = "exchange"
	CredentialCommand  = "command"
)

// ProfileIDJAG is the profile of a credential of the type exchange whose token endpoint is the
// identity provider's, and gives a grant for the server's own authorization server.
const ProfileIDJAG = "id-jag"

// BeforeHide is the value of before_connection that lists no tools of a server to people without a connection.
const BeforeHide = "hide"

// Personal reports whether each caller has a credential of his own.
func (c *Credential) Personal() bool {
	return c != nil && (c.Type == CredentialOAuth && !c.Shared || c.Type == CredentialExchange || c.Type == CredentialCommand)
}

// Credential is what toolgate shows a server with an address. It holds secrets (Headers,
// ClientSecret, PrivateKey, Actor, Command).
type Credential struct {
	Type         string            `json:"type"`          // one of the Credential constants
	Headers      map[string]string `json:"headers"`       // static: sent with every request, in place of the entry's
	TokenURL     string            `json:"token_url"`     // client_credentials, exchange: where the authorization server gives tokens; https, or http on loopback; "" = as the issuer says
	ClientID     string            `json:"client_id"`     //
	ClientSecret string            `json:"client_secret"` // "" with PrivateKey
	PrivateKey   string            `json:"private_key"`   // PEM: RSA, P-256, P-384, P-521 or Ed25519; it signs an assertion in place of a secret
	KeyID        string            `json:"key_id"`        // kid of the assertion; "" = none
	Scopes       []string          `json:"scopes"`        // asked for
	Audience     string            `json:"audience"`      // asked for; "" = none
	Resource     string            `json:"resource"`      // asked for (RFC 8707); "" = none
	Issuer       string            `json:"issuer"`        // oauth, client_credentials: the authorization server; "" = as the server says
	Shared       bool              `json:"shared"`        // oauth: one grant, which an operator gives, serves all callers
	Actor        string            `json:"actor"`         // exchange: toolgate's own token, as the actor; "" = none
	Profile      string            `json:"profile"`       // exchange: token-exchange or id-jag; "" = token-exchange
	Command      []string          `json:"command"`       // command: the program and its arguments
	Timeout      time.Duration     `json:"timeout"`       // command: of one run; 0 = 10 s
}

// ClientTLS names the files of a client of TLS, by absolute paths.
type ClientTLS struct {
	Cert string `json:"cert"` // PEM file with a certificate; "" = none
	Key  string `json:"key"`  // PEM file with its private key
	CA   string `json:"ca"`   // PEM file with root certificates; "" = the system's
}

// Open returns the configuration of connections; nil for a nil t, as the system has it. The
// certificate is read at each connection, so that a renewed one counts.
func (t *ClientTLS) Open() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		secure.RootCAs = x509.NewCertPool()
		if err := t.addTo(secure.RootCAs); err != nil {
			return nil, err
		}
	}
	if t.Cert != "" {
		secure.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
			if err != nil {
				return nil, fmt.Errorf("reading the certificate for the server: %w", err)
			}
			return &pair, nil
		}
	}
	return secure, nil
}

// OpenOthers returns the configuration of connections to others than the server, such as its
// authorization server: the system's root certificates count there too, and no certificate is shown.
// It is nil where t has no root certificates, as the system has it.
func (t *ClientTLS) OpenOthers() (*tls.Config, error) {
	if t == nil || t.CA == "" {
		return nil, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's root certificates: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, t.addTo(roots)
}

// addTo adds the root certificates to a pool.
func (t *ClientTLS) addTo(roots *x509.CertPool) error {
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return fmt.Errorf("reading root certificates: %w", err)
	}
	if !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("reading root certificates: %s has none in PEM", t.CA)
	}
	return nil
}

// finishCredential checks what only code can say of how a server is called, and puts static
// headers among the others. It returns their names: their values are secrets, whatever they are called.
func (l *loader) finishCredential(s *Server, n *tree.Node) (names []string) {
	if s.Type != TypeHTTP && s.Type != TypeSSE {
		for _, name := range []string{"credential", "tls"} {
			if at := n.Get(name); at != nil {
				l.Fault(at, fmt.Sprintf("is for a server with a url, and this one is of type %s", s.Type), "give a command its secrets in env")
			}
		}
		return nil
	}
	c, at := s.Credential, n.Get("credential")
	if c == nil || at.Faulty {
		return nil
	}
	if c.Type == CredentialOAuth && s.Name == "callback" {
		l.Fault(at, "is of type oauth, and people come back from authorization servers at the page that the server's would be", "give the server another name")
	}
	if c.Type == CredentialClient && c.TokenURL != "" && c.Issuer != "" {
		l.Fault(at.Get("issuer"), `conflicts with "token_url"`, "keep one of them")
	}
	headers := at.Get("headers")
	l.checkHeaders(headers)
	if c.Type == CredentialStatic {
		all := maps.Clone(c.Headers)
		for name, value := range s.Headers {
			if !slices.ContainsFunc(headers.Each(), func(own *tree.Node) bool { return strings.EqualFold(own.Key, name) }) {
				all[name] = value
			}
		}
		s.Headers, s.Credential = all, nil
		return slices.Sorted(maps.Keys(c.Headers))
	}
	if len(c.Command) > 0 && strings.ContainsRune(c.Command[0], filepath.Separator) && !filepath.IsAbs(c.Command[0]) {
		l.Fault(at.At("command", "0"), "is a relative path", "write an absolute path, or a name that is found in PATH")
	}
	for name := range s.Headers {
		if strings.EqualFold(name, "Authorization") {
			l.Fault(at, "takes the place of the header Authorization, which the server's entry has", "remove one of the two")
		}
	}
	return nil
}
