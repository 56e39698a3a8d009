package identity_test

import (
	"encoding/base64"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy/identity"
)

const logoutEvent = "http://schemas.openid.net/event/backchannel-logout"

// logoutClaims are those of a good logout token with sub and sid, with a change.
func (p *op) logoutClaims(change map[string]any) map[string]any {
	c := p.idp.claims(map[string]any{"roles": nil, "jti": "jti-1", "sid": "session-1", "exp": clock.Add(2 * time.Minute).Unix(), "events": map[string]any{logoutEvent: map[string]any{}}})
	maps.Copy(c, change)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func TestLogoutTokens(t *testing.T) {
	p := newOP(t)
	provider := p.provider(t, identity.Config{}, nil)
	people := []string{"alice", p.URL + "|alice"}
	for name, tt := range map[string]struct {
		typ    string
		change map[string]any
		want   identity.Logout
	}{
		"both":            {want: identity.Logout{Session: "session-1", Subjects: people}},
		"the session":     {change: map[string]any{"sub": nil}, want: identity.Logout{Session: "session-1"}},
		"the person":      {change: map[string]any{"sid": nil}, want: identity.Logout{Subjects: people}},
		"its type":        {typ: "logout+jwt", want: identity.Logout{Session: "session-1", Subjects: people}},
		"as a media type": {typ: "application/logout+JWT", want: identity.Logout{Session: "session-1", Subjects: people}},
		"old enough":      {change: map[string]any{"iat": clock.Add(-11 * time.Minute).Unix()}, want: identity.Logout{Session: "session-1", Subjects: people, Until: clock.Add(9 * time.Minute)}},
		"a clock behind":  {change: map[string]any{"iat": clock.Add(time.Minute).Unix()}, want: identity.Logout{Session: "session-1", Subjects: people, Until: clock.Add(21 * time.Minute)}},
	} {
		t.Run(name, func(t *testing.T) {
			token := sign(t, jose.ES256, p.ec, "ec", p.logoutClaims(tt.change))
			if tt.typ != "" {
				token = p.typed(t, tt.typ, p.logoutClaims(tt.change))
			}
			got, err := provider.Logout(t.Context(), token)
			if tt.want.ID = "jti-1"; tt.want.Until.IsZero() {
				tt.want.Until = clock.Add(20 * time.Minute)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestRefusedLogoutTokens(t *testing.T) {
	p := newOP(t)
	provider := p.provider(t, identity.Config{}, nil)
	good := sign(t, jose.ES256, p.ec, "ec", p.logoutClaims(nil))
	if _, err := provider.Logout(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{
		"no token":         "",
		"no JWT":           "x",
		"another type":     p.typed(t, "at+jwt", p.logoutClaims(nil)),
		"unsigned":         base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + strings.Split(good, ".")[1] + ".",
		"signed by nobody": sign(t, jose.ES256, newIDP(t).ec, "ec", p.logoutClaims(nil)),
		"an unknown key":   sign(t, jose.ES256, newIDP(t).ec, "none", p.logoutClaims(nil)),
		"a shared secret":  sign(t, jose.HS256, []byte(strings.Repeat(clientSecret, 4)), "ec", p.logoutClaims(nil)),
	}
	for name, change := range map[string]map[string]any{
		"another audience":    {"aud": "other"},
		"no audience":         {"aud": nil},
		"another issuer":      {"iss": "https://evil.example"},
		"a nonce":             {"nonce": "n"},
		"a nonce of null":     {"nonce": jsonNull{}},
		"no events":           {"events": nil},
		"another event":       {"events": map[string]any{"http://schemas.openid.net/event/other": map[string]any{}}},
		"an event of null":    {"events": map[string]any{logoutEvent: nil}},
		"an event of no form": {"events": map[string]any{logoutEvent: "yes"}},
		"neither sub nor sid": {"sub": nil, "sid": nil},
		"no id":               {"jti": nil},
		"no end":              {"exp": nil},
		"expired":             {"exp": clock.Add(-time.Second).Unix()},
		"no time":             {"iat": nil},
		"too old":             {"iat": clock.Add(-11*time.Minute - time.Second).Unix()},
		"of the future":       {"iat": clock.Add(61 * time.Second).Unix()},
	} {
		tokens[name] = sign(t, jose.ES256, p.ec, "ec", p.logoutClaims(change))
	}
	for name, token := range tokens {
		t.Run(name, func(t *testing.T) {
			got, err := provider.Logout(t.Context(), token)
			if !errors.Is(err, identity.ErrUnauthenticated) || got.ID != "" {
				t.Errorf("%+v, %v", got, err)
			}
			if err != nil && (strings.Contains(err.Error(), "evil") || strings.Contains(err.Error(), "session-1")) {
				t.Errorf("the error quotes the token: %v", err)
			}
		})
	}
}

// jsonNull is null, also where nil means no member.
type jsonNull struct{}

func (jsonNull) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// Strangers make toolgate ask the provider rarely, and do not keep it from signing people in.
func TestLogoutTokensOfStrangers(t *testing.T) {
	p := newOP(t)
	provider := p.provider(t, identity.Config{}, nil)
	p.closed = true
	forged := sign(t, jose.ES256, newIDP(t).ec, "none", p.logoutClaims(nil))
	for range 20 {
		if _, err := provider.Logout(t.Context(), forged); err == nil {
			t.Fatal("a forged token is good")
		}
	}
	p.closed = false
	secret, answer := p.begin(t, provider)
	for range 20 {
		if _, err := provider.Logout(t.Context(), forged); err == nil {
			t.Fatal("a forged token is good")
		}
	}
	if asked := p.fetches.Load(); asked > 5 {
		t.Errorf("keys were fetched %d times", asked)
	}
	if _, _, err := provider.Finish(t.Context(), secret, answer); err != nil {
		t.Errorf("signing in: %v", err)
	}
}

// People sign out where the provider says, if others cannot read it.
func TestEndSession(t *testing.T) {
	for name, tt := range map[string]struct{ end, want string }{
		"nowhere":     {},
		"an address":  {"https://idp.example/out?a=b", "https://idp.example/out?a=b&client_id=toolgate&post_logout_redirect_uri=https%3A%2F%2Fgate.example%2Fconsole%2Flogin&state=s+1"},
		"plain http":  {"http://idp.example/out", "error"},
		"a script":    {"javascript:alert(1)", "error"},
		"of no form":  {"https://[::1", "error"},
		"no address":  {"/out", "error"},
		"on loopback": {"http://127.0.0.1:1/out", "http://127.0.0.1:1/out?client_id=toolgate&post_logout_redirect_uri=https%3A%2F%2Fgate.example%2Fconsole%2Flogin&state=s+1"},
	} {
		p := newOP(t)
		p.end = tt.end
		got, err := p.provider(t, identity.Config{}, nil).EndSession(t.Context(), "https://gate.example/console/login", "s 1")
		if want := tt.want; want == "error" && (err == nil || got != "") || want != "error" && (err != nil || got != want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	p := newOP(t)
	p.closed = true
	if got, err := p.provider(t, identity.Config{}, nil).EndSession(t.Context(), "x", "y"); err == nil || got != "" {
		t.Errorf("without the provider: %q", got)
	}
}
