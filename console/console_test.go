package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var staff = map[string]policy.Principal{
	"t-agent": {Subject: "agent", Roles: []string{"treasurer"}},
	"t-ann":   {Subject: "ann", Roles: []string{"approver"}},
	"t-bob":   {Subject: "bob", Roles: []string{"approver"}},
	"t-eve":   {Subject: "eve", Roles: []string{"researcher"}},
	"t-self":  {Subject: "agent", Roles: []string{"approver"}},
	"t-audit": {Subject: "aud", Roles: []string{"auditor"}},
	"t-void":  {Roles: []string{"approver"}},
	"t-oda":   {Subject: "oda", Roles: []string{"operator"}},
}

func identify(_ context.Context, bearer string) (policy.Principal, error) {
	p, ok := staff[bearer]
	if !ok {
		return policy.Principal{}, errors.New("secret reason")
	}
	return p, nil
}

// again identifies a principal again with the current configuration. An error
// ends the session.
func again(_ context.Context, _ policy.Principal, sum string) (policy.Principal, error) {
	for token, known := range staff {
		if fmt.Sprintf("%x", sha256.Sum256([]byte(token))) == sum {
			return known, nil
		}
	}
	return policy.Principal{}, errors.New("nobody any more")
}

// listener is a console over real tickets.
type listener struct {
	*console.Console
	t       *testing.T
	tickets *approval.Tickets
	clock
	status console.Status

	acts       []people.Act
	unrecorded error // of every record
}

// clock is the time of a test. It is safe for concurrent use: tickets keep themselves.
type clock struct{ passed atomic.Int64 }

func (c *clock) Now() time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(c.passed.Load()))
}

func (c *clock) advance(d time.Duration) { c.passed.Add(int64(d)) }

func trailRight(_ context.Context, p policy.Principal) (policy.TrailRight, error) {
	switch {
	case p.Has("auditor"):
		return policy.TrailAll, nil
	case p.Has("approver"):
		return policy.TrailDecides, nil
	}
	return policy.TrailNone, nil
}

// noTrail is an audit trail without records.
func noTrail(context.Context, int, bool) iter.Seq2[[]byte, error] {
	return func(func([]byte, error) bool) {}
}

