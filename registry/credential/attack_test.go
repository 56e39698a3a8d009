package credential_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// TestDiscovery is the table of what a server and its authorization server may not say.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	member := func(name string, value any) func(map[string]any) {
		return func(m map[string]any) { m[name] = value }
	}
	for name, tt := range map[string]struct {
		resource, meta func(map[string]any)
		says           string
	}{
		"another issuer":           {meta: member("issuer", "https://good.example"), says: "of another issuer"},
		"PKCE without S256":        {meta: member("code_challenge_methods_supported", []string{"plain"}), says: "S256"},
		"no PKCE":                  {meta: member("code_challenge_methods_supported", nil), says: "PKCE"},
		"a token endpoint in http": {meta: member("token_endpoint", "http://good.example/token"), says: "token_endpoint: it is not reached over https"},
		"a script as a page":       {meta: member("authorization_endpoint", "javascript:alert(1)"), says: "authorization_endpoint: it is no address"},
		"no page":                  {meta: member("authorization_endpoint", ""), says: "authorization_endpoint: it is no address"},
		"a password in it":         {meta: member("token_endpoint", "https://a:b@good.example/token"), says: "token_endpoint: it is no address"},
		"registration in http":     {meta: member("registration_endpoint", "http://good.example/r"), says: "registration_endpoint: it is not reached over https"},
		"revocation in http":       {meta: member("revocation_endpoint", "http://good.example/r"), says: "revocation_endpoint: it is not reached over https"},
		"a file as its issuer":     {resource: member("authorization_servers", []string{"file:///etc/passwd"}), says: "authorization server: it is no address"},
		"another resource":         {resource: member("resource", "https://bank.example/mcp"), says: "has no metadata"}, // of its own origin
		"a resource above it":      {resource: func(m map[string]any) { m["resource"] = strings.TrimSuffix(m["resource"].(string), "/mcp") }, says: "has no metadata"},
	} {
		w := newWorld(t)
		if tt.resource != nil {
			w.resource = tt.resource
		}
		if tt.meta != nil {
			w.meta = tt.meta
		}
		address, err := w.replica().Begin(t.Context(), w.server(), ann)
		if err == nil || address != "" || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %q, %v; want %s", name, address, err, tt.says)
		}
		if w.count("POST /register") > 0 {
			t.Errorf("%s: toolgate registered", name)
		}
	}
}

// TestRedirects: metadata are where they are looked for, and nowhere else.
func TestRedirects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	defer elsewhere.Close()
	w.rs.Config.Handler = http.RedirectHandler(elsewhere.URL, http.StatusFound)
	if _, err := w.replica().Plan(t.Context(), w.server(), ann); err == nil {
		t.Error("a server that redirects has a plan")
	}
	w = newWorld(t)
	w.as.Config.Handler = http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect)
	if _, err := w.replica().Plan(t.Context(), w.server(), ann); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("an authorization server that redirects: %v", err)
	}
	w = newWorld(t)
	g := w.replica()
	answer := w.begin(g, ann)
	w.as.Config.Handler = http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect) // with the code and the verifier
	if _, err := w.finish(g, ann, answer); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("a token endpoint that redirects: %v", err)
	}
}

// TestChallengedMetadata: whose metadata a challenge may name.
func TestChallengedMetadata(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		path, resource string // "" = the server's own
		good           bool
	}{
		"the server's, anywhere":            {"/elsewhere", "/mcp", true},
		"the origin's, where it belongs":    {"/.well-known/oauth-protected-resource", "", true},
		"the same with a slash":             {"/.well-known/oauth-protected-resource", "/", true},
		"the origin's, anywhere":            {"/mcp/tenant", "", false},
		"a neighbour's, where it belongs":   {"/.well-known/oauth-protected-resource/other", "/other", false},
		"a longer name, where it belongs":   {"/.well-known/oauth-protected-resource/m", "/m", false},
		"what is below, where it belongs":   {"/.well-known/oauth-protected-resource/mcp/a", "/mcp/a", false},
		"the origin's, at the server's own": {"/.well-known/oauth-protected-resource/mcp", "", false},
	} {
		w := newWorld(t)
		inner := w.rs.Config.Handler
		w.rs.Config.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case tt.path:
				write(out, map[string]any{"resource": w.rs.URL + tt.resource, "authorization_servers": []string{w.as.URL}})
			case "/mcp":
				inner.ServeHTTP(out, r)
			default:
				http.NotFound(out, r)
			}
		})
		w.challenge = fmt.Sprintf(`Bearer resource_metadata="%s%s"`, w.rs.URL, tt.path)
		plan, err := w.replica().Plan(t.Context(), w.server(), ann)
		if (err == nil) != tt.good || tt.good && plan.Resource != w.rs.URL+tt.resource {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
}

