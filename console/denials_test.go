package console_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy/approval"
)

// TestChoosingTickets holds that page and list have the same filters.
func TestChoosingTickets(t *testing.T) {
	l := newListener(t, nil)
	h := held(`{"n":1}`)
	h.Server, h.Tool, h.Exposed, h.Principal.Subject, h.Approval.Roles = "bank", "pay", "bank__pay", "payroll", []string{"approver", "finance"}
	pay, wallet := l.holds(h), l.hold(`{"n":2}`)
	ann, both := newBrowser(l).signIn("t-ann"), []string{wallet.ID, pay.ID}
	for query, want := range map[string][]string{
		"": both, "tool=bank__pay": {pay.ID}, "tool=pay": nil, "server=bank": {pay.ID}, "server=standard": {wallet.ID}, "principal=payroll": {pay.ID}, "principal=agent&server=bank": nil,
		"role=finance": {pay.ID}, "role=approver": both, "role=treasurer": nil, "tool=&server=&principal=&role=": both, "before=" + wallet.ID: {pay.ID}, "server=bank&before=" + pay.ID: nil,
	} {
		var got []string
		for _, k := range accepted(t, l.ask("GET", "/v1/approvals?awaiting=me&"+query, "", as("t-ann")...))["approvals"].([]any) {
			got = append(got, k.(map[string]any)["id"].(string))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("/v1, %s (-want +got):\n%s", query, diff)
		}
		for _, view := range []string{"mine", "team"} {
			if diff := cmp.Diff(want, ann.cards("/console/approvals?view="+view+"&"+query)); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", view, query, diff)
			}
		}
	}
	if got := newBrowser(l).signIn("t-eve").cards("/console/approvals?view=team&role=approver"); got != nil {
		t.Errorf("somebody without the role sees %v", got)
	}
	ann.shows("/console/approvals?server=bank&role=finance", []string{`href="/console/approvals?role=finance&amp;server=bank&amp;view=team"`, `name="server" value="bank"`}, nil)
	ann.shows("/console/approvals?server=none", []string{"No such call is in this list."}, nil)
	for _, query := range []string{"requester=agent", "tool=a&tool=b", "awaiting=me"} {
		if w := ann.do("GET", "/console/approvals?"+query, nil); w.Code != 400 {
			t.Errorf("%s: %d", query, w.Code)
		}
	}
}

// Filters choose among calls of unknown outcome too.
func TestChoosingUnclear(t *testing.T) {
	l := newListener(t, nil)
	k := l.unknown(`{"n":1}`)
	ann := newBrowser(l).signIn("t-ann")
	if got := ann.cards("/console/approvals?server=standard"); !cmp.Equal(got, []string{k.ID}) {
		t.Errorf("of its server: %v", got)
	}
	if got := ann.cards("/console/approvals?server=bank"); got != nil {
		t.Errorf("of another: %v", got)
	}
}

// chooses fills the form that denies several.
func (b *browser) chooses(reason string, tickets ...approval.Ticket) url.Values {
	b.t.Helper()
	f := b.form("/console/approvals", "reason", reason)
	for _, k := range tickets {
		f.Set("deny."+k.ID, k.Digest)
	}
	return f
}

func (l *listener) states(tickets ...approval.Ticket) (all []approval.State) {
	l.t.Helper()
	for _, k := range tickets {
		got, err := l.tickets.Get(l.t.Context(), k.ID)
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, got.State)
	}
	return all
}