func newListener(t *testing.T, change func(*console.Options)) *listener {
	t.Helper()
	l := &listener{t: t}
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	if l.tickets, err = approval.New(t.Context(), db, approval.Options{Now: l.Now}); err != nil {
		t.Fatal(err)
	}
	opts := console.Options{
		Options: people.Options{Store: db, Keys: keys.At(t.TempDir()), Identify: identify, Again: again, Now: l.Now, TrailRight: trailRight,
			Record: func(a people.Act) error {
				l.acts = append(l.acts, a)
				return l.unrecorded
			}},
		Approvals: l.tickets, Reconciler: l.tickets, Feed: l.tickets, Archive: l.tickets, Status: func() console.Status { return l.status },
		Held: l.tickets.Held, Audit: noTrail, Metrics: http.NotFoundHandler(), Version: "1.2.3",
	}
	if change != nil {
		change(&opts)
	}
	if l.Console, err = console.New(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Console.Close()
		if err := errors.Join(l.tickets.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// hold makes a ticket for a call with arguments.
func (l *listener) hold(arguments string) approval.Ticket {
	l.t.Helper()
	c, err := l.tickets.Claim(l.t.Context(), held(arguments))
	if err != nil || c.Outcome != approval.Pending {
		l.t.Fatalf("%q, %v", c.Outcome, err)
	}
	return c.Ticket
}

// ask sends a request; pairs are header names and values. Host is a header
// here.
func (l *listener) ask(method, target, body string, pairs ...string) *httptest.ResponseRecorder {
	l.t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:8788"
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == "Host" {
			r.Host = pairs[i+1]
			continue
		}
		r.Header.Add(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	l.ServeHTTP(w, r)
	return w
}

// as is the header of a person's request.
func as(token string) []string {
	return []string{"Authorization", "Bearer " + token, "Content-Type", "application/json"}
}

type problem struct {
	Type, Title, Detail, Code, Hint string
	Status                          int
}

// refused wants problem details with a status and a code.
func refused(t *testing.T, w *httptest.ResponseRecorder, status int, code string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if w.Code != status || p.Status != status || p.Code != code {
		t.Errorf("status %d, code %q (%s), want %d %s", w.Code, p.Code, p.Detail, status, code)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	if p.Type == "" || p.Title == "" || p.Detail == "" {
		t.Errorf("incomplete problem: %+v", p)
	}
	return p
}

func accepted(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return out
}

func TestRequiredOptions(t *testing.T) {
	whole := console.Options{Options: people.Options{Store: new(store.DB), Keys: keys.At(t.TempDir()), Identify: identify, Again: again}, Approvals: new(approval.Tickets), Reconciler: new(approval.Tickets), Feed: new(approval.Tickets), Archive: new(approval.Tickets), Status: func() console.Status { return console.Status{} }, Held: new(approval.Tickets).Held, Audit: noTrail, Metrics: http.NotFoundHandler()}
	for name, drop := range map[string]func(*console.Options){
		"approvals":  func(o *console.Options) { o.Approvals = nil },
		"reconciler": func(o *console.Options) { o.Reconciler = nil },
		"feed":       func(o *console.Options) { o.Feed = nil },
		"archive":    func(o *console.Options) { o.Archive = nil },
		"store":      func(o *console.Options) { o.Store = nil },
		"keys":       func(o *console.Options) { o.Keys = nil },
		"identify":   func(o *console.Options) { o.Identify = nil },
		"again":      func(o *console.Options) { o.Again = nil },
		"status":     func(o *console.Options) { o.Status = nil },
		"held":       func(o *console.Options) { o.Held = nil },
		"audit":      func(o *console.Options) { o.Audit = nil },
		"metrics":    func(o *console.Options) { o.Metrics = nil },
	} {
		opts := whole
		drop(&opts)
		if _, err := console.New(opts); err == nil {
			t.Errorf("built without %s", name)
		}
	}
}

func TestHealth(t *testing.T) {
	l := newListener(t, nil)
	if w := l.ask("GET", "/livez", ""); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("livez: %d %q", w.Code, w.Body)
	}
	if w := l.ask("GET", "/readyz", ""); w.Code != 503 || w.Body.String() != "not ready\n" {
		t.Errorf("readyz: %d %q", w.Code, w.Body)
	}
	since := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	l.status = console.Status{Ready: true, Revision: "sha256:r", Warnings: []string{"limits.rules[0] names no tool"}, Upstreams: []console.Upstream{
		{Name: "standard", State: "ready", Tools: 3, Since: since, Warnings: []string{"expose names no tool"}},
		{Name: "files", State: "failed", Quarantined: 1, Error: "exit status 1 \x1b[2J", Since: since},
	}, Sights: []console.Sight{
		{Role: "observer", Total: 1, Reason: "no right \x1b[2J", Hint: "toolgate policy explain"},
		{Role: "researcher", Visible: 1, Total: 3},
	}}
	if w := l.ask("GET", "/readyz", ""); w.Code != 200 || w.Body.String() != "ready\n" {
		t.Errorf("readyz: %d %q", w.Code, w.Body)
	}
	want := `ready
policy sha256:r
upstream standard ready, tools 3
warning: standard: expose names no tool
upstream files failed, tools 0, quarantined 1: exit status 1 \u001b[2J
warning: 1 tool, 0 visible to observer: no right \u001b[2J
hint: toolgate policy explain
3 tools, 1 visible to researcher
warning: limits.rules[0] names no tool
`
	if diff := cmp.Diff(want, l.ask("GET", "/readyz?verbose", "").Body.String()); diff != "" {
		t.Errorf("verbose (-want +got):\n%s", diff)
	}
	w := l.ask("GET", "/readyz?verbose", "", "Accept", "application/json")
	var got console.Status
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	l.status.Status = "ready"
	if diff := cmp.Diff(l.status, got); diff != "" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	l.status.Degraded = []string{"limits", "store"}
	if w := l.ask("GET", "/readyz", ""); w.Code != 200 || w.Body.String() != "degraded\n" {
		t.Errorf("readyz: %d %q", w.Code, w.Body)
	}
	if w := l.ask("GET", "/readyz?verbose", ""); w.Code != 200 || !strings.HasPrefix(w.Body.String(), "degraded\ndegraded without limits, store\npolicy ") {
		t.Errorf("readyz?verbose: %d %q", w.Code, w.Body)
	}
	if w := l.ask("GET", "/readyz?verbose", "", "Accept", "application/json"); w.Code != 200 || !strings.Contains(w.Body.String(), `"status":"degraded","degraded":["limits","store"]`) {
		t.Errorf("readyz?verbose: %d %q", w.Code, w.Body)
	}
	l.status = console.Status{}
	if w := l.ask("GET", "/readyz", "", "Accept", "application/json"); w.Code != 503 || strings.Contains(w.Body.String(), "null") {
		t.Errorf("readyz: %d %s", w.Code, w.Body)
	}
}

// Metrics and details of the status are for those who may watch toolgate. Everybody hears
// whether calls are served.
func TestWhoWatches(t *testing.T) {
	everybody, named := func(policy.Principal) bool { return true }, policy.Principal.Valid
	watcher := func(p policy.Principal) bool { return p.Subject == "ann" }
	for name, row := range map[string]struct {
		watches func(policy.Principal) bool
		who     string
		want    int
	}{
		"open, without a credential":          {everybody, "", 200},
		"credentials, and none":               {named, "", 401},
		"credentials, and an unknown one":     {named, "t-none", 401},
		"credentials, and one":                {named, "t-agent", 200},
		"a role, and no credential":           {watcher, "", 401},
		"a role, and somebody who has it not": {watcher, "t-agent", 403},
		"a role, and somebody who has it":     {watcher, "t-ann", 200},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, func(o *console.Options) {
				o.Watches, o.Metrics = row.watches, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			})
			l.status = console.Status{Ready: true, Revision: "sha256:secret", Warnings: []string{"secret"}}
			var shown []string
			if row.who != "" {
				shown = []string{"Authorization", "Bearer " + row.who}
			}
			for _, path := range []string{"/metrics", "/readyz?verbose"} {
				if w := l.ask("GET", path, "", shown...); w.Code != row.want {
					t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, row.want)
				}
			}
			for _, path := range []string{"/readyz", "/livez"} {
				w := l.ask("GET", path, "", append(shown, "Accept", "application/json")...)
				if w.Code != 200 || name[:4] != "open" && strings.Contains(w.Body.String(), "secret") {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		})
	}
}

func TestHosts(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Hosts = []string{"gate.example", "10.0.0.5", ""} })
	for host, want := range map[string]int{
		"127.0.0.1:8788": 200, "127.0.0.1": 200, "127.8.8.8:1": 200, "localhost:8788": 200, "LOCALHOST": 200, "[::1]:8788": 200, "[::1]": 200,
		"gate.example": 200, "Gate.Example:443": 200, "10.0.0.5:8788": 200,
		"": 403, ":8788": 403, "evil.example": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:8788": 403, "10.0.0.6": 403,
		"gate.example.evil": 403, "0.0.0.0:8788": 403, "[::ffff:10.0.0.5]": 403,
	} {
		if w := l.ask("GET", "/livez", "", "Host", host); w.Code != want {
			t.Errorf("host %q: %d, want %d", host, w.Code, want)
		}
	}
	everywhere := newListener(t, func(o *console.Options) { o.Hosts = []string{"0.0.0.0"} })
	for host, want := range map[string]int{"192.0.2.7:8788": 200, "[2001:db8::1]": 200, "rebound.example": 403} {
		if w := everywhere.ask("GET", "/livez", "", "Host", host); w.Code != want {
			t.Errorf("listening everywhere, host %q: %d, want %d", host, w.Code, want)
		}
	}
}

