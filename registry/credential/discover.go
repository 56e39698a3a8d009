package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	maxAddress  = 2048    // bytes of an address that others name
	maxReason   = 200     // bytes of a library's error, which may repeat what others have said
	maxDocument = 1 << 20 // bytes
	offline     = "offline_access"

	protectedResource = "/.well-known/oauth-protected-resource"
)

// Plan is what a person is asked to agree to.
type Plan struct {
	Issuer   string   // the authorization server to which the browser goes
	Resource string   // that the tokens are for (RFC 8707)
	Scopes   []string // that are asked for; empty = what the authorization server gives by itself
}

// found is what discovery has found.
type found struct {
	Plan
	meta       *oauthex.AuthServerMeta
	asking     *http.Client
	reach      *reach
	challenged []string // scopes that the server asks for
	supported  []string // scopes that the resource has
}

// Plan returns what Begin would ask for. The error says which part of the server's authorization
// cannot be used.
func (g *Grants) Plan(ctx context.Context, server config.Server, who Person) (Plan, error) {
	f, err := g.discover(ctx, server, who)
	return f.Plan, err
}

// discover finds the authorization server of a server, and what a person is asked to agree to there.
func (g *Grants) discover(ctx context.Context, server config.Server, who Person) (f found, err error) {
	if f, err = discover(ctx, server); err != nil {
		return f, err
	}
	if err := checkMeta(f.meta, f.reach); err != nil {
		return f, fmt.Errorf("finding the authorization server of %s: the metadata of %s: %w", server.Name, f.Issuer, err)
	}
	f.Scopes, err = g.scopes(ctx, server, who, f)
	return f, err
}

// discover finds the authorization server of a server: by its answer to a request without a token,
// by the metadata of the protected resource (RFC 9728), and by those of the authorization server
// (RFC 8414, OpenID Connect Discovery 1.0), as MCP 2025-11-25, Authorization, has it. It fails
// closed: metadata of another resource or issuer count as none.
func discover(ctx context.Context, server config.Server) (f found, err error) {
	ctx, stop := context.WithTimeout(ctx, 2*fetchTimeout)
	defer stop()
	defer func() {
		if err != nil {
			err = fmt.Errorf("finding the authorization server of %s: %w", server.Name, err)
		}
	}()
	if f.asking, f.reach, err = newReach(server); err != nil {
		return f, err
	}
	if err := f.reach.checkText(server.URL); err != nil {
		return f, fmt.Errorf("the server's own address: %w", err)
	}
	challenge := probe(ctx, f.asking, server)
	resource := resourceOf(ctx, f.asking, f.reach, server, challenge["resource_metadata"])
	f.challenged, f.supported = strings.Fields(challenge["scope"]), resource.ScopesSupported
	f.Issuer, f.Resource = server.Credential.Issuer, cmp.Or(server.Credential.Resource, resource.Resource)
	if f.Issuer == "" && len(resource.AuthorizationServers) > 0 {
		f.Issuer = resource.AuthorizationServers[0]
	}
	if f.meta, err = IssuerMetadata(ctx, f.asking, f.Issuer, f.reach.checkText); err == nil {
		f.Issuer = f.meta.Issuer // as it is written there, for its answers are compared with that
	}
	return f, err
}