// TestPrivateAddresses: no packet goes to an address inside because a public server names it.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	server := config.Server{Name: "mail", URL: "https://mail.example/mcp", Credential: &config.Credential{Type: config.CredentialOAuth}}
	client, _, err := credential.NewReach(server)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"10.0.0.1", "127.0.0.1:1", "localhost:1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "[::1]:1", "[fd00::1]", "[::ffff:10.0.0.1]", "0.0.0.0:1"} {
		res, err := client.Get("https://" + host + "/x")
		if err == nil {
			res.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "not public") {
			t.Errorf("%s: %v", host, err)
		}
		if _, err := client.Get("http://" + host + "/x"); err == nil || !strings.Contains(err.Error(), "not reached over https") {
			t.Errorf("%s over http: %v", host, err)
		}
	}
	listener := httptest.NewUnstartedServer(http.NotFoundHandler())
	listener.Config.ErrorLog = log.New(io.Discard, "", 0)
	listener.StartTLS()
	defer listener.Close()
	server.Credential.Issuer = listener.URL // which the operator names
	if client, _, err = credential.NewReach(server); err != nil {
		t.Fatal(err)
	}
	if _, err = client.Get(listener.URL); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the configured issuer is not reached: %v", err)
	}
	server.Credential.Issuer = ""
	for _, inside := range []string{"https://10.1.2.3/mcp", "http://localhost:8080/mcp", "https://mail/mcp", "https://mail.corp.internal"} {
		server.URL = inside
		client, _, err := credential.NewReach(server)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = client.Get(listener.URL); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: what a private server names is not reached: %v", inside, err)
		}
	}
}

// TestPrivateIssuer: an authorization server at a private address is used where the operator names it, or
// the server is private too. Root certificates of the server count for it.
func TestPrivateIssuer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := authority.New("inside")
	if err == nil {
		err = errors.Join(root.Write(filepath.Join(dir, "as"), time.Hour, "0.0.0.0"), os.WriteFile(filepath.Join(dir, "root.pem"), root.PEM(), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "as.crt"), filepath.Join(dir, "as.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		configured, roots bool
		says              string // "" = it is used
	}{
		"configured":            {true, true, ""},
		"of a private server":   {false, true, ""},
		"of the system's roots": {true, false, "certificate"},
	} {
		w := newWorld(t)
		private := httptest.NewUnstartedServer(http.HandlerFunc(w.authorize))
		private.Config.ErrorLog = log.New(io.Discard, "", 0)
		private.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		private.StartTLS()
		t.Cleanup(private.Close)
		_, port, _ := net.SplitHostPort(private.Listener.Addr().String())
		issuer := "https://0.0.0.0:" + port // which is this machine, and no loopback address
		w.meta = func(m map[string]any) {
			for member, value := range m {
				if text, ok := value.(string); ok {
					m[member] = strings.Replace(text, w.as.URL, issuer, 1)
				}
			}
		}
		server := w.server()
		if tt.configured {
			server.Credential.Issuer = issuer
		} else {
			w.resource = func(m map[string]any) { m["authorization_servers"] = []string{issuer} }
		}
		if tt.roots {
			server.TLS = &config.ClientTLS{CA: filepath.Join(dir, "root.pem")}
		}
		plan, err := w.replica().Plan(t.Context(), server, ann)
		if tt.says == "" && (err != nil || plan.Issuer != issuer) || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
}

// nameServer knows one address for all names. It answers with first at first, and with next from then
// on.
type nameServer struct {
	mu          sync.Mutex // protects the fields below
	first, next [4]byte
}

// dial is a net.Resolver.Dial.
func (n *nameServer) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer ours.Close()
		head := make([]byte, 2)
		if _, err := io.ReadFull(ours, head); err != nil {
			return
		}
		m := make([]byte, binary.BigEndian.Uint16(head))
		if _, err := io.ReadFull(ours, m); err != nil {
			return
		}
		end := 12 // of the question (RFC 1035 section 4.1.2)
		for m[end] != 0 {
			end += int(m[end]) + 1
		}
		answer := bytes.Clone(m[:end+5])
		copy(answer[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
		if m[end+2] == 1 { // asked for IPv4
			n.mu.Lock()
			answer[7] = 1
			answer = append(append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), n.first[:]...)
			n.first = n.next
			n.mu.Unlock()
		}
		_, _ = ours.Write(append([]byte{byte(len(answer) >> 8), byte(len(answer))}, answer...))
	}()
	return theirs, nil
}

// TestRebinding: a name that was public when it was looked at, and is private when toolgate connects,
// is refused. It is not parallel, because it changes the name server of all.
func TestRebinding(t *testing.T) {
	inside := httptest.NewUnstartedServer(http.NotFoundHandler())
	var reached atomic.Int32
	inside.Config.ConnState = func(net.Conn, http.ConnState) { reached.Add(1) }
	inside.StartTLS()
	defer inside.Close()
	names := &nameServer{first: [4]byte{93, 184, 215, 14}, next: [4]byte{127, 0, 0, 1}}
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: names.dial}
	defer func() { net.DefaultResolver = before }()

	server := config.Server{Name: "mail", URL: "https://mail.example/mcp", Credential: &config.Credential{Type: config.CredentialOAuth}}
	client, _, err := credential.NewReach(server)
	if err != nil {
		t.Fatal(err)
	}
	const name = "as.example"
	if found, err := net.DefaultResolver.LookupHost(t.Context(), name); err != nil || found[0] != "93.184.215.14" {
		t.Fatalf("the name is %v, %v at first", found, err)
	}
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	res, err := client.Get("https://" + name + ":" + port)
	if err == nil {
		res.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "not public") || reached.Load() > 0 {
		t.Errorf("%v, and %d connections", err, reached.Load())
	}
	if found, err := net.DefaultResolver.LookupHost(t.Context(), name); err != nil || found[0] != "127.0.0.1" {
		t.Errorf("the name is %v, %v by now", found, err)
	}
}

