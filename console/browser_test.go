package console_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// screen is what people hold or sit before.
type screen struct {
	name          string
	width, height int64
	phone, dark   bool
}

var (
	phone   = screen{name: "phone", width: 390, height: 844, phone: true}
	night   = screen{name: "phone-dark", width: 390, height: 844, phone: true, dark: true}
	desktop = screen{name: "desktop", width: 1280, height: 800}
)

// person is somebody before a browser of their own.
type person struct {
	t    *testing.T
	ctx  context.Context
	base string
	s    screen
}

// sitting gives a person a window without a past.
func sitting(t *testing.T, browser context.Context, base string, s screen) *person {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(stop)
	p := &person{t: t, ctx: ctx, base: base}
	p.takes(s)
	return p
}

// takes gives a person another screen. An open page stays open.
func (p *person) takes(s screen) {
	p.t.Helper()
	p.s = s
	theme := "light"
	if s.dark {
		theme = "dark"
	}
	var size []chromedp.EmulateViewportOption
	if s.phone {
		size = append(size, chromedp.EmulateScale(2), chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	p.do(chromedp.EmulateViewport(s.width, s.height, size...))
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatalf("in the browser: %v", err)
	}
}

// open goes to a page, and waits for it.
func (p *person) open(path string) {
	p.t.Helper()
	p.do(chromedp.Navigate(p.base+path), chromedp.WaitReady("body"))
}

// signIn signs in on the way to a page.
func (p *person) signIn(token, next string) {
	p.t.Helper()
	p.open(next)
	p.do(chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", token))
	p.press("form[action='/console/login'] button")
	p.do(chromedp.WaitReady("#main"))
}

// press clicks, and waits until the page that it leads to is there.
func (p *person) press(selector string) {
	p.t.Helper()
	if _, err := chromedp.RunResponse(p.ctx, chromedp.Click(selector, chromedp.NodeVisible)); err != nil {
		p.t.Fatalf("pressing %s: %v", selector, err)
	}
	p.do(chromedp.WaitReady("body"))
}

// goes follows a link of the navigation, which a phone has in a menu.
func (p *person) goes(path string) {
	p.t.Helper()
	if p.s.phone {
		p.do(chromedp.Click(".menu", chromedp.NodeVisible))
		p.shot("menu" + strings.ReplaceAll(path, "/", "-"))
	}
	p.press("#top nav a[href='" + path + "']")
}

// sees waits until the page says something.
func (p *person) sees(words string) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx, chromedp.Poll[bool](fmt.Sprintf("document.body && document.body.innerText.includes(%q)", words), chromedp.WithPollingTimeout(15*time.Second)))
	if err != nil {
		p.t.Fatalf("the page does not say %q (%v) but:\n%s", words, err, p.text())
	}
}

// text is what the page says.
func (p *person) text() string {
	p.t.Helper()
	return ask[string](p, "document.title + '\\n' + document.body.innerText")
}

// ask evaluates a question to the page.
func ask[T any](p *person, script string) T {
	p.t.Helper()
	answer, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
	if err != nil {
		p.t.Fatalf("asking the page: %v", err)
	}
	return answer
}

