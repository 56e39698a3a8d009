package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/stop"
)

// screens are the smallest phone and a desk, by day and by night.
var screens = []screen{
	{name: "small", width: 360, height: 740, phone: true}, {name: "small-dark", width: 360, height: 740, phone: true, dark: true},
	{name: "desk", width: 1280, height: 800}, {name: "desk-dark", width: 1280, height: 800, dark: true},
}

// hostile is what data says that wants to be more than text.
const hostile = `</td></pre><script>document.title='owned'</script><img src=x onerror="document.title='owned'"><a href=//evil.example>` + "pay \u202e001\u202c pay\u200bpal"

// A scene is what the pages have to show.
type scene struct {
	name     string
	status   console.Status
	activity func(since time.Time, buckets int) ([]console.Bucket, error)
	set      func(l *listener, held *heldStops)
	options  func(*console.Options) // that it has in the place of the usual ones
}

var scenes = []scene{
	{name: "normal", status: console.Status{Ready: true, Revision: "sha256:4f2a9c03b7d14c7c8f60b3c7d0e1a5f2", Upstreams: []console.Upstream{server("web", "ready"), server("payments", "ready")}}, activity: counts(7),
		set: func(l *listener, _ *heldStops) {
			l.runs(watched(transfer("80.00", "acct-4471 Northwind Paper")), "invoice 2026-117, checked", textResult("booked\nreference 2026-03-01/17\nbalance 8120.40 USD"), "")
			l.holds(watched(transfer("120.00", "acct-4471 Northwind Paper")))
			l.holds(watched(transfer("25000.00", "0x9f2cA41b77E6d0c18aD3e5F09B6c2C7e8D41aa90")))
		}},
	{name: "empty", activity: counts(0)},
	{name: "failing", status: failing("connecting to the server failed: connection refused"), activity: func(time.Time, int) ([]console.Bucket, error) { return nil, errors.New("the index is away") },
		set: func(_ *listener, held *heldStops) {
			held.all = []stop.State{{Stop: stop.Stop{ID: "stp_1", Kind: stop.Role, Name: "researcher", Reason: "incident 7", By: "oda", Until: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)}, Waiting: []string{"process 2 on gate-b"}}}
		}},
	{name: "hostile", status: failing(hostile), activity: counts(3),
		set: func(l *listener, held *heldStops) {
			h := watched(transfer("1.00", hostile))
			h.Principal.Client, h.Rule, h.Reason, h.Server, h.Exposed = hostile, hostile, hostile, hostile, hostile
			h.Tags = map[string]string{"urgency": hostile, hostile: "high"}
			l.runs(h, hostile, textResult(hostile), approval.ToolError+": "+hostile)
			h.TraceID, h.Reason = hostile, "another time"
			for _, to := range []string{"1", "2"} {
				other := transfer(to, hostile)
				h.Arguments, h.Digest = other.Arguments, other.Digest
				l.holds(h)
			}
			held.all = []stop.State{{Stop: stop.Stop{ID: "stp_1", Kind: stop.Tool, Name: hostile, Reason: hostile, By: hostile}, Waiting: []string{hostile}}}
		}},
}

// watched is a call that operators decide on too.
func watched(h approval.Held) approval.Held {
	h.Approval.Roles = append(h.Approval.Roles, "operator")
	return h
}

func server(name, state string) console.Upstream {
	return console.Upstream{Name: name, State: state, Tools: 14, Transport: "stdio", Revision: "2025-11-25", Since: time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC), Sandbox: "files, network", Sessions: 2, Restarts: 1,
		Capabilities: []string{"tools", "resources"}}
}

// failing is a status in which nothing is well, with a text wherever others choose one.
func failing(text string) console.Status {
	broken := server("payments", "failed")
	broken.Error, broken.Warnings, broken.Quarantined, broken.Withheld = text, []string{text}, 2, map[string]string{"transfer " + text: text + "\nhint: toolgate tool diff"}
	named := server("web "+text, "ready")
	named.Sandbox, named.Capabilities, named.Extensions, named.Revision, named.Dropped = text, []string{text}, []string{text}, text, 3
	return console.Status{Revision: "sha256:4f2a9c03b7d14c7c8f60b3c7d0e1a5f2", Degraded: []string{"limits " + text}, Warnings: []string{"the last reload failed and changed nothing: " + text}, Upstreams: []console.Upstream{broken, named}}
}

