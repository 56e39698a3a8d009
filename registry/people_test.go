package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// office is a server where each person has an account, which is a recorder behind a token. It also
// finds their credentials.
type office struct {
	url string

	mu       sync.Mutex // protects the fields below
	accounts map[string]*account
	ended    []string
}

// account is one person's.
type account struct {
	*recorder.Recorder
	id, token string // of the credential; token "" = it has none any more
	operator  bool
	pass      http.Handler
	refused   int // times that its token was refused
}

func newOffice(t *testing.T) *office {
	o := &office{accounts: make(map[string]*account)}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		var pass http.Handler
		for _, a := range o.accounts {
			if a.token != "" && r.Header.Get("Authorization") == "Bearer "+a.token {
				pass = a.pass
			}
		}
		o.mu.Unlock()
		if pass == nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex() // a stream may begin before the request is read whole
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	o.url = front.URL
	return o
}

// join gives a person an account with tools.
func (o *office) join(t *testing.T, person string, cfg recorder.Config) *account {
	t.Helper()
	cfg.Sessions = true
	rec := recorder.HTTP(t, cfg)
	to, err := url.Parse(rec.URL)
	if err != nil {
		t.Fatal(err)
	}
	a := &account{Recorder: rec, id: "grant-of-" + person, token: "canary-of-" + person}
	a.pass = &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	o.set(func() { o.accounts[person] = a })
	return a
}

func (o *office) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// Find implements registry.Credentials. A person is found by issuer, tenant and subject.
func (o *office) Find(_ context.Context, server config.Server, caller credential.Caller) (*credential.Credential, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if caller.Subject == "unknown" {
		return nil, errors.New("looking for a grant: the store is away")
	}
	a := o.accounts[caller.Issuer+caller.Tenant+caller.Subject]
	if server.Credential.Shared {
		a = o.accounts[""]
	}
	if a == nil || a.token == "" {
		return nil, &credential.Missing{Server: server.Name, Reason: "not connected", Connects: true}
	}
	return &credential.Credential{ID: a.id, Person: caller.Person, Operator: a.operator, Tokens: tokens{o, a}}, nil
}

// Ended implements registry.Credentials.
func (o *office) Ended(context.Context, []string) ([]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended, nil
}

// tokens are those of an account.
type tokens struct {
	o *office
	a *account
}

func (t tokens) Token(context.Context) (string, error) {
	t.o.mu.Lock()
	defer t.o.mu.Unlock()
	if t.a.token == "" {
		return "", &credential.Missing{Server: "office", Reason: "the grant has ended", Connects: true}
	}
	return t.a.token, nil
}

func (t tokens) Refused(string, []string) {
	t.o.mu.Lock()
	defer t.o.mu.Unlock()
	t.a.refused++
}

func (o *office) server() config.Server {
	return config.Server{
		Name: "office", Type: config.TypeHTTP, URL: o.url, Prefix: "office__", Isolation: "session", MaxSessions: 8, Timeout: patience, Pin: config.PinFirst,
		OutputSchema: "warn", CaseVariants: "refuse", Credential: &config.Credential{Type: config.CredentialOAuth},
	}
}

// as returns a client of a person in a session of its own.
func as(person string) registry.Downstream {
	return registry.Downstream{Session: "session-of-" + person, Subject: person}
}

// sees lists what a person is served, once it is that.
func sees(t *testing.T, r *registry.Registry, from registry.Downstream, want ...string) {
	t.Helper()
	var got []string
	await(t, fmt.Sprintf("%s sees %v", from.Subject, want), func() bool {
		got = nil
		for _, tool := range r.View(t.Context(), "office", from).Tools() {
			got = append(got, tool.Name)
		}
		return cmp.Equal(got, want)
	})
}

// calls calls a tool for a person.
func calls(t *testing.T, r *registry.Registry, from registry.Downstream, name string) (string, *registry.ForwardError) {
	t.Helper()
	tool, ok := r.View(t.Context(), "office", from).Lookup(name)
	if !ok {
		return "", &registry.ForwardError{Kind: registry.Quarantined}
	}
	result, err := r.Forward(t.Context(), tool, registry.Outgoing{Arguments: json.RawMessage(`{}`), From: from})
	var refused *registry.ForwardError
	errors.As(err, &refused)
	return string(result), refused
}

