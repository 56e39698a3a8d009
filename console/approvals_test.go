package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func held(arguments string) approval.Held {
	sum := sha256.Sum256([]byte(arguments))
	return approval.Held{
		Principal: policy.Principal{Subject: "agent", Roles: []string{"treasurer"}, Client: "bad\x1b[2J/1"},
		Server:    "standard", Tool: "manage_wallet", Exposed: "manage_wallet", Fingerprint: "sha256:f",
		Arguments: []byte(arguments), Digest: "sha256:" + hex.EncodeToString(sum[:]), Revision: "sha256:r",
		Rule: "over_threshold", Reason: "amount above 100",
		Approval:   policy.Approval{Roles: []string{"approver"}, TTL: time.Minute},
		DecisionID: "dec_1", TraceID: "trc_1",
	}
}

func TestOneTicket(t *testing.T) {
	l := newListener(t, nil)
	arguments := "{\"amount\":1e2,\"to\":\"\u202eevil\",\"big\":12345678901234567890}"
	k := l.hold(arguments)
	got := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-ann")...))
	want := map[string]any{
		"id": k.ID, "state": "proposed", "requester": "agent", "requester_roles": []any{"treasurer"}, "client": `bad\u001b[2J/1`,
		"server": "standard", "tool": "manage_wallet", "exposed": "manage_wallet", "fingerprint": "sha256:f", "digest": k.Digest,
		"arguments": map[string]any{"amount": 100.0, "to": "\u202eevil", "big": 12345678901234567890.0}, "argument_bytes": float64(len(arguments)),
		"arguments_text":  `{"amount":1e2,"to":"\u202eevil","big":12345678901234567890}`,
		"policy_revision": "sha256:r", "rule": "over_threshold", "reason": "amount above 100", "roles": []any{"approver"}, "quorum": 1.0,
		"created": "2026-03-01T12:00:00Z", "expires": "2026-03-01T12:01:00Z", "decision_id": "dec_1", "trace_id": "trc_1",
		"attached": 0.0, "may_decide": true, "may_reconcile": false, "approvals": 0.0, "execute_on_approve": false,
		"history": []any{map[string]any{"at": "2026-03-01T12:00:00Z", "who": "agent", "to": "proposed", "reason": "amount above 100", "digest": k.Digest}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if own := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-agent")...)); own["may_decide"] != false {
		t.Error("the requester may decide")
	}
}

// A ticket that one may not see and one that is not there look the same.
func TestHiddenTickets(t *testing.T) {
	l := newListener(t, nil)
	k := l.hold(`{"n":1}`)
	for _, path := range []string{"", "/approve", "/deny"} {
		method := "GET"
		if path != "" {
			method = "POST"
		}
		hidden := l.ask(method, "/v1/approvals/"+k.ID+path, `{"reason":"x"}`, as("t-eve")...)
		absent := l.ask(method, "/v1/approvals/apr_none"+path, `{"reason":"x"}`, as("t-eve")...)
		refused(t, hidden, 404, "NOT_FOUND")
		if hidden.Body.String() != absent.Body.String() {
			t.Errorf("%s: hidden %s, absent %s", path, hidden.Body, absent.Body)
		}
	}
	if got := accepted(t, l.ask("GET", "/v1/approvals", "", as("t-eve")...)); len(got["approvals"].([]any)) != 0 {
		t.Errorf("listed %v", got)
	}
}

func TestListing(t *testing.T) {
	l := newListener(t, nil)
	first, second := l.hold(`{"n":1}`), l.hold(`{"n":2}`)
	large := l.hold(`"` + strings.Repeat("x", approval.ListedArgumentBytes) + `"`)
	l.ask("POST", "/v1/approvals/"+first.ID+"/deny", `{"reason":"no"}`, as("t-ann")...)
	for query, want := range map[string][]string{
		"": {large.ID, second.ID, first.ID}, "?state=denied": {first.ID}, "?limit=1": {large.ID}, "?state=proposed&limit=2": {large.ID, second.ID}, "?state=done": nil,
		"?state=denied,proposed": {large.ID, second.ID, first.ID}, "?state=": {large.ID, second.ID, first.ID}, "?before=" + large.ID: {second.ID, first.ID},
		"?before=" + second.ID + "&limit=1": {first.ID}, "?before=" + first.ID: nil, "?before=apr_none": nil,
	} {
		for _, token := range []string{"t-ann", "t-agent"} {
			var got []string
			for _, k := range accepted(t, l.ask("GET", "/v1/approvals"+query, "", as(token)...))["approvals"].([]any) {
				got = append(got, k.(map[string]any)["id"].(string))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %q (-want +got):\n%s", token, query, diff)
			}
		}
	}
	if text := l.ask("GET", "/v1/approvals?limit=1", "", as("t-ann")...).Body.String(); !strings.Contains(text, "bytes, see the ticket)") {
		t.Errorf("the large arguments are listed as %.200s", text)
	}
	for _, query := range []string{"state=pending", "limit=0", "limit=1001", "limit=x", "requester=agent", "state=done&state=denied", "%zz",
		"state=done,", "state=done,pending", "awaiting=bob", "awaiting=", "awaiting=me&awaiting=me"} {
		refused(t, l.ask("GET", "/v1/approvals?"+query, "", as("t-ann")...), 400, "BAD_REQUEST")
	}
}

// What awaits me is what I may decide and have not.
func TestAwaiting(t *testing.T) {
	l := newListener(t, nil)
	two := held(`{"n":1}`)
	two.Approval.Quorum = 2
	if _, err := l.tickets.Claim(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	own := held(`{"n":2}`)
	own.Principal.Subject = "ann"
	if _, err := l.tickets.Claim(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	first := accepted(t, l.ask("GET", "/v1/approvals?awaiting=me", "", as("t-ann")...))["approvals"].([]any)
	if len(first) != 1 {
		t.Fatalf("ann has %v", first)
	}
	id := first[0].(map[string]any)["id"].(string)
	if got := accepted(t, l.ask("POST", "/v1/approvals/"+id+"/approve", "", as("t-ann")...)); got["state"] != "proposed" || got["approvals"] != 1.0 {
		t.Errorf("after one of two: %v", got)
	}
	for token, want := range map[string]int{"t-ann": 0, "t-bob": 2, "t-agent": 0, "t-eve": 0} {
		if got := accepted(t, l.ask("GET", "/v1/approvals?awaiting=me", "", as(token)...))["approvals"].([]any); len(got) != want {
			t.Errorf("%s has %v, want %d", token, got, want)
		}
	}
}

// A page that is full says how to go on, and going on ends.
func TestPaging(t *testing.T) {
	l := newListener(t, nil)
	for n := range 5 {
		l.hold(fmt.Sprintf(`{"n":%d}`, n))
	}
	seen, query := map[string]bool{}, ""
	for range 5 {
		page := accepted(t, l.ask("GET", "/v1/approvals?limit=2"+query, "", as("t-ann")...))
		for _, k := range page["approvals"].([]any) {
			seen[k.(map[string]any)["id"].(string)] = true
		}
		next, more := page["next"].(string)
		if !more {
			break
		}
		query = "&before=" + next
	}
	if len(seen) != 5 {
		t.Errorf("saw %d of 5", len(seen))
	}
}

// doubt makes a ticket whose outcome is unknown.
func (l *listener) doubt(arguments string) approval.Ticket {
	l.t.Helper()
	k := l.hold(arguments)
	l.ask("POST", "/v1/approvals/"+k.ID+"/approve", "", as("t-bob")...)
	if c, err := l.tickets.Claim(l.t.Context(), held(arguments)); err != nil || c.Outcome != approval.Granted {
		l.t.Fatalf("%q, %v", c.Outcome, err)
	}
	if err := l.tickets.Finish(l.t.Context(), k.ID, approval.StateUnknown, nil, "timeout"); err != nil {
		l.t.Fatal(err)
	}
	return k
}

func TestReconciling(t *testing.T) {
	l := newListener(t, nil)
	for n, outcome := range []string{"done", "failed"} {
		k := l.doubt(fmt.Sprintf(`{"n":%d}`, n))
		if before := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-ann")...)); before["may_reconcile"] != true || before["may_decide"] != false {
			t.Errorf("before: %v", before)
		}
		got := accepted(t, l.ask("POST", "/v1/approvals/"+k.ID+"/reconcile", `{"outcome":"`+outcome+`","reason":"asked the bank"}`, as("t-ann")...))
		if got["state"] != outcome || got["may_reconcile"] != false {
			t.Errorf("%s: %v", outcome, got)
		}
		refused(t, l.ask("POST", "/v1/approvals/"+k.ID+"/reconcile", `{"outcome":"done","reason":"x"}`, as("t-bob")...), 409, "NOT_UNKNOWN")
	}
}

func TestRefusedFindings(t *testing.T) {
	l := newListener(t, nil)
	k, waiting := l.doubt(`{"n":1}`), l.hold(`{"n":2}`)
	for name, tt := range map[string]struct {
		token, id, body string
		status          int
		code            string
	}{
		"one's own call":    {token: "t-self", status: 403, code: "SELF_APPROVAL"},
		"hidden":            {token: "t-eve", status: 404, code: "NOT_FOUND"},
		"absent":            {id: "apr_none", status: 404, code: "NOT_FOUND"},
		"not in doubt":      {id: waiting.ID, status: 409, code: "NOT_UNKNOWN"},
		"no reason":         {body: `{"outcome":"done"}`, status: 422, code: "REASON_REQUIRED"},
		"another state":     {body: `{"outcome":"approved","reason":"x"}`, status: 400, code: "BAD_REQUEST"},
		"no outcome":        {body: `{"reason":"x"}`, status: 400, code: "BAD_REQUEST"},
		"an unknown member": {body: `{"outcome":"done","reason":"x","approver":"bob"}`, status: 400, code: "BAD_REQUEST"},
		"a member twice":    {body: `{"outcome":"failed","outcome":"done","reason":"x"}`, status: 400, code: "BAD_REQUEST"},
		"another case":      {body: `{"Outcome":"done","reason":"x"}`, status: 400, code: "BAD_REQUEST"},
		"nobody":            {token: "t-none", status: 401, code: "UNAUTHENTICATED"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.token == "" {
				tt.token = "t-ann"
			}
			if tt.id == "" {
				tt.id = k.ID
			}
			if tt.body == "" {
				tt.body = `{"outcome":"done","reason":"x"}`
			}
			refused(t, l.ask("POST", "/v1/approvals/"+tt.id+"/reconcile", tt.body, as(tt.token)...), tt.status, tt.code)
		})
	}
	if got, err := l.tickets.Get(t.Context(), k.ID); err != nil || got.State != approval.StateUnknown {
		t.Errorf("the ticket is %s, %v", got.State, err)
	}
}

func TestDeciding(t *testing.T) {
	l := newListener(t, nil)
	approved := l.hold(`{"n":1}`)
	got := accepted(t, l.ask("POST", "/v1/approvals/"+approved.ID+"/approve", `{"reason":"fine","digest":"`+approved.Digest+`"}`, as("t-ann")...))
	if got["state"] != "approved" || got["decided_by"] != "ann" || got["decision_reason"] != "fine" || got["may_decide"] != false || len(got["votes"].([]any)) != 1 {
		t.Errorf("approved: %v", got)
	}
	if c, err := l.tickets.Claim(t.Context(), held(`{"n":1}`)); err != nil || c.Outcome != approval.Granted {
		t.Errorf("%q, %v", c.Outcome, err)
	}
	bare := l.hold(`{"n":2}`)
	if got := accepted(t, l.ask("POST", "/v1/approvals/"+bare.ID+"/approve", "", as("t-ann")...)); got["state"] != "approved" {
		t.Errorf("approved without a body: %v", got)
	}
	denied := l.hold(`{"n":3}`)
	if got := accepted(t, l.ask("POST", "/v1/approvals/"+denied.ID+"/deny", `{"reason":"no"}`, as("t-bob")...)); got["state"] != "denied" {
		t.Errorf("denied: %v", got)
	}
}

func TestRefusedDecisions(t *testing.T) {
	for name, tt := range map[string]struct {
		token, action, body string
		before              func(l *listener, id string)
		header              []string
		status              int
		code                string
	}{
		"one's own call":         {token: "t-self", status: 403, code: "SELF_APPROVAL"},
		"as the requester":       {token: "t-agent", status: 403, code: "SELF_APPROVAL"},
		"no reason to deny":      {action: "deny", status: 422, code: "REASON_REQUIRED"},
		"another digest":         {body: `{"digest":"sha256:0"}`, status: 409, code: "STALE_DIGEST"},
		"after the expiry":       {before: func(l *listener, _ string) { l.advance(time.Hour) }, status: 409, code: "EXPIRED"},
		"decided before":         {before: func(l *listener, id string) { l.ask("POST", "/v1/approvals/"+id+"/approve", "", as("t-bob")...) }, status: 409, code: "NOT_PENDING"},
		"another action":         {action: "grant", status: 404, code: "NOT_FOUND"},
		"a form":                 {header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415, code: "NOT_JSON"},
		"text":                   {header: []string{"Content-Type", "text/plain"}, status: 415, code: "NOT_JSON"},
		"no content type":        {header: []string{"X", "y"}, status: 415, code: "NOT_JSON"},
		"no JSON":                {body: "approve", status: 400, code: "BAD_REQUEST"},
		"a list":                 {body: "[]", status: 400, code: "BAD_REQUEST"},
		"an unknown member":      {body: `{"reason":"x","approver":"bob"}`, status: 400, code: "BAD_REQUEST"},
		"a member twice":         {body: `{"reason":"x","reason":"y"}`, status: 400, code: "BAD_REQUEST"},
		"a member in other case": {body: `{"Digest":"x"}`, status: 400, code: "BAD_REQUEST"},
		"two values":             {body: `{} {}`, status: 400, code: "BAD_REQUEST"},
		"a number":               {body: `{"reason":1}`, status: 400, code: "BAD_REQUEST"},
		"too large":              {body: `{"reason":"` + strings.Repeat("x", 64<<10) + `"}`, status: 413, code: "TOO_LARGE"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, nil)
			k := l.hold(`{"n":1}`)
			if tt.before != nil {
				tt.before(l, k.ID)
			}
			before, err := l.tickets.Get(t.Context(), k.ID)
			if err != nil {
				t.Fatal(err)
			}
			if tt.token == "" {
				tt.token = "t-ann"
			}
			if tt.action == "" {
				tt.action = "approve"
			}
			header := as(tt.token)
			if tt.header != nil {
				header = append(header[:2], tt.header...)
			}
			refused(t, l.ask("POST", "/v1/approvals/"+k.ID+"/"+tt.action, tt.body, header...), tt.status, tt.code)
			if after, err := l.tickets.Get(t.Context(), k.ID); err != nil || after.State != before.State {
				t.Errorf("the ticket is %s, %v", after.State, err)
			}
		})
	}
}