// shot takes a picture of the whole page, for people to look at.
func (p *person) shot(name string) {
	p.t.Helper()
	dir := os.Getenv("TOOLGATE_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+"-"+p.s.name+".png"), picture, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// seat is a console that browsers reach.
func seat(t *testing.T) (*listener, string) {
	t.Helper()
	l := newListener(t, nil)
	server := httptest.NewServer(l)
	t.Cleanup(func() {
		l.Console.Close()
		server.Close()
	})
	return l, server.URL
}

// transfer is a payment that somebody has to look at.
func transfer(amount, to string) approval.Held {
	h := held(fmt.Sprintf(`{"action":"transfer","asset":"USD","amount":%s,"destination":%q,"memo":"invoice 2026-118"}`, amount, to))
	h.Principal = policy.Principal{Subject: "payroll-agent", Roles: []string{"treasurer"}, Client: "claude-code/2.4.1"}
	h.Rule, h.Reason = "transfer_over_threshold", "transfers above 100 USD are for a person to decide"
	h.Transport, h.Era, h.Session = "http", "2025-11-25", "ses_01JD2Z"
	h.Approval.TTL = 15 * time.Minute
	return h
}

func (l *listener) holds(h approval.Held) approval.Ticket {
	l.t.Helper()
	c, err := l.tickets.Claim(l.t.Context(), h)
	if err != nil || c.Outcome != approval.Pending {
		l.t.Fatalf("%q, %v", c.Outcome, err)
	}
	return c.Ticket
}

func (l *listener) approves(id string) {
	l.t.Helper()
	if _, err := l.tickets.Decide(l.t.Context(), approval.Vote{ID: id, Approver: staff["t-bob"], Approve: true}); err != nil {
		l.t.Fatal(err)
	}
}

// TestInABrowser is what the pages are in a real browser, Debian's Chromium.
func TestInABrowser(t *testing.T) {
	browser := program.Chromium(t)
	for name, test := range map[string]func(*testing.T, context.Context){
		"people decide":         peopleDecide,
		"scripts in arguments":  scriptsInArguments,
		"without scripts":       withoutScripts,
		"stale pages":           stalePages,
		"denying several":       denyingSeveral,
		"open pages":            openPages,
		"frames":                frames,
		"unknown outcome":       unknownOutcome,
		"status page":           statusPage,
		"signing out":           signingOut,
		"connecting":            connectingInABrowser,
		"every page":            everyPage,
		"new pages, scriptless": pagesWithoutScripts,
		"local times":           localTimes,
		"first page":            firstPage,
		"a client arrives":      clientArrives,
		"a call's questions":    callQuestions,
		"calls come":            callsCome,
		"a large company":       hugeCompany,
		"pictures":              pictures,
	} {
		t.Run(name, func(t *testing.T) { test(t, browser) })
	}
}

// A person receives a call, reads it and decides, on a phone and at a desk, and
// the page moves on by itself when somebody else does.
func peopleDecide(t *testing.T, browser context.Context) {
	for _, s := range []screen{phone, desktop} {
		t.Run(s.name, func(t *testing.T) {
			l, base := seat(t)
			p := sitting(t, browser, base, s)
			p.signIn("t-ann", "/console/approvals")
			p.sees("No call waits for your decision.")
			p.shot("1-nothing")
			first := l.holds(transfer("120.00", "acct-4471 Northwind Paper"))
			p.sees("120.00")
			p.titled("(1) Approvals · toolgate")
			p.press("#" + first.ID + " > a")
			p.sees("with exactly this:")
			p.shot("2-first")
			p.press("button[value=approve]")
			p.sees("You approved it.")
			p.shot("3-approved")
			l.is(first.ID, approval.StateApproved)

			second := l.holds(transfer("25000.00", "0x9f2cA41b77E6d0c18aD3e5F09B6c2C7e8D41aa90"))
			p.titled("(1) manage_wallet · toolgate")
			p.open("/console/approvals/" + second.ID)
			p.sees("2 of 5 values differ")
			p.shot("4-second")
			p.fits(s)
			p.do(chromedp.Click("button[value=deny]"))
			if ask[bool](p, "document.querySelector('#reason').validity.valid") {
				t.Error("the browser would send a denial without a reason")
			}
			l.is(second.ID, approval.StateProposed)
			p.do(chromedp.SendKeys("#reason", "that is not Northwind's account"))
			p.press("button[value=deny]")
			p.sees("denied by ann")
			p.shot("5-denied")
			l.is(second.ID, approval.StateDenied)

			third := l.holds(transfer("7.5e2", "acct-4471 Northwind Paper"))
			p.open("/console/approvals/" + third.ID)
			p.sees("750")
			l.approves(third.ID)
			p.sees("approved by bob, has not run yet")
			p.gone("button[value=approve]")
			p.open("/console/approvals?view=history")
			p.sees("denied by ann")
			p.shot("6-history")
		})
	}
}

// titled waits until the window has a title.
func (p *person) titled(want string) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx, chromedp.Poll[bool](fmt.Sprintf("document.title === %q", want), chromedp.WithPollingTimeout(15*time.Second)))
	if err != nil {
		p.t.Fatalf("the title is %q, want %q: %v", ask[string](p, "document.title"), want, err)
	}
}