// said is a tool whose result is a text.
func said(name, text string) recorder.Tool {
	return recorder.Tool{Name: name, Result: fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, text)}
}

// titled is a tool with a title.
func titled(name, title string) recorder.Tool {
	return recorder.Tool{Name: name, Definition: fmt.Appendf(nil, `{"name":%q,"title":%q,"inputSchema":{"type":"object"}}`, name, title)}
}

// Each person's requests use his own connection, and his list is what that lists, as far as it is
// accepted. Who has none is refused, and sees what is accepted.
func TestPeople(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	resources := map[string]json.RawMessage{"resources/list": json.RawMessage(`{"resources":[{"uri":"of:alice","name":"x"}]}`)}
	alice := o.join(t, "alice", recorder.Config{Tools: []recorder.Tool{said("mail", "for alice"), {Name: "files"}}, Answers: resources, Instructions: "You work for alice."})
	bob := o.join(t, "bob", recorder.Config{Tools: []recorder.Tool{said("mail", "for bob"), {Name: "admin"}}})
	o.join(t, "tenantalice", recorder.Config{Tools: []recorder.Tool{{Name: "mail"}}})
	alice.operator = true
	r := open(t, registry.Options{Credentials: o})
	apply(t, r, o.server())
	sees(t, r, as("bob")) // nothing is accepted: he is no operator
	sees(t, r, as("alice"), "mail", "files")
	sees(t, r, as("bob"), "mail")
	sees(t, r, as("carol"), "mail", "files")
	hidden := o.server()
	hidden.BeforeConnection = config.BeforeHide
	apply(t, r, hidden)
	sees(t, r, as("carol"))
	sees(t, r, as("bob"), "mail")

	for person, want := range map[string]string{"alice": "for alice", "bob": "for bob"} {
		for _, from := range []registry.Downstream{as(person), {Subject: person}} {
			if got, e := calls(t, r, from, "mail"); e != nil || !strings.Contains(got, want) {
				t.Errorf("%s: %s, %v", person, got, e)
			}
		}
	}
	if len(alice.Calls()) != 2 || len(bob.Calls()) != 2 {
		t.Errorf("alice has %d calls and bob %d, want 2 each", len(alice.Calls()), len(bob.Calls()))
	}
	ask := registry.Ask{Method: "resources/list", From: as("alice")}
	if got, err := r.Ask(t.Context(), "office", ask); err != nil || !strings.Contains(string(got), "of:alice") {
		t.Errorf("alice's resources: %s, %v", got, err)
	}
	ask.From = as("bob")
	if got, err := r.Ask(t.Context(), "office", ask); err == nil {
		t.Errorf("bob gets %s", got)
	}
	if said := r.Introductions("office"); said[0].Instructions != "" {
		t.Errorf("everybody is told %q", said[0].Instructions)
	}
	other := as("alice")
	other.Session, other.Tenant, other.Issuer = "s", "tenant", ""
	if got, _ := calls(t, r, other, "mail"); strings.Contains(got, "for alice") {
		t.Errorf("another tenant's alice gets %s", got)
	}
	o.set(func() { o.accounts[""] = alice })
	for _, from := range []registry.Downstream{as("carol"), {}, {Session: "s"}, {Subject: "alice", Issuer: "elsewhere"}} {
		_, e := calls(t, r, from, "mail")
		_, err := r.Ask(t.Context(), "office", registry.Ask{Method: "resources/list", From: from})
		var asked *registry.ForwardError
		if errors.As(err, &asked); e == nil || asked == nil || e.Kind != registry.Unconnected || asked.Kind != registry.Unconnected || e.Sent {
			t.Errorf("%+v: %v and %v", from, e, asked)
		}
	}
	judged := as("alice")
	for id, want := range map[string]bool{"": true, alice.id: true, "grant-before": false} {
		judged.Credential = id
		if _, e := calls(t, r, judged, "mail"); (e == nil) != want {
			t.Errorf("a call that was judged with the credential %q: %v", id, e)
		}
	}
	if _, e := calls(t, r, as("unknown"), "mail"); e == nil || e.Kind != registry.Unavailable {
		t.Errorf("a credential that cannot be looked up: %v", e)
	}
}