// counts is an activity of n calls and more in each bucket.
func counts(n int) func(time.Time, int) ([]console.Bucket, error) {
	return func(since time.Time, buckets int) ([]console.Bucket, error) {
		all := make([]console.Bucket, buckets)
		for i := range all {
			all[i] = console.Bucket{From: since.Add(time.Duration(i) * 30 * time.Minute), Allowed: n * (i%9 + i%4), Held: n / 6 * (i % 3 / 2), Denied: n / 3 * (i % 7 / 5)}
		}
		return all, nil
	}
}

// stage is a console with every page, which browsers reach.
func stage(t *testing.T, s scene) (*listener, string) {
	t.Helper()
	a, says := newAccounts(), talker{adviser: new(adviser)}
	if s.name == "hostile" {
		says.text = hostile
	}
	l, held := stopped(t, func(o *console.Options) {
		o.Environment = "staging"
		said, _ := json.Marshal(says.text)
		o.Audit = arrivals(strings.Trim(string(said), `"`))
		o.Connections, o.Connector = a, a
		o.TrailRight = func(context.Context, policy.Principal) (policy.TrailRight, error) { return policy.TrailAll, nil }
		o.Policy, o.Judge, o.Verify, o.Calls = says, says, says.verify, says
		o.Tools = says
		o.Sessions, o.Limits, o.Tokens = guests{says}, says.limits, pouch{says}
		o.Clients, o.Shadow, o.Anchors = says.clients, says.shadow, says.anchors
		o.Brief = says.briefing
		o.Export = func(context.Context, console.ExportQuery) (iter.Seq2[[]byte, error], error) { return nil, nil }
		o.Restart = func(_ context.Context, name string) (console.Upstream, error) { return server(name, "ready"), nil }
		o.Stderr = func(string) []string {
			return []string{"listening on stdio", "a line that is longer than a phone is wide, because programs write such lines", s.status.Revision + hostile}
		}
		o.TrialText = func(console.PolicyTrial) string {
			return "### Policy replay: 41 of 1204 decisions come out otherwise\n" + says.text
		}
		o.Latency = func(string) *console.Latency { return &console.Latency{Calls: 512, MedianMS: 12.4, P99MS: 1830} }
		o.Activity = func(_ context.Context, since time.Time, buckets int) ([]console.Bucket, error) {
			return s.activity(since, buckets)
		}
		if s.options != nil {
			s.options(o)
		}
	})
	l.status = s.status
	if s.set != nil {
		s.set(l, held)
	}
	server := httptest.NewServer(l)
	t.Cleanup(func() {
		l.Console.Close()
		server.Close()
	})
	return l, server.URL
}

// everyPage holds what is true of every page: it fits on every screen, by day and by night, breaks no
// word, is whole for axe-core, has every control in reach of the keyboard, and shows data as text.
func everyPage(t *testing.T, browser context.Context) {
	axe, err := os.ReadFile(npm.File(t, "axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	looked := map[string]bool{}
	for _, scene := range scenes {
		l, base := stage(t, scene)
		t.Run(scene.name, func(t *testing.T) {
			p := sitting(t, browser, base, screens[0])
			p.loads(string(axe))
			for _, page := range []string{"/console/", "/console/login"} {
				p.looks(scene.name, page)
			}
			p.signIn("t-oda", "/console/approvals")
			oda := newBrowser(l).signIn("t-oda")
			for i, page := range l.addresses() {
				if main := oda.main(page); i == 0 || !looked[page+main] { // the first one has the frame of this scene
					looked[page+main] = true
					p.looks(scene.name, page)
				}
			}
		})
	}
}

// main returns what a page has inside its frame, without the secret of the session.
func (b *browser) main(page string) string {
	b.t.Helper()
	_, main, ok := strings.Cut(b.do("GET", page, nil, "Accept", "text/html").Body.String(), "<main")
	if !ok {
		b.t.Fatalf("%s has no main part", page)
	}
	return csrfField.ReplaceAllString(main, "")
}

// loads makes every page that p opens evaluate a script first.
func (p *person) loads(script string) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script}); err != nil {
		p.t.Fatal(err)
	}
}

