package credential_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/registry/credential"
)

// fails answers a request for tokens.
func fails(status int, body string) func(http.ResponseWriter, url.Values) bool {
	return func(out http.ResponseWriter, _ url.Values) bool {
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(status)
		_, _ = out.Write([]byte(body))
		return true
	}
}

// TestOneRenewal: however many ask at however many replicas, a refresh token is used once.
func TestOneRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replicas := []*credential.Grants{w.replica(), w.replica()}
	w.connect(replicas[0], ann)
	for round := 1; round <= 5; round++ {
		w.clock.forward(595 * time.Second)
		var all sync.WaitGroup
		for _, g := range replicas {
			for range 50 {
				all.Go(func() {
					found, err := g.Find(t.Context(), w.server(), ann)
					if err != nil {
						t.Error(err)
						return
					}
					if token, err := found.Tokens.Token(t.Context()); err != nil || !strings.HasPrefix(token, canary) {
						t.Errorf("%q, %v", token, err)
					}
				})
			}
		}
		all.Wait()
		w.clock.forward(2 * time.Second)
		if w.refreshed != round || w.reused != 0 {
			t.Fatalf("round %d: %d renewals, %d reused", round, w.refreshed, w.reused)
		}
		if one, two := w.bearer(replicas[0], ann), w.bearer(replicas[1], ann); one != two || one != w.families[0].access {
			t.Errorf("round %d: the replicas have %s and %s", round, one, two)
		}
	}
}

// TestCrashes: what a renewal that was not completed leaves. A refresh token that may have been used
// is not used again.
func TestCrashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.replica(), w.replica()
	made := w.connect(one, ann)
	w.bearer(two, ann)
	reached, never := make(chan struct{}), make(chan struct{})
	w.set(func() {
		w.token = func(http.ResponseWriter, url.Values) bool {
			close(reached)
			<-never // it has the token, and its answer is lost
			return true
		}
	})
	w.clock.forward(590 * time.Second)
	ctx, crash := context.WithCancel(t.Context())
	tokens := w.find(one, ann).Tokens
	done := make(chan error)
	go func() {
		_, err := tokens.Token(ctx)
		done <- err
	}()
	<-reached
	crash()
	if err := <-done; !errors.Is(err, context.Canceled) && err != nil {
		t.Errorf("who gave up: %v", err)
	}
	w.find(two, ann) // the token is still good, and the lease holds
	w.clock.forward(31 * time.Second)
	w.lacks(two, ann, "its renewal was interrupted")
	if list, err := two.List(t.Context()); err != nil || list[0].ID != made.ID || list[0].State != credential.GrantEnded {
		t.Errorf("%+v, %v", list, err)
	}
	w.set(func() { w.token = nil })
	close(never)
	w.clock.forward(2 * time.Second)
	w.lacks(one, ann, "its renewal was interrupted")
	if w.reused+w.refreshed != 0 {
		t.Errorf("%d renewals, %d reused", w.refreshed, w.reused)
	}
	w.connect(two, ann)
	w.bearer(one, ann)
}

// TestRenewalAnswers is the table of what becomes of a grant whose renewal fails.
func TestRenewalAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter, url.Values) bool
		ended  string // "" = it lives
		says   string // the error, where it lives
	}{
		"refused":                {answer: fails(400, `{"error": "invalid_grant", "error_description": "`+canary+`"}`), ended: "the authorization server has ended it"},
		"not now":                {answer: fails(503, canary), says: "status 503"},
		"too often":              {answer: fails(429, canary), says: "status 429"},
		"a wrong request":        {answer: fails(400, `{"error": "invalid_scope"}`), says: "status 400 invalid_scope"},
		"a gateway":              {answer: fails(502, canary), ended: "its renewal was interrupted"},
		"no answer":              {answer: func(http.ResponseWriter, url.Values) bool { panic(http.ErrAbortHandler) }, ended: "its renewal was interrupted"},
		"no token":               {answer: fails(200, `{"token_type": "bearer"}`), ended: "its renewal was interrupted"},
		"another type":           {answer: fails(200, `{"access_token": "`+canary+`", "token_type": "DPoP"}`), ended: "its renewal was interrupted"},
		"a client is gone":       {answer: fails(401, `{"error": "invalid_client"}`), ended: "does not know toolgate any longer"},
		"no refresh token":       {answer: fails(200, `{"access_token": "`+canary+`2", "token_type": "bearer", "expires_in": 600}`)},
		"a token without an end": {answer: fails(200, `{"access_token": "`+canary+`2", "refresh_token": "`+canary+`", "token_type": "bearer"}`)},
	} {
		w := newWorld(t)
		g := w.replica()
		w.connect(g, ann)
		tokens := w.find(g, ann).Tokens
		first := w.bearer(g, ann)
		w.clock.forward(605 * time.Second)
		w.set(func() { w.token = tt.answer })
		token, err := tokens.Token(t.Context())
		var missing *credential.Missing
		switch {
		case tt.ended != "":
			if !errors.As(err, &missing) || !strings.Contains(missing.Reason, tt.ended) {
				t.Errorf("%s: %q, %v", name, token, err)
			}
			w.lacks(g, ann, tt.ended)
		case tt.says != "":
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %q, %v", name, token, err)
			}
			w.find(g, ann)
			w.set(func() { w.token = nil })
			w.clock.forward(time.Second)
			if token, err := tokens.Token(t.Context()); err != nil || token == first || w.refreshed != 1 {
				t.Errorf("%s: later %q, %v, %d renewals", name, token, err, w.refreshed)
			}
		case err != nil || token != canary+"2":
			t.Errorf("%s: %q, %v", name, token, err)
		}
		if err != nil && strings.Contains(err.Error(), canary) || strings.Contains(w.logged.String(), canary) {
			t.Errorf("%s: %v\n%s", name, err, w.logged.String())
		}
		if strings.Contains(tt.ended, "toolgate") {
			w.set(func() { w.token = nil })
			if w.connect(g, ann); w.count("POST /register") != 2 {
				t.Errorf("%s: toolgate registered %d times", name, w.count("POST /register"))
			}
		}
	}
}