// gone waits until nothing answers to a selector.
func (p *person) gone(selector string) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx, chromedp.Poll[bool](fmt.Sprintf("!document.querySelector(%q)", selector), chromedp.WithPollingTimeout(15*time.Second)))
	if err != nil {
		p.t.Fatalf("%s is still there: %v", selector, err)
	}
}

// is wants a ticket to be in a state.
func (l *listener) is(id string, want approval.State) {
	l.t.Helper()
	if k, err := l.tickets.Get(l.t.Context(), id); err != nil || k.State != want {
		l.t.Fatalf("the ticket is %s, want %s: %v", k.State, want, err)
	}
}

// fits wants a payment to stand on one screen, from the amount to the buttons,
// which are of one size and cannot be mistaken for each other by a thumb.
func (p *person) fits(s screen) {
	p.t.Helper()
	type box struct{ Top, Bottom, Left, Right float64 }
	at := func(selector string) box {
		return ask[box](p, fmt.Sprintf("(({top, bottom, left, right}) => ({Top: top, Bottom: bottom, Left: left, Right: right}))(document.querySelector(%q).getBoundingClientRect())", selector))
	}
	approve, deny := at("button[value=approve]"), at("button[value=deny]")
	if approve.Bottom > float64(s.height) || approve.Bottom != deny.Bottom || approve.Top != deny.Top || approve.Left-deny.Right < 40 ||
		math.Abs((approve.Right-approve.Left)-(deny.Right-deny.Left)) > 1 || approve.Bottom-approve.Top < 48 {
		p.t.Errorf("on a screen of %d × %d, approve is at %+v, deny at %+v", s.width, s.height, approve, deny)
	}
	if looks := "(e => { const c = getComputedStyle(e); return [c.color, c.backgroundColor, c.borderColor, c.fontSize, c.fontWeight].join() })(document.querySelector('button[value=%s]'))"; ask[string](p, fmt.Sprintf(looks, "approve")) != ask[string](p, fmt.Sprintf(looks, "deny")) {
		p.t.Error("one of the buttons looks better than the other")
	}
	if wide := ask[float64](p, "document.documentElement.scrollWidth"); wide > float64(s.width) {
		p.t.Errorf("the page is %v wide on a screen of %d", wide, s.width)
	}
	if size := ask[float64](p, "parseFloat(getComputedStyle(document.querySelector('.arguments tr.changed td > code')).fontSize)"); size < 17 {
		p.t.Errorf("the amount is written in %v px", size)
	}
}

// statusPage holds that the table of servers breaks no word on a small phone, and fits; only names
// that operators choose may be broken.
func statusPage(t *testing.T, browser context.Context) {
	l, base := seat(t)
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	l.status = console.Status{Ready: true, Revision: "sha256:r", Upstreams: []console.Upstream{
		{Name: "standard", State: "connecting", Tools: 12, Quarantined: 3, Since: since},
		{Name: strings.Repeat("long_name_", 4), State: "ready", Tools: 100, Since: since},
	}}
	s := screen{name: "small-phone", width: 360, height: 740, phone: true}
	p := sitting(t, browser, base, s)
	p.open("/console/")
	p.shot("status")
	if wide := ask[float64](p, "document.documentElement.scrollWidth"); wide > float64(s.width) {
		t.Errorf("the page is %v wide on a screen of %d", wide, s.width)
	}
	broken := ask[[]string](p, `[...document.querySelectorAll("thead th, td")].flatMap(cell => {
		const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode(), found = [];
		for (const m of (text?.data ?? "").matchAll(/[^\s-]+/g)) {
			const r = document.createRange();
			r.setStart(text, m.index);
			r.setEnd(text, m.index + m[0].length);
			if (r.getClientRects().length !== 1) found.push(m[0]);
		}
		return found;
	})`)
	if len(broken) > 0 {
		t.Errorf("words are broken: %q", broken)
	}
}