// looks opens a page, and looks at it on every screen. What a desk and the night change does not
// depend on the scene: of some scenes it looks at that on the phone, or at the width only.
func (p *person) looks(scene, page string) {
	p.t.Helper()
	p.takes(screens[0])
	p.open(page)
	for _, s := range screens {
		p.takes(s)
		p.shot(strings.Trim(scene+strings.ReplaceAll(page[:min(len(page), 40)], "/", "-"), "-"))
		at := page + " (" + s.name + ")"
		switch {
		case s.dark && (scene == "normal" || s.phone):
			p.sound(at, "runOnly: ['color-contrast']")
		case !s.dark && (scene == "normal" || s.phone):
			p.sound(at, "")
			p.reaches(at)
			fallthrough
		case !s.dark:
			p.stands(at)
		}
	}
}

// addresses are the pages for oda, one of each kind.
func (l *listener) addresses() []string {
	all := []string{"/console/", "/console/approvals", "/console/approvals?view=team", "/console/approvals?view=history", "/console/servers", "/console/stop", "/connections", "/connections/github", "/console/nothing", "/console/servers/nothing"}
	all = append(all, "/console/policy", "/console/policy/matrix", "/console/policy/ask?role=treasurer&tool=wallet__manage_wallet", "/console/policy/try", "/console/policy/shadow", "/console/audit", "/console/calls", "/console/calls?tool=wallet__manage_wallet&outcome=denied", "/console/calls/dec_1")
	all = append(all, "/console/tools", "/console/tools?state=unserved&server=payments", "/console/tools/payments/transfer", "/console/tools/payments/transfer?principal=payroll-agent", "/console/tools/web/search", "/console/sessions", "/console/limits", "/console/access", "/console/access/seen", "/console/connect", "/console/connect?client=cursor")
	tickets, err := l.tickets.List(l.t.Context(), approval.Filter{})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, k := range tickets {
		all = append(all, "/console/approvals/"+k.ID)
	}
	all = append(all, "/console/approvals?tool=none&view=team")
	for path, body := range map[string]string{tryPath: someFiles, verifyPath: ""} {
		at := l.ask("POST", path, body, as("t-oda")...).Header().Get("Location")
		for accepted(l.t, l.ask("GET", at, "", as("t-oda")...))["state"] == "running" {
		}
		all = append(all, strings.Replace(at, "/v1/", "/console/", 1))
	}
	for _, u := range l.status.Upstreams {
		all = append(all, "/console/servers/"+url.PathEscape(u.Name))
	}
	return all
}

