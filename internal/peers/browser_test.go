package peers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// TestDecidedInABrowser: a person signs in at the console with a real browser, finds
// a held call and decides. The agent gets its answer during the hold. The server
// receives the approved call once and the denied call never.
func TestDecidedInABrowser(t *testing.T) {
	parts.Long(t, "starts whole programs")
	browser := program.Chromium(t)
	p := startPair(t, setup{hold: "2m"}, recorder.Tool{})
	ctx, stop := context.WithTimeout(browser, 2*time.Minute)
	defer stop()
	do := func(actions ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, actions...); err != nil {
			t.Fatalf("in the browser: %v", err)
		}
	}
	press := func(selector string) {
		t.Helper()
		if _, err := chromedp.RunResponse(ctx, chromedp.Click(selector, chromedp.NodeVisible)); err != nil {
			t.Fatalf("pressing %s: %v", selector, err)
		}
	}
	do(chromedp.Navigate(p.gates[0].Admin+"/console/approvals"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", approverToken))
	press("form[action='/console/login'] button")
	do(chromedp.WaitReady("#main"))
	for n, tc := range []struct {
		button, reason, came string
		runs                 int
	}{
		{"button[value=approve]", "", "done", 1},
		{"button[value=deny]", "not this one", "APPROVAL_DENIED", 0},
	} {
		args := fmt.Sprintf(`{"n":%d}`, n)
		answered := startCall(t, p.doors[1], "rec__pay", args)
		id := p.gates[0].carol().awaitTicket(t, args).ID
		do(chromedp.Navigate(p.gates[0].Admin+"/console/approvals"), chromedp.WaitVisible("a[href='/console/approvals/"+id+"']"))
		press("a[href='/console/approvals/" + id + "']")
		do(chromedp.WaitVisible("textarea[name=reason]"), chromedp.SendKeys("textarea[name=reason]", tc.reason))
		press(tc.button)
		a := <-answered
		if got := outcome(t, a.text); a.err != nil || got != tc.came {
			t.Errorf("after %s: %s, %v", tc.button, got, a.err)
		}
		if k := p.gates[0].carol().ticket(t, id); k.DecidedBy != "carol" {
			t.Errorf("after %s: decided by %q", tc.button, k.DecidedBy)
		}
		wantRuns(t, p.rec, args, tc.runs)
	}
}