// What only one person is offered is withheld until it is accepted: another definition too, and then
// it is for those who are offered it. The pins outlive a restart.
func TestDefinitionsOfPeople(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	o := newOffice(t)
	o.join(t, "alice", recorder.Config{Tools: []recorder.Tool{titled("mail", "one")}}).operator = true
	o.join(t, "bob", recorder.Config{Tools: []recorder.Tool{titled("mail", "two"), titled("admin", "power")}})
	start := func() (*registry.Registry, func()) {
		db := database(t, path)
		r := registry.New(registry.Options{Credentials: o, DB: db})
		apply(t, r, o.server())
		return r, func() {
			ctx, stop := context.WithTimeout(context.Background(), 0)
			defer stop()
			r.Close(ctx)
			db.Close()
		}
	}
	r, end := start()
	sees(t, r, as("alice"), "mail")
	sees(t, r, as("bob"))
	tool, ok := r.View(t.Context(), "office", as("bob")).Lookup("mail")
	if !ok || tool.Quarantine == "" {
		t.Fatalf("bob's definition: %v, %+v", ok, tool)
	}
	if _, err := r.Forward(t.Context(), tool, registry.Outgoing{From: as("bob")}); err == nil {
		t.Error("a withheld definition is called")
	}
	if err := r.Pins().Judge(t.Context(), registry.Verdict{Server: "office", Tool: "mail", Fingerprint: tool.Fingerprint}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sees(t, r, as("bob"), "mail")
		sees(t, r, as("alice"), "mail")
		for person, title := range map[string]string{"alice": "one", "bob": "two"} {
			tool, _ := r.View(t.Context(), "office", as(person)).Lookup("mail")
			if !strings.Contains(string(tool.Definition), title) {
				t.Errorf("%s has %s", person, tool.Definition)
			}
			if _, err := r.Forward(t.Context(), tool, registry.Outgoing{From: as(person)}); err != nil {
				t.Errorf("%s: %v", person, err)
			}
		}
		mine, _ := r.View(t.Context(), "office", as("alice")).Lookup("mail")
		if _, err := r.Forward(t.Context(), mine, registry.Outgoing{From: as("bob")}); err == nil {
			t.Error("bob calls a definition that he is not offered")
		}
		end()
		r, end = start()
		sees(t, r, as("carol"), "mail") // nobody is connected yet
	}
	if pins, err := r.Pins().List(t.Context()); err != nil || !slices.ContainsFunc(pins, func(p registry.Pin) bool { return p.Tool == "admin" && p.Accepted == "" }) {
		t.Errorf("what only bob is offered is no offer: %+v, %v", pins, err)
	}
	end()
}

// A connection ends with its credential, and a server's 401 leads to another token, and then to the
// person.
func TestEndOfACredential(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	alice := o.join(t, "alice", recorder.Config{Tools: []recorder.Tool{{Name: "mail"}}})
	bob := o.join(t, "bob", recorder.Config{Tools: []recorder.Tool{{Name: "mail"}}})
	alice.operator = true
	now := time.Now()
	r := open(t, registry.Options{Credentials: o, Now: func() time.Time { return now }})
	apply(t, r, o.server())
	sees(t, r, as("alice"), "mail")
	sees(t, r, as("bob"), "mail")
	for _, person := range []string{"alice", "bob"} {
		if _, e := calls(t, r, as(person), "mail"); e != nil {
			t.Fatal(e)
		}
	}
	o.set(func() { alice.token, o.ended = "", []string{alice.id} })
	if _, e := calls(t, r, as("alice"), "mail"); e == nil || e.Kind != registry.Unconnected {
		t.Errorf("a call after the end: %v", e)
	}
	await(t, "alice's connections end", func() bool { return alice.Streams() == 0 })
	if _, e := calls(t, r, as("bob"), "mail"); e != nil {
		t.Errorf("bob: %v", e)
	}
	o.set(func() { o.ended = nil })

	good := bob.token
	o.set(func() { bob.token = "another" }) // it was renewed
	if _, e := calls(t, r, as("bob"), "mail"); e != nil {
		t.Errorf("bob, with a new token: %v", e)
	}
	o.set(func() {
		bob.token, bob.pass = good, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	})
	if _, e := calls(t, r, as("bob"), "mail"); e == nil || e.Kind != registry.Unconnected || e.Sent {
		t.Errorf("bob, whom the server refuses: %v", e)
	}
	o.mu.Lock()
	if bob.refused == 0 {
		t.Error("his credential was not told that its token is refused")
	}
	o.mu.Unlock()
	for _, rec := range []*account{alice, bob} {
		if text := string(rec.Bytes()); strings.Contains(text, "canary") {
			t.Errorf("a message has a token: %s", text)
		}
	}
}

