package credential

import (
	"context"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
)

// Person names whose credential it is. Subjects of two issuers are two persons, whatever they are
// called. The zero Person is toolgate itself.
type Person struct {
	Issuer  string // of the token that names the person; "" = a token of the configuration
	Tenant  string // "" outside multi-tenant identity
	Subject string
}

// Caller is who makes a request.
type Caller struct {
	Person
	Token text.Secret // the caller's own bearer token, which a credential of the type exchange shows to the token endpoint alone; "" = none
}

// Credential is what the requests of one caller to one server are made with. It is immutable.
type Credential struct {
	// ID names it in the trail. Requests with credentials of two IDs never share a connection.
	ID      string
	Type    string    // as in config.Credential
	Person  Person    // whose it is
	Issuer  string    // of the authorization server; "" = not known
	Account string    // of the person at the server; "" = not known
	Scopes  []string  // that were granted; nil = not known
	Until   time.Time // when it ends unless it is renewed; zero = not known
	Tokens  *Source
}

// Missing is the error where a caller has no credential at a server, or none that still counts.
type Missing struct {
	Server string
	Reason string // for the caller, without secrets
	// Connects reports whether the person can mend that at CONSOLE/connections/SERVER.
	Connects bool
}

// Error implements error.
func (m *Missing) Error() string {
	return fmt.Sprintf("server %s: %s", m.Server, m.Reason)
}

// Finder finds the credential of a caller at a server. The error is a *Missing, or says that the
// credential cannot be looked up. Implementations are safe for concurrent use.
type Finder interface {
	Find(ctx context.Context, server config.Server, caller Caller) (*Credential, error)
	// Ended returns those of ids whose credential does not count any longer.
	Ended(ctx context.Context, ids []string) ([]string, error)
}
