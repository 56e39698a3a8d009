package registry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// bank is a server with its own authorization server. Refresh tokens are
// good once, and whoever uses one again loses the grant.
type bank struct {
	url string

	mu       sync.Mutex // protects the fields below
	now      time.Time
	n        int
	codes    map[string]string    // ⇒ person
	access   map[string]token     //
	refresh  map[string]token     // that are good
	used     map[string]string    // refresh tokens ⇒ person
	reused   []string             // people whose refresh token was used twice
	mixed    []string             // requests on a session that another person has opened
	sessions map[string]string    // ⇒ person
	revoked  map[string]time.Time // people whose grant is over
}

type token struct {
	person string
	until  time.Time
}

const (
	life = time.Minute     // of an access token
	step = 2 * time.Second // by which the clock goes on, every few calls
)

func newBank(t testing.TB) *bank {
	b := &bank{now: time.Now(), codes: map[string]string{}, access: map[string]token{}, refresh: map[string]token{}, used: map[string]string{}, sessions: map[string]string{}, revoked: map[string]time.Time{}}
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	b.url = srv.URL
	object := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, strings.ReplaceAll(text, "HERE", b.url))
		}
	}
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", object(`{"resource": "HERE/mcp", "authorization_servers": ["HERE"]}`))
	mux.HandleFunc("/.well-known/oauth-authorization-server", object(`{"issuer": "HERE", "authorization_endpoint": "HERE/authorize", "token_endpoint": "HERE/token",
		"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"]}`))
	mux.HandleFunc("/authorize", b.authorize)
	mux.HandleFunc("/token", b.token)
	mux.HandleFunc("/mcp", b.serve)
	return b
}

// clock is that of the bank and of toolgate.
func (b *bank) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// authorize gives a code to the person whom the header X-Person names.
func (b *bank) authorize(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	code := fmt.Sprint("code-", b.n)
	b.codes[code] = r.Header.Get("X-Person")
	q := url.Values{"code": {code}, "state": {r.FormValue("state")}}
	w.Header().Set("Location", r.FormValue("redirect_uri")+"?"+q.Encode())
	w.WriteHeader(http.StatusFound)
}

func (b *bank) token(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	person, ok := b.codes[r.PostFormValue("code")]
	if spent := r.PostFormValue("refresh_token"); spent != "" {
		var t token
		if t, ok = b.refresh[spent]; ok {
			person = t.person
		} else if whose := b.used[spent]; whose != "" {
			b.reused, b.revoked[whose] = append(b.reused, whose), b.now
		}
		delete(b.refresh, spent)
		b.used[spent] = person
	}
	w.Header().Set("Content-Type", "application/json")
	if _, over := b.revoked[person]; !ok || over {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_grant"}`)
		return
	}
	b.n++
	access, refresh := fmt.Sprintf("access-%d-%s", b.n, person), fmt.Sprintf("refresh-%d-%s", b.n, person)
	b.access[access] = token{person, b.now.Add(life)}
	b.refresh[refresh] = token{person: person}
	fmt.Fprintf(w, `{"access_token": %q, "refresh_token": %q, "token_type": "Bearer", "expires_in": %d}`, access, refresh, life/time.Second)
}