// TestFinishedAnswers is the table of the answers with which a person may not come back.
func TestFinishedAnswers(t *testing.T) {
	t.Parallel()
	set := func(name string, values ...string) func(url.Values) {
		return func(a url.Values) { a[name] = values }
	}
	for name, tt := range map[string]struct {
		change func(url.Values)
		who    credential.Person
		says   string
	}{
		"another issuer":          {change: set("iss", "https://good.example"), says: "another authorization server"},
		"nearly the issuer":       {change: func(a url.Values) { a.Set("iss", a.Get("iss")+"/") }, says: "another authorization server"},
		"an empty issuer":         {change: set("iss", ""), says: "another authorization server"},
		"two issuers":             {change: func(a url.Values) { a.Add("iss", a.Get("iss")) }, says: "cannot be read: iss"},
		"no issuer":               {change: func(a url.Values) { a.Del("iss") }, says: "does not say of which"},
		"no code":                 {change: func(a url.Values) { a.Del("code") }, says: "no code"},
		"two codes":               {change: set("code", "a", "b"), says: "cannot be read: code"},
		"a long code":             {change: set("code", strings.Repeat("x", 5000)), says: "cannot be read: code"},
		"another code":            {change: set("code", canary), says: "invalid_grant"},
		"declined":                {change: set("error", "access_denied"), says: "declined"},
		"a text as an error":      {change: set("error", canary+"<script>\x1b[31m"), says: "not known"},
		"an error of another":     {change: func(a url.Values) { a.Set("error", "access_denied"); a.Set("iss", "https://good.example") }, says: "another authorization server"},
		"no state":                {change: func(a url.Values) { a.Del("state") }, says: "nobody has begun"},
		"another state":           {change: set("state", "x"), says: "nobody has begun"},
		"two states":              {change: func(a url.Values) { a.Add("state", "x") }, says: "nobody has begun"},
		"another person":          {who: bob, says: "somebody else has begun it"},
		"nobody":                  {who: credential.Person{}, says: ""},
		"her name elsewhere":      {who: credential.Person{Issuer: "https://other.example", Subject: "ann"}, says: "somebody else"},
		"her name in a tenant":    {who: credential.Person{Issuer: ann.Issuer, Tenant: "t", Subject: "ann"}, says: "somebody else"},
		"a person without issuer": {who: credential.Person{Subject: "ann"}, says: "somebody else"},
	} {
		w := newWorld(t)
		g := w.replica()
		answer := w.begin(g, ann)
		good := url.Values{}
		for k, v := range answer {
			good[k] = v
		}
		if tt.change != nil {
			tt.change(answer)
		}
		who := tt.who
		if who == (credential.Person{}) && name != "nobody" {
			who = ann
		}
		made, err := w.finish(g, who, answer)
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "script") {
			t.Errorf("%s: %+v, %v; want %s", name, made, err, tt.says)
		}
		w.lacks(g, ann, "no connection")
		w.lacks(g, bob, "no connection")
		if !strings.Contains(tt.says, "nobody") { // the state is spent
			if made, err := w.finish(g, ann, good); err == nil || !strings.Contains(err.Error(), "nobody has begun") {
				t.Errorf("%s, and then as it was: %+v, %v", name, made, err)
			}
		}
	}
}