func TestASecondVote(t *testing.T) {
	l := newListener(t, nil)
	h := held(`{"n":1}`)
	h.Approval.Quorum = 2
	c, err := l.tickets.Claim(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/approvals/" + c.Ticket.ID + "/approve"
	if got := accepted(t, l.ask("POST", path, "", as("t-ann")...)); got["state"] != "proposed" {
		t.Errorf("after one of two: %v", got["state"])
	}
	refused(t, l.ask("POST", path, "", as("t-ann")...), 409, "ALREADY_VOTED")
}

// broken fails in every way that a store can.
type broken struct{}

func (broken) List(context.Context, approval.Filter) ([]approval.Ticket, error) {
	return nil, errors.New("disk says no")
}
func (broken) Get(context.Context, string) (approval.Ticket, error) {
	return approval.Ticket{}, errors.New("disk says no")
}
func (broken) Decide(context.Context, approval.Vote) (approval.Ticket, error) {
	return approval.Ticket{}, errors.New("disk says no")
}

func TestABrokenStore(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Approvals = broken{} })
	for _, target := range []string{"GET /v1/approvals", "GET /v1/approvals/x", "POST /v1/approvals/x/approve"} {
		method, path, _ := strings.Cut(target, " ")
		if p := refused(t, l.ask(method, path, "", as("t-ann")...), 500, "INTERNAL_ERROR"); strings.Contains(p.Detail+p.Hint, "disk") {
			t.Errorf("%s: the caller learns %+v", target, p)
		}
	}
}

func TestLongArgumentsAreCut(t *testing.T) {
	l := newListener(t, nil)
	k := l.hold(`"` + strings.Repeat("ü", 64<<10) + `"`)
	got := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-ann")...))
	text := got["arguments_text"].(string)
	if len(text) > 64<<10+100 || !strings.Contains(text, "of 131074 bytes are not shown)") || strings.Contains(text, "\ufffd") {
		t.Errorf("%d bytes, …%s", len(text), text[len(text)-80:])
	}
	if got["arguments"].(string) != strings.Repeat("ü", 64<<10) {
		t.Error("the value itself is cut too")
	}
}