// serve is a server with sessions, whose one tool says who calls.
func (b *bank) serve(w http.ResponseWriter, r *http.Request) {
	person, session := b.admit(r)
	var msg struct {
		ID     json.RawMessage
		Method string
	}
	switch {
	case person == "":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case json.NewDecoder(r.Body).Decode(&msg) != nil || msg.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := `{}`
	switch msg.Method {
	case "initialize":
		session = b.open(person)
		result = `{"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bank", "version": "1"}}`
	case "tools/list":
		result = `{"tools": [{"name": "who", "inputSchema": {"type": "object"}}]}`
	case "tools/call":
		result = fmt.Sprintf(`{"content": [{"type": "text", "text": "you are %s"}]}`, person)
	case "server/discover":
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Mcp-Session-Id", session)
	fmt.Fprintf(w, `{"jsonrpc": "2.0", "id": %s, "result": %s}`, msg.ID, result)
}

// admit returns the person of a request's token, "" for none that is good, and its session.
func (b *bank) admit(r *http.Request) (person, session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	t := b.access[bearer]
	if b.now.After(t.until) {
		return "", ""
	}
	session = r.Header.Get("Mcp-Session-Id")
	if session != "" && b.sessions[session] != t.person {
		b.mixed = append(b.mixed, t.person+" on a session of "+b.sessions[session])
	}
	return t.person, session
}

func (b *bank) open(person string) (session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	session = fmt.Sprint("session-", b.n)
	b.sessions[session] = person
	return session
}

// TestRacingPeople: fifty people call through three replicas at once, while their tokens end, with
// refresh tokens that are good once. No call runs as another person, and no refresh token is used
// twice.
func TestRacingPeople(t *testing.T) {
	t.Parallel()
	const people, callers = 50, 30
	calls := 10_000
	if testing.Short() {
		calls = 3000
	}
	b := newBank(t)
	dir, err := keys.Open(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	server := config.Server{
		Name: "bank", Type: config.TypeHTTP, URL: b.url + "/mcp", Prefix: "bank__", Isolation: "session", MaxSessions: 8, Timeout: patience, Pin: config.PinOff,
		OutputSchema: "warn", CaseVariants: "refuse", Credential: &config.Credential{Type: config.CredentialOAuth, ClientID: "toolgate"},
	}
	serverOf := func(string) (config.Server, bool) { return server, true }
	var replicas []*registry.Registry
	var grants []*credential.Grants
	for range 3 {
		db := database(t, path)
		g := credential.OpenGrants(credential.GrantOptions{
			DB: db, Keys: dir, Now: b.clock, Server: serverOf, Callback: func() string { return "http://127.0.0.1:1/connections/callback" }, Document: func() string { return "" },
		})
		t.Cleanup(g.Close)
		r := open(t, registry.Options{Credentials: credential.NewBroker(g, credential.BrokerOptions{Now: b.clock}), DB: db, Now: b.clock})
		apply(t, r, server)
		replicas, grants = append(replicas, r), append(grants, g)
	}
	for i := range people {
		b.connect(t, grants[i%3], server, fmt.Sprint("person-", i), serverOf)
	}
	var failed atomic.Int64
	work := make(chan int)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range work {
				person := fmt.Sprint("person-", rand.N(people))
				from := registry.Downstream{Session: "session-of-" + person, Subject: person}
				r := replicas[rand.N(3)]
				tool, ok := r.View(context.Background(), "bank", from).Lookup("who")
				if !ok {
					failed.Add(1)
					continue
				}
				result, err := r.Forward(context.Background(), tool, registry.Outgoing{Arguments: json.RawMessage(`{}`), From: from})
				switch {
				case err != nil:
					if failed.Add(1) <= 5 {
						t.Logf("%s: %v", person, err)
					}
				case !strings.Contains(string(result), `"you are `+person+`"`):
					t.Errorf("%s is answered %s", person, result)
				}
			}
		})
	}
	for i := range calls {
		if work <- i; i%50 == 0 {
			b.mu.Lock()
			b.now = b.now.Add(step)
			b.mu.Unlock()
		}
	}
	close(work)
	all.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Logf("%d calls, %d failed, %d tokens", calls, failed.Load(), len(b.access))
	if n := failed.Load(); n > int64(calls/100) {
		t.Errorf("%d of %d calls failed", n, calls)
	}
	if len(b.reused)+len(b.mixed) > 0 || len(b.used) == 0 {
		t.Errorf("used twice: %v; mixed: %v; renewed: %d", b.reused, b.mixed, len(b.used))
	}
}

// connect has a person connect.
func (b *bank) connect(t testing.TB, g *credential.Grants, server config.Server, person string, serverOf func(string) (config.Server, bool)) {
	t.Helper()
	who := credential.Person{Subject: person}
	address, err := g.Begin(t.Context(), server, who)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Person", person)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	back, err := res.Location()
	if err == nil {
		_, err = g.Finish(t.Context(), who, false, back.Query(), serverOf)
	}
	if err != nil {
		t.Fatal(err)
	}
}
