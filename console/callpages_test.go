package console_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// The pages of calls have what the address asks for, and nothing that the visitor may not see.
func TestCallPages(t *testing.T) {
	l, x := newCalls(t)
	mine := l.hold(`{}`).ID
	page := func(who, path string, status int) string {
		t.Helper()
		w := newBrowser(l).signIn(who).do("GET", path, nil)
		if w.Code != status {
			t.Errorf("%s %s: %d %s", who, path, w.Code, w.Body)
		}
		return w.Body.String()
	}
	text := page("t-audit", "/console/calls?tool=web__search&principal=&outcome=denied&since=1h&text=word&argument="+url.QueryEscape("/to=bob"), 200)
	want := index.Query{Tool: "web__search", Outcome: "denied", Since: l.Now().Add(-3600e9), Text: "word", Argument: "/to=bob", Limit: 50}
	if diff := cmp.Diff(want, x.asked, cmp.Comparer(func(a, b index.Query) bool {
		return a.Tool == b.Tool && a.Outcome == b.Outcome && a.Since.Equal(b.Since) && a.Text == b.Text && a.Argument == b.Argument && a.Limit == b.Limit && a.Principal == b.Principal
	})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, want := range []string{`href="/console/calls/dec_1"`, "This index is no evidence", `value="web__search"`, `cursor=n`, `name="argument"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %s: %s", want, text)
		}
	}
	page("t-audit", "/console/calls?x=1", 400)
	page("t-audit", "/console/calls?follow=maybe", 400)
	page("t-eve", "/console/calls", 403)
	page("t-ann", "/console/calls?text=word", 403)
	if text := page("t-ann", "/console/calls", 200); strings.Contains(text, `name="argument"`) {
		t.Errorf("who may not search in arguments can: %s", text)
	}

	x.ticket = mine
	if text := page("t-audit", "/console/calls/dec_1", 200); !strings.Contains(text, "bob") || !strings.Contains(text, "/console/approvals/"+mine) {
		t.Errorf("the call: %s", text)
	}
	if text := page("t-ann", "/console/calls/dec_1", 200); strings.Contains(text, "bob") || !strings.Contains(text, "does not let you read arguments") {
		t.Errorf("the call without arguments: %s", text)
	}
	x.ticket = "apr_of_others"
	page("t-ann", "/console/calls/dec_1", 404)
	page("t-eve", "/console/calls/dec_1", 403)
	page("t-audit", "/console/calls/dec_2", 404)
}

// The page of a call has the times of its records, and leads to the answers that its visitor may have.
func TestPageOfACall(t *testing.T) {
	l := whole(t)
	path := "/console/calls/dec_01M8MDDY6SZVKW3C6JEN40SF87"
	why, allowed, try := "/console/policy/ask?arguments=", `href="/console/policy/matrix?role=treasurer&amp;tool=wallet__manage_wallet"`, `href="/console/policy/try"`
	steps := []string{"arrived", "judged hold", "ticket proposed by ada", "<td>1.5s</td>", "ticket denied by ada", "answered: denied", "<td>1s</td>", `<td>3.25ms</td>`, "ms, 12.3 ms at the server, ended at", "sig_01M8MDDY6SZVKW3C6JEN40SF82", `href="https://traces.example/4bf92f3577b34da6a3ce929d0e0e4736"`}
	newBrowser(l).signIn("t-audit").shows(path, append(steps, "1234 bytes, about 309 tokens, with hidden characters: bidi", "send less than 100 USD", "/console/calls?id=4bf92f3577b34da6a3ce929d0e0e4736"), []string{why, allowed, try})
	l, _ = stopped(t, func(o *console.Options) {
		says := talker{adviser: new(adviser)}
		o.Policy, o.Judge, o.Calls = says, says, says
		o.TrailRight = func(context.Context, policy.Principal) (policy.TrailRight, error) { return policy.TrailAll, nil }
		o.May = func(context.Context, policy.Principal, policy.Right) (bool, error) { return true, nil }
	})
	oda := newBrowser(l).signIn("t-oda")
	oda.shows(path, []string{"Why was this refused?", why, allowed, try}, nil)
	x := new(calls)
	l = newListener(t, func(o *console.Options) {
		says := talker{adviser: new(adviser)}
		o.Policy, o.Judge, o.Calls = says, says, x
		o.May = func(context.Context, policy.Principal, policy.Right) (bool, error) { return true, nil }
	})
	x.ticket = l.hold(`{}`).ID
	newBrowser(l).signIn("t-ann").shows("/console/calls/dec_1", []string{"What would be allowed?"}, []string{try}) // who does not read the whole trail
}
