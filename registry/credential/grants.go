package credential

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	trusted    = 2 * time.Second // how long what was read of a grant counts before it is read again
	maxLive    = 10_000          // grants that are remembered
	revokeTime = 10 * time.Second
)

// The states of a Grant.
const (
	GrantLive  = "live"
	GrantEnded = "ended"

	renewing = "renewing" // in the store alone: live, and its refresh token may have been used
)

// Grant is one connection of a person, or of toolgate itself, to a server: without its tokens.
type Grant struct {
	ID, Server string
	Person
	Issuer  string // of the authorization server
	Account string // of the person there, "" = not known
	Scopes  []string
	Created time.Time
	Until   time.Time // when its present token ends; zero = not known
	State   string    // GrantLive or GrantEnded
}

// GrantOptions of Grants.
type GrantOptions struct {
	DB   *store.DB
	Keys *keys.Dir
	Now  func() time.Time // nil = time.Now
	Log  hclog.Logger
	// Callback returns the address to which people come back; "" = nobody can connect.
	Callback func() string
	// Document returns the address of ClientMetadata; "" = there is none that others reach.
	Document func() string
	// Server returns a server as it is configured now; nil = none is known.
	Server func(name string) (config.Server, bool)
}

// Grants are the grants of servers with a credential of the type oauth. They are in the store, their
// tokens encrypted, and replicas share them: one of them renews a grant, and what one revokes counts
// for the others within two seconds. It is safe for concurrent use and fails closed: while the store
// or the keys cannot be read, nobody has a credential.
type Grants struct {
	o GrantOptions

	// live has the grants that were used last:
	live *lru.Cache[owner, *live] // :: whose ⇒ grant

	renewals sync.WaitGroup

	mu  sync.Mutex // protects key, and the making of live grants
	key keys.Key   // of what is sealed; its zero value = not read yet
}

// owner is whose grant at which server it is.
type owner struct {
	server string
	Person
}

// OpenGrants returns the grants in a store.
func OpenGrants(o GrantOptions) *Grants {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Server == nil {
		o.Server = func(string) (server config.Server, ok bool) { return server, false }
	}
	remembered, err := lru.New[owner, *live](maxLive)
	if err != nil {
		panic(err) // the size is a constant
	}
	return &Grants{o: o, live: remembered}
}

// Close waits for the renewals that have begun: their refresh tokens are used, and the new ones have to
// be stored. No credential may be used later.
func (g *Grants) Close() { g.renewals.Wait() }

// ownerOf returns whose grant serves a person at a server; ok is false for somebody without a name.
func ownerOf(server config.Server, who Person) (o owner, ok bool) {
	if server.Credential.Shared {
		return owner{server: server.Name}, true
	}
	return owner{server.Name, who}, who.Subject != ""
}

// Find returns the credential of a person at a server of the type oauth. The error is a *Missing
// where the person has no live grant there; any other says that it cannot be looked up.
func (g *Grants) Find(ctx context.Context, server config.Server, who Person) (*Credential, error) {
	o, ok := ownerOf(server, who)
	if !ok {
		return nil, &Missing{Server: server.Name, Reason: "the caller has no name that a connection could belong to"}
	}
	now := g.o.Now()
	if l, ok := g.live.Get(o); ok {
		if found := l.fresh(server, now); found != nil {
			return found, nil
		}
	}
	r, err := g.read(ctx, o)
	if err != nil {
		return nil, err
	}
	if r == nil {
		g.live.Remove(o)
		return nil, missing(server, "there is no connection to it yet")
	}
	if r, err = g.settle(ctx, r); err != nil {
		return nil, err
	}
	return g.liveOf(server, o, r.ID).use(server, r, now)
}

// missing returns the error for somebody who has no grant at a server.
func missing(server config.Server, reason string) *Missing {
	return &Missing{Server: server.Name, Reason: reason, Connects: !server.Credential.Shared}
}

// List returns all grants, by server and the oldest first.
func (g *Grants) List(ctx context.Context) ([]Grant, error) {
	rows, err := store.Select(ctx, g.o.DB.Read, (*row).fields, "SELECT "+rowColumns+" FROM credential_grants ORDER BY server, created, id")
	if err != nil {
		return nil, fmt.Errorf("listing connections: %w", err)
	}
	list := make([]Grant, len(rows))
	for i := range rows {
		list[i] = rows[i].grant()
	}
	return list, nil
}

// Ended returns those of ids that are no live grant.
func (g *Grants) Ended(ctx context.Context, ids []string) ([]string, error) {
	ended, err := store.Select(ctx, g.o.DB.Read, func(id *string) []any { return []any{id} },
		"SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM credential_grants WHERE state <> ?)", store.JSON{To: &ids}, GrantEnded)
	if err != nil {
		return nil, fmt.Errorf("looking for connections that have ended: %w", err)
	}
	return ended, nil
}