// TestStates: a state counts once, for ten minutes, and a person has sixteen at most.
func TestStates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.replica(), w.replica()
	answer := w.begin(one, ann)
	if _, err := w.finish(two, ann, answer); err != nil {
		t.Errorf("at another replica: %v", err)
	}
	if _, err := w.finish(one, ann, answer); err == nil || !strings.Contains(err.Error(), "nobody has begun") {
		t.Errorf("replayed: %v", err)
	}
	late := w.begin(one, bob)
	w.clock.forward(10 * time.Minute)
	if _, err := w.finish(one, bob, late); err == nil || !strings.Contains(err.Error(), "ten minutes") {
		t.Errorf("after ten minutes: %v", err)
	}
	first := w.begin(one, ann)
	other := w.begin(one, bob)
	for range 16 {
		w.clock.forward(time.Second)
		w.begin(one, ann)
	}
	if _, err := w.finish(one, ann, first); err == nil {
		t.Error("the oldest of seventeen counts")
	}
	if _, err := w.finish(one, bob, other); err != nil {
		t.Errorf("another person's state is gone: %v", err)
	}
}

// TestStolenCode: a code is worth nothing in another person's session.
func TestStolenCode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	victim, thief := w.begin(g, ann), w.begin(g, bob)
	thief.Set("code", victim.Get("code"))
	if made, err := w.finish(g, bob, thief); err == nil || !strings.Contains(err.Error(), "invalid_grant") || strings.Contains(err.Error(), canary) {
		t.Errorf("%+v, %v", made, err)
	}
	w.lacks(g, bob, "no connection")
}

// TestChangedStore: whoever can write to the store gives nobody the tokens of another.
func TestChangedStore(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"sealed of another":  "UPDATE credential_grants SET version = version + 1, sealed = (SELECT sealed FROM credential_grants WHERE subject = 'ann') WHERE subject = 'bob'",
		"a row of another":   "UPDATE credential_grants SET version = version + 1, subject = CASE subject WHEN 'ann' THEN 'bob' ELSE 'eve' END",
		"an issuer":          "UPDATE credential_grants SET version = version + 1, person_issuer = 'x' WHERE subject = 'ann'",
		"an id":              "UPDATE credential_grants SET version = version + 1, id = 'grant-x' WHERE subject = 'bob'",
		"a cut text":         "UPDATE credential_grants SET version = version + 1, sealed = substr(sealed, 1, 40)",
		"a state of another": "UPDATE credential_starts SET subject = 'bob'",
	} {
		w := newWorld(t)
		g := w.replica()
		w.connect(g, ann)
		w.connect(g, bob)
		answer := w.begin(g, ann)
		tokens := map[string]bool{w.families[0].access: true, w.families[1].access: false}
		if strings.Contains(statement, "CASE") {
			w.exec("UPDATE credential_grants SET subject = 'carl' WHERE subject = 'bob'")
		}
		w.exec(statement)
		w.clock.forward(2 * time.Second)
		for _, who := range []credential.Person{bob, {Issuer: "x", Subject: "ann"}, {Issuer: ann.Issuer, Subject: "eve"}} {
			found, err := g.Find(t.Context(), w.server(), who)
			if err != nil {
				continue
			}
			if token, err := found.Tokens.Token(t.Context()); err == nil && (tokens[token] || who != bob) {
				t.Errorf("%s: %v has the token of another", name, who)
			}
		}
		if strings.Contains(statement, "starts") {
			if made, err := w.finish(g, bob, answer); err == nil {
				t.Errorf("%s: %+v", name, made)
			}
		}
	}
}

