package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/registry/credential"
)

// signIn is the way of a client that knows an address alone to a token for it (MCP
// 2025-11-25, Authorization). Its findings are named by its steps.
type signIn struct {
	examination
	address string
	http    *http.Client
	step    string // the step that is being made
}

// errStopped ends the way: a finding says why.
var errStopped = errors.New("a client stops")

// examineSignIn makes the steps that a client makes before it asks a person, up to the first at
// which it stops: challenge, metadata, issuer, registration, pkce, resource. It registers
// nothing and gets no token. address is that of /mcp, "" = of the configured toolgate.
func examineSignIn(ctx context.Context, e *command.Env, address string) (*signIn, error) {
	if address == "" {
		cfg, err := e.Load()
		if err != nil {
			return nil, err
		}
		address = app.AgentsURL(cfg) + "/mcp"
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, command.Usage(fmt.Errorf("%q is no http or https address\nhint: toolgate doctor --client https://gate.example/mcp", address))
	}
	secure, err := e.Trust("", nil)
	if err != nil {
		return nil, err
	}
	s := &signIn{examination: examination{OK: true}, address: address, http: &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: secure, Proxy: http.ProxyFromEnvironment},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if err := s.walk(ctx, u); err != nil && !errors.Is(err, errStopped) {
		return nil, err
	}
	return s, nil
}

// walk makes the steps.
func (s *signIn) walk(ctx context.Context, u *url.URL) error {
	place, err := s.challenge(ctx)
	if err != nil || place == "" {
		return err
	}
	s.step = "metadata"
	var resource struct {
		Resource string
		Servers  []string `json:"authorization_servers"`
	}
	if _, err := credential.Fetch(ctx, s.http, place, &resource); err != nil {
		return s.stops(place+": "+err.Error(), "the address has to answer 200 with the metadata, through proxies too")
	}
	if len(resource.Servers) == 0 {
		return s.stops(place+" names no authorization server", "add the issuer to toolgate.identity.jwt")
	}
	s.ok(s.step, place+" names "+strings.Join(resource.Servers, ", "))

	s.step = "issuer"
	issuer := resource.Servers[0]
	server, err := credential.IssuerMetadata(ctx, s.http, issuer, func(string) error { return nil })
	switch {
	case err != nil:
		return s.stops(err.Error(), "does the issuer publish metadata (RFC 8414 or OpenID Connect Discovery), as toolgate.identity.jwt names it?")
	case server.Issuer != issuer:
		return s.stops(fmt.Sprintf("%s names itself %q", issuer, server.Issuer), "write the issuer in toolgate.identity.jwt as it names itself")
	case server.AuthorizationEndpoint == "" || server.TokenEndpoint == "":
		return s.stops(issuer+" names no page to sign in at, or no place for tokens", "the issuer has to be an authorization server for people")
	}
	s.ok(s.step, issuer+" says how to sign in")

	s.step = "registration"
	switch {
	case server.ClientIDMetadataDocumentSupported:
		s.ok(s.step, "clients name themselves by the address of a document")
	case server.RegistrationEndpoint != "":
		s.ok(s.step, "clients register at "+server.RegistrationEndpoint)
	default:
		return s.stops(issuer+" lets no client register itself", "register the client there, and give its client_id to whoever configures the client")
	}

	s.step = "pkce"
	if !slices.Contains(server.CodeChallengeMethodsSupported, "S256") {
		return s.stops(issuer+" does not say that it takes S256, without which clients send nobody there", "turn PKCE on at the issuer, or publish code_challenge_methods_supported")
	}
	s.ok(s.step, "S256")

	s.step = "resource"
	switch {
	case resource.Resource != s.address:
		return s.stops(fmt.Sprintf("tokens are issued for %s, and the client calls %s", resource.Resource, s.address), "set toolgate.public_url to the scheme and host that clients use")
	case u.Scheme == "http" && !guard.Loopback(u.Hostname()):
		return s.stops(s.address+" is plain HTTP: clients send no token there", "set toolgate.tls, or end TLS at a proxy and set toolgate.public_url")
	}
	s.ok(s.step, "tokens are issued for "+resource.Resource)
	return nil
}

// challenge asks without a credential, and returns where the metadata is; "" = nothing is asked for.
func (s *signIn) challenge(ctx context.Context) (place string, err error) {
	s.step = "challenge"
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"toolgate-doctor","version":"1"}}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address, bytes.NewReader([]byte(hello)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := s.http.Do(req)
	if err != nil {
		return "", s.stops(err.Error(), "is toolgate serve running, and is the address the one that clients use?")
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		s.ok(s.step, "nothing is asked for: a client needs no credential")
		return "", nil
	}
	if res.StatusCode != http.StatusUnauthorized {
		return "", s.stops(fmt.Sprintf("%s answers %s, and a client waits for 401", s.address, res.Status), "for 403, add the host to toolgate.allowed_hosts or set toolgate.public_url; for 404, end the address with /mcp")
	}
	for _, line := range res.Header["Www-Authenticate"] {
		if named := metadataPlace.FindStringSubmatch(line); named != nil {
			s.ok(s.step, "401 names "+named[1])
			return named[1], nil
		}
	}
	return "", s.stops("401 names no resource_metadata: a client does not learn where to sign in", "add an issuer to toolgate.identity.jwt; static tokens are configured in the client")
}

// metadataPlace finds where the metadata is in a challenge (RFC 9728 section 5.1).
var metadataPlace = regexp.MustCompile(`(?i)\bBearer\b.*\bresource_metadata="([^"]+)"`)

// stops reports at which step a client stops, and what to change.
func (s *signIn) stops(message, hint string) error {
	s.fault(command.ExitUnreachable, s.step, message, hint)
	return errStopped
}
