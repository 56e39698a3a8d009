package credential

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/sandbox"
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

// Tokens are the bearer tokens for one server. Implementations are safe for concurrent use.
type Tokens interface {
	// Token returns the token of now. The error has no secrets; it is a *Missing where there is none
	// until a person acts.
	Token(ctx context.Context) (string, error)
	// Refused says that the server has refused a token; challenge are the values of its
	// WWW-Authenticate.
	Refused(token string, challenge []string)
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
	Tokens  Tokens
	// Operator reports that an operator connected: what the server lists first with it is accepted.
	Operator bool
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

const (
	maxKept  = 10_000           // credentials of the types exchange and command
	keepIdle = 10 * time.Minute // how long one of them is kept that nobody uses
)

// BrokerOptions say what a Broker needs. The zero value is valid.
type BrokerOptions struct {
	Sandbox *sandbox.Host    // starts credential programs; nil = one that hides nothing
	Now     func() time.Time // nil = time.Now
	Log     hclog.Logger     // receives what credential programs write to stderr; nil discards
}

// Broker finds the credentials of callers. Those of the types exchange and command it keeps in
// memory, one for each person, server and, with exchange, token of the caller. It is safe for
// concurrent use.
type Broker struct {
	opts   BrokerOptions
	grants *Grants      // of the type oauth; nil = there are none
	client *http.Client // for token endpoints, with the system's root certificates
	runs   chan struct{}

	mu   sync.Mutex // protects the fields below
	kept map[string]*kept
}

// kept is a credential of the type exchange or command. The mutex of Broker protects it.
type kept struct {
	credential *Credential
	sum        [sha256.Size]byte // of its token
	used       time.Time
}

// NewBroker returns a Broker; grants finds credentials of the type oauth, nil = there are none.
func NewBroker(grants *Grants, opts BrokerOptions) *Broker {
	if opts.Sandbox == nil {
		opts.Sandbox = sandbox.New(sandbox.Options{})
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	client, _ := newClient(config.Server{}) // fails for root certificates alone
	return &Broker{opts: opts, grants: grants, client: client, runs: make(chan struct{}, maxRuns), kept: make(map[string]*kept)}
}

// Find returns the credential of a caller at a server. The error is a *Missing, or says that the
// credential cannot be looked up. It fails closed: a credential that is kept has a token that counts
// now.
func (b *Broker) Find(ctx context.Context, server config.Server, caller Caller) (*Credential, error) {
	c := server.Credential
	missing := func(reason string) error { return &Missing{Server: server.Name, Reason: reason} }
	switch {
	case c.Type == config.CredentialOAuth && b.grants != nil:
		return b.grants.Find(ctx, server, caller.Person)
	case caller.Subject == "":
		return nil, missing("the caller has no name")
	case c.Type == config.CredentialExchange && caller.Token == "":
		return nil, missing("the caller has shown no token of an issuer that could be exchanged")
	case c.Type != config.CredentialExchange && c.Type != config.CredentialCommand:
		return nil, fmt.Errorf("server %s: credentials of the type %s cannot be had here", server.Name, c.Type)
	}
	found := b.keep(server, caller)
	if _, err := found.Tokens.Token(ctx); err != nil {
		return nil, fmt.Errorf("server %s: %w", server.Name, err)
	}
	return found, nil
}

// keep returns the credential of a caller, a new one where none is kept.
func (b *Broker) keep(server config.Server, caller Caller) *Credential {
	now := b.opts.Now()
	id := idOf(server, caller)
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.kept[id]
	if k == nil {
		if len(b.kept) >= maxKept {
			b.sweepLocked(now)
		}
		ask, timeout := b.exchange(server, caller), time.Duration(0)
		if server.Credential.Type == config.CredentialCommand {
			ask, timeout = b.command(server, caller.Person), server.Credential.Timeout
		}
		checked := func(ctx context.Context) (issued, error) {
			got, err := ask(ctx)
			if err != nil {
				return issued{}, err
			}
			token, err := bearer(got, b.opts.Now())
			if err == nil {
				err = b.owns(id, server.Name, token.token)
			}
			return token, err
		}
		source := newSource(Options{Now: b.opts.Now, Timeout: timeout},
			origin{ask: checked, again: &Missing{Server: server.Name, Reason: "the server refuses the caller's tokens"}})
		k = &kept{credential: &Credential{ID: id, Type: server.Credential.Type, Person: caller.Person, Scopes: server.Credential.Scopes, Tokens: source}}
		b.kept[id] = k
	}
	k.used = now
	return k.credential
}

// idOf names the credential of a caller. It changes with what the configuration says of the server,
// and with exchange with the caller's token, because rights come with that and not with the person.
func idOf(server config.Server, caller Caller) string {
	token := ""
	if server.Credential.Type == config.CredentialExchange {
		token = string(caller.Token)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q %q", server.Name, server.Identity(), caller.Issuer, caller.Tenant, caller.Subject, token))
	return server.Credential.Type + "-" + hex.EncodeToString(sum[:16])
}

// owns records the token of a credential. It refuses one that another person's credential has: a
// helper or a token endpoint that takes one person for another must not go unnoticed.
func (b *Broker) owns(id, server, token string) error {
	sum := sha256.Sum256([]byte(token))
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.kept[id]
	if own == nil {
		return &Missing{Server: server, Reason: "the credential was given up"}
	}
	for other, k := range b.kept {
		if other != id && k.sum == sum && k.credential.Person != own.credential.Person {
			return errors.New("the token is that of another person")
		}
	}
	own.sum = sum
	return nil
}

// sweepLocked forgets the credentials that nobody has used for a while, and at least one. The caller
// must hold b.mu.
func (b *Broker) sweepLocked(now time.Time) {
	oldest := ""
	for id, k := range b.kept {
		if now.Sub(k.used) > keepIdle {
			delete(b.kept, id)
		} else if oldest == "" || k.used.Before(b.kept[oldest].used) {
			oldest = id
		}
	}
	if len(b.kept) >= maxKept {
		delete(b.kept, oldest)
	}
}

// Ended returns those of ids whose credential does not count any longer.
func (b *Broker) Ended(ctx context.Context, ids []string) (ended []string, err error) {
	var granted []string
	b.mu.Lock()
	b.sweepLocked(b.opts.Now())
	for _, id := range ids {
		ours := strings.HasPrefix(id, config.CredentialExchange+"-") || strings.HasPrefix(id, config.CredentialCommand+"-")
		switch {
		case !ours:
			granted = append(granted, id)
		case b.kept[id] == nil:
			ended = append(ended, id)
		}
	}
	b.mu.Unlock()
	if len(granted) > 0 && b.grants != nil {
		more, err := b.grants.Ended(ctx, granted)
		return slices.Concat(ended, more), err
	}
	return ended, nil
}
