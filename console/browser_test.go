package console_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

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

// chromium starts one browser for a test. A machine without one skips the test,
// one that proves (CI=true) fails it.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is missing: .ci/debian names the package")
		}
		t.Skip("chromium is missing")
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.Headless,
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true))
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Log(err)
		}
		cancel()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting chromium: %v", err)
	}
	return ctx
}

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
	ctx, stop := context.WithTimeout(ctx, 90*time.Second)
	t.Cleanup(stop)
	p := &person{t: t, ctx: ctx, base: base, s: s}
	theme := "light"
	if s.dark {
		theme = "dark"
	}
	size := []chromedp.EmulateViewportOption{chromedp.EmulateScale(2)}
	if s.phone {
		size = append(size, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	p.do(chromedp.EmulateViewport(s.width, s.height, size...))
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
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
		dir = p.t.ArtifactDir()
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
	if _, err := l.tickets.Decide(l.t.Context(), approval.Vote{ID: id, Approver: people["t-bob"], Approve: true}); err != nil {
		l.t.Fatal(err)
	}
}

func TestPictures(t *testing.T) {
	browser := chromium(t)
	l, base := seat(t)
	first := l.holds(transfer("120.00", "acct-4471 Northwind Paper"))
	l.approves(first.ID)
	k := l.holds(transfer("25000.00", "0x9f2cA41b77E6d0c18aD3e5F09B6c2C7e8D41aa90"))
	long := l.holds(transfer("12500000", strings.Repeat("0x9f2c аcme ", 40)+"\u202eevil\nsecond line"))
	for _, s := range []screen{phone, night, desktop} {
		p := sitting(t, browser, base, s)
		p.signIn("t-ann", "/console/approvals")
		p.sees("25000.00")
		p.shot("inbox")
		p.open("/console/approvals/" + k.ID)
		p.shot("ticket")
		p.open("/console/approvals/" + long.ID)
		p.shot("long")
	}
}
