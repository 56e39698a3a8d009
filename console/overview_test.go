package console_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// The overview tells names and reasons only to those who may watch toolgate, and errors of servers to
// nobody: those are on their own pages.
func TestOverview(t *testing.T) {
	everybody, named, nobody := func(policy.Principal) bool { return true }, policy.Principal.Valid, func(policy.Principal) bool { return false }
	for name, tc := range map[string]struct {
		watches func(policy.Principal) bool
		token   string // "" = not signed in
		details bool
	}{
		"everybody watches":           {everybody, "", true},
		"people watch, and it is one": {named, "t-ann", true},
		"people watch, and it is not": {named, "", false},
		"nobody watches, a person":    {nobody, "t-ann", false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, func(o *console.Options) {
				o.Watches = tc.watches
				o.Activity = func(_ context.Context, _ time.Time, n int) ([]console.Bucket, error) {
					return slices.Repeat([]console.Bucket{{Allowed: 1}}, n), nil
				}
			})
			l.status = failing("the-reason")
			l.hold(`{"n":1}`)
			b := newBrowser(l)
			if tc.token != "" {
				b.signIn(tc.token)
			}
			page := b.do("GET", "/console/", nil).Body.String()
			for _, want := range []string{"No calls are served", "1 server has failed", "2 tools are quarantined", "1 part is missing", "1 warning", "1 call waits for"} {
				if !strings.Contains(page, want) {
					t.Errorf("the page does not say %q", want)
				}
			}
			for _, text := range []string{"Held for a person", "the last reload failed", "toolgate serves without limits", "toolgate tool diff"} {
				if strings.Contains(page, text) != tc.details {
					t.Errorf("the page says %q: %v", text, !tc.details)
				}
			}
			if strings.Contains(page, `href="/console/servers`) {
				t.Error("the page leads to pages of servers")
			}
		})
	}
}

// The chart shows calls by verdict, and as long as there are none the page says how to begin.
func TestActivity(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	asked := map[time.Time]int{}
	of := func(ever, daily int) func(context.Context, time.Time, int) ([]console.Bucket, error) {
		return func(_ context.Context, since time.Time, buckets int) ([]console.Bucket, error) {
			asked[since] = buckets
			all := make([]console.Bucket, buckets)
			if all[0] = (console.Bucket{From: since, Allowed: daily, Held: daily / 2, Denied: daily / 4}); since.IsZero() {
				all[0].Allowed = ever
			}
			return all, nil
		}
	}
	for name, tc := range map[string]struct {
		activity func(context.Context, time.Time, int) ([]console.Bucket, error)
		chart    bool
		begin    bool
	}{
		"nobody counts":             {nil, false, false},
		"they cannot be counted":    {func(context.Context, time.Time, int) ([]console.Bucket, error) { return nil, errors.New("away") }, false, false},
		"no call ever":              {of(0, 0), false, true},
		"none on this day":          {of(9, 0), false, false},
		"eight, four held, two not": {of(9, 8), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, func(o *console.Options) { o.Activity = tc.activity })
			l.status = console.Status{Ready: true, Upstreams: []console.Upstream{server("web", "ready")}}
			page := l.ask("GET", "/console/", "").Body.String()
			if got := strings.Contains(page, "<svg class=\"chart\""); got != tc.chart {
				t.Errorf("a chart: %v", got)
			}
			if got := strings.Contains(page, "toolgate connect"); got != tc.begin {
				t.Errorf("how to begin: %v", got)
			}
			if strings.HasPrefix(name, "eight") {
				for _, want := range []string{`<rect class="allowed" x="1" y="41.1" width="8" height="54.9"><title>28 Feb 12:00 UTC: 8 allowed, 4 held, 2 denied</title>`, `<rect class="held" x="1" y="13.7"`, `<rect class="denied" x="1" y="0.0"`} {
					if !strings.Contains(page, want) {
						t.Errorf("the chart does not have %s:\n%s", want, page)
					}
				}
			}
		})
	}
	if diff := cmp.Diff([]time.Time{{}, noon.Add(-24 * time.Hour), noon.Add(-time.Hour)}, slices.SortedFunc(maps.Keys(asked), time.Time.Compare)); diff != "" {
		t.Errorf("asked since (-want +got):\n%s", diff)
	}
	if asked[noon.Add(-24*time.Hour)] != 48 || asked[noon.Add(-time.Hour)] != 1 {
		t.Errorf("asked %v", asked)
	}
}

// Whatever servers, policies and configurations say, the pages of the status show it as text in which
// everything is to be seen.
func TestHostileStatus(t *testing.T) {
	l, _ := operated(t, func(o *console.Options) {
		o.Environment = hostile
		o.Stderr = func(string) []string { return []string{hostile} }
	})
	l.status = failing(hostile)
	l.status.Revision = hostile
	b := newBrowser(l).signIn("t-oda")
	pages := []string{"/console/", "/console/servers", "/console/approvals"}
	for _, u := range l.status.Upstreams {
		pages = append(pages, "/console/servers/"+url.PathEscape(u.Name))
	}
	for _, path := range pages {
		page := b.do("GET", path, nil).Body.String()
		if !strings.Contains(page, `\u202e`) {
			t.Errorf("%s does not show what is hidden", path)
		}
		for _, never := range []string{"<script>", "<img", "<a href=//", "\u202e", "\u200b"} {
			if strings.Contains(page, never) {
				t.Errorf("%s has %q", path, never)
			}
		}
	}
}