// TestDenyingSeveral holds that each denial is a vote, and that those which fail are told one by one.
func TestDenyingSeveral(t *testing.T) {
	const proposed, denied, approved = approval.StateProposed, approval.StateDenied, approval.StateApproved
	for name, tt := range map[string]struct {
		token, reason string
		change        func(f url.Values)
		status        int
		says          []string
		want          []approval.State // of a, b, c, of which the first two are chosen
		refusals      []string         // codes in the records
	}{
		"two of three":             {reason: "not this month", status: 303, want: []approval.State{denied, denied, proposed}},
		"without a reason":         {reason: "  ", status: 422, says: []string{"Nothing was changed:", "a reason is needed", " checked"}, want: []approval.State{proposed, proposed, proposed}},
		"none":                     {reason: "no", change: func(f url.Values) { drop(f, "deny.") }, status: 422, says: []string{"choose from one"}, want: []approval.State{proposed, proposed, proposed}},
		"too many":                 {reason: "no", change: func(f url.Values) { fill(f, 26) }, status: 422, want: []approval.State{proposed, proposed, proposed}},
		"without the csrf field":   {reason: "no", change: func(f url.Values) { f.Del("csrf") }, status: 403, want: []approval.State{proposed, proposed, proposed}},
		"by another's csrf field":  {reason: "no", change: func(f url.Values) { f.Set("csrf", "x") }, status: 403, want: []approval.State{proposed, proposed, proposed}},
		"of other arguments":       {reason: "no", change: func(f url.Values) { stale(f, "sha256:0") }, status: 409, says: []string{"0 calls denied. Not denied:", "other arguments"}, want: []approval.State{proposed, proposed, proposed}, refusals: []string{"STALE_DIGEST", "STALE_DIGEST"}},
		"without digests":          {reason: "no", change: func(f url.Values) { stale(f, "") }, status: 409, want: []approval.State{proposed, proposed, proposed}, refusals: []string{"STALE_DIGEST", "STALE_DIGEST"}},
		"by the requester":         {token: "t-agent", reason: "no", status: 403, says: []string{"nobody decides on a call of their own"}, want: []approval.State{proposed, proposed, proposed}, refusals: []string{"SELF_APPROVAL", "SELF_APPROVAL"}},
		"by the same party":        {token: "t-self", reason: "no", status: 403, want: []approval.State{proposed, proposed, proposed}, refusals: []string{"SELF_APPROVAL", "SELF_APPROVAL"}},
		"by somebody else":         {token: "t-eve", reason: "no", status: 404, says: []string{"there is no such ticket"}, want: []approval.State{proposed, proposed, proposed}, refusals: []string{"NOT_FOUND", "NOT_FOUND"}},
		"by one who only reads":    {token: "t-audit", reason: "no", status: 404, want: []approval.State{proposed, proposed, proposed}, refusals: []string{"NOT_FOUND", "NOT_FOUND"}},
		"one is decided meanwhile": {reason: "no", status: 409, says: []string{"1 call denied. Not denied:", "not waiting for a decision"}, want: []approval.State{approved, denied, proposed}, refusals: []string{"NOT_PENDING"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, nil)
			a, b, c := l.hold(`{"n":1}`), l.hold(`{"n":2}`), l.hold(`{"n":3}`)
			if tt.token == "" {
				tt.token = "t-ann"
			}
			who := newBrowser(l).signIn(tt.token)
			f := who.chooses(tt.reason, a, b)
			if tt.change != nil {
				tt.change(f)
			}
			if tt.want[0] == approved {
				l.approves(a.ID)
			}
			l.acts = nil
			w := who.do("POST", "/console/approvals/deny?server=standard", f)
			if w.Code != tt.status || w.Code == 303 && w.Header().Get("Location") != "/console/approvals?server=standard" {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
			for _, word := range tt.says {
				if !strings.Contains(w.Body.String(), word) {
					t.Errorf("the page has no %q: %s", word, w.Body)
				}
			}
			if diff := cmp.Diff(tt.want, l.states(a, b, c)); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
			var refusals []string
			for _, act := range l.acts {
				if act.Name == audit.EventVoteRefused && (act.Ticket == a.ID || act.Ticket == b.ID) && act.Credential == "session" {
					refusals = append(refusals, act.Reason)
				}
			}
			if diff := cmp.Diff(tt.refusals, refusals); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			if got, err := l.tickets.Get(t.Context(), b.ID); err != nil || got.State == denied && (len(got.Votes) != 1 || got.DecisionReason != tt.reason) {
				t.Errorf("the vote is %+v, %v", got.Votes, err)
			}
		})
	}
}

func drop(f url.Values, prefix string) {
	for name := range f {
		if strings.HasPrefix(name, prefix) {
			f.Del(name)
		}
	}
}

func stale(f url.Values, digest string) {
	for name := range f {
		if strings.HasPrefix(name, "deny.") {
			f.Set(name, digest)
		}
	}
}

func fill(f url.Values, n int) {
	for i := range n {
		f.Set("deny.apr_"+strings.Repeat("x", i), "sha256:0")
	}
}

// Only where several wait for the visitor can they be denied together, and an ID that nobody made stays text.
func TestFormOfSeveral(t *testing.T) {
	l := newListener(t, nil)
	first := l.hold(`{"n":1}`)
	ann := newBrowser(l).signIn("t-ann")
	ann.shows("/console/approvals", nil, []string{`id="several"`, "checkbox"})
	l.hold(`{"n":2}`)
	ann.shows("/console/approvals?server=standard", []string{`action="/console/approvals/deny?server=standard"`, `name="deny.` + first.ID + `" value="` + first.Digest}, nil)
	ann.shows("/console/approvals?view=team", nil, []string{`id="several"`, "checkbox"})
	f := ann.chooses("no")
	f.Set("deny.<script>x()</script>\u202e", "sha256:0")
	if w := ann.do("POST", "/console/approvals/deny", f); w.Code != 404 || strings.Contains(w.Body.String(), "<script>x") || strings.Contains(w.Body.String(), "\u202e") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// denyingSeveral holds that the keyboard chooses calls and denies them, and that a list which moves on by
// itself keeps what was chosen and typed.
func denyingSeveral(t *testing.T, browser context.Context) {
	l, base := seat(t)
	first, second := l.holds(transfer("1.00", "acct-1")), l.holds(transfer("2.00", "acct-1"))
	p := sitting(t, browser, base, phone)
	p.signIn("t-ann", "/console/approvals")
	box := func(k approval.Ticket) string { return fmt.Sprintf("[id='deny.%s']", k.ID) }
	p.do(chromedp.Focus(box(first)), chromedp.KeyEvent(" "), chromedp.KeyEvent(kb.Tab+kb.Tab), chromedp.KeyEvent("not these"))
	third := l.holds(transfer("3.00", "acct-1"))
	p.titled("(3) Approvals · toolgate")
	if _, err := chromedp.Run(p.ctx, chromedp.Poll[bool](fmt.Sprintf("!!document.querySelector(%q)", box(third)), chromedp.WithPollingTimeout(15*time.Second))); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](p, "[...document.querySelectorAll('.card input:checked')].map(e => e.id) + ' ' + document.querySelector('#reason').value"); got != "deny."+first.ID+" not these" {
		t.Errorf("the form has %q", got)
	}
	p.do(chromedp.Focus(box(third)), chromedp.KeyEvent(" "), chromedp.Focus("#several button"))
	p.shot("several")
	p.press("#several button")
	l.is(first.ID, approval.StateDenied)
	l.is(second.ID, approval.StateProposed)
	l.is(third.ID, approval.StateDenied)
}