// TestMovedServer: who began to connect to one address gives no grant to another.
func TestMovedServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	moved := w.server()
	moved.URL += "/other"
	static := w.server()
	static.Credential = nil
	for name, server := range map[string]config.Server{"another address": moved, "another credential": static} {
		made, err := g.Finish(t.Context(), ann, false, w.begin(g, ann), func(string) (config.Server, bool) { return server, true })
		if err == nil || !strings.Contains(err.Error(), "has changed since") {
			t.Errorf("%s: %+v, %v", name, made, err)
		}
	}
	if made, err := g.Finish(t.Context(), ann, false, w.begin(g, ann), func(string) (s config.Server, ok bool) { return s, false }); err == nil {
		t.Errorf("no server: %+v", made)
	}
}

// TestAnswersOfTokens: what a token endpoint may not answer to a code.
func TestAnswersOfTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	for name, change := range map[string]func(map[string]any){
		"a long refresh token": func(m map[string]any) { m["refresh_token"] = strings.Repeat("x", 65<<10) },
		"a long token":         func(m map[string]any) { m["access_token"] = strings.Repeat("x", 65<<10) },
		"a line in it":         func(m map[string]any) { m["access_token"] = canary + "\nX: y" },
		"another type":         func(m map[string]any) { m["token_type"] = "DPoP" },
		"an ended token":       func(m map[string]any) { m["expires_in"] = -1 },
	} {
		w.set(func() { w.answer = change })
		if made, err := w.finish(g, ann, w.begin(g, ann)); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %+v, %v", name, made, err)
		}
	}
	w.lacks(g, ann, "no connection")
	w.set(func() {
		w.answer = func(m map[string]any) { m["id_token"], m["scope"] = canary+".x.y", strings.Repeat("s ", 100)+"a\"b" }
	})
	if made := w.connect(g, ann); made.Account != "" || !slices.Equal(made.Scopes, []string{"s"}) {
		t.Errorf("%+v", made)
	}
}

// TestClientSecretEnds: a client whose secret has ended is registered again.
func TestClientSecretEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.begin(g, ann)
	end := w.clock.now().Add(time.Hour)
	w.exec("UPDATE credential_clients SET until = " + strconv.FormatInt(end.UnixNano(), 10))
	if w.begin(g, ann); w.count("POST /register") != 1 {
		t.Errorf("registered %d times", w.count("POST /register"))
	}
	w.clock.forward(time.Hour)
	if w.begin(g, ann); w.count("POST /register") != 2 {
		t.Errorf("registered %d times", w.count("POST /register"))
	}
}

// TestRotatedKey: what was encrypted with an older version of the key still counts, and a renewal
// encrypts with the newest.
func TestRotatedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running := w.replica()
	w.connect(running, ann)
	sealedWith := func() (id string) {
		var sealed []byte
		if err := w.db.Read.QueryRowContext(t.Context(), "SELECT sealed FROM credential_grants").Scan(&sealed); err != nil {
			t.Fatal(err)
		}
		id, _, _ = strings.Cut(string(sealed), ":")
		return id
	}
	first := sealedWith()
	second, err := w.keys.Rotate(keys.Credentials)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.forward(590 * time.Second)
	if w.bearer(running, ann); sealedWith() != first {
		t.Errorf("a process that started before, whose key the others have, encrypts with %s", sealedWith())
	}
	g := w.replica()
	if before := w.bearer(g, ann); before != w.families[0].access || sealedWith() != first {
		t.Errorf("after the rotation: %s", before)
	}
	w.clock.forward(590 * time.Second)
	if after := w.bearer(g, ann); after != w.families[0].access || sealedWith() != second {
		t.Errorf("renewed with the key %s, want %s", sealedWith(), second)
	}
	w.keys, err = keys.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if found, err := w.replica().Find(t.Context(), w.server(), ann); err == nil || !strings.Contains(err.Error(), "hint: copy the files credentials-*.key") {
		t.Errorf("without the key: %+v, %v", found, err)
	}
}

// FuzzFinish: any answer is an error for whoever has not begun, and repeats nothing.
func FuzzFinish(f *testing.F) {
	f.Add("state=x&code=y&iss=z")
	f.Add("error=%00%1b&state=a&state=b")
	f.Add("code=&iss=&error=access_denied")
	f.Fuzz(func(t *testing.T, query string) {
		answer, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if code, err := credential.CodeOf(answer, "https://as.example"); err == nil && (answer.Get("iss") != "https://as.example" || answer.Has("error") || code != answer.Get("code") || code == "") {
			t.Errorf("%q: the code is %q", query, code)
		} else if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q: %q", query, err)
		}
	})
}
