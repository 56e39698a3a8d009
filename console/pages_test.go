package console_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
)

var (
	cardID   = regexp.MustCompile(`<li class="card" id="([^"]*)"`)
	titled   = regexp.MustCompile(`<title>([^<]*)</title>`)
	digestOf = regexp.MustCompile(`name="digest" value="([^"]*)"`)
)

// cards are the tickets that a page lists.
func (b *browser) cards(target string) (ids []string) {
	b.t.Helper()
	w := b.do("GET", target, nil)
	if w.Code != 200 {
		b.t.Fatalf("%s: %d %s", target, w.Code, w.Body)
	}
	for _, found := range cardID.FindAllStringSubmatch(w.Body.String(), -1) {
		ids = append(ids, found[1])
	}
	return ids
}

// unknown makes a ticket whose call may or may not have run.
func (l *listener) unknown(arguments string) approval.Ticket {
	l.t.Helper()
	return l.ends(arguments, approval.StateUnknown, "it timed out")
}

// ends gives a ticket whose call was approved and ended so.
func (l *listener) ends(arguments string, state approval.State, note string) approval.Ticket {
	l.t.Helper()
	k := l.hold(arguments)
	l.approves(k.ID)
	if c, err := l.tickets.Claim(l.t.Context(), held(arguments)); err != nil || c.Outcome != approval.Granted {
		l.t.Fatalf("%q, %v", c.Outcome, err)
	}
	if err := l.tickets.Finish(l.t.Context(), k.ID, state, nil, note); err != nil {
		l.t.Fatal(err)
	}
	return k
}

func TestInbox(t *testing.T) {
	l := newListener(t, nil)
	denied, voted, approved, unknown, open := l.hold(`{"n":1}`), l.holds(quorum(`{"n":2}`)), l.hold(`{"n":3}`), l.unknown(`{"n":4}`), l.hold(`{"n":5}`)
	l.ask("POST", "/v1/approvals/"+denied.ID+"/deny", `{"reason":"no"}`, as("t-bob")...)
	l.ask("POST", "/v1/approvals/"+voted.ID+"/approve", "", as("t-ann")...)
	l.approves(approved.ID)
	seen := map[string]*browser{}
	for _, tt := range []struct {
		token, view string
		want        []string
	}{
		{"t-ann", "", []string{unknown.ID, open.ID}}, {"t-ann", "?view=mine", []string{unknown.ID, open.ID}},
		{"t-ann", "?view=team", []string{open.ID, approved.ID, voted.ID}}, {"t-ann", "?view=history", []string{unknown.ID, denied.ID}},
		{"t-ann", "?view=history&before=" + unknown.ID, []string{denied.ID}}, {"t-ann", "?view=team&before=apr_none", nil},
		{"t-bob", "", []string{unknown.ID, open.ID, voted.ID}},
		{"t-agent", "", nil}, {"t-agent", "?view=team", []string{open.ID, approved.ID, voted.ID}},
		{"t-self", "", nil}, {"t-eve", "", nil}, {"t-eve", "?view=team", nil}, {"t-eve", "?view=history", nil},
	} {
		b := seen[tt.token]
		if b == nil {
			b = newBrowser(l).signIn(tt.token)
			seen[tt.token] = b
		}
		if diff := cmp.Diff(tt.want, b.cards("/console/approvals"+tt.view)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.token, tt.view, diff)
		}
	}
	ann := seen["t-ann"]
	if got := titled.FindStringSubmatch(ann.do("GET", "/console/approvals?view=history", nil).Body.String()); got[1] != "(1) Approvals · toolgate" {
		t.Errorf("the title is %q", got)
	}
	for _, query := range []string{"?view=all", "?%zz"} {
		if w := ann.do("GET", "/console/approvals"+query, nil); w.Code != 400 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d %v", query, w.Code, w.Header())
		}
	}
}

func quorum(arguments string) approval.Held {
	h := held(arguments)
	h.Approval.Quorum = 2
	return h
}