func TestOrigins(t *testing.T) {
	l := newListener(t, nil)
	k := l.hold(`{"n":1}`)
	for name, tt := range map[string]struct {
		method string
		header []string
		want   int
	}{
		"no browser":               {"GET", nil, 200},
		"same origin":              {"GET", []string{"Origin", "http://127.0.0.1:8788"}, 200},
		"same origin over TLS":     {"GET", []string{"Origin", "https://127.0.0.1:8788"}, 200},
		"another site":             {"GET", []string{"Origin", "https://evil.example"}, 403},
		"another port":             {"GET", []string{"Origin", "http://127.0.0.1:3000"}, 403},
		"another loopback name":    {"GET", []string{"Origin", "http://localhost:8788"}, 403},
		"no origin to speak of":    {"GET", []string{"Origin", "null"}, 403},
		"one good, one bad":        {"GET", []string{"Origin", "http://127.0.0.1:8788", "Origin", "https://evil.example"}, 403},
		"a file":                   {"GET", []string{"Origin", "file://127.0.0.1:8788"}, 403},
		"a link from another site": {"GET", []string{"Sec-Fetch-Site", "cross-site"}, 200},
		"a form of another site":   {"POST", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"a form of a neighbour":    {"POST", []string{"Sec-Fetch-Site", "same-site"}, 403},
		"a post of another origin": {"POST", []string{"Origin", "https://evil.example"}, 403},
	} {
		target := "/v1/approvals/" + k.ID
		if tt.method == "POST" {
			target += "/approve"
		}
		w := l.ask(tt.method, target, "", append(tt.header, as("t-ann")...)...)
		if w.Code != tt.want {
			t.Errorf("%s: %d, want %d", name, w.Code, tt.want)
		}
		if tt.want == 403 {
			refused(t, w, 403, "ORIGIN_REFUSED")
		}
	}
	if got, err := l.tickets.Get(t.Context(), k.ID); err != nil || got.State != approval.StateProposed {
		t.Errorf("the ticket is %s, %v", got.State, err)
	}
}

func TestHeaders(t *testing.T) {
	l := newListener(t, nil)
	for _, path := range []string{"/livez", "/console/", "/console/style.css", "/v1/approvals", "/nothing", "/"} {
		for _, host := range []string{"localhost", "evil.example"} {
			h := l.ask("GET", path, "", "Host", host).Header()
			for name, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "same-origin",
			} {
				if got := h.Get(name); got != want {
					t.Errorf("%s of %s: %s is %q", path, host, name, got)
				}
			}
			csp := h.Get("Content-Security-Policy")
			if !strings.HasPrefix(csp, "default-src 'none'; frame-ancestors 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "script") {
				t.Errorf("%s of %s: CSP %q", path, host, csp)
			}
		}
	}
}