// TestAuthorizationServerAway: a renewal that did not reach it is tried again.
func TestAuthorizationServerAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.connect(g, ann)
	tokens := w.find(g, ann).Tokens
	first := w.bearer(g, ann)
	w.as.Close()
	w.clock.forward(590 * time.Second)
	if token, err := tokens.Token(t.Context()); token != first || err != nil {
		t.Errorf("before its end: %q, %v", token, err)
	}
	w.clock.forward(time.Minute)
	if token, err := tokens.Token(t.Context()); err == nil || !strings.Contains(err.Error(), "asking for a token: ") {
		t.Errorf("after it: %q, %v", token, err)
	}
	w.find(g, ann)
}

// TestKeptRefreshToken: where the authorization server keeps the refresh token over renewals, one
// whose answer was lost is made again.
func TestKeptRefreshToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.connect(g, ann)
	w.set(func() {
		w.token = func(out http.ResponseWriter, form url.Values) bool {
			return fails(200, `{"access_token": "a`+form.Get("refresh_token")+`", "token_type": "bearer", "expires_in": 600}`)(out, form)
		}
	})
	w.clock.forward(590 * time.Second)
	kept := w.bearer(g, ann)
	w.set(func() { w.token = fails(502, "") })
	w.clock.forward(590 * time.Second)
	if token := w.bearer(g, ann); token != kept {
		t.Errorf("%q, want the one before: %q", token, kept)
	}
	w.set(func() { w.token = nil })
	w.clock.forward(9 * time.Second)
	if token := w.bearer(g, ann); token != w.families[0].access || w.reused != 0 {
		t.Errorf("%q", token)
	}
}

// TestRevokedDuringRenewal: a grant that is revoked while it is renewed gives no token, and what the
// renewal brought is revoked too.
func TestRevokedDuringRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.replica(), w.replica()
	made := w.connect(one, ann)
	w.bearer(one, ann)
	w.clock.forward(590 * time.Second)
	w.set(func() {
		w.token = func(http.ResponseWriter, url.Values) bool {
			if _, err := two.Revoke(t.Context(), made.ID); err != nil {
				t.Error(err)
			}
			w.set(func() { w.families[0].ended, w.revoked = false, nil }) // at another authorization server
			return false
		}
	})
	token, err := w.find(one, ann).Tokens.Token(t.Context())
	if err == nil || token != "" || !strings.Contains(err.Error(), "it was revoked") {
		t.Errorf("%q, %v", token, err)
	}
	if !slices.Equal(w.revoked, []string{"refresh_token", "access_token"}) || w.refreshed != 1 {
		t.Errorf("revoked are %v", w.revoked)
	}
	w.lacks(one, ann, "it was revoked")
}

// TestStoreAway: while the store cannot be read, nobody has a credential for longer than two seconds.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.connect(g, ann)
	tokens := w.find(g, ann).Tokens
	w.bearer(g, ann)
	w.exec("ALTER TABLE credential_grants RENAME TO away")
	if _, err := tokens.Token(t.Context()); err != nil {
		t.Error(err)
	}
	w.clock.forward(2 * time.Second)
	var missing *credential.Missing
	if token, err := tokens.Token(t.Context()); err == nil || errors.As(err, &missing) {
		t.Errorf("%q, %v", token, err)
	}
	if found, err := g.Find(t.Context(), w.server(), ann); err == nil || errors.As(err, &missing) {
		t.Errorf("%+v, %v", found, err)
	}
	w.exec("ALTER TABLE away RENAME TO credential_grants")
	w.bearer(g, ann)
}

// TestWithoutRefreshToken: a grant that cannot be renewed ends with its token, before a call is made.
func TestWithoutRefreshToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.replica()
	w.answer = func(m map[string]any) { delete(m, "refresh_token") }
	w.connect(g, ann)
	tokens := w.find(g, ann).Tokens
	w.bearer(g, ann)
	w.clock.forward(599 * time.Second)
	w.bearer(g, ann)
	w.clock.forward(time.Second)
	w.lacks(g, ann, "expired")
	if token, err := tokens.Token(t.Context()); err == nil {
		t.Errorf("an ended token: %q", token)
	}
}
