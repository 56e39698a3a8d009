package console_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
)

// shows asks for pages that have to show some words and no others.
func (b *browser) shows(path string, words, others []string) {
	b.t.Helper()
	w := b.do("GET", path, nil)
	for _, word := range words {
		if w.Code != 200 || !strings.Contains(w.Body.String(), word) {
			b.t.Errorf("%s: %d without %q: %s", path, w.Code, word, w.Body)
		}
	}
	for _, word := range others {
		if strings.Contains(w.Body.String(), word) {
			b.t.Errorf("%s has %q", path, word)
		}
	}
}

// closed holds that nobody without the right opens pages, and that a form does nothing for them, nor from
// another session.
func closed(t *testing.T, l *listener, may, mayNot string, pages []string, forms map[string][]string) {
	t.Helper()
	one, other := newBrowser(l).signIn(may), newBrowser(l).signIn(mayNot)
	for _, path := range pages {
		if w := other.do("GET", path, nil); w.Code != 403 {
			t.Errorf("%s: %d", path, w.Code)
		}
		if w := one.do("GET", path, nil); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for path, fields := range forms {
		form := other.form("/console/approvals", fields...)
		for _, who := range []*browser{one, other} {
			if w := who.do("POST", path, form); w.Code != 403 {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	}
}

// Pages of tools are for those who may see them, and only some judge.
func TestPagesOfTools(t *testing.T) {
	l, s := shelved(t, nil)
	closed(t, l, "t-ann", "t-eve", []string{"/console/tools", "/console/tools/web/a"}, map[string][]string{"/console/tools/web/a/accept": {"digest", "sha256:2"}, "/console/tools/web/a/refuse": {"digest", "sha256:2", "reason", "r"}})
	ann, oda := newBrowser(l).signIn("t-ann"), newBrowser(l).signIn("t-oda")
	ann.shows("/console/tools", []string{"web__a", "web__b", "pay__a", `href="/console/tools/web/a"`}, nil)
	ann.shows("/console/tools?state=unserved", []string{"web__a", "pay__a"}, []string{"web__b"})
	ann.shows("/console/tools?server=web&state=&text=AD", []string{"web__a"}, []string{"web__b", "pay__a"})
	ann.shows("/console/tools?limit=1&server=web", []string{"web__a", "/console/tools?cursor=", "limit=1", "server=web"}, []string{"web__b"})
	ann.shows("/console/tools/web/a", []string{"/accept", "/refuse", `name="digest" value="sha256:2"`}, nil)
	ann.shows("/console/tools/web/b", []string{"web__b"}, []string{"/accept"})
	ann.shows("/console/tools/web/a?principal=eve&roles=x", []string{"<b>eve</b> (x)", "does not find the tool"}, nil)
	ann.shows("/console/tools/web/a?principal=stranger", []string{"the roles of this principal are not known", "web__a"}, nil)
	oda.shows("/console/tools/web/a", []string{"web__a"}, []string{"/accept", "/refuse"})
	for _, path := range []string{"/console/tools/web/z", "/console/tools?state=lost", "/console/tools?x=1", "/console/tools/web/a?x=1"} {
		if w := ann.do("GET", path, nil); w.Code != 404 && w.Code != 400 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	l.status.Upstreams = []console.Upstream{{Name: "web", State: "ready", Quarantined: 1}}
	oda.shows("/console/", []string{`href="/console/tools?server=&amp;state=unserved">1 tool is quarantined`}, nil)
	oda.shows("/console/servers/web", []string{`href="/console/tools?server=web&amp;state="`}, nil)
	newBrowser(l).signIn("t-eve").shows("/console/", []string{"1 tool is quarantined"}, []string{"/console/tools"})
	if w := oda.do("POST", "/console/tools/web/a/accept", oda.form("/console/tools/web/a", "digest", "sha256:2")); w.Code != 403 || s.judged != nil {
		t.Errorf("an operator: %d, %+v", w.Code, s.judged)
	}
	for action, reason := range map[string]string{"accept": "", "refuse": "too much"} {
		s.judged, l.acts = nil, nil
		w := ann.do("POST", "/console/tools/web/a/"+action, ann.form("/console/tools/web/a", "digest", "sha256:2", "reason", reason))
		if w.Code != 303 || w.Header().Get("Location") != "/console/tools/web/a?digest=sha256%3A2" {
			t.Errorf("%s: %d %v %s", action, w.Code, w.Header(), w.Body)
		}
		if want := []console.Verdict{{Server: "web", Name: "a", Digest: "sha256:2", By: "ann", Refuse: action == "refuse", Reason: reason}}; !cmp.Equal(s.judged, want) {
			t.Errorf("%s: %+v", action, s.judged)
		}
		if len(l.acts) != 1 || l.acts[0].Credential != "session" || l.acts[0].Tool != "a" || l.acts[0].Reason != "" {
			t.Errorf("%s: recorded %+v", action, l.acts)
		}
	}
	if w := ann.do("POST", "/console/tools/web/a/refuse", ann.form("/console/tools/web/a", "digest", "sha256:2")); w.Code != 422 {
		t.Errorf("without a reason: %d", w.Code)
	}
}

// A difference is two texts side by side, in which the words that differ are marked.
func TestTwoLines(t *testing.T) {
	l, _ := advisedBy(t, func(o *console.Options) { o.Tools = talker{} })
	page := newBrowser(l).signIn("t-oda").do("GET", "/console/tools/payments/transfer", nil).Body.String()
	for _, want := range []string{"Show <b>the customer the </b>result before", "Show <b>nobody the<mark>\\u200b</mark> </b>result before", "unchanged lines are left out"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q: %s", want, page)
		}
	}
	if n := strings.Count(page, `<tr class="changed">`); n != 5 {
		t.Errorf("%d lines are changed", n)
	}
}

// Operators see who is connected, and end sessions.
func TestPageOfSessions(t *testing.T) {
	l, rooms := lobbied(t, nil)
	closed(t, l, "t-oda", "t-ann", []string{"/console/sessions"}, map[string][]string{"/console/sessions/ses_1/end": nil})
	if rooms.ended != nil {
		t.Fatalf("ended %v", rooms.ended)
	}
	oda := newBrowser(l).signIn("t-oda")
	oda.shows("/console/sessions", []string{"<b>eve</b>", `cli\u202e/1`, "process 7", "<b>ann</b>"}, nil)
	oda.shows("/console/sessions?principal=eve&server=", []string{"<b>eve</b>"}, []string{"<b>ann</b>"})
	oda.shows("/console/sessions?limit=1", []string{"<b>ann</b>", "/console/sessions?cursor="}, []string{"<b>eve</b>"})
	l.acts = nil
	if w := oda.do("POST", "/console/sessions/ses_1/end", oda.form("/console/sessions")); w.Code != 303 || !cmp.Equal(rooms.ended, []string{"ses_1"}) {
		t.Errorf("%d %s, ended %v", w.Code, w.Body, rooms.ended)
	}
	if len(l.acts) != 1 || l.acts[0].Name != audit.EventSessionEnded || l.acts[0].Credential != "session" || l.acts[0].Reason != "" {
		t.Errorf("recorded %+v", l.acts)
	}
	if w := oda.do("POST", "/console/sessions/ses_9/end", oda.form("/console/sessions")); w.Code != 404 {
		t.Errorf("no such session: %d", w.Code)
	}
}

// Operators see what is used, and arguments only with the right to read them.
func TestPageOfLimits(t *testing.T) {
	l := limited(t, false, nil)
	closed(t, l, "t-oda", "t-eve", []string{"/console/limits"}, nil)
	oda, ann := newBrowser(l).signIn("t-oda"), newBrowser(l).signIn("t-ann")
	oda.shows("/console/limits", []string{"4 of 4", "5 of 10", `max="10" value="5"`, `ann\u202e`, "sum 900", "may be nearer"}, []string{"secret"})
	ann.shows("/console/limits", []string{"secret"}, nil)
	oda.shows("/console/limits?kind=rate&principal=eve&tool=", []string{"4 of 4"}, []string{"5 of 10", "sum 900"})
	oda.shows("/console/limits?limit=1", []string{"4 of 4", "/console/limits?cursor="}, []string{"5 of 10"})
}

// Operators see tokens, make them and revoke them.
func TestPageOfTokens(t *testing.T) {
	l, p := pursed(t)
	closed(t, l, "t-oda", "t-ann", []string{"/console/access"}, map[string][]string{"/console/access/tokens/e0e0e0e0e0e0/revoke": {"reason", "lost"}, "/console/access/tokens": {"subject", "a", "roles", "b"}})
	if p.revoked != nil {
		t.Fatalf("revoked %v", p.revoked)
	}
	oda := newBrowser(l).signIn("t-oda")
	oda.shows("/console/access", []string{"<b>eve</b>", "<b>ann</b>", "toolgate token create", "/tokens/e0e0e0e0e0e0/revoke"}, []string{"/tokens/a0a0a0a0a0a0/revoke"})
	oda.shows("/console/access?subject=eve", []string{"<b>eve</b>"}, []string{"<b>ann</b>"})
	w := oda.do("POST", "/console/access/tokens", oda.form("/console/access", "subject", " agent-7 ", "roles", "researcher, reader", "person", "a\u202eb", "for", "1h"))
	for _, want := range []string{"<code>tg_new</code>", "&#34;agent-7&#34;", "&#34;researcher&#34;,", `a\u202eb`, "toolgate.identity.tokens"} {
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d, without %s:\n%s", w.Code, want, w.Body)
		}
	}
	if w := oda.do("POST", "/console/access/tokens", oda.form("/console/access", "subject", "agent-7")); w.Code != 400 || !strings.Contains(w.Body.String(), "needs roles") {
		t.Errorf("without roles: %d %s", w.Code, w.Body)
	}
	l.acts = nil
	if w := oda.do("POST", "/console/access/tokens/e0e0e0e0e0e0/revoke", oda.form("/console/access", "reason", "lost")); w.Code != 303 || !cmp.Equal(p.revoked, []string{"e0e0e0e0e0e0 lost"}) {
		t.Errorf("%d %s, revoked %v", w.Code, w.Body, p.revoked)
	}
	if len(l.acts) != 1 || l.acts[0].Name != audit.EventRevoked || l.acts[0].Credential != "session" || l.acts[0].Why != "lost" {
		t.Errorf("recorded %+v", l.acts)
	}
	if w := oda.do("POST", "/console/access/tokens/e0e0e0e0e0e0/revoke", oda.form("/console/access", "reason", strings.Repeat("x", 1001))); w.Code != 400 {
		t.Errorf("a long reason: %d", w.Code)
	}
	if w := oda.do("POST", "/console/access/tokens/e0/revoke", oda.form("/console/access")); w.Code != 404 {
		t.Errorf("no such token: %d", w.Code)
	}
}

// Everybody who is known learns how to connect a client, and sees those of their own.
func TestConnectingClients(t *testing.T) {
	l, _ := lobbied(t, func(o *console.Options) { o.Clients = talker{}.clients })
	eve, bob := newBrowser(l).signIn("t-eve"), newBrowser(l).signIn("t-bob")
	eve.shows("/console/connect", []string{"connected</span>: <b>cli\\u202e/1</b>", "toolgate connect claude-code", "${TOOLGATE_TOKEN}", "http://127.0.0.1:8787/mcp"}, []string{"ses_1", "ses_2"})
	bob.shows("/console/connect?client=cursor", []string{"No client with your token", "toolgate connect cursor"}, []string{"cli\\u202e/1"})
	for query, status := range map[string]int{"?client=none": 404, "?x=1": 400} {
		if w := bob.do("GET", "/console/connect"+query, nil); w.Code != status {
			t.Errorf("%s: %d", query, w.Code)
		}
	}
	got := accepted(t, l.ask("GET", "/v1/connect", "", as("t-eve")...))
	if got["address"] != "http://127.0.0.1:8787/mcp" || len(got["clients"].([]any)) != 2 || len(got["sessions"].([]any)) != 1 {
		t.Errorf("%v", got)
	}
	refused(t, l.ask("GET", "/v1/connect", "", as("t-nobody")...), 401, "UNAUTHENTICATED")
	refused(t, l.ask("GET", "/v1/connect?x=1", "", as("t-eve")...), 400, "BAD_REQUEST")
	if w := newBrowser(l).do("GET", "/console/connect", nil); w.Code != 303 {
		t.Errorf("nobody: %d", w.Code)
	}
}
