package identity_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/policy/identity"
)

// recipe returns the entry of identity.jwt that docs/identity.md gives for a provider.
func recipe(t *testing.T, provider string) identity.JWT {
	t.Helper()
	_, page, _ := strings.Cut(identityPage(t), "\n### "+provider+"\n")
	found := regexp.MustCompile("(?s)```jsonc\n(.*?)```").FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("docs/identity.md has no recipe for %s", provider)
	}
	var whole struct {
		Identity struct{ JWT []json.RawMessage }
	}
	if !strings.HasPrefix(found[1], `"identity"`) {
		return entry(t, found[1])
	}
	if err := json.Unmarshal([]byte("{"+found[1]+"}"), &whole); err != nil || len(whole.Identity.JWT) != 1 {
		t.Fatalf("%s: %v in %s", provider, err, found[1])
	}
	return entry(t, string(whole.Identity.JWT[0]))
}

// workload returns the entry that the table of docs/identity.md has for a workload, for one whose names
// replace those of the document.
func workload(t *testing.T, name string, names *strings.Replacer) identity.JWT {
	t.Helper()
	found := regexp.MustCompile("(?m)^\\| " + name + "[^|]* \\| `(.*)` \\|$").FindStringSubmatch(identityPage(t))
	if found == nil {
		t.Fatalf("docs/identity.md has no recipe for %s", name)
	}
	return entry(t, "{"+names.Replace(found[1])+"}")
}

// entry reads an entry of identity.jwt.
func entry(t *testing.T, text string) identity.JWT {
	t.Helper()
	var e struct {
		Issuer   string
		Audience []string
		Types    []string
		Groups   map[string][]string
		Private  bool
		Subject  string `json:"subject_claim"`
		Roles    string `json:"roles_claim"`
		In       string `json:"groups_claim"`
		Person   string `json:"person_claim"`
		Tenant   string `json:"tenant_claim"`
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return identity.JWT{Issuer: e.Issuer, Audience: e.Audience, Types: e.Types, Groups: e.Groups, Private: e.Private, SubjectClaim: e.Subject, RolesClaim: e.Roles,
		GroupsClaim: e.In, PersonClaim: e.Person, TenantClaim: e.Tenant}
}

func identityPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "identity.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRecipesOfProviders holds the recipes of docs/identity.md against access tokens of the form that
// each provider documents: who and what they name, and that the provider's ID tokens and
// its tokens for others are refused.
func TestRecipesOfProviders(t *testing.T) {
	p := newIDP(t)
	type claims = map[string]any
	for name, tt := range map[string]struct {
		typ             string
		claims          claims
		subject, person string
		roles, scopes   string
		other           claims // that make it a token of somebody without a role
		idToken         string // audience of ID tokens
	}{
		"Keycloak": {"JWT", claims{"aud": []string{gate + "/mcp", "account"}, "typ": "Bearer", "azp": "agent", "sub": "3f1c", "scope": "openid toolgate email",
			"realm_access": claims{"roles": []string{"offline_access"}}, "groups": []string{"/treasury"}, "email": "ann@example.org"},
			"3f1c", "ann@example.org", "treasurer", "openid toolgate email", claims{"groups": []string{"/staff"}}, "agent"},
		"Entra ID": {"JWT", claims{"aud": "APPLICATION-ID", "ver": "2.0", "azp": "client", "tid": "TENANT-ID", "oid": "00aa", "sub": "pairwise", "scp": "media",
			"roles": []string{"treasurer"}, "groups": []string{"11bb"}, "uti": "x", "rh": "x", "azpacr": "0"},
			"00aa", "00aa", "treasurer", "media", claims{"roles": nil, "_claim_names": claims{"groups": "src1"}, "_claim_sources": claims{"src1": claims{"endpoint": "https://graph.example"}}}, "client"},
		"Okta": {"", claims{"aud": gate + "/mcp", "ver": 1, "cid": "0oa1", "uid": "00u1", "sub": "ann@example.org", "scp": []string{"openid", "media"}, "auth_time": clock.Unix(),
			"groups": []string{"mcp-treasury"}}, "ann@example.org", "ann@example.org", "treasurer", "openid media", claims{"groups": nil}, "0oa1"},
		"Auth0": {"at+jwt", claims{"aud": []string{gate + "/mcp", "https://TENANT.auth0.com/userinfo"}, "client_id": "c1", "sub": "auth0|1", "scope": "openid media",
			"https://gate.example/roles": []string{"treasurer"}, "https://gate.example/email": "ann@example.org", "permissions": []string{"media"}},
			"auth0|1", "ann@example.org", "treasurer", "openid media", claims{"https://gate.example/roles": []string{}, "roles": []string{"admin"}}, "c1"},
		"Google": {"JWT", claims{"aud": gate + "/mcp", "azp": "117", "sub": "117", "email": "agent@PROJECT.iam.gserviceaccount.com", "email_verified": true},
			"117", "agent@PROJECT.iam.gserviceaccount.com", "researcher", "", claims{"email": "agent@OTHER.iam.gserviceaccount.com"}, "1.apps.googleusercontent.com"},
	} {
		t.Run(name, func(t *testing.T) {
			c, config := recipe(t, name), resources(p)
			c.JWKS = p.URL + "/keys"
			config.JWT = []identity.JWT{c}
			a := authenticator(t, config)
			s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: p.rsa, KeyID: "rsa"}}, (&jose.SignerOptions{}).WithType(jose.ContentType(tt.typ)))
			if err != nil {
				t.Fatal(err)
			}
			show := func(more claims) (who string, roles []string, kind identity.Kind) {
				all := p.claims(claims{"iss": c.Issuer, "roles": nil})
				for _, set := range []claims{tt.claims, more} {
					for member, value := range set {
						if all[member] = value; value == nil {
							delete(all, member)
						}
					}
				}
				got, err := a.Identify(t.Context(), identity.Credential{Bearer: signWith(t, s, all), At: identity.Resource{Door: "/mcp"}})
				return strings.Join([]string{got.Subject, got.Person, strings.Join(got.Scopes, " ")}, ", "), got.Roles, identity.KindOf(err)
			}
			want := strings.Join([]string{tt.subject, tt.person, tt.scopes}, ", ")
			if who, roles, kind := show(nil); who != want || !slices.Equal(roles, []string{tt.roles}) || kind != "" {
				t.Errorf("got %q with %q, %s; want %q with %s", who, roles, kind, want, tt.roles)
			}
			if who, roles, kind := show(tt.other); len(roles) > 0 || kind != "" {
				t.Errorf("somebody without a role: %q with %q, %s", who, roles, kind)
			}
			for audience, more := range map[string]claims{tt.idToken: {"nonce": "n", "at_hash": "x"}, "https://other.example/mcp": {}} {
				more["aud"] = audience
				if who, _, kind := show(more); kind != identity.Audience {
					t.Errorf("a token for %s: %q, %s", audience, who, kind)
				}
			}
		})
	}
}

