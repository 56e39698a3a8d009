package credential_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// TestWholeWay: a person sees what is asked for, connects, and calls with tokens of her own, which
// are renewed and end with the grant.
func TestWholeWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.lacks(g, ann, "no connection")
	plan, err := g.Plan(t.Context(), w.server(), ann)
	if err != nil || plan.Issuer != w.as.URL || plan.Resource != w.rs.URL+"/mcp" || !slices.Equal(plan.Scopes, []string{"read"}) {
		t.Fatalf("%+v, %v", plan, err)
	}
	made := w.connect(g, ann)
	if made.Person != ann || made.Server != "mail" || made.Account != "ann@mail.example" || made.State != credential.GrantLive || made.Until.Sub(made.Created).Round(time.Second) != 600*time.Second {
		t.Errorf("%+v", made)
	}
	w.lacks(g, bob, "no connection")
	found := w.find(g, ann)
	if found.ID != made.ID || found.Person != ann || found.Issuer != w.as.URL || found.Account != made.Account || !slices.Equal(found.Scopes, []string{"read"}) || found != w.find(g, ann) {
		t.Errorf("%+v", found)
	}
	first := w.bearer(g, ann)
	if first != w.families[0].access || w.families[0].resource != plan.Resource {
		t.Errorf("the token is %s of %+v", first, w.families[0])
	}
	w.clock.forward(500 * time.Second)
	if w.bearer(g, ann) != first {
		t.Error("a token is renewed long before its end")
	}
	w.clock.forward(80 * time.Second)
	if second := w.bearer(g, ann); second == first || second != w.families[0].access {
		t.Errorf("30 s before its end the token is still %s", second)
	}
	if list, err := g.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].State != credential.GrantLive {
		t.Errorf("%+v, %v", list, err)
	}
	if ended, err := g.Ended(t.Context(), []string{made.ID, "other"}); err != nil || !slices.Equal(ended, []string{"other"}) {
		t.Errorf("%v, %v", ended, err)
	}
	if confirmed, err := g.Revoke(t.Context(), made.ID); err != nil || !confirmed || !slices.Equal(w.revoked, []string{"refresh_token", "access_token"}) {
		t.Errorf("%v, %v", err, w.revoked)
	}
	w.lacks(g, ann, "it was revoked")
	if ended, err := g.Ended(t.Context(), []string{made.ID}); err != nil || len(ended) != 1 {
		t.Errorf("%v, %v", ended, err)
	}
	if token, err := found.Tokens.Token(t.Context()); err == nil {
		t.Errorf("a revoked grant still gives %s", token)
	}
	if again := w.connect(g, ann); again.ID == made.ID || w.bearer(g, ann) != w.families[1].access {
		t.Errorf("connected again: %+v", again)
	}
	if w.count("POST /register") != 1 {
		t.Errorf("toolgate registered %d times", w.count("POST /register"))
	}
}

// TestNothingInTheClear: whoever reads the store has no token, code, verifier or state.
func TestNothingInTheClear(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.connect(g, ann)
	state := w.begin(g, ann).Get("state")
	for _, table := range []string{"credential_grants", "credential_starts", "credential_clients"} {
		rows, err := w.db.Read.QueryContext(t.Context(), "SELECT * FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		columns, _ := rows.Columns()
		n := 0
		for ; rows.Next(); n++ {
			cells, at := make([]any, len(columns)), make([]any, len(columns))
			for i := range cells {
				at[i] = &cells[i]
			}
			if err := rows.Scan(at...); err != nil {
				t.Fatal(err)
			}
			for i, cell := range cells {
				text, _ := cell.(string)
				if raw, ok := cell.([]byte); ok {
					text = string(raw)
				}
				if strings.Contains(text, canary) || strings.Contains(text, state) || columns[i] == "sealed" && strings.Contains(text, "{") && json.Valid([]byte(text)) {
					t.Errorf("%s.%s: %q", table, columns[i], text)
				}
			}
		}
		if n == 0 || rows.Err() != nil {
			t.Errorf("%s has %d rows, %v", table, n, rows.Err())
		}
		rows.Close()
	}
}

// TestHangingRevocation: an authorization server that does not answer holds up no end of a grant, and
// whoever revokes it for ten seconds at most.
func TestHangingRevocation(t *testing.T) {
	t.Parallel()
	parts.Long(t, "waits for ten seconds")
	w := newWorld(t)
	g, asked := w.replica(), make(chan struct{}, 2)
	made := w.connect(g, ann)
	inner := w.as.Config.Handler
	w.as.Config.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/revoke" {
			inner.ServeHTTP(out, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is noticed from here on
		asked <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-t.Context().Done():
		}
	})
	done, begun := make(chan error, 1), time.Now()
	go func() {
		confirmed, err := g.Revoke(t.Context(), made.ID)
		if confirmed {
			err = errors.Join(err, errors.New("it is said to be confirmed"))
		}
		done <- err
	}()
	<-asked
	w.lacks(g, ann, "the connection has ended: it was revoked")
	w.lacks(w.replica(), ann, "the connection has ended: it was revoked")
	select {
	case err := <-done:
		if took := time.Since(begun); err != nil || took < 9*time.Second || len(asked) > 0 {
			t.Errorf("%v after %s, and %d more requests", err, took, len(asked))
		}
	case <-time.After(15 * time.Second):
		t.Error("it waits for longer than ten seconds")
	}
	if said := w.logged.String(); !strings.Contains(said, "tokens of a connection could not be revoked") || strings.Contains(said, canary) {
		t.Errorf("logged %s", said)
	}
}

