package app

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// connections are the accounts of people as the console sees them. It is safe for concurrent use.
type connections struct {
	grants *credential.Grants
	config func() *config.Config // that serves
}

// openConnections opens the accounts that people have connected. The caller must close their grants.
func openConnections(in *state) connections {
	c := connections{config: in.serving.Config}
	c.grants = credential.OpenGrants(credential.GrantOptions{
		DB: in.db, Keys: in.keys, Log: in.log.Named("connections"), Callback: c.callback, Document: c.document, Server: c.server,
	})
	return c
}

var (
	_ console.Connections = connections{}
	_ console.Connector   = connections{}
)

// errNotConnectable reports that a server was taken out of the configuration meanwhile.
var errNotConnectable = errors.New("no account is connected at this server")

// Connectable lists the servers at which people, or operators for toolgate, connect accounts, by name.
func Connectable(cfg *config.Config) (names []string) {
	for _, s := range cfg.Servers {
		if connectable(s) {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ConnectionPath returns the path of the console's page where people connect to a server.
func ConnectionPath(server string) string { return "/connections/" + url.PathEscape(server) }

// connectable reports whether people, or operators for toolgate, connect accounts at s.
func connectable(s config.Server) bool {
	return !s.Disabled && s.Credential != nil && s.Credential.Type == config.CredentialOAuth
}

// server returns the server with a name, if accounts are connected there.
func (c connections) server(name string) (config.Server, bool) {
	s := c.config().Server(name)
	if s == nil || !connectable(*s) {
		return config.Server{}, false
	}
	return *s, true
}

// Services implements console.Connections.
func (c connections) Services() (all []console.Service) {
	for _, name := range Connectable(c.config()) {
		if s, ok := c.server(name); ok {
			all = append(all, console.Service{Name: s.Name, Address: withoutSecrets(s.URL), Shared: s.Credential.Shared})
		}
	}
	return all
}

// withoutSecrets returns an address without user and query.
func withoutSecrets(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// List implements console.Connections.
func (c connections) List(ctx context.Context) ([]console.Connection, error) {
	found, err := c.grants.List(ctx)
	all := make([]console.Connection, len(found))
	for i, g := range found {
		all[i] = connectionOf(g)
	}
	return all, err
}

// Revoke implements console.Connections.
func (c connections) Revoke(ctx context.Context, id string) (confirmed bool, err error) {
	return c.grants.Revoke(ctx, id)
}

// Plan implements console.Connector.
func (c connections) Plan(ctx context.Context, service string, who console.Person) (console.Plan, error) {
	s, ok := c.server(service)
	if !ok {
		return console.Plan{}, errNotConnectable
	}
	p, err := c.grants.Plan(ctx, s, credential.Person(who))
	return console.Plan(p), err
}

// Begin implements console.Connector.
func (c connections) Begin(ctx context.Context, service string, who console.Person) (string, error) {
	s, ok := c.server(service)
	if !ok {
		return "", errNotConnectable
	}
	return c.grants.Begin(ctx, s, credential.Person(who))
}

// Finish implements console.Connector.
func (c connections) Finish(ctx context.Context, who console.Person, operates bool, answer url.Values) (console.Connection, error) {
	g, err := c.grants.Finish(ctx, credential.Person(who), operates, answer, c.server)
	return connectionOf(g), err
}

func connectionOf(g credential.Grant) console.Connection {
	return console.Connection{
		ID: g.ID, Server: g.Server, Issuer: g.Issuer, Account: g.Account, Scopes: g.Scopes, Created: g.Created, Until: g.Until, State: g.State,
		Person: console.Person(g.Person),
	}
}

// callback is where authorization servers send browsers back.
func (c connections) callback() string { return ConsoleURL(c.config()) + ConnectionPath("callback") }

// clientPath is the path of the document with which toolgate is a client of authorization servers.
const clientPath = "/.well-known/oauth-client/toolgate.json"

// document returns the address of the client metadata document, which is the client_id
// (draft-ietf-oauth-client-id-metadata-document), "" where authorization servers cannot get it.
func (c connections) document() string {
	cfg := c.config()
	if !strings.HasPrefix(cfg.PublicURL, "https://") || !slices.ContainsFunc(cfg.Servers, connectable) {
		return ""
	}
	return cfg.PublicURL + clientPath
}

// serveMetadata answers a request for the client metadata document: whoever asks gets it, and there is
// none without document. The caller must check the Host of the request.
func (c connections) serveMetadata(w http.ResponseWriter, r *http.Request) {
	document := c.document()
	if document == "" {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=3600")
	_, _ = w.Write(credential.ClientMetadata(c.callback(), document)) // a client that has gone needs no answer
}
