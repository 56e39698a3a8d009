package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/toolgate/toolgate/registry/config"
)

// The names of RFC 8693, sections 2.1 and 3, and of RFC 7523.
const (
	grantExchange   = oauthex.GrantTypeTokenExchange
	grantBearer     = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

// exchange returns what asks for a token with which the caller is known at a server: the caller's own
// token is the subject, toolgate's the actor. A caller whose token does not count any more, or not
// there, has no credential.
func (b *Broker) exchange(server config.Server, caller Caller) func(context.Context) (*oauth2.Token, error) {
	ask := exchangeToken
	if server.Credential.Profile == config.ProfileIDJAG {
		ask = assertIdentity
	}
	// Servers with root certificates of their own read them when they ask; all others share connections.
	clientOf := sync.OnceValues(func() (*http.Client, error) {
		if server.TLS == nil || server.TLS.CA == "" {
			return b.client, nil
		}
		return newClient(server)
	})
	return func(ctx context.Context) (*oauth2.Token, error) {
		client, err := clientOf()
		if err != nil {
			return nil, err
		}
		token, err := ask(ctx, client, server, string(caller.Token))
		if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refusesSubject(refused) {
			return nil, &Missing{Server: server.Name, Reason: "the caller's token is not exchanged: " + errorCode(refused.ErrorCode)}
		}
		return token, err
	}
}

// exchangeToken exchanges a subject's token for one for the server (RFC 8693).
func exchangeToken(ctx context.Context, asking *http.Client, server config.Server, subject string) (*oauth2.Token, error) {
	c := server.Credential
	params := url.Values{"grant_type": {grantExchange}, "subject_token": {subject}, "subject_token_type": {typeAccessToken}}
	for name, value := range map[string]string{"audience": c.Audience, "actor_token": c.Actor} {
		if value != "" {
			params.Set(name, value)
		}
	}
	if c.Actor != "" {
		params.Set("actor_token_type", typeAccessToken)
	}
	asked := clientcredentials.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.TokenURL, Scopes: c.Scopes, EndpointParams: params}
	token, err := asked.Token(context.WithValue(ctx, oauth2.HTTPClient, asking))
	if err != nil {
		return nil, err
	}
	switch issued, _ := token.Extra("issued_token_type").(string); issued {
	case "", typeAccessToken, typeJWT:
		return token, nil
	}
	return nil, errors.New("the answer has a token of another type")
}

// assertIdentity gets a token from the server's own authorization server, whose issuer is the
// audience, with what the identity provider asserts of a subject
// (draft-ietf-oauth-identity-assertion-authz-grant).
func assertIdentity(ctx context.Context, asking *http.Client, server config.Server, subject string) (*oauth2.Token, error) {
	own := *server.Credential
	own.Issuer = own.Audience
	server.Credential = &own
	client, r, err := newReach(server)
	if err != nil {
		return nil, err
	}
	meta, err := IssuerMetadata(ctx, client, own.Issuer, r.checkText)
	if err != nil {
		return nil, fmt.Errorf("the audience, which is the issuer of the server's tokens: %w", err)
	}
	asked := oauthex.TokenExchangeRequest{
		RequestedTokenType: oauthex.TokenTypeIDJAG, Audience: meta.Issuer, Resource: server.URL, Scope: own.Scopes, SubjectToken: subject, SubjectTokenType: subjectType(subject),
	}
	credentials := oauthex.ClientCredentials{ClientID: own.ClientID, ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: own.ClientSecret}}
	grant, err := oauthex.ExchangeToken(ctx, own.TokenURL, &asked, &credentials, asking)
	if err != nil {
		return nil, err
	}
	if issued, _ := grant.Extra("issued_token_type").(string); issued != oauthex.TokenTypeIDJAG {
		return nil, errors.New("the identity provider's answer has a token of another type")
	}
	leg := clientcredentials.Config{
		ClientID: own.ClientID, ClientSecret: own.ClientSecret, TokenURL: meta.TokenEndpoint, Scopes: own.Scopes, AuthStyle: styleOf(own.ClientSecret, meta.TokenEndpointAuthMethodsSupported),
		EndpointParams: url.Values{"grant_type": {grantBearer}, "assertion": {grant.AccessToken}, "resource": {server.URL}},
	}
	return leg.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
}

// subjectType returns the type of a caller's token: an access token says so (RFC 9068), and any other
// that toolgate accepts is an ID token.
func subjectType(token string) string {
	encoded, _, _ := strings.Cut(token, ".")
	text, _ := base64.RawURLEncoding.DecodeString(encoded)
	var header struct{ Typ string }
	if json.Unmarshal(text, &header) == nil && strings.TrimPrefix(strings.ToLower(header.Typ), "application/") == "at+jwt" {
		return typeAccessToken
	}
	return oauthex.TokenTypeIDToken
}

// refusesSubject reports whether a token endpoint has refused the caller and not toolgate (RFC 8693
// section 2.2.2).
func refusesSubject(refused *oauth2.RetrieveError) bool {
	switch refused.ErrorCode {
	case "invalid_request", "invalid_grant", "invalid_target", "invalid_scope":
		return refused.Response.StatusCode == http.StatusBadRequest
	}
	return false
}