// TestRevokedElsewhere: what another replica revokes counts within two seconds.
func TestRevokedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.replica(), w.replica()
	made := w.connect(one, ann)
	tokens := w.find(two, ann).Tokens
	w.bearer(two, ann)
	if _, err := one.Revoke(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	w.lacks(one, ann, "it was revoked")
	w.clock.forward(2 * time.Second)
	w.lacks(two, ann, "it was revoked")
	if token, err := tokens.Token(t.Context()); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("%q, %v", token, err)
	}
}

// TestRegistration: the order in which toolgate says who it is.
func TestRegistration(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		document, configured string
		supports             bool
		registers            bool
		client               string // "" = an error with a hint
	}{
		"configured wins":           {"https://gate.example/c.json", "own", true, true, "own"},
		"the metadata document":     {"https://gate.example/c.json", "", true, true, "https://gate.example/c.json"},
		"a document nobody reads":   {"https://gate.example/c.json", "", false, true, "registered"},
		"no document":               {"", "", true, true, "registered"},
		"nothing that counts there": {"", "", false, false, ""},
	} {
		w := newWorld(t)
		w.document = tt.document
		w.meta = func(m map[string]any) {
			m["client_id_metadata_document_supported"] = tt.supports
			if !tt.registers {
				delete(m, "registration_endpoint")
			}
		}
		server := w.server()
		server.Credential.ClientID = tt.configured
		address, err := w.replica().Begin(t.Context(), server, ann)
		u, _ := url.Parse(address)
		if tt.client == "" {
			if err == nil || !strings.Contains(err.Error(), "hint: register toolgate there") {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || u.Query().Get("client_id") != tt.client {
			t.Errorf("%s: %s, %v", name, address, err)
		}
	}
}

// TestSlashAndBasic: the metadata of an issuer that ends with a slash are at an address without it, and
// the client's ID is in the form beside Basic, as the Python SDK has both.
func TestSlashAndBasic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.resource = func(m map[string]any) { m["authorization_servers"] = []string{w.as.URL + "/"} }
	w.meta = func(m map[string]any) {
		m["issuer"], m["token_endpoint_auth_methods_supported"] = w.as.URL+"/", []string{"client_secret_basic"}
	}
	server, g := w.server(), w.replica()
	server.Credential.ClientID, server.Credential.ClientSecret = "own", canary
	address, err := g.Begin(t.Context(), server, ann)
	if err != nil {
		t.Fatal(err)
	}
	back := w.visit(address)
	back.Set("iss", w.as.URL+"/")
	made, err := g.Finish(t.Context(), ann, false, back, func(string) (config.Server, bool) { return server, true })
	if err != nil || made.Issuer != w.as.URL+"/" {
		t.Errorf("%+v, %v", made, err)
	}
}

// TestClientMetadata holds the document to its draft.
func TestClientMetadata(t *testing.T) {
	t.Parallel()
	var says map[string]any
	if err := json.Unmarshal(credential.ClientMetadata("https://admin.example/console/connections/callback", "https://gate.example/c.json"), &says); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"client_id": "https://gate.example/c.json", "client_name": "toolgate", "redirect_uris": []any{"https://admin.example/console/connections/callback"},
		"grant_types": []any{"authorization_code", "refresh_token"}, "response_types": []any{"code"}, "token_endpoint_auth_method": "none",
	}
	got, _ := json.Marshal(says)
	wanted, _ := json.Marshal(want)
	if string(got) != string(wanted) {
		t.Errorf("%s, want %s", got, wanted)
	}
}

