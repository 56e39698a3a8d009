package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/identity"
)

// holder is a client with a key, and a token that is bound to it.
type holder struct {
	t     testing.TB
	key   any
	jkt   string
	token string
}

func (p *idp) holder(t testing.TB) *holder {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{t: t, key: key, jkt: base64.RawURLEncoding.EncodeToString(sum)}
	h.token = sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"aud": gate + "/mcp", "cnf": map[string]any{"jkt": h.jkt}}))
	return h
}

// claims are those of a proof of h for POST /mcp, as RFC 9449 section 4.2 wants them.
func (h *holder) claims(change map[string]any) map[string]any {
	sum := sha256.Sum256([]byte(h.token))
	c := map[string]any{"jti": rand.Text(), "htm": "POST", "htu": gate + "/mcp", "iat": clock.Unix(), "ath": base64.RawURLEncoding.EncodeToString(sum[:])}
	for k, v := range change {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

// proof returns a proof of h with other claims.
func (h *holder) proof(change map[string]any) string {
	return h.signed("dpop+jwt", jose.ES256, h.key, true, h.claims(change))
}

func (h *holder) signed(typ jose.ContentType, alg jose.SignatureAlgorithm, key any, embed bool, claims map[string]any) string {
	h.t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{EmbedJWK: embed}).WithType(typ))
	if err != nil {
		h.t.Fatal(err)
	}
	return signWith(h.t, s, claims)
}

