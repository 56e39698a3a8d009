package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// purse has a token of eve and a revoked one of ann. It implements console.Tokens.
type purse struct{ revoked []string }

func (p *purse) Make(t console.Token) (console.MadeToken, error) {
	if len(t.Roles) == 0 {
		return console.MadeToken{}, errors.New("a token needs roles")
	}
	entry, err := json.Marshal(map[string]any{"subject": t.Subject, "person": t.Person, "tenant": t.Tenant, "roles": t.Roles, "expires": t.Expires})
	return console.MadeToken{ID: "f0f0f0f0f0f0", Token: "tg_new", Entry: entry}, err
}

func (p *purse) List(context.Context) ([]console.Token, error) {
	return []console.Token{
		{ID: "e0e0e0e0e0e0", Subject: "eve", Roles: []string{"researcher"}, State: "valid"},
		{ID: "a0a0a0a0a0a0", Subject: "ann", Roles: []string{"approver"}, State: "revoked"},
	}, nil
}

func (p *purse) Revoke(_ context.Context, id, reason string) error {
	p.revoked = append(p.revoked, id+" "+reason)
	return nil
}

func pursed(t *testing.T) (*listener, *purse) {
	t.Helper()
	p := new(purse)
	return newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return right == policy.Operates && p.Has("operator"), nil
		}
		o.Tokens = p
	}), p
}

// Operators see the tokens by subject.
func TestTokens(t *testing.T) {
	l, _ := pursed(t)
	for query, want := range map[string]string{
		"":             `{"tokens":[{"id":"a0a0a0a0a0a0","subject":"ann","roles":["approver"],"state":"revoked"},{"id":"e0e0e0e0e0e0","subject":"eve","roles":["researcher"],"state":"valid"}]}`,
		"?subject=eve": `{"tokens":[{"id":"e0e0e0e0e0e0","subject":"eve","roles":["researcher"],"state":"valid"}]}`,
		"?subject=bob": `{"tokens":[]}`,
	} {
		if w := l.ask("GET", "/v1/tokens"+query, "", as("t-oda")...); w.Code != 200 || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	refused(t, l.ask("GET", "/v1/tokens", "", as("t-ann")...), 403, "NOT_OPERATOR")
	refused(t, l.ask("GET", "/v1/tokens", "", as("t-nobody")...), 401, "UNAUTHENTICATED")
	for _, query := range []string{"?all=true", "?limit=1001", "?subject=a&subject=b"} {
		refused(t, l.ask("GET", "/v1/tokens"+query, "", as("t-oda")...), 400, "BAD_REQUEST")
	}
}

// A token is made for those who may, after its record, which does not have the token.
func TestMakeToken(t *testing.T) {
	const body = `{"subject": "agent-7", "person": "ann", "tenant": "north", "roles": ["researcher", "reader"], "for": "720h"}`
	json := append(as("t-oda"), "Content-Type", "application/json")
	l, _ := pursed(t)
	w := l.ask("POST", "/v1/tokens", body, json...)
	want := `{"id":"f0f0f0f0f0f0","token":"tg_new","entry":{"expires":"` + l.Now().Add(720*time.Hour).UTC().Format(time.RFC3339) + `","person":"ann","roles":["researcher","reader"],"subject":"agent-7","tenant":"north"}}`
	if got := strings.TrimSpace(w.Body.String()); w.Code != 201 || got != want || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %s, want %s; %v", w.Code, got, want, w.Header())
	}
	if diff := cmp.Diff([]people.Act{{Name: audit.EventTokenMade, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Added: []string{"token agent-7 f0f0f0f0f0f0"}}}, l.acts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		token, body string
		unrecorded  error
		status      int
		code        string
	}{
		"another role":       {"t-ann", body, nil, 403, "NOT_OPERATOR"},
		"nobody":             {"t-nobody", body, nil, 401, "UNAUTHENTICATED"},
		"no roles":           {"t-oda", `{"subject": "agent-7"}`, nil, 400, "BAD_REQUEST"},
		"no duration":        {"t-oda", `{"subject": "agent-7", "roles": ["a"], "for": "soon"}`, nil, 400, "BAD_REQUEST"},
		"a time in the past": {"t-oda", `{"subject": "agent-7", "roles": ["a"], "for": "-1h"}`, nil, 400, "BAD_REQUEST"},
		"another member":     {"t-oda", `{"subject": "agent-7", "roles": ["a"], "sha256": "0"}`, nil, 400, "BAD_REQUEST"},
		"it is not recorded": {"t-oda", body, errors.New("disk full"), 503, "AUDIT_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := pursed(t)
			l.unrecorded = tc.unrecorded
			w := l.ask("POST", "/v1/tokens", tc.body, append(as(tc.token), "Content-Type", "application/json")...)
			if strings.Contains(w.Body.String(), "tg_new") {
				t.Errorf("answered with a token: %s", w.Body)
			}
			refused(t, w, tc.status, tc.code)
		})
	}
}

// A token is revoked once, after its record.
func TestRevokeToken(t *testing.T) {
	l, p := pursed(t)
	w := l.ask("DELETE", "/v1/tokens/e0e0e0e0e0e0?reason=lost", "", as("t-oda")...)
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"state":"revoked"`) || !cmp.Equal(p.revoked, []string{"e0e0e0e0e0e0 lost"}) {
		t.Errorf("%d %s, revoked %v", w.Code, w.Body, p.revoked)
	}
	want := []people.Act{{Name: audit.EventRevoked, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Why: "lost", Removed: []string{"token eve e0e0e0e0e0e0"}}}
	if diff := cmp.Diff(want, l.acts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.revoked, l.acts = nil, nil
	if w := l.ask("DELETE", "/v1/tokens/a0a0a0a0a0a0", "", as("t-oda")...); w.Code != 200 || p.revoked != nil || l.acts != nil {
		t.Errorf("revoked again: %d, %v, %v", w.Code, p.revoked, l.acts)
	}
	for name, tc := range map[string]struct {
		token, path string
		unrecorded  error
		status      int
		code        string
		recorded    string // reason in the record, "" = there is none
	}{
		"another role":       {"t-ann", "e0e0e0e0e0e0", nil, 403, "NOT_OPERATOR", "NOT_OPERATOR"},
		"nobody":             {"t-nobody", "e0e0e0e0e0e0", nil, 401, "UNAUTHENTICATED", ""},
		"no such token":      {"t-oda", "e0e0", nil, 404, "NO_TOKEN", ""},
		"a long reason":      {"t-oda", "e0e0e0e0e0e0?reason=" + strings.Repeat("x", 1001), nil, 400, "BAD_REQUEST", ""},
		"another parameter":  {"t-oda", "e0e0e0e0e0e0?why=x", nil, 400, "BAD_REQUEST", ""},
		"it is not recorded": {"t-oda", "e0e0e0e0e0e0", errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			l, p := pursed(t)
			l.unrecorded = tc.unrecorded
			refused(t, l.ask("DELETE", "/v1/tokens/"+tc.path, "", as(tc.token)...), tc.status, tc.code)
			if p.revoked != nil {
				t.Errorf("revoked %v", p.revoked)
			}
			if tc.recorded == "NOT_OPERATOR" && (len(l.acts) != 1 || l.acts[0].Reason != tc.recorded || l.acts[0].Removed != nil) || tc.recorded == "" && len(l.acts) > 0 {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
}