// The overview has the first warnings, and leads to all.
func TestManyWarnings(t *testing.T) {
	l := newListener(t, nil)
	for i := range 25 {
		l.status.Warnings = append(l.status.Warnings, fmt.Sprintf("warning %d.", i))
	}
	for path, want := range map[string]int{"/console/": 10, "/console/?warnings=all": 25} {
		page := l.ask("GET", path, "").Body.String()
		if got := strings.Count(page, "<li>warning "); got != want || strings.Contains(page, `<a href="/console/?warnings=all#warnings">and 15 more</a>`) != (want < 25) {
			t.Errorf("%s has %d warnings, want %d: %s", path, got, want, page)
		}
	}
}

// Operators have the servers in the navigation, see the end of their stderr, and restart one with a form
// of their session. It is recorded first.
func TestServerPages(t *testing.T) {
	for name, tc := range map[string]struct {
		token, server string
		change        func(*console.Options)
		form          func(url.Values)
		unrecorded    error
		status        int
		recorded      string // reason in the record, "-" = there is no record
	}{
		"an operator":         {token: "t-oda", server: "web", status: 303},
		"another role":        {token: "t-ann", server: "web", status: 403, recorded: "NOT_OPERATOR"},
		"another's form":      {token: "t-oda", server: "web", form: func(f url.Values) { f.Set("csrf", "x") }, status: 403, recorded: "-"},
		"a disabled server":   {token: "t-oda", server: "off", status: 404, recorded: "-"},
		"no such server":      {token: "t-oda", server: "other", status: 404, recorded: "-"},
		"it is not recorded":  {token: "t-oda", server: "web", unrecorded: errors.New("disk full"), status: 503},
		"the policy says not": {token: "t-oda", server: "web", change: func(o *console.Options) { o.May = nil }, status: 403, recorded: "NOT_OPERATOR"},
	} {
		t.Run(name, func(t *testing.T) {
			l, restarted := operated(t, func(o *console.Options) {
				o.Stderr = func(server string) []string { return []string{"no key for " + server} }
				if tc.change != nil {
					tc.change(o)
				}
			})
			b := newBrowser(l).signIn(tc.token)
			sees := tc.token == "t-oda" && tc.change == nil
			if page := b.do("GET", "/console/approvals", nil).Body.String(); strings.Contains(page, `href="/console/servers"`) != sees {
				t.Error("the navigation is another's")
			}
			for _, path := range []string{"/console/servers", "/console/servers/web"} {
				w := b.do("GET", path, nil)
				if sees && (w.Code != 200 || path == "/console/servers/web" && !strings.Contains(w.Body.String(), "no key for web")) || !sees && (w.Code != 403 || strings.Contains(w.Body.String(), "failed")) {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
			form := b.form("/console/approvals")
			if tc.form != nil {
				tc.form(form)
			}
			l.acts, l.unrecorded = nil, tc.unrecorded
			w := b.do("POST", "/console/servers/"+tc.server+"/restart", form)
			if w.Code != tc.status || (len(*restarted) > 0) != (tc.status == 303) || tc.status == 303 && w.Header().Get("Location") != "/console/servers/web" {
				t.Errorf("%d %v, restarted %v", w.Code, w.Header(), *restarted)
			}
			if tc.recorded == "-" != (len(l.acts) == 0) {
				t.Fatalf("recorded %+v", l.acts)
			}
			if tc.recorded != "-" && (l.acts[0].Name != audit.EventRestarted || l.acts[0].Credential != "session" || l.acts[0].Reason != tc.recorded || l.acts[0].Server != tc.server) {
				t.Errorf("recorded %+v", l.acts[0])
			}
		})
	}
}

// A browser gets refusals as pages, a program as problem details.
func TestRefusalsAreForTheReader(t *testing.T) {
	l := newListener(t, nil)
	for target, want := range map[string]int{"GET /nothing": 404, "GET /console/nothing": 404, "GET /v1/approvals": 401, "POST /livez": 405} {
		method, path, _ := strings.Cut(target, " ")
		w := l.ask(method, path, "", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
		if w.Code != want || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || !strings.Contains(w.Body.String(), `<a href="/console/">Overview</a>`) {
			t.Errorf("%s: %d %v %s", target, w.Code, w.Header(), w.Body)
		}
		if csp := w.Header().Get("Content-Security-Policy"); strings.Contains(csp, "script") || !strings.Contains(csp, "default-src 'none'") {
			t.Errorf("%s: CSP %q", target, csp)
		}
		for _, accept := range []string{"", "*/*", "application/json"} {
			if w := l.ask(method, path, "", "Accept", accept); w.Code != want || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s, which accepts %q: %d %v", target, accept, w.Code, w.Header())
			}
		}
	}
}

// The page of a refusal knows its visitor, except where another site may have caused the request.
func TestRefusalsKnowTheVisitor(t *testing.T) {
	b := newBrowser(newListener(t, nil)).signIn("t-ann")
	for name, tc := range map[string]struct {
		header []string
		status int
		known  bool
	}{
		"a page that is missing":        {nil, 404, true},
		"a form of another site":        {[]string{"Origin", "https://evil.example"}, 403, false},
		"a name that is not this one's": {[]string{"Host", "evil.example"}, 403, false},
	} {
		w := b.do("GET", "/console/nothing", nil, append(tc.header, "Accept", "text/html")...)
		if got := strings.Contains(w.Body.String(), "Signed in as <b>ann</b>"); w.Code != tc.status || got != tc.known {
			t.Errorf("%s: %d, the visitor is known: %v", name, w.Code, got)
		}
	}
}