// forged returns a proof of h with a header of its own and a signature of h's key.
func (h *holder) forged(header map[string]any) string {
	h.t.Helper()
	head, _ := json.Marshal(header)
	body, _ := json.Marshal(h.claims(nil))
	text := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(body)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, h.key.(*ecdsa.PrivateKey), sum[:])
	if err != nil {
		h.t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// jwk returns a key as the header of a proof has it.
func jwk(t testing.TB, key any) (out map[string]any) {
	t.Helper()
	text, err := jose.JSONWebKey{Key: key}.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// shown is a request for POST /mcp with a token and proofs.
func shown(scheme, token string, proofs ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/mcp?x=1", nil)
	r.Header.Set("Authorization", scheme+" "+token)
	for _, proof := range proofs {
		r.Header.Add("DPoP", proof)
	}
	return r
}

// TestProofs is the table of RFC 9449 section 4.3: what a proof has to be for a token that is
// bound to a key, also when the token is known already.
func TestProofs(t *testing.T) {
	p := newIDP(t)
	a := authenticator(t, resources(p))
	h, other := p.holder(t), p.holder(t)
	public, private, octets := jwk(t, h.key.(*ecdsa.PrivateKey).Public()), jwk(t, h.key), jwk(t, []byte(strings.Repeat("k", 32)))
	unbound := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"aud": gate + "/mcp"}))
	both := &holder{t: t, key: h.key, jkt: h.jkt, token: sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"aud": gate + "/mcp", "cnf": map[string]any{"jkt": h.jkt, "x5t#S256": "x"}}))}
	unsigned := h.forged(map[string]any{"typ": "dpop+jwt", "alg": "none", "jwk": public})
	with := func(claim string, value any) *http.Request {
		return shown("DPoP", h.token, h.proof(map[string]any{claim: value}))
	}
	for name, tt := range map[string]struct {
		r    *http.Request
		good bool
	}{
		"a proof":                      {shown("DPoP", h.token, h.proof(nil)), true},
		"another case of the scheme":   {shown("dpop", h.token, h.proof(nil)), true},
		"a header of ours":             {shown("DPoP", h.token, h.forged(map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": public})), true},
		"as Bearer":                    {shown("Bearer", h.token, h.proof(nil)), false},
		"as Bearer, without a proof":   {shown("Bearer", h.token), false},
		"no proof":                     {shown("DPoP", h.token), false},
		"an empty proof":               {shown("DPoP", h.token, ""), false},
		"two proofs":                   {shown("DPoP", h.token, h.proof(nil), h.proof(nil)), false},
		"two in one line":              {shown("DPoP", h.token, h.proof(nil)+", "+h.proof(nil)), false},
		"a huge proof":                 {with("x", strings.Repeat("x", 8<<10)), false},
		"a certificate too":            {shown("DPoP", both.token, both.proof(nil)), false},
		"an unbound token":             {shown("DPoP", unbound, h.proof(map[string]any{"ath": hashed(unbound)})), false},
		"an unbound token as Bearer":   {shown("Bearer", unbound), true},
		"another key's proof":          {shown("DPoP", h.token, h.signed("dpop+jwt", jose.ES256, other.key, true, h.claims(nil))), false},
		"another key's signature":      {shown("DPoP", h.token, other.forged(map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": public})), false},
		"no key":                       {shown("DPoP", h.token, h.signed("dpop+jwt", jose.ES256, h.key, false, h.claims(nil))), false},
		"a private key":                {shown("DPoP", h.token, h.forged(map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": private})), false},
		"no type":                      {shown("DPoP", h.token, h.forged(map[string]any{"alg": "ES256", "jwk": public})), false},
		"another type":                 {shown("DPoP", h.token, h.signed("JWT", jose.ES256, h.key, true, h.claims(nil))), false},
		"alg none":                     {shown("DPoP", h.token, unsigned[:strings.LastIndex(unsigned, ".")+1]), false},
		"alg none, signed":             {shown("DPoP", h.token, unsigned), false},
		"an HMAC":                      {shown("DPoP", h.token, h.signed("dpop+jwt", jose.HS256, []byte(strings.Repeat("k", 32)), false, h.claims(nil))), false},
		"an HMAC with its key":         {shown("DPoP", h.token, h.forged(map[string]any{"typ": "dpop+jwt", "alg": "HS256", "jwk": octets})), false},
		"a key of an HMAC":             {shown("DPoP", h.token, h.forged(map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": octets})), false},
		"a critical header":            {shown("DPoP", h.token, h.forged(map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": public, "crit": []string{"x"}, "x": 1})), false},
		"another token":                {with("ath", hashed(other.token)), false},
		"no token":                     {with("ath", nil), false},
		"another method":               {with("htm", "GET"), false},
		"another case of the method":   {with("htm", "post"), false},
		"another path":                 {with("htu", gate+"/mcp/wallet"), false},
		"another host":                 {with("htu", "https://evil.example/mcp"), false},
		"another port":                 {with("htu", gate+":8443/mcp"), false},
		"another scheme":               {with("htu", "http://gate.example/mcp"), false},
		"with somebody":                {with("htu", "https://gate.example@evil.example/mcp"), false},
		"somebody at it":               {with("htu", "https://x@gate.example/mcp"), false},
		"no host":                      {with("htu", "/mcp"), false},
		"no address":                   {with("htu", nil), false},
		"query and fragment":           {with("htu", gate+"/mcp?y=2#z"), true},
		"case and default port":        {with("htu", "HTTPS://Gate.Example:443/mcp"), true},
		"a minute old":                 {with("iat", clock.Unix()-60), true},
		"older":                        {with("iat", clock.Unix()-61), false},
		"a minute early":               {with("iat", clock.Unix()+60), true},
		"earlier":                      {with("iat", clock.Unix()+61), false},
		"no time":                      {with("iat", nil), false},
		"a time of another form":       {with("iat", fmt.Sprint(clock.Unix())), false},
		"no ID":                        {with("jti", nil), false},
		"an ID of another form":        {with("jti", 1), false},
		"the token as proof":           {shown("DPoP", h.token, h.token), false},
		"a proof with an opaque token": {shown("DPoP", secret, h.proof(nil)), false},
	} {
		c := identity.FromRequest(tt.r, identity.Resource{Door: "/mcp"})
		for range 2 { // a request is identified several times, and its proof counts once
			if _, err := a.Identify(t.Context(), c); (err == nil) != tt.good || err != nil && identity.KindOf(err) != identity.Proof && !strings.Contains(name, "opaque") {
				t.Errorf("%s: %v, want good %v", name, err, tt.good)
			}
		}
		want := map[bool]string{true: "invalid_dpop_proof", false: "invalid_token"}[!tt.good && !strings.Contains(name, "unbound") && name != "a certificate too" && !strings.Contains(name, "opaque") && !strings.Contains(name, "Bearer")]
		challenge := a.Challenge(&c)
		scheme, rest, _ := strings.Cut(challenge, " ")
		if dpop := scheme == "DPoP"; dpop == strings.Contains(name, "Bearer") || dpop != strings.Contains(rest, `, algs="RS256 `) || !strings.Contains(rest, `error="`+want+`"`) ||
			!strings.Contains(rest, `resource_metadata="`+gate+`/.well-known/oauth-protected-resource/mcp"`) {
			t.Errorf("%s: challenge %s, want %s", name, challenge, want)
		}
	}
}

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// TestOpaqueTokenIsUnbound holds that a configured token is nobody's with the scheme DPoP.
func TestOpaqueTokenIsUnbound(t *testing.T) {
	a := authenticator(t, identity.Config{Tokens: []identity.Token{agent()}, Public: gate})
	if _, err := a.Identify(t.Context(), identity.FromRequest(shown("DPoP", secret, "x"), identity.Resource{Door: "/mcp"})); identity.KindOf(err) != identity.Proof {
		t.Error(err)
	}
}

// TestWithoutPublicAddress holds that no proof is for a gate that does not know its address.
func TestWithoutPublicAddress(t *testing.T) {
	p := newIDP(t)
	config := resources(p)
	config.Public, config.JWT[0].Audience = "", []string{gate + "/mcp"}
	h := p.holder(t)
	r := shown("DPoP", h.token, h.proof(map[string]any{"htu": "/mcp"}))
	if _, err := authenticator(t, config).Identify(t.Context(), identity.FromRequest(r, identity.Resource{Door: "/mcp"})); identity.KindOf(err) != identity.Proof {
		t.Error(err)
	}
}

// replicas are two authenticators with one state, or one after the other without.
func replicas(t *testing.T, p *idp, now *atomic.Int64) (one, two *identity.Authenticator, db *store.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	made := [2]*identity.Authenticator{}
	for i := range made {
		var err error
		if db, err = postgres.State(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		c := resources(p)
		c.Now, c.Spend = func() time.Time { return clock.Add(time.Duration(now.Load())) }, identity.NewProofs(db).Spend
		made[i] = authenticator(t, c)
	}
	return made[0], made[1], db
}

// TestReplay holds that a proof counts once at all replicas, and that one which cannot be looked
// up does not count.
func TestReplay(t *testing.T) {
	p, now := newIDP(t), new(atomic.Int64)
	one, two, db := replicas(t, p, now)
	h, other := p.holder(t), p.holder(t)
	try := func(a *identity.Authenticator, h *holder, proof string, spent bool) error {
		r := shown("DPoP", h.token, proof)
		if spent {
			r = r.WithContext(identity.WithSpentProof(r.Context()))
		}
		_, err := a.Identify(t.Context(), identity.FromRequest(r, identity.Resource{Door: "/mcp"}))
		return err
	}
	first := h.proof(map[string]any{"jti": "1", "iat": clock.Unix() + 60})
	for what, tt := range []struct {
		a     *identity.Authenticator
		h     *holder
		proof string
		spent bool
		want  identity.Kind
	}{
		{one, h, first, false, ""}, {one, h, first, false, identity.Proof}, {two, h, first, false, identity.Proof},
		{two, h, h.proof(map[string]any{"jti": "1"}), false, identity.Proof}, // another proof with the same ID
		{two, other, other.proof(map[string]any{"jti": "1"}), false, ""},     // an ID is unique with its key
		{two, h, first, true, ""}, // passed on by a replica that has spent it
		{two, h, h.proof(map[string]any{"htm": "GET"}), true, identity.Proof},
		{one, h, h.proof(nil), false, ""},
	} {
		if err := try(tt.a, tt.h, tt.proof, tt.spent); identity.KindOf(err) != tt.want || (err == nil) != (tt.want == "") {
			t.Errorf("%d: got %v, want %q", what, err, tt.want)
		}
	}
	now.Store(int64(2 * time.Minute)) // the last moment of the first proof
	if err := try(two, h, first, false); identity.KindOf(err) != identity.Proof {
		t.Errorf("two minutes later: %v", err)
	}
	now.Store(int64(4 * time.Minute))
	if err := try(one, h, h.proof(map[string]any{"iat": clock.Unix() + 240}), false); err != nil {
		t.Error(err)
	}
	if rows, err := store.Select(t.Context(), db.Read, func(n *int) []any { return []any{n} }, "SELECT COUNT(*) FROM spent_proofs"); err != nil || rows[0] != 1 {
		t.Errorf("%v proofs are kept, %v; want the last", rows, err)
	}
	_ = db.Close()
	proof := h.proof(map[string]any{"iat": clock.Unix() + 240})
	if err := try(two, h, proof, false); identity.KindOf(err) != identity.Unread || !store.Away(err) || !errors.Is(err, identity.ErrUnauthenticated) {
		t.Errorf("without the store: %v", err)
	}
}

// Without a memory of the proofs that were shown, every proof is refused.
func TestReplayUnknown(t *testing.T) {
	p := newIDP(t)
	h, c := p.holder(t), resources(p)
	c.Spend = nil
	r := shown("DPoP", h.token, h.proof(nil))
	if _, err := authenticator(t, c).Identify(t.Context(), identity.FromRequest(r, identity.Resource{Door: "/mcp"})); identity.KindOf(err) != identity.Unread {
		t.Error(err)
	}
}

// FuzzProof holds that no header but a proof of the key is accepted, whatever its bytes.
func FuzzProof(f *testing.F) {
	p := newIDP(f)
	a, h := authenticator(f, resources(p)), p.holder(f)
	good := h.proof(nil)
	other := p.holder(f)
	f.Add(other.proof(map[string]any{"ath": hashed(h.token)}))
	f.Add(good[:len(good)-1])
	f.Add(h.forged(map[string]any{"typ": "dpop+jwt", "alg": "none"}))
	f.Add("..")
	f.Fuzz(func(t *testing.T, proof string) {
		_, err := a.Identify(t.Context(), identity.FromRequest(shown("DPoP", h.token, proof), identity.Resource{Door: "/mcp"}))
		if identity.KindOf(err) != identity.Proof {
			t.Errorf("%q: %v", proof, err)
		}
	})
}