// TestVersionsOfProviders holds that docs/identity.md names the versions that the tests run.
func TestVersionsOfProviders(t *testing.T) {
	read := func(names ...string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(append([]string{corpus.Checkout(t)}, names...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	docs := identityPage(t)
	for provider, pinned := range map[string]struct{ text, pattern string }{
		"oidc-provider": {read("testdata", "npm", "package.json"), `"oidc-provider": "([^"]*)"`},
		"Keycloak":      {read("testdata", "keycloak", "install"), `(?m)^version=(.*)$`},
	} {
		found := regexp.MustCompile(pinned.pattern).FindStringSubmatch(pinned.text)
		if found == nil || !strings.Contains(docs, "\n### "+provider+"\n\n*Run by the tests with version "+found[1]+".*\n") {
			t.Errorf("%s: the tests run %q", provider, found)
		}
	}
	for _, provider := range []string{"Entra ID", "Okta", "Auth0", "Google"} {
		if !regexp.MustCompile(`\n### ` + provider + `\n\n\*Written from \w+'s documentation, not run\.\*\n`).MatchString(docs) {
			t.Errorf("%s: the page does not say that it was not run", provider)
		}
	}
}

// TestTokensOfAnotherVersion: what Entra ID issues in version 1 names another issuer and audience
// than what it issues in version 2.
func TestTokensOfAnotherVersion(t *testing.T) {
	p := newIDP(t)
	c, config := recipe(t, "Entra ID"), resources(p)
	c.JWKS, config.JWT[0].Issuer = p.URL+"/keys", "https://sts.windows.net/TENANT-ID/"
	old := p.claims(map[string]any{"iss": "https://sts.windows.net/TENANT-ID/", "aud": gate + "/mcp", "ver": "1.0", "appid": "client", "oid": "00aa"})
	token := sign(t, jose.RS256, p.rsa, "rsa", old)
	at := identity.Credential{Bearer: token, At: identity.Resource{Door: "/mcp"}}
	both := config.JWT[0]
	config.JWT = []identity.JWT{c}
	if _, err := authenticator(t, config).Identify(t.Context(), at); identity.KindOf(err) != identity.Issuer {
		t.Errorf("without an entry of its own: %v", err)
	}
	config.JWT = []identity.JWT{c, both}
	config.Now = func() time.Time { return clock }
	if who, err := authenticator(t, config).Identify(t.Context(), at); err != nil || !strings.HasPrefix(who.Subject, "https://sts.windows.net/") {
		t.Errorf("with one: %+v, %v", who, err)
	}
}