func TestPathsAndMethods(t *testing.T) {
	l := newListener(t, nil)
	for _, path := range []string{"/", "/console"} {
		if w := l.ask("GET", path, ""); w.Code != 303 || w.Header().Get("Location") != "/console/" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
	}
	for _, path := range []string{"/nothing", "/console/x", "/v1", "/v1/approvals/a/b/c", "/mcp"} {
		refused(t, l.ask("GET", path, "", as("t-ann")...), 404, "NOT_FOUND")
	}
	for target, allow := range map[string]string{
		"POST /livez": "GET", "DELETE /v1/approvals": "GET", "PUT /v1/approvals/x": "GET",
		"GET /v1/approvals/x/approve": "POST", "HEAD /v1/approvals/x/deny": "POST", "POST /console/": "GET", "POST /v1/audit/tail": "GET", "GET /v1/servers/web/restart": "POST",
	} {
		method, path, _ := strings.Cut(target, " ")
		w := l.ask(method, path, "", as("t-ann")...)
		refused(t, w, 405, "METHOD_NOT_ALLOWED")
		if got := w.Header().Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", target, got, allow)
		}
	}
	if w := l.ask("HEAD", "/livez", ""); w.Code != 200 {
		t.Errorf("HEAD /livez: %d", w.Code)
	}
	with := newListener(t, func(o *console.Options) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") })
	})
	if w := with.ask("GET", "/metrics", ""); w.Body.String() != "up 1\n" {
		t.Errorf("metrics: %d %q", w.Code, w.Body)
	}
}

func TestWhoAsks(t *testing.T) {
	for name, header := range map[string][]string{
		"nobody":                       nil,
		"an unknown token":             {"Authorization", "Bearer t-none"},
		"a principal without a name":   {"Authorization", "Bearer t-void"},
		"an empty token":               {"Authorization", "Bearer "},
		"another scheme":               {"Authorization", "Basic t-ann"},
		"a bare token":                 {"Authorization", "t-ann"},
		"two tokens":                   {"Authorization", "Bearer t-ann", "Authorization", "Bearer t-agent"},
		"a token in the query, indeed": {"X-Token", "t-ann"},
	} {
		l := newListener(t, nil) // one address may show ten wrong credentials
		for _, target := range []string{"GET /v1/approvals?token=t-ann", "GET /v1/approvals/x", "POST /v1/approvals/x/approve", "GET /v1/audit/tail"} {
			method, path, _ := strings.Cut(target, " ")
			w := l.ask(method, path, "{}", header...)
			p := refused(t, w, 401, "UNAUTHENTICATED")
			if !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") || strings.Contains(p.Detail, "secret") {
				t.Errorf("%s, %s: %v %+v", name, target, w.Header(), p)
			}
		}
	}
	if w := newListener(t, nil).ask("GET", "/v1/approvals", "", "Authorization", "bearer t-ann"); w.Code != 200 {
		t.Errorf("the scheme in lower case: %d", w.Code)
	}
}