// The connections of somebody who does nothing end.
func TestIdlePeople(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	alice := o.join(t, "alice", recorder.Config{Tools: []recorder.Tool{{Name: "mail"}}})
	alice.operator = true
	var late atomic.Int64
	r := open(t, registry.Options{Credentials: o, Now: func() time.Time { return time.Now().Add(time.Duration(late.Load())) }})
	apply(t, r, o.server())
	sees(t, r, registry.Downstream{Subject: "alice"}, "mail")
	late.Store(int64(11 * time.Minute))
	await(t, "they end", func() bool { return alice.Sessions() == 0 })
	sees(t, r, registry.Downstream{Subject: "alice"}, "mail")
}

// The gate looks for a credential wherever the configuration has one, and from the reload on that adds it.
func TestAsConfigured(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.join(t, "alice", recorder.Config{Tools: []recorder.Tool{said("mail", "for alice")}}).operator = true
	plain := o.server()
	plain.URL, plain.Credential = recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{said("mail", "for all")}}).URL, nil
	r := open(t, registry.Options{Credentials: o})
	for _, tt := range []struct {
		server config.Server
		want   bool
	}{{plain, true}, {o.server(), false}, {plain, true}} {
		apply(t, r, tt.server)
		sees(t, r, as("alice"), "mail")
		tool, _ := r.View(t.Context(), "office", as("alice")).Lookup("mail")
		if found, err := r.Credential(t.Context(), "office", as("alice")); tool.AsConfigured != tt.want || (found == nil) != tt.want || err != nil {
			t.Errorf("as configured: %v, want %v; %v, %v", tool.AsConfigured, tt.want, found, err)
		}
	}
}

// One grant, which an operator gives, serves all callers: without it nobody is served, and when it
// ends the connections do.
func TestSharedGrant(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	toolgate := o.join(t, "", recorder.Config{Tools: []recorder.Tool{said("mail", "for all")}})
	o.set(func() { toolgate.token = "" })
	shared := o.server()
	shared.Credential.Shared, shared.StartWait = true, time.Second
	r := open(t, registry.Options{Credentials: o})
	apply(t, r, shared)
	ask := registry.Ask{Method: "ping", From: as("bob")}
	_, err := r.Ask(t.Context(), "office", ask)
	if refused := new(registry.ForwardError); !errors.As(err, &refused) || refused.Kind != registry.Unconnected {
		t.Errorf("without a grant: %v", err)
	}
	o.set(func() { toolgate.token = "canary" })
	sees(t, r, as("bob"), "mail")
	for _, person := range []string{"alice", "bob"} {
		if got, e := calls(t, r, as(person), "mail"); e != nil || !strings.Contains(got, "for all") {
			t.Errorf("%s: %s, %v", person, got, e)
		}
	}
	if tool, _ := r.View(t.Context(), "office", as("bob")).Lookup("mail"); tool.AsConfigured {
		t.Error("no credential is looked for")
	}
	if c, err := r.Credential(t.Context(), "office", as("bob")); err != nil || c.ID != toolgate.id {
		t.Errorf("bob's calls run as %v, %v", c, err)
	}
	o.set(func() { toolgate.token, o.ended = "", []string{toolgate.id} })
	await(t, "the connections end", func() bool { return toolgate.Streams() == 0 })
	if _, e := calls(t, r, as("bob"), "mail"); e == nil || e.Kind != registry.Unconnected {
		t.Errorf("after the end: %v", e)
	}
}