// What an agent writes stays text in a real browser too.
func scriptsInArguments(t *testing.T, browser context.Context) {
	l, base := seat(t)
	h := held(`{"a":"<script>document.title='owned'</script>","b":"<img src=x onerror=\"document.title='owned'\">","c":"</textarea><svg onload=alert(1)>",` +
		`"d":"<div data-hx-get=\"/console/logout\" data-hx-trigger=\"load\">","e":"pay ` + "\u202e" + `001 to` + "\u202c" + `","f":"pay` + "\u200b" + `pal","g":"javascript:alert(1)",` +
		`"<b onmouseover=alert(1)>":"{{.CSRF}}","memo":"dear all,\n\nplease pay the аcme account\n"}`)
	h.Principal.Client, h.Rule, h.Reason = "<iframe src=javascript:alert(1)>", "<script>alert(1)</script>", "</p><form action=//evil.example><button>Approve</button></form>"
	k := l.holds(h)
	for _, s := range []screen{phone, desktop} {
		p := sitting(t, browser, base, s)
		p.signIn("t-ann", "/console/approvals")
		p.sees("<img src=x")
		p.shot("hostile-inbox")
		p.open("/console/approvals/" + k.ID)
		p.sees("has characters that a screen would hide or turn around")
		p.sees("one word mixes Latin and Cyrillic letters")
		if n := ask[int](p, "document.querySelectorAll('main script, main img, main svg, main iframe, main div[data-hx-trigger=load], main b[onmouseover], form[action*=evil]').length"); n != 0 {
			t.Errorf("%d elements of the agent's are in the page", n)
		}
		if text := p.text(); strings.ContainsAny(text, "\u202e\u202c\u200b") || strings.Contains(text, "owned\n") || !strings.Contains(text, `\u202e001`) {
			t.Errorf("the page says\n%s", text)
		}
		p.shot("hostile")
	}
	l.is(k.ID, approval.StateProposed)
}

// Without scripts everything works but what moves by itself.
func withoutScripts(t *testing.T, browser context.Context) {
	l, base := seat(t)
	approved, denied := l.holds(transfer("250", "acct-1")), l.holds(transfer("251", "acct-1"))
	p := sitting(t, browser, base, phone)
	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	p.signIn("t-ann", "/console/approvals/"+approved.ID)
	p.press("button[value=approve]")
	l.is(approved.ID, approval.StateApproved)
	p.goes("/console/approvals")
	p.press("#" + denied.ID + " > a")
	p.do(chromedp.SendKeys("#reason", "no"))
	p.press("button[value=deny]")
	l.is(denied.ID, approval.StateDenied)
	if ask[bool](p, "typeof htmx !== 'undefined'") {
		t.Error("scripts ran")
	}
}

// A page that was left open while others decided, or that shows other
// arguments than the ticket has, cannot vote.
func stalePages(t *testing.T, browser context.Context) {
	l, base := seat(t)
	p := sitting(t, browser, base, phone)
	other := l.holds(transfer("1.00", "acct-1"))
	p.signIn("t-ann", "/console/approvals/"+other.ID)
	p.do(chromedp.SetAttributeValue("input[name=digest]", "value", "sha256:0"))
	p.press("button[value=approve]")
	p.sees("the decision is about other arguments than the ticket has")
	p.shot("stale-digest")
	l.is(other.ID, approval.StateProposed)

	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	late := l.holds(transfer("2.00", "acct-1"))
	p.open("/console/approvals/" + late.ID)
	l.ask("POST", "/v1/approvals/"+late.ID+"/deny", `{"reason":"no"}`, as("t-bob")...)
	p.press("button[value=approve]")
	if text := p.text(); !strings.Contains(text, "Nothing was changed: the ticket is not waiting for a decision") {
		t.Errorf("the page says\n%s", text)
	}
	l.is(late.ID, approval.StateDenied)
}

