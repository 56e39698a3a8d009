package credential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// client is what toolgate is called at an authorization server.
type client struct {
	ID         string
	Secret     string           // of a client that registered itself; the configured one is never stored
	Registered bool             // it registered itself
	Style      oauth2.AuthStyle // how the secret is shown
}

// ClientMetadata returns what toolgate says of itself as a client of authorization servers
// (draft-ietf-oauth-client-id-metadata-document): the document is at its own address, which is the
// ID of the client, and people come back to callback.
func ClientMetadata(callback, document string) []byte {
	text, _ := json.Marshal(struct { // strings cannot fail to encode
		ID string `json:"client_id"`
		oauthex.ClientRegistrationMetadata
	}{document, metadata(callback, methodNone)})
	return text
}

// metadata returns what toolgate registers.
func metadata(callback, method string) oauthex.ClientRegistrationMetadata {
	m := oauthex.ClientRegistrationMetadata{
		ClientName: "toolgate", RedirectURIs: []string{callback}, TokenEndpointAuthMethod: method,
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
	}
	if at, err := url.Parse(callback); err == nil && at.Scheme == "http" && guard.Loopback(at.Hostname()) {
		m.ApplicationType = "native" // a web application has to be reached over https
	}
	return m
}

// clientOf returns what toolgate is called at an authorization server: the client that is
// configured, else its metadata document, else one that it registers.
func (g *Grants) clientOf(ctx context.Context, asking *http.Client, server config.Server, m *oauthex.AuthServerMeta, callback string) (client, error) {
	methods := m.TokenEndpointAuthMethodsSupported
	if c := server.Credential; c.ClientID != "" {
		return client{ID: c.ClientID, Style: styleOf(c.ClientSecret, methods)}, nil
	}
	if document := g.o.Document(); document != "" && m.ClientIDMetadataDocumentSupported {
		return client{ID: document, Style: oauth2.AuthStyleInParams}, nil
	}
	if m.RegistrationEndpoint == "" {
		return client{}, fmt.Errorf("%s registers no clients\nhint: register toolgate there, with the redirect address %s, and set client_id of the server's credential", m.Issuer, callback)
	}
	if known, err := g.registered(ctx, m.Issuer, callback); known.ID != "" || err != nil {
		return known, err
	}
	method := methodNone
	if len(methods) > 0 && !slices.Contains(methods, methodNone) {
		method = methodPost // with Basic nothing can be revoked at servers of the Python SDK
		if !slices.Contains(methods, methodPost) {
			method = methodBasic
		}
	}
	asked := metadata(callback, method)
	answer, err := oauthex.RegisterClient(ctx, m.RegistrationEndpoint, &asked, asking)
	if err != nil {
		return client{}, fmt.Errorf("registering at %s: %w", m.Issuer, refusedRegistration(err))
	}
	c := client{ID: answer.ClientID, Secret: answer.ClientSecret, Registered: true, Style: styleOf(answer.ClientSecret, []string{answer.TokenEndpointAuthMethod})}
	if answer.TokenEndpointAuthMethod == methodNone {
		c.Secret = ""
	}
	return c, g.register(ctx, m.Issuer, callback, c, answer.ClientSecretExpiresAt)
}

// refusedRegistration returns the reason of an error of RegisterClient, which repeats the answer.
func refusedRegistration(err error) error {
	if refused, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
		switch refused.ErrorCode {
		case "invalid_redirect_uri", "invalid_client_metadata", "invalid_software_statement", "unapproved_software_statement":
			return errors.New(refused.ErrorCode)
		}
	}
	if at, ok := errors.AsType[*url.Error](err); ok {
		return plain(at.Err)
	}
	return errors.New("the answer is no registration")
}

// sealedClient is a row of the clients that toolgate registered.
type sealedClient struct {
	sealed []byte
	until  time.Time
}

func (s *sealedClient) fields() []any { return []any{&s.sealed, store.Time{To: &s.until}} }

// registered returns the client that toolgate registered before, the zero client for none that
// counts.
func (g *Grants) registered(ctx context.Context, issuer, callback string) (c client, err error) {
	rows, err := store.Select(ctx, g.o.DB.Read, (*sealedClient).fields, "SELECT sealed, until FROM credential_clients WHERE issuer = ? AND redirect = ?", issuer, callback)
	if err != nil {
		return c, fmt.Errorf("reading a registered client: %w", err)
	}
	if len(rows) == 0 || !rows[0].until.IsZero() && !g.o.Now().Before(rows[0].until) {
		return c, nil
	}
	if err := g.unseal(rows[0].sealed, &c, "client", issuer, callback); errors.Is(err, errUnsealed) {
		return client{}, nil
	} else if err != nil {
		return client{}, err
	}
	return c, nil
}

// register stores a client, in place of one that does not count any longer.
func (g *Grants) register(ctx context.Context, issuer, callback string, c client, until time.Time) error {
	sealed, err := g.seal(ctx, c, "client", issuer, callback)
	if err == nil {
		_, err = g.o.DB.Exec(ctx, "INSERT INTO credential_clients (issuer, redirect, until, sealed) VALUES (?, ?, ?, ?) ON CONFLICT (issuer, redirect) DO UPDATE SET until = excluded.until, sealed = excluded.sealed",
			issuer, callback, store.Time{To: &until}, sealed)
	}
	if err != nil {
		return fmt.Errorf("storing a registered client: %w", err)
	}
	return nil
}

// unregister forgets a client that the authorization server does not know any longer, so that the
// next person who connects registers another.
func (g *Grants) unregister(ctx context.Context, p *party) error {
	_, err := g.o.DB.Exec(ctx, "DELETE FROM credential_clients WHERE issuer = ? AND redirect = ?", p.Issuer, p.Redirect)
	return err
}
