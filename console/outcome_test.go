package console_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/policy/approval"
)

// TestToolError holds that a call which ran and whose tool refused it does not look like a success.
func TestToolError(t *testing.T) {
	l := newListener(t, nil)
	ran, refused := l.ends(`{"n":1}`, approval.StateDone, ""), l.ends(`{"n":2}`, approval.StateDone, approval.ToolError+": no <money>")
	b := newBrowser(l).signIn("t-ann")
	for _, page := range []string{"/console/approvals?view=history", "/console/approvals/" + refused.ID} {
		got := b.do("GET", page, nil).Body.String()
		if want := `class="state failed">ran; the tool answered with an error: no &lt;money&gt;<`; strings.Count(got, want) != 1 {
			t.Errorf("%s does not say once %q:\n%s", page, want, got)
		}
	}
	if got := b.do("GET", "/console/approvals/"+ran.ID, nil).Body.String(); !strings.Contains(got, `class="state done">has run<`) {
		t.Errorf("a call that succeeded: %s", got)
	}
	for id, want := range map[string]bool{ran.ID: false, refused.ID: true} {
		var k tickets.Ticket
		if err := json.Unmarshal(l.ask("GET", "/v1/approvals/"+id, "", as("t-ann")...).Body.Bytes(), &k); err != nil || k.State != approval.StateDone || k.ToolError != want {
			t.Errorf("state %s, tool error %v, %v", k.State, k.ToolError, err)
		}
	}
}

func TestReconcilePage(t *testing.T) {
	l := newListener(t, nil)
	for name, tt := range map[string]struct {
		token, outcome, reason string
		status                 int
		want                   approval.State
	}{
		"it took effect": {"t-ann", "done", "seen on the statement", 303, approval.StateDone}, "it did not": {"t-ann", "failed", "nothing on the statement", 303, approval.StateFailed},
		"no reason": {"t-ann", "done", " ", 422, approval.StateUnknown}, "another word": {"t-ann", "approved", "x", 400, approval.StateUnknown},
		"the requester": {"t-agent", "done", "x", 403, approval.StateUnknown}, "the requester, an approver": {"t-self", "done", "x", 403, approval.StateUnknown},
	} {
		l.advance(time.Hour)
		k := l.unknown(`{"name":"` + name + `"}`)
		b := newBrowser(l).signIn(tt.token)
		path := "/console/approvals/" + k.ID
		page := b.do("GET", path, nil).Body.String()
		if offered := strings.Contains(page, `name="outcome"`); offered != (tt.token == "t-ann") || strings.Contains(page, `name="vote"`) {
			t.Errorf("%s: offered %v", name, offered)
		}
		w := b.do("POST", path+"/reconcile", b.form(path, "outcome", tt.outcome, "reason", tt.reason))
		got, err := l.tickets.Get(t.Context(), k.ID)
		if err != nil || w.Code != tt.status || got.State != tt.want {
			t.Errorf("%s: %d, the ticket is %s, %v: %s", name, w.Code, got.State, err, w.Body)
		}
	}
	k := l.hold(`{"n":1}`)
	b := newBrowser(l).signIn("t-ann")
	if w := b.do("POST", "/console/approvals/"+k.ID+"/reconcile", b.form("/console/approvals", "outcome", "done", "reason", "x")); w.Code != 409 {
		t.Errorf("a ticket that is in no doubt: %d %s", w.Code, w.Body)
	}
}

// The page of a ticket says as whom its call runs, and why it does not.
func TestRunsAs(t *testing.T) {
	l := newListener(t, nil)
	h := held(`{"n":1}`)
	h.RunsAs = &approval.Account{
		ID: "crd_1", Type: "oauth", Issuer: "https://as.example.org", Account: "ann<b>\u202e", Scopes: []string{"read", "write"}, Until: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC),
	}
	k := l.holds(h)
	l.approves(k.ID)
	b := newBrowser(l).signIn("t-ann")
	page := b.do("GET", "/console/approvals/"+k.ID, nil).Body.String()
	want := `<dt>Runs as</dt><dd><b>ann&lt;b&gt;\u202e</b> at standard, by https://as.example.org (oauth), with read, write <span class="hint">crd_1</span>, until <time datetime="2026-03-02T12:00:00Z">2 Mar 2026 12:00:00 UTC</time></dd>`
	if !strings.Contains(page, want) {
		t.Errorf("the page does not say %s:\n%s", want, page)
	}
	h.RunsAs, h.Unconnected = nil, "ann is <not> connected"
	if c, err := l.tickets.Claim(t.Context(), h); err != nil || c.Outcome != approval.Unconnected {
		t.Fatalf("%s, %v", c.Outcome, err)
	}
	for _, path := range []string{"/console/approvals/" + k.ID, "/console/approvals?view=team"} {
		page := b.do("GET", path, nil).Body.String()
		if !strings.Contains(page, "has not run: its requester has to connect") || strings.Contains(path, k.ID) && !strings.Contains(page, "<p>ann is &lt;not&gt; connected</p>") {
			t.Errorf("%s: %s", path, page)
		}
	}
	got := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-ann")...))
	runs, _ := got["runs_as"].(map[string]any)
	if got["state"] != "needs_connection" || got["unconnected"] != "ann is <not> connected" || runs["account"] != `ann<b>\u202e` || runs["id"] != "crd_1" {
		t.Errorf("got %v", got)
	}
	if found := accepted(t, l.ask("GET", "/v1/approvals?state=needs_connection", "", as("t-ann")...)); len(found["approvals"].([]any)) != 1 {
		t.Errorf("listed %v", found)
	}
}