// sound holds that axe-core, which the page has, finds nothing by its rules.
func (p *person) sound(page, rules string) {
	p.t.Helper()
	found, err := chromedp.Run(p.ctx, chromedp.Evaluate[[]string](`axe.run({preload: false, resultTypes: ["violations"], `+rules+`}).then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 160) + " " + n.failureSummary).join("; ")))`, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: axe-core: %v", page, err)
	}
	for _, violation := range found {
		p.t.Errorf("%s: %s", page, violation)
	}
}

// stands holds that a page is not wider than the screen, breaks no word, and shows data as text.
func (p *person) stands(page string) {
	p.t.Helper()
	if wide := ask[float64](p, "document.documentElement.scrollWidth"); wide > float64(p.s.width) {
		p.t.Errorf("%s is %v wide on a screen of %d", page, wide, p.s.width)
	}
	if words := p.brokenWords("h1, h2, h3, thead th, dt, label, button, summary, nav a, .hint, .empty, .state, .needs a"); len(words) > 0 {
		p.t.Errorf("%s breaks the words %q", page, words)
	}
	if n := ask[int](p, "document.querySelectorAll('main script, img, iframe, a[href^=\"//\"], [onerror]').length"); n != 0 || ask[string](p, "document.title") == "owned" {
		p.t.Errorf("%s has %d elements of others", page, n)
	}
	if text := p.text(); strings.ContainsAny(text, "\u202e\u202c\u200b") {
		p.t.Errorf("%s hides characters:\n%s", page, text)
	}
}

// brokenWords returns the words of elements that stand on two lines. Words of data may: they have
// escapes, or are longer than ours.
func (p *person) brokenWords(selector string) []string {
	p.t.Helper()
	return ask[[]string](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].flatMap(element => {
		const found = [], walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
		for (let text = walk.nextNode(); text; text = walk.nextNode()) {
			if (text.parentElement.closest("code, pre, .unseen")) continue;
			for (const m of text.data.matchAll(/[^\s-]+/g)) {
				const r = document.createRange();
				r.setStart(text, m.index);
				r.setEnd(text, m.index + m[0].length);
				if (m[0].length < 16 && !/[<>\\\\=]/.test(m[0]) && r.getClientRects().length > 1) found.push(m[0]);
			}
		}
		return found;
	})`, selector))
}

// reaches holds that the tabulator comes by every control that is to be seen.
func (p *person) reaches(page string) {
	p.t.Helper()
	want := ask[int](p, `(() => {
		window.unreached = new Set([...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")].filter(e => e.checkVisibility() && !e.disabled));
		document.addEventListener("focusin", e => unreached.delete(e.target));
		document.activeElement.blur();
		return unreached.size;
	})()`)
	p.do(chromedp.KeyEvent(strings.Repeat(kb.Tab, want+2)))
	if left := ask[[]string](p, "[...unreached].filter(e => e !== document.activeElement).map(e => e.outerHTML.slice(0, 120))"); len(left) > 0 {
		p.t.Errorf("%s: the keyboard does not reach %q", page, left)
	}
}

// pagesWithoutScripts holds that the new pages work without scripts, and say times in UTC.
func pagesWithoutScripts(t *testing.T, browser context.Context) {
	l, base := stage(t, scenes[0])
	p := sitting(t, browser, base, screens[0])
	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	p.signIn("t-oda", "/console/approvals")
	p.goes("/console/servers")
	if text := p.text(); !strings.Contains(text, "since 1 Mar 2026 09:30:00 UTC") {
		t.Errorf("the page says\n%s", text)
	}
	p.press("a[href='/console/servers/payments']")
	p.press("form[action='/console/servers/payments/restart'] button")
	if last := l.acts[len(l.acts)-1]; last.Name != audit.EventRestarted || last.Server != "payments" || last.Credential != "session" {
		t.Errorf("recorded %+v", last)
	}
}

// localTimes holds that times are those of the reader, with UTC on hover.
func localTimes(t *testing.T, browser context.Context) {
	_, base := stage(t, scenes[0])
	p := sitting(t, browser, base, desktop)
	if _, err := chromedp.Call(p.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"}); err != nil {
		t.Fatal(err)
	}
	p.signIn("t-oda", "/console/servers")
	if got := ask[string](p, "document.querySelector('time').title + ' | ' + document.querySelector('time').textContent"); !strings.HasPrefix(got, "1 Mar 2026 09:30:00 UTC | ") || !strings.Contains(got, "6:30:00") {
		t.Errorf("the time is %q", got)
	}
}

// firstPage holds that the first page of a visitor weighs little.
func firstPage(t *testing.T, browser context.Context) {
	_, base := stage(t, scenes[0])
	p := sitting(t, browser, base, desktop)
	p.signIn("t-oda", "/console/approvals")
	p.open("/console/")
	bytes := ask[float64](p, `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].filter(e => !e.name.endsWith("/events")).reduce((n, e) => n + e.decodedBodySize, 0)`)
	if bytes < 20_000 || bytes > 100<<10 {
		t.Errorf("the first page has %.0f bytes", bytes)
	}
}