// IssuerMetadata returns what an authorization server says of itself (RFC 8414, OpenID Connect
// Discovery 1.0). check refuses addresses; package oauthex would refuse all in private networks. The
// error is for metadata that cannot be read, or are of another issuer, but for a slash.
func IssuerMetadata(ctx context.Context, asking *http.Client, issuer string, check func(address string) error) (*oauthex.AuthServerMeta, error) {
	if err := check(issuer); err != nil {
		return nil, fmt.Errorf("the address of the authorization server: %w", err)
	}
	at, err := url.Parse(issuer)
	if err != nil {
		return nil, err
	}
	for _, place := range guard.MetadataPlaces(at) {
		var m oauthex.AuthServerMeta
		status, err := Fetch(ctx, asking, place, &m)
		switch {
		case status >= 400 && status < 500:
			continue
		case err == nil && !sameIssuer(m.Issuer, issuer):
			err = fmt.Errorf("they are of another issuer, %q", text.Clip(m.Issuer, maxReason, "…"))
		case err == nil:
			if err = check(m.TokenEndpoint); err != nil {
				err = fmt.Errorf("token_endpoint: %w", err)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the metadata of %s: %w", issuer, err)
		}
		return &m, nil
	}
	return nil, fmt.Errorf("%s has no metadata (RFC 8414)", issuer)
}

// Fetch reads a JSON document of at most 1 MiB. status is that of the answer, 0 for none.
func Fetch(ctx context.Context, asking *http.Client, address string, to any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, errors.New("it is no address")
	}
	req.Header.Set("Accept", "application/json")
	res, err := asking.Do(req)
	if err != nil {
		return 0, plain(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return res.StatusCode, fmt.Errorf("status %d", res.StatusCode)
	}
	if json.NewDecoder(io.LimitReader(res.Body, maxDocument)).Decode(to) != nil {
		return res.StatusCode, errors.New("the answer is no JSON document")
	}
	return res.StatusCode, nil
}

// probe asks a server without a token, and returns the parameters of its challenge, nil for none.
func probe(ctx context.Context, asking *http.Client, server config.Server) map[string]string {
	method, body := http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}` // some let everybody initialize
	if server.Type == config.TypeSSE {
		method, body = http.MethodGet, ""
	}
	req, err := http.NewRequestWithContext(ctx, method, server.URL, strings.NewReader(body))
	if err != nil {
		return nil
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	for name, value := range server.Headers {
		req.Header.Set(name, value)
	}
	res, err := asking.Do(req)
	if err != nil { // discovery goes on without a challenge
		return nil
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		return nil
	}
	return bearerChallenge(res.Header.Values("WWW-Authenticate"))
}

// resourceOf returns the metadata of a server as a protected resource. Where it has none, its own
// origin is the authorization server, as in MCP 2025-03-26.
func resourceOf(ctx context.Context, asking *http.Client, r *reach, server config.Server, challenged string) *oauthex.ProtectedResourceMetadata {
	for _, p := range resourcePlaces(challenged, server.URL) {
		if r.checkText(p.address) != nil {
			continue
		}
		var found oauthex.ProtectedResourceMetadata
		if _, err := Fetch(ctx, asking, p.address, &found); err == nil && found.Resource == p.resource {
			return &found
		}
	}
	none := &oauthex.ProtectedResourceMetadata{Resource: server.URL}
	if at, err := url.Parse(server.URL); err == nil {
		none.AuthorizationServers = []string{at.Scheme + "://" + at.Host}
	}
	return none
}

// resourcePlace is where metadata of a resource may be.
type resourcePlace struct{ address, resource string }

// resourcePlaces returns where the metadata of a server may be, and of which resource they have to
// be there. They are of the very address of the server, or of a resource above it whose own
// well-known address they have (RFC 9728 sections 3.1 and 3.3): other servers on the same host
// cannot put them there, and so gain no tokens for what is above them.
func resourcePlaces(challenged, server string) (places []resourcePlace) {
	at, err := url.Parse(server)
	if err != nil {
		return nil
	}
	origin := at.Scheme + "://" + at.Host
	addresses := []string{challenged, origin + protectedResource + strings.TrimSuffix(at.EscapedPath(), "/"), origin + protectedResource}
	for i, address := range addresses {
		if address == "" || slices.Contains(addresses[:i], address) {
			continue
		}
		if i < 2 {
			places = append(places, resourcePlace{address, server})
		}
		above, ok := strings.CutPrefix(address, origin+protectedResource)
		if !ok || strings.ContainsAny(above, "?#") || !strings.HasPrefix(strings.TrimSuffix(at.EscapedPath(), "/")+"/", strings.TrimSuffix(above, "/")+"/") {
			continue
		}
		for _, resource := range []string{origin + above, origin + strings.TrimSuffix(above, "/") + "/"} {
			if p := (resourcePlace{address, resource}); !slices.Contains(places, p) {
				places = append(places, p)
			}
		}
	}
	return places
}

// checkMeta checks what people's browsers and tokens are sent to.
func checkMeta(m *oauthex.AuthServerMeta, r *reach) error {
	if !slices.Contains(m.CodeChallengeMethodsSupported, "S256") {
		return errors.New("it does not offer PKCE with S256")
	}
	if err := r.checkText(m.AuthorizationEndpoint); err != nil {
		return fmt.Errorf("authorization_endpoint: %w", err)
	}
	for name, address := range map[string]string{"registration_endpoint": m.RegistrationEndpoint, "revocation_endpoint": m.RevocationEndpoint} {
		if err := r.checkText(address); address != "" && err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// scopes returns what is asked for: what is configured, else what the challenge names, else what the
// resource has; and in addition what the server asked for since the person last connected, with what
// was granted then.
func (g *Grants) scopes(ctx context.Context, server config.Server, who Person, f found) ([]string, error) {
	asked := server.Credential.Scopes
	if len(asked) == 0 {
		if asked = f.challenged; len(asked) == 0 {
			asked = f.supported
		}
		if slices.Contains(f.meta.ScopesSupported, offline) {
			asked = append([]string{offline}, asked...)
		}
	}
	o, ok := ownerOf(server, who)
	if !ok {
		return nil, errors.New("the person has no name")
	}
	before, err := g.read(ctx, o)
	if err != nil {
		return nil, err
	}
	if before == nil || len(before.Wanted) == 0 {
		return union(asked), nil
	}
	return union(asked, before.Wanted, before.Scopes), nil
}

// styleOf returns how toolgate shows its secret at a token endpoint (RFC 8414 section 2: Basic where
// the metadata do not say).
func styleOf(secret string, methods []string) oauth2.AuthStyle {
	if secret != "" && (len(methods) == 0 || slices.Contains(methods, methodBasic)) {
		return oauth2.AuthStyleInHeader
	}
	return oauth2.AuthStyleInParams
}

const (
	methodNone  = "none"
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
)

// plain returns an error of a library as a text on one line, within bounds: it may repeat what
// others have said, and wraps nothing.
func plain(err error) error {
	if at, ok := errors.AsType[*url.Error](err); ok {
		err = at.Err
	}
	quoted := fmt.Sprintf("%+q", text.Clip(err.Error(), maxReason, "…"))
	return errors.New(quoted[1 : len(quoted)-1])
}