// Revoke ends a grant and erases its tokens, and then revokes them at the authorization server where
// that has an endpoint for it (RFC 7009), which takes ten seconds at most. When the server does not
// confirm that, the grant ends all the same, confirmed is false and the cause is logged. An unknown
// id is no error.
func (g *Grants) Revoke(ctx context.Context, id string) (confirmed bool, err error) {
	r, err := g.byID(ctx, id)
	if err != nil || r == nil || r.State == GrantEnded {
		return true, err
	}
	t, unreadable := g.open(r)
	if err := g.end(ctx, r, "it was revoked"); err != nil {
		return false, err
	}
	if l, ok := g.live.Get(r.owner()); ok && l.id == id {
		l.drop()
	}
	if unreadable != nil {
		g.o.Log.Warn("tokens of a connection could not be revoked", "server", r.Server, "connection", id, "err", unreadable)
		return false, nil
	}
	return g.revoke(ctx, r, t), nil
}

// row is a grant in the store.
type row struct {
	Grant
	Wanted  []string // scopes that the server asked for since
	Reason  string   // why it ended
	Holder  string   // who renews it
	Lease   time.Time
	Version int64
	Sealed  []byte
}

const rowColumns = "id, server, person_issuer, tenant, subject, issuer, account, scopes, wanted, created, until, state, reason, holder, lease, version, sealed"

func (r *row) fields() []any {
	return []any{&r.ID, &r.Server, &r.Person.Issuer, &r.Tenant, &r.Subject, &r.Grant.Issuer, &r.Account, store.JSON{To: &r.Scopes}, store.JSON{To: &r.Wanted},
		store.Time{To: &r.Created}, store.Time{To: &r.Until}, &r.State, &r.Reason, &r.Holder, store.Time{To: &r.Lease}, &r.Version, &r.Sealed}
}

func (r *row) owner() owner { return owner{r.Server, r.Person} }

// grant returns what others see of r.
func (r *row) grant() Grant {
	found := r.Grant
	if found.State == renewing {
		found.State = GrantLive
	}
	return found
}

// read returns the grant of an owner, nil for none.
func (g *Grants) read(ctx context.Context, o owner) (*row, error) {
	return g.one(ctx, "server = ? AND person_issuer = ? AND tenant = ? AND subject = ?", o.server, o.Issuer, o.Tenant, o.Subject)
}

func (g *Grants) byID(ctx context.Context, id string) (*row, error) { return g.one(ctx, "id = ?", id) }

func (g *Grants) one(ctx context.Context, where string, args ...any) (*row, error) {
	rows, err := store.Select(ctx, g.o.DB.Read, (*row).fields, "SELECT "+rowColumns+" FROM credential_grants WHERE "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("reading a connection: %w", err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	return &rows[0], nil
}

// change changes a grant, unless it has changed since r was read; while it is renewed, unless that
// renewal has ended. It reports whether it did. set are assignments.
func (g *Grants) change(ctx context.Context, r *row, set string, args ...any) (changed bool, err error) {
	where, is := "version = ?", any(r.Version)
	if r.Holder != "" {
		where, is = "holder = ?", r.Holder
	}
	n, err := g.o.DB.Exec(ctx, "UPDATE credential_grants SET version = version + 1, "+set+" WHERE id = ? AND "+where, append(args, r.ID, is)...)
	if err != nil {
		return false, fmt.Errorf("changing a connection: %w", err)
	}
	return n == 1, nil
}

// end ends a grant, whatever has changed of it since r was read, and erases its tokens.
func (g *Grants) end(ctx context.Context, r *row, reason string) error {
	_, err := g.o.DB.Exec(ctx, "UPDATE credential_grants SET version = version + 1, state = ?, reason = ?, holder = '', sealed = ? WHERE id = ? AND state <> ?",
		GrantEnded, reason, []byte{}, r.ID, GrantEnded)
	if err != nil {
		return fmt.Errorf("ending a connection: %w", err)
	}
	return nil
}

// settle decides what became of a grant whose renewal was not completed: the refresh token may
// have been used, and is not used again unless the authorization server keeps it over renewals. It
// returns the grant as it is then; a grant that is being renewed is returned as it is.
func (g *Grants) settle(ctx context.Context, r *row) (*row, error) {
	if r.State != renewing || g.o.Now().Before(r.Lease) {
		return r, nil
	}
	t, err := g.open(r)
	if err == nil && t.Keeps {
		_, err = g.change(ctx, r, "state = ?, holder = ''", GrantLive)
	} else if err == nil || errors.Is(err, errUnsealed) {
		_, err = g.change(ctx, r, "state = ?, reason = ?, holder = '', sealed = ?", GrantEnded, reasonInterrupted, []byte{})
	}
	if err != nil {
		return nil, err
	}
	if again, err := g.byID(ctx, r.ID); again != nil || err != nil {
		return again, err
	}
	gone := *r
	gone.State = GrantEnded
	return &gone, nil
}

const reasonInterrupted = "its renewal was interrupted"

// errMoved reports a grant that was given for another address.
var errMoved = errors.New("the address of the server has changed since")

// fits reports why a grant does not serve a server as it is configured now.
func (t *tokens) fits(server config.Server) error {
	if t.URL != server.URL {
		return errMoved
	}
	if issuer := server.Credential.Issuer; issuer != "" && !sameIssuer(issuer, t.Issuer) {
		return errors.New("the issuer of the server has changed since")
	}
	return nil
}

// sameIssuer reports whether two addresses name one authorization server, which some write with a
// slash at the end.
func sameIssuer(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }
