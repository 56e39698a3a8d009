package identity_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/policy/identity"
)

const gate = "https://gate.example"

// resources are an issuer without an audience of its own, and a server with one.
func resources(p *idp) identity.Config {
	c := p.config()
	c.Audience = nil
	return identity.Config{
		JWT: []identity.JWT{c}, Client: p.Client(), Now: func() time.Time { return clock },
		Public: gate, Scopes: []string{"payments", "media"}, Audiences: map[string][]string{"wallet": {"urn:wallet"}},
		Spend: func(context.Context, [sha256.Size]byte, time.Time, time.Time) error { return nil },
	}
}

// TestAudienceOfRoute is the table of which token is good at which route.
func TestAudienceOfRoute(t *testing.T) {
	p := newIDP(t)
	own := resources(p)
	own.JWT[0].Audience = []string{"urn:gate"}
	without, with := authenticator(t, resources(p)), authenticator(t, own)
	routes := map[string]identity.Resource{
		"mcp": {Door: "/mcp"}, "mcp/wallet": {Door: "/mcp", Server: "wallet"}, "mcp/media": {Door: "/mcp", Server: "media"},
		"sse": {Door: "/sse"}, "sse/wallet": {Door: "/sse", Server: "wallet"}, "sse/media": {Door: "/sse", Server: "media"}, "elsewhere": {},
	}
	for audience, good := range map[string]string{
		gate + "/mcp":                      "mcp mcp/media mcp/wallet sse sse/media sse/wallet",
		gate + "/mcp/wallet":               "mcp/wallet sse/wallet",
		gate + "/sse":                      "sse sse/media sse/wallet",
		gate + "/sse/wallet":               "sse/wallet",
		"urn:wallet":                       "mcp/wallet sse/wallet",
		"urn:gate":                         "",
		gate:                               "",
		gate + "/":                         "",
		gate + "/mcp/":                     "",
		gate + "/MCP":                      "",
		"https://other.example/mcp":        "",
		"https://gate.example.org/mcp":     "",
		"http://gate.example/mcp":          "",
		"https://gate.example:443/mcp":     "",
		"":                                 "",
		"elsewhere, " + gate + "/mcp/none": "",
	} {
		token := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"aud": strings.Split(audience, ", ")}))
		for a, want := range map[*identity.Authenticator]string{without: good, with: good} {
			if a == with && audience == "urn:gate" {
				want = "elsewhere mcp mcp/media mcp/wallet sse sse/media sse/wallet"
			}
			var found []string
			for range 2 { // the second time it is known already
				found = nil
				for name, at := range routes {
					_, err := a.Identify(t.Context(), identity.Credential{Bearer: token, At: at})
					if err == nil {
						found = append(found, name)
					} else if identity.KindOf(err) != identity.Audience {
						t.Errorf("%s at %s: %v", audience, name, err)
					}
				}
			}
			slices.Sort(found)
			if got := strings.Join(found, " "); got != want {
				t.Errorf("a token for %q is good at %q, want %q", audience, got, want)
			}
		}
	}
}