func TestHistoryHasPages(t *testing.T) {
	l := newListener(t, nil)
	for range 26 {
		k := l.hold(`{"n":1}`)
		l.ask("POST", "/v1/approvals/"+k.ID+"/deny", `{"reason":"no"}`, as("t-bob")...)
		l.advance(time.Hour) // a denial answers until its expiry
	}
	b := newBrowser(l).signIn("t-ann")
	first := b.cards("/console/approvals?view=history")
	older := regexp.MustCompile(`<a href="([^"]*)">Older</a>`).FindStringSubmatch(b.do("GET", "/console/approvals?view=history", nil).Body.String())
	if len(first) != 25 || older == nil {
		t.Fatalf("%d cards, older: %v", len(first), older)
	}
	second := b.cards(strings.ReplaceAll(older[1], "&amp;", "&"))
	if len(second) != 1 || strings.Contains(strings.Join(first, " "), second[0]) {
		t.Errorf("the second page has %v", second)
	}
}

// Pages are for those who are signed in. An open page that fetches itself anew
// gets no other page in its place.
func TestPagesNeedASession(t *testing.T) {
	l := newListener(t, nil)
	k := l.hold(`{"n":1}`)
	signedOut := newBrowser(l)
	for _, path := range []string{"/console/approvals", "/console/approvals/" + k.ID, "/console/approvals/" + k.ID + "/arguments", "/console/events"} {
		w := signedOut.do("GET", path, nil)
		if w.Code != 303 || w.Header().Get("Location") != "/console/login?next="+url.QueryEscape(path) || strings.Contains(w.Body.String(), k.ID+"/vote") {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		if w := signedOut.do("GET", path, nil, "HX-Request", "true"); w.Code != 401 {
			t.Errorf("%s, fetched anew: %d", path, w.Code)
		}
		if w := signedOut.do("GET", path, nil, as("t-ann")...); w.Code != 303 {
			t.Errorf("%s with a bearer token: %d", path, w.Code)
		}
	}
	for _, path := range []string{"/vote", "/reconcile"} {
		if w := signedOut.do("POST", "/console/approvals/"+k.ID+path, url.Values{"vote": {"approve"}, "outcome": {"done"}}); w.Code != 401 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if got, err := l.tickets.Get(t.Context(), k.ID); err != nil || got.State != approval.StateProposed {
		t.Errorf("the ticket is %s, %v", got.State, err)
	}
}

// What one may not see looks like what is not there.
func TestHiddenPages(t *testing.T) {
	l := newListener(t, nil)
	k := l.hold(`{"n":1}`)
	eve := newBrowser(l).signIn("t-eve")
	csrf := eve.form("/console/approvals", "vote", "approve", "outcome", "done", "digest", k.Digest)
	for _, path := range []string{"", "/arguments", "/vote", "/reconcile"} {
		method, form := "GET", url.Values(nil)
		if path == "/vote" || path == "/reconcile" {
			method, form = "POST", csrf
		}
		hidden, absent := eve.do(method, "/console/approvals/"+k.ID+path, form), eve.do(method, "/console/approvals/apr_none"+path, form)
		if hidden.Code != 404 || hidden.Body.String() != absent.Body.String() {
			t.Errorf("%s: %d %s\nabsent: %d %s", path, hidden.Code, hidden.Body, absent.Code, absent.Body)
		}
	}
}

// Whatever an agent, its program or an upstream is called and says, the page
// shows it as text in which everything is to be seen.
func TestHostileTickets(t *testing.T) {
	l := newListener(t, nil)
	nasty := "</code><script>x()</script>\u202e\u200b\x1b"
	h := held(`{"` + "a\u202e<img src=x onerror=x()>" + `":"</td><script>x()</script>` + "\u202e\u200b" + `","b":"<div data-hx-get=/console/logout data-hx-trigger=load>"}`)
	h.Principal.Subject, h.Principal.Client, h.Server, h.Tool, h.Exposed, h.Rule, h.Reason, h.Session = "agent"+nasty, nasty, "s"+nasty, "t"+nasty, "e"+nasty, nasty, nasty, nasty
	h.Principal.Roles, h.Transport, h.Era, h.DecisionID, h.TraceID = []string{nasty}, nasty, nasty, "dec"+nasty, "trc"+nasty
	k := l.holds(h)
	b := newBrowser(l).signIn("t-ann")
	for _, path := range []string{"/console/approvals", "/console/approvals/" + k.ID} {
		page := b.do("GET", path, nil).Body.String()
		if !strings.Contains(page, `\u202e`) {
			t.Errorf("%s does not show what is hidden:\n%s", path, page)
		}
		for _, never := range []string{"<script>", "<img", "<div data-hx-get=/", "\u202e", "\u200b", "\x1b"} {
			if strings.Contains(page, never) {
				t.Errorf("%s has %q:\n%s", path, never, page)
			}
		}
	}
}

func TestTicketPage(t *testing.T) {
	l := newListener(t, nil)
	first := l.holds(transfer("120.00", "acct-1"))
	l.approves(first.ID)
	k := l.holds(transfer("25000.00", "0x9f2c"))
	b := newBrowser(l).signIn("t-ann")
	w := b.do("GET", "/console/approvals/"+k.ID, nil)
	page := strings.ReplaceAll(w.Body.String(), "&#34;", `"`)
	for _, want := range []string{
		"Call <b>manage_wallet</b> of server <b>standard</b> once, for <b>payroll-agent</b>, with exactly this:", "<code>25000.00</code>", `<code>"0x9f2c"</code>`,
		"2 of 5 values differ", "/console/approvals/" + first.ID, `<span class="tag">was</span> <code>120.00</code>`, "transfer_over_threshold", "transfers above 100 USD",
		"payroll-agent</b> (treasurer)", "claude-code/2.4.1", "MCP over HTTP (2025-11-25)", "15 minutes left", k.Digest, k.Fingerprint, k.Revision, "ses_01JD2Z", "dec_1", "trc_1",
		`value="approve"`, `value="deny"`, `name="csrf"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for name, part := range map[string]string{
		"script-src": "script-src 'self'", "connect-src": "connect-src 'self'", "form-action": "form-action 'self'", "frame-ancestors": "frame-ancestors 'none'", "default-src": "default-src 'none'",
	} {
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, part) || strings.Contains(csp, "unsafe") {
			t.Errorf("%s in %q", name, csp)
		}
	}
	bytes := b.do("GET", "/console/approvals/"+k.ID+"/arguments", nil)
	if sum := sha256.Sum256(bytes.Body.Bytes()); "sha256:"+hex.EncodeToString(sum[:]) != k.Digest || !strings.HasPrefix(bytes.Header().Get("Content-Disposition"), "attachment") {
		t.Errorf("%v %s", bytes.Header(), bytes.Body)
	}
	own := newBrowser(l).signIn("t-agent")
	mine := l.hold(`{"n":1}`)
	if page := own.do("GET", "/console/approvals/"+mine.ID, nil).Body.String(); strings.Contains(page, `name="vote"`) || !strings.Contains(page, "your own call") {
		t.Error("the requester is offered a vote")
	}
}

// What is too long for the page is said to be missing, and can be fetched.
func TestNothingIsCutSilently(t *testing.T) {
	l := newListener(t, nil)
	many := l.hold("[" + strings.Repeat("1,", 600) + "2]")
	long := l.hold(`{"text":"` + strings.Repeat("ü", 40<<10) + `end"}`)
	b := newBrowser(l).signIn("t-ann")
	if page := b.do("GET", "/console/approvals/"+many.ID, nil).Body.String(); !strings.Contains(page, "leaves out 101 more values") || strings.Count(page, "<tr") != 502-1 {
		t.Errorf("%d rows", strings.Count(page, "<tr"))
	}
	page := b.do("GET", "/console/approvals/"+long.ID, nil).Body.String()
	if !strings.Contains(page, "40965 characters") || !strings.Contains(page, "16399 of 81934 bytes are not shown here") || strings.Contains(page, "\ufffd") {
		t.Errorf("the long value is shown as %.2000s", page)
	}
}

func TestDifferenceIsForThoseWhoMaySee(t *testing.T) {
	l := newListener(t, nil)
	h := held(`{"n":"secret of others"}`)
	h.Approval.Roles = []string{"treasurer-general"}
	h.Principal.Subject = "another"
	first := l.holds(h)
	general := h.Principal
	general.Subject, general.Roles = "gen", []string{"treasurer-general"}
	if _, err := l.tickets.Decide(t.Context(), approval.Vote{ID: first.ID, Approver: general, Approve: true}); err != nil {
		t.Fatal(err)
	}
	k := l.hold(`{"n":1}`)
	page := newBrowser(l).signIn("t-ann").do("GET", "/console/approvals/"+k.ID, nil).Body.String()
	if strings.Contains(page, "secret") || strings.Contains(page, first.ID) || !strings.Contains(page, "no earlier approved call") {
		t.Errorf("the page says %s", page)
	}
}

func TestVotes(t *testing.T) {
	for name, tt := range map[string]struct {
		token, vote, reason string
		before              func(l *listener, k approval.Ticket)
		change              func(f url.Values)
		status              int
		says                string
		want                approval.State
	}{
		"approve":                 {vote: "approve", status: 303, want: approval.StateApproved},
		"approve, and say why":    {vote: "approve", reason: "invoice 17", status: 303, want: approval.StateApproved},
		"deny":                    {vote: "deny", reason: "wrong recipient", status: 303, want: approval.StateDenied},
		"deny without a reason":   {vote: "deny", status: 422, says: "a reason is needed", want: approval.StateProposed},
		"deny with blanks":        {vote: "deny", reason: "  ", status: 422, want: approval.StateProposed},
		"an older page":           {vote: "approve", change: func(f url.Values) { f.Set("digest", "sha256:0") }, status: 409, says: "other arguments", want: approval.StateProposed},
		"a page without a digest": {vote: "approve", change: func(f url.Values) { f.Del("digest") }, status: 409, says: "other arguments", want: approval.StateProposed},
		"no field of the session": {vote: "approve", change: func(f url.Values) { f.Del("csrf") }, status: 403, want: approval.StateProposed},
		"another's field":         {vote: "approve", change: func(f url.Values) { f.Set("csrf", "x") }, status: 403, want: approval.StateProposed},
		"another word":            {vote: "maybe", status: 400, want: approval.StateProposed},
		"no word":                 {status: 400, want: approval.StateProposed},
		"a field twice":           {vote: "approve", change: func(f url.Values) { f.Add("vote", "deny") }, status: 400, want: approval.StateProposed},
		"after the expiry":        {vote: "approve", before: func(l *listener, _ approval.Ticket) { l.advance(time.Hour) }, status: 409, says: "expired", want: approval.StateExpired},
		"after somebody's denial": {vote: "approve", before: func(l *listener, k approval.Ticket) {
			l.ask("POST", "/v1/approvals/"+k.ID+"/deny", `{"reason":"no"}`, as("t-bob")...)
		}, status: 409, says: "not waiting", want: approval.StateDenied},
		"on one's own call":         {token: "t-agent", vote: "approve", status: 403, says: "nobody decides", want: approval.StateProposed},
		"as requester and approver": {token: "t-self", vote: "approve", status: 403, says: "nobody decides", want: approval.StateProposed},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, nil)
			k := l.hold(`{"n":1}`)
			if tt.token == "" {
				tt.token = "t-ann"
			}
			b := newBrowser(l).signIn(tt.token)
			path := "/console/approvals/" + k.ID
			f := b.form(path, "vote", tt.vote, "reason", tt.reason, "digest", k.Digest)
			if shown := digestOf.FindStringSubmatch(b.do("GET", path, nil).Body.String()); tt.token == "t-ann" && (shown == nil || shown[1] != k.Digest) {
				t.Errorf("the form carries %v", shown)
			}
			if tt.change != nil {
				tt.change(f)
			}
			if tt.before != nil {
				tt.before(l, k)
			}
			w := b.do("POST", path+"/vote", f)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			got, err := l.tickets.Get(t.Context(), k.ID)
			if err != nil || got.State != tt.want {
				t.Errorf("the ticket is %s, %v", got.State, err)
			}
			if tt.status == 303 && (w.Header().Get("Location") != path || got.DecidedBy != "ann" || got.DecisionReason != tt.reason || got.Votes[0].Digest != k.Digest) {
				t.Errorf("%v %+v", w.Header(), got)
			}
			if tt.says != "" && !strings.Contains(w.Body.String(), "Nothing was changed:") {
				t.Errorf("the page does not say that nothing was changed: %s", w.Body)
			}
		})
	}
}

// TestQuorumByRole holds that a ticket says how many approvals it needs and has of
// each role, to programs and on its page.
func TestQuorumByRole(t *testing.T) {
	l := newListener(t, nil)
	h := held(`{"n":1}`)
	h.Approval = policy.Approval{Roles: []string{"approver", "finance"}, Quorum: 3, Each: map[string]int{"approver": 2, "finance": 1}, TTL: time.Minute}
	k := l.holds(h)
	path := "/v1/approvals/" + k.ID
	if got := accepted(t, l.ask("POST", path+"/approve", "", as("t-ann")...)); got["state"] != "proposed" || !cmp.Equal(got["given"], map[string]any{"approver": 1.0}) ||
		!cmp.Equal(got["each"], map[string]any{"approver": 2.0, "finance": 1.0}) {
		t.Errorf("after one vote: %v", got)
	}
	page := newBrowser(l).signIn("t-ann").do("GET", "/console/approvals/"+k.ID, nil).Body.String()
	for _, want := range []string{"1 of 3 approvals, approver 1 of 2, finance 0 of 1", "3: 2 with the role <b>approver</b> and 1 with the role <b>finance</b>, until"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
}

// A refused form gives back what was typed, and one vote is all that one has.
func TestVoteAgain(t *testing.T) {
	l := newListener(t, nil)
	k := l.holds(quorum(`{"n":1}`))
	b := newBrowser(l).signIn("t-ann")
	path := "/console/approvals/" + k.ID
	f := b.form(path, "vote", "approve", "digest", k.Digest)
	if w := b.do("POST", path+"/vote", f); w.Code != 303 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	page := b.do("GET", path, nil).Body.String()
	if strings.Contains(page, `name="vote"`) || !strings.Contains(page, "1 of 2 approvals") || !strings.Contains(page, "You approved it. It waits for others.") {
		t.Errorf("after the first vote: %s", page)
	}
	if w := b.do("POST", path+"/vote", f); w.Code != 409 || !strings.Contains(w.Body.String(), "you have voted") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	other := l.hold(`{"n":2}`)
	w := b.do("POST", "/console/approvals/"+other.ID+"/vote", b.form("/console/approvals/"+other.ID, "vote", "deny", "digest", "sha256:0", "reason", "typed <words>"))
	if w.Code != 409 || !strings.Contains(w.Body.String(), "typed &lt;words&gt;</textarea>") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// stream opens /console/events and gives its lines.
func (b *browser) stream(server *httptest.Server, last string) (<-chan string, *http.Response) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, server.URL+"/console/events", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.AddCookie(&http.Cookie{Name: "__Host-toolgate", Value: b.cookies["__Host-toolgate"]})
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	res, err := server.Client().Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	lines := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(lines)
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			lines <- s.Text()
		}
	}()
	b.t.Cleanup(func() { res.Body.Close(); <-done })
	return lines, res
}

// hears wants the next events of a stream, as "name" or "name id".
func hears(t *testing.T, lines <-chan string, want ...string) (last string) {
	t.Helper()
	var got []string
	var event string
	for len(got) < len(want) {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ends after %v, want %v", got, want)
			}
			if id, ok := strings.CutPrefix(line, "id: "); ok {
				last = id
			}
			if name, ok := strings.CutPrefix(line, "event: "); ok {
				event = name
			}
			if line == "" && event != "" {
				got = append(got, event)
				event = ""
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("heard %v, want %v", got, want)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	return last
}

func TestEvents(t *testing.T) {
	l := newListener(t, nil)
	server := httptest.NewServer(l)
	defer server.Close()
	defer l.Console.Close()
	ann, eve := newBrowser(l).signIn("t-ann"), newBrowser(l).signIn("t-eve")
	lines, res := ann.stream(server, "")
	others, _ := eve.stream(server, "")
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	hears(t, lines, "changed")
	hears(t, others, "changed")
	k := l.holds(quorum(`{"n":1}`))
	last := hears(t, lines, "state-"+k.ID, "changed")
	l.approves(k.ID)
	hears(t, lines, "vote-"+k.ID, "changed")
	l.ask("POST", "/v1/approvals/"+k.ID+"/deny", `{"reason":"no"}`, as("t-ann")...)
	hears(t, lines, "state-"+k.ID, "changed")
	continued, _ := ann.stream(server, last)
	hears(t, continued, "changed", "vote-"+k.ID, "changed", "state-"+k.ID, "changed")
	h := held(`{"n":2}`)
	h.Principal.Subject = "eve"
	own := l.holds(h)
	hears(t, others, "state-"+own.ID, "changed") // and nothing of what came before
	hears(t, lines, "state-"+own.ID, "changed")
	if w := ann.do("POST", "/console/logout", ann.form("/console/approvals")); w.Code != 303 {
		t.Fatalf("signing out: %d", w.Code)
	}
	l.hold(`{"n":3}`)
	if line, open := <-lines; open {
		t.Errorf("the stream of a session that is over goes on: %q", line)
	}
	for _, bad := range []string{"x", "-1"} {
		if _, res := eve.stream(server, bad); res.StatusCode != http.StatusBadRequest {
			t.Errorf("Last-Event-ID %q: %d", bad, res.StatusCode)
		}
	}
}

// silent is a feed in which nothing happens.
type silent struct{}

func (silent) Follow(ctx context.Context, _ int64) iter.Seq2[approval.Event, error] {
	return func(func(approval.Event, error) bool) { <-ctx.Done() }
}

// Who is nobody any more hears no more, although the session has not ended.
func TestStreamsAskWhoListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		l := newListener(t, func(o *console.Options) {
			o.Feed = silent{}
			o.Again = func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error) {
				if gone.Load() {
					return policy.Principal{}, errors.New("no such token any more")
				}
				return again(ctx, p, sum)
			}
		})
		b := newBrowser(l).signIn("t-ann")
		time.AfterFunc(50*time.Second, func() { gone.Store(true) })
		begun := time.Now()
		w := b.do("GET", "/console/events", nil)
		if took := time.Since(begun); took != time.Minute || w.Body.String() != "event: changed\ndata:\n\n"+strings.Repeat(": still here\n\n", 2) {
			t.Errorf("after %v: %q", took, w.Body)
		}
	})
}

// While the keys of an issuer were never fetched, people hear of these and not of the state.
func TestIssuerAway(t *testing.T) {
	l := newListener(t, func(o *console.Options) {
		o.Identify = func(context.Context, string) (policy.Principal, error) {
			return policy.Principal{}, &identity.Refusal{Kind: identity.Unfetched}
		}
	})
	if w := l.ask("GET", "/v1/approvals", "", as("t-ann")...); w.Code != 503 || !strings.Contains(w.Body.String(), "issuer") || strings.Contains(w.Body.String(), "state") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// While nobody can be looked up, people hear that the state is away: nothing counts as a refused
// credential, and sessions stay.
func TestStoreAway(t *testing.T) {
	var away atomic.Bool
	l := newListener(t, func(o *console.Options) {
		o.Identify = func(ctx context.Context, bearer string) (policy.Principal, error) {
			if away.Load() {
				return policy.Principal{}, fmt.Errorf("reading: %w", store.ErrAway)
			}
			return identify(ctx, bearer)
		}
		o.Again = func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error) {
			if away.Load() {
				return policy.Principal{}, store.ErrAway
			}
			return again(ctx, p, sum)
		}
	})
	b := newBrowser(l).signIn("t-ann")
	away.Store(true)
	for range 30 { // more than the throttle lets through
		if w := l.ask("GET", "/v1/approvals", "", as("t-ann")...); w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "STORE_UNAVAILABLE") {
			t.Fatalf("the interface: %d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	if w := b.do("GET", "/console/approvals", nil); w.Code != 503 {
		t.Errorf("a page: %d", w.Code)
	}
	away.Store(false)
	if w := b.do("GET", "/console/approvals", nil); w.Code != 200 {
		t.Errorf("the session afterwards: %d", w.Code)
	}
	if w := l.ask("GET", "/v1/approvals", "", as("t-ann")...); w.Code != 200 {
		t.Errorf("the token afterwards: %d %s", w.Code, w.Body)
	}
}

// The scripts are those that docs/evidence/dependencies.md names, and the pages stay
// small: a template has at most 300 lines, scripts of our own 1000 together.
func TestWhatPagesLoad(t *testing.T) {
	l := newListener(t, nil)
	page := newBrowser(l).signIn("t-ann").do("GET", "/console/approvals", nil).Body.String()
	list, err := os.ReadFile("../docs/evidence/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, vendored := range map[string]bool{"htmx-4.0.1.js": true, "hx-sse-4.0.1.js": true, "console.js": false} {
		w := l.ask("GET", "/console/"+name, "")
		sum := sha256.Sum256(w.Body.Bytes())
		if !strings.Contains(page, `<script src="/console/`+name+`"></script>`) || w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/javascript") {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		if vendored && !strings.Contains(string(list), hex.EncodeToString(sum[:])) {
			t.Errorf("docs/evidence/dependencies.md does not have %s with %x", name, sum)
		}
	}
	templates, err := filepath.Glob("*.templ")
	shared, failed := filepath.Glob("*/*.templ")
	if err != nil || failed != nil || len(templates) < 5 || len(shared) < 3 {
		t.Fatalf("%v, %v, %v, %v", templates, shared, err, failed)
	}
	for _, name := range append(append(templates, shared...), "console.js") {
		text, err := os.ReadFile(name)
		if n := strings.Count(string(text), "\n"); err != nil || n > 300 {
			t.Errorf("%s has %d lines, %v", name, n, err)
		}
	}
}