// What somebody types stays when another votes, and the buttons go when the
// time is up.
func openPages(t *testing.T, browser context.Context) {
	l, base := seat(t)
	h := transfer("1.00", "acct-1")
	h.Approval.Quorum = 2
	k := l.holds(h)
	p := sitting(t, browser, base, night)
	p.signIn("t-ann", "/console/approvals/"+k.ID)
	p.sees("0 of 2 approvals")
	p.shot("quorum")
	p.do(chromedp.SendKeys("#reason", "I have my doubts"))
	l.approves(k.ID)
	p.sees("1 of 2 approvals")
	if typed := ask[string](p, "document.querySelector('#reason').value"); typed != "I have my doubts" {
		t.Errorf("the reason is %q now", typed)
	}
	short := transfer("2.00", "acct-1")
	short.Approval.TTL = 2 * time.Second
	k = l.holds(short)
	p.open("/console/approvals/" + k.ID)
	p.do(chromedp.WaitReady("button[value=approve]:disabled"), chromedp.WaitReady("button[value=deny]:disabled"))
	p.shot("over")
}

// No page of another origin can show ours in a frame.
func frames(t *testing.T, browser context.Context) {
	l, base := seat(t)
	k := l.holds(transfer("1.00", "acct-1"))
	p := sitting(t, browser, base, desktop)
	p.signIn("t-ann", "/console/approvals/"+k.ID)
	framing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "<!doctype html><title>win a prize</title><iframe src=%q onload=\"document.title='loaded'\"></iframe>", base+"/console/approvals/"+k.ID)
	}))
	defer framing.Close()
	p.base = framing.URL
	p.open("/")
	p.titled("loaded")
	tree, err := chromedp.Call(p.ctx, page.GetFrameTree, cdp.Empty{})
	if err != nil || len(tree.FrameTree.ChildFrames) != 1 {
		t.Fatalf("%+v, %v", tree, err)
	}
	if frame := tree.FrameTree.ChildFrames[0].Frame; !strings.HasPrefix(frame.URL, "chrome-error:") {
		t.Errorf("the frame shows %s", frame.URL)
	}
}

// A call of unknown outcome is shown to somebody who can find out.
func unknownOutcome(t *testing.T, browser context.Context) {
	l, base := seat(t)
	k := l.unknown(`{"action":"transfer","amount":250,"destination":"acct-1"}`)
	for _, s := range []screen{phone, desktop} {
		p := sitting(t, browser, base, s)
		p.signIn("t-ann", "/console/approvals")
		p.sees("To be found out")
		p.shot("unknown-inbox")
		p.open("/console/approvals/" + k.ID)
		p.sees("What was the outcome?")
		p.shot("unknown")
	}
	p := sitting(t, browser, base, phone)
	p.signIn("t-bob", "/console/approvals/"+k.ID)
	p.do(chromedp.SendKeys("#reason", "it is on the statement of 1 March"))
	p.press("button[value=done]")
	p.sees("bob found that the call took effect")
	p.shot("reconciled")
	l.is(k.ID, approval.StateDone)
}

// direct is a provider that sends the browser back at once.
type direct struct {
	*elsewhere
	base string
}

func (d direct) Begin(ctx context.Context) (string, string, error) {
	_, secret, err := d.elsewhere.Begin(ctx)
	return d.base + "/console/login/callback?code=ann", secret, err
}

// Who signs out is signed out at the provider too, which is another site, and comes back.
func signingOut(t *testing.T, browser context.Context) {
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("back")+"?state="+r.FormValue("state"), http.StatusSeeOther)
	}))
	defer idp.Close()
	server := httptest.NewUnstartedServer(nil)
	base := "http://" + server.Listener.Addr().String()
	l := newListener(t, func(o *console.Options) {
		o.Provider, o.URL = direct{new(elsewhere), base}, base
		o.EndSession = func(_ context.Context, back, state string) (string, error) {
			return idp.URL + "/out?back=" + back + "&state=" + state, nil
		}
	})
	server.Config.Handler = l
	server.Start()
	defer server.Close()
	defer l.Console.Close()
	p := sitting(t, browser, base, desktop)
	p.open("/console/login")
	p.shot("sign-in")
	p.press("a.button")
	p.open("/console/login")
	p.sees("You are signed in as guest")
	p.press("form[action='/console/logout'] button")
	p.sees("You are signed out here and at your organisation")
	p.shot("signed-out")
}