// TestChallenge is the table of what an answer 401 says.
func TestChallenge(t *testing.T) {
	p := newIDP(t)
	named, unnamed := resources(p), resources(p)
	unnamed.Scopes = nil
	const at = `resource_metadata="https://gate.example/.well-known/oauth-protected-resource`
	for _, c := range []struct {
		config identity.Config
		at     identity.Resource
		shown  bool
		want   string
	}{
		{named, identity.Resource{Door: "/mcp"}, false, `Bearer ` + at + `/mcp", scope="payments media"`},
		{named, identity.Resource{Door: "/mcp"}, true, `Bearer ` + at + `/mcp", scope="payments media", error="invalid_token"`},
		{unnamed, identity.Resource{Door: "/sse", Server: "wallet"}, false, `Bearer ` + at + `/sse/wallet"`},
		{named, identity.Resource{}, true, `Bearer realm="toolgate", error="invalid_token"`},
		{identity.Config{Tokens: []identity.Token{agent()}, Public: gate}, identity.Resource{Door: "/mcp"}, false, `Bearer realm="toolgate"`},
	} {
		if got := authenticator(t, c.config).Challenge(&identity.Credential{At: c.at, Malformed: c.shown}); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	for scheme, c := range map[string]identity.Credential{"Bearer": {}, "DPoP": {DPoP: new(identity.DPoP)}} {
		c.At = identity.Resource{Door: "/mcp"}
		want := scheme + ` error="insufficient_scope", scope="payments z", ` + at + `/mcp"`
		if c.DPoP != nil {
			want += `, algs="` + strings.Join(identity.Algorithms(), " ") + `"`
		}
		if got := authenticator(t, named).StepUp(&c, []string{"payments", "z"}); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestMetadata is the table of RFC 9728's addresses. What the request says of its own
// address changes nothing.
func TestMetadata(t *testing.T) {
	p := newIDP(t)
	a, none := authenticator(t, resources(p)), authenticator(t, identity.Config{Tokens: []identity.Token{agent()}, Public: gate})
	ask := func(a *identity.Authenticator, method, path string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(method, "http://evil.example"+path, nil), httptest.NewRecorder()
		r.Header.Set("X-Forwarded-Host", "evil.example")
		r.Header.Set("Forwarded", "host=evil.example;proto=http")
		a.ServeMetadata(w, r)
		return w
	}
	for path, resource := range map[string]string{
		"": "/mcp", "/mcp": "/mcp", "/sse": "/sse", "/mcp/wallet": "/mcp/wallet", "/sse/wallet": "/sse/wallet", "/mcp/no-such-server": "/mcp/no-such-server",
	} {
		w := ask(a, http.MethodGet, identity.MetadataPath+path)
		var got struct {
			Resource, ResourceName string
			Servers                []string `json:"authorization_servers"`
			Scopes                 []string `json:"scopes_supported"`
			Methods                []string `json:"bearer_methods_supported"`
			Name                   string   `json:"resource_name"`
			Documentation          string   `json:"resource_documentation"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK || got.Resource != gate+resource || !slices.Equal(got.Servers, []string{p.URL}) ||
			!slices.Equal(got.Scopes, []string{"payments", "media"}) || !slices.Equal(got.Methods, []string{"header"}) || got.Name == "" || got.Documentation == "" {
			t.Errorf("%q: %d %s", path, w.Code, w.Body)
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%q cannot be read by a page: %v", path, w.Header())
		}
		if w := ask(none, http.MethodGet, identity.MetadataPath+path); w.Code != http.StatusNotFound {
			t.Errorf("%q without an issuer: %d", path, w.Code)
		}
	}
	for path, code := range map[string]int{"/": 404, "/mcp/": 404, "/mcp/a/b": 404, "/v1": 404, "/messages": 404, "x": 404} {
		if w := ask(a, http.MethodGet, identity.MetadataPath+path); w.Code != code {
			t.Errorf("%q: %d, want %d", path, w.Code, code)
		}
	}
	if w := ask(a, http.MethodOptions, identity.MetadataPath); w.Code != http.StatusNoContent || w.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("preflight: %d %v", w.Code, w.Header())
	}
	if w := ask(a, http.MethodPost, identity.MetadataPath); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("POST: %d %v", w.Code, w.Header())
	}
}

// TestScopesAndGroups is the table of which claims give which roles and scopes.
func TestScopesAndGroups(t *testing.T) {
	p := newIDP(t)
	c := resources(p)
	c.JWT[0].Audience = []string{"toolgate"}
	c.JWT[0].SubjectClaim, c.JWT[0].GroupsClaim = "oid", "wids"
	c.JWT[0].Scopes = map[string][]string{"payments": {"treasurer", "payer"}}
	c.JWT[0].Groups = map[string][]string{"g-1": {"lead"}, "g-2": {"payer"}}
	a := authenticator(t, c)
	for name, tt := range map[string]struct {
		claims        map[string]any
		roles, scopes string
	}{
		"roles alone":         {map[string]any{"roles": []string{"r"}}, "r", ""},
		"a scope":             {map[string]any{"roles": nil, "scope": "openid payments"}, "treasurer payer", "openid payments"},
		"scp, a text":         {map[string]any{"roles": nil, "scp": "payments  media"}, "treasurer payer", "payments media"},
		"scp, a list":         {map[string]any{"roles": nil, "scp": []string{"payments", "media"}}, "treasurer payer", "payments media"},
		"scope before scp":    {map[string]any{"roles": nil, "scope": "media", "scp": "payments"}, "", "media"},
		"groups":              {map[string]any{"roles": []string{"r"}, "wids": []string{"g-1", "g-3"}}, "r lead", ""},
		"scopes, then groups": {map[string]any{"roles": nil, "scope": "payments", "wids": []string{"g-1"}}, "treasurer payer lead", "payments"},
		"both, none twice":    {map[string]any{"roles": []string{"payer"}, "scope": "payments", "wids": []string{"g-2"}}, "payer treasurer", "payments"},
		"a scope like a role": {map[string]any{"roles": nil, "scope": "treasurer lead g-1"}, "", "treasurer lead g-1"},
		"a claim of a scope":  {map[string]any{"roles": nil, "scope": "payments.read"}, "", "payments.read"},
	} {
		tt.claims["oid"] = "person-1"
		who, err := a.Identify(t.Context(), identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(tt.claims))})
		if err != nil || who.Subject != "person-1" || strings.Join(who.Roles, " ") != tt.roles || strings.Join(who.Scopes, " ") != tt.scopes {
			t.Errorf("%s: %+v, %v; want roles %q and scopes %q", name, who, err, tt.roles, tt.scopes)
		}
	}
	for _, bad := range []map[string]any{{"oid": nil}, {"oid": ""}, {"oid": "x", "scope": 1}, {"oid": "x", "wids": map[string]any{}}} {
		if who, err := a.Identify(t.Context(), identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(bad))}); err == nil {
			t.Errorf("%v: %+v", bad, who)
		}
	}
}