func TestPage(t *testing.T) {
	l := newListener(t, nil)
	l.hold(`{"secret":"of the agent"}`)
	l.status = console.Status{Ready: true, Revision: "sha256:rev", Upstreams: []console.Upstream{{Name: "<script>x\u202e", State: "ready", Tools: 3, Error: "internal path"}}}
	w := l.ask("GET", "/console/", "")
	page := w.Body.String()
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	if strings.Contains(page, "Quarantined tools") {
		t.Error("the page lists quarantined tools although there are none")
	}
	for _, want := range []string{"1.2.3", "sha256:rev", "1 call waits", "toolgate approval approve", "&lt;script&gt;x\\u202e"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, never := range []string{"<script", "of the agent", "agent", "internal path", "\u202e"} {
		if strings.Contains(page, never) {
			t.Errorf("the page says %q", never)
		}
	}
	if w := l.ask("GET", "/console/style.css", ""); w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/css") {
		t.Errorf("style: %d %v", w.Code, w.Header())
	}
	broken := newListener(t, func(o *console.Options) {
		o.Held = func(context.Context) (int, error) { return 0, errors.New("disk says no") }
	})
	if p := refused(t, broken.ask("GET", "/console/", ""), 500, "INTERNAL_ERROR"); strings.Contains(p.Detail, "disk") {
		t.Errorf("the caller learns %q", p.Detail)
	}
}

func lines(n int, follow func(ctx context.Context)) console.AuditTail {
	return func(ctx context.Context, last int, more bool) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for i := max(0, n-last); i < n; i++ {
				if !yield(fmt.Appendf(nil, `{"n":%d}`, i), nil) {
					return
				}
			}
			if more {
				follow(ctx)
			}
		}
	}
}

func TestAuditTail(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Audit = lines(12, nil) })
	w := l.ask("GET", "/v1/audit/tail?n=2", "", as("t-audit")...)
	if w.Body.String() != "{\"n\":10}\n{\"n\":11}\n" || w.Header().Get("Content-Type") != "application/jsonl" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if got := strings.Count(l.ask("GET", "/v1/audit/tail", "", as("t-audit")...).Body.String(), "\n"); got != 10 {
		t.Errorf("%d lines, want 10", got)
	}
	for _, token := range []string{"t-agent", "t-eve"} {
		refused(t, l.ask("GET", "/v1/audit/tail", "", as(token)...), 403, "NOT_AUDITOR")
	}
	for _, query := range []string{"n=x", "n=-1", "n=10001", "follow=maybe", "x=1", "%zz"} {
		refused(t, l.ask("GET", "/v1/audit/tail?"+query, "", as("t-audit")...), 400, "BAD_REQUEST")
	}
}

// A reader that follows hears at once, and Close lets the server shut down.
func TestFollowEndsWithClose(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Audit = lines(1, func(ctx context.Context) { <-ctx.Done() }) })
	server := httptest.NewServer(l)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/audit/tail?follow=1&n=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer t-audit")
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, len("{\"n\":0}\n"))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "{\"n\":0}\n" {
		t.Fatalf("%q, %v", first, err)
	}
	l.Console.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// A trail that breaks off must not look like its end.
func TestABrokenTrail(t *testing.T) {
	l := newListener(t, func(o *console.Options) {
		o.Audit = func(context.Context, int, bool) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				if yield([]byte(`{}`), nil) {
					yield(nil, errors.New("torn"))
				}
			}
		}
	})
	server := httptest.NewServer(l)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/audit/tail", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer t-audit")
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("a whole answer: %q", text)
	}
}

// The page says which tools are quarantined and why, where everybody may watch toolgate, and
// only how many elsewhere: its readers have not signed in.
func TestPageOfQuarantine(t *testing.T) {
	for name, open := range map[string]bool{"everybody watches": true, "one role watches": false} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, func(o *console.Options) {
				o.Watches = func(p policy.Principal) bool { return open || p.Subject != "" }
			})
			l.status = console.Status{Ready: true, Upstreams: []console.Upstream{{Name: "payments", State: "ready", Quarantined: 2,
				Withheld: map[string]string{"transfer": "it differs first in <a>\u202e\nhint: toolgate tool diff"}}}}
			page := l.ask("GET", "/console/", "").Body.String()
			if got := strings.Contains(page, `<code>transfer</code>: it differs first in &lt;a&gt;\u202e; hint: toolgate tool diff`); got != open {
				t.Errorf("the tool and the reason are shown: %v, want %v\n%s", got, open, page)
			}
			if got := strings.Contains(page, "transfer"); got != open {
				t.Errorf("the tool is named: %v, want %v", got, open)
			}
			if l.status.Upstreams[0].Withheld == nil {
				t.Error("the status was changed")
			}
		})
	}
}