// TestMoreRights: what a server asks for when the scopes are too few is asked for at the next
// connection, within bounds, and nothing runs as if it had been granted.
func TestMoreRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	first := w.connect(g, ann)
	tokens := w.find(g, ann).Tokens
	before := w.bearer(g, ann)
	tokens.Refused(before, []string{`Bearer error="insufficient_scope", scope="read"`}) // which was granted
	w.find(g, ann)
	tokens.Refused(before, []string{`Bearer error="insufficient_scope", scope="write ` + strings.Repeat("x", 129) + ` a\"b"`})
	w.lacks(g, ann, "the server asks for more rights: write")
	if token, err := tokens.Token(t.Context()); token != before || err != nil {
		t.Errorf("calls under way have %q, %v", token, err)
	}
	plan, err := g.Plan(t.Context(), w.server(), ann)
	if err != nil || !slices.Equal(plan.Scopes, []string{"read", "write"}) {
		t.Errorf("%v, %v", plan.Scopes, err)
	}
	if second := w.connect(g, ann); second.ID == first.ID || !slices.Equal(second.Scopes, []string{"read", "write"}) {
		t.Errorf("%+v", second)
	}
	w.find(g, ann)
	var many []string
	for range 200 {
		many = append(many, strings.ToLower(strings.Repeat("s", len(many)%100+1)))
	}
	w.find(g, ann).Tokens.Refused(w.bearer(g, ann), []string{`Bearer error="insufficient_scope", scope="` + strings.Join(many, " ") + `"`})
	if plan, err := g.Plan(t.Context(), w.server(), ann); err != nil || len(plan.Scopes) != 64 {
		t.Errorf("%d scopes are asked for, %v", len(plan.Scopes), err)
	}
	w.connect(g, ann)
	w.find(g, ann).Tokens.Refused(w.bearer(g, ann), []string{`Bearer error="insufficient_scope", scope="pay", x="` + strings.Repeat(", ", 8<<10) + `"`})
	w.find(g, ann) // it is too long to be read
}

// TestRefusedByServer: a 401 leads to one renewal, and where that does not help to a person.
func TestRefusedByServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.connect(g, ann)
	tokens := w.find(g, ann).Tokens
	w.clock.forward(time.Minute)
	first := w.bearer(g, ann)
	for range 10 {
		tokens.Refused(first, []string{"Bearer"})
	}
	second, err := tokens.Token(t.Context())
	if err != nil || second == first || w.refreshed != 1 {
		t.Fatalf("%q, %v after %d renewals", second, err, w.refreshed)
	}
	tokens.Refused(second, nil)
	for range 10 {
		if token, err := tokens.Token(t.Context()); err == nil || !strings.Contains(err.Error(), "refuses the tokens") || w.refreshed != 1 {
			t.Fatalf("%q, %v after %d renewals", token, err, w.refreshed)
		}
	}
	w.clock.forward(time.Minute)
	if _, err := tokens.Token(t.Context()); err != nil || w.refreshed != 2 {
		t.Errorf("after a minute: %v, %d renewals", err, w.refreshed)
	}
}

// TestShared: one grant of an operator serves all callers, and no caller can connect.
func TestShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	server := w.server()
	server.Credential.Shared = true
	address, err := g.Begin(t.Context(), server, bob)
	if err != nil {
		t.Fatal(err)
	}
	made, err := g.Finish(t.Context(), bob, false, w.visit(address), func(string) (config.Server, bool) { return server, true })
	if err != nil || made.Person != (credential.Person{}) {
		t.Fatalf("%+v, %v", made, err)
	}
	found, err := g.Find(t.Context(), server, ann)
	if err != nil || found.ID != made.ID {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := g.Revoke(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	var missing *credential.Missing
	if _, err := g.Find(t.Context(), server, ann); !errors.As(err, &missing) || missing.Connects {
		t.Errorf("%v", err)
	}
	w.lacks(g, ann, "no connection")
	if _, err := g.Find(t.Context(), w.server(), credential.Person{}); !errors.As(err, &missing) || missing.Connects {
		t.Errorf("a caller without a name: %v", err)
	}
}

// TestOtherServer: tokens are for the address that they were given for.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.connect(g, ann)
	for _, change := range []string{"address", "issuer"} {
		server := w.server()
		if change == "address" {
			server.URL = "https://evil.example/mcp"
		} else {
			server.Credential.Issuer = "https://other.example"
		}
		if found, err := g.Find(t.Context(), server, ann); err == nil || !strings.Contains(err.Error(), change+" of the server has changed") {
			t.Errorf("%+v, %v", found, err)
		}
	}
}
